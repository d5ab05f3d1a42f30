"""Which tests run one after the other in one process, and which may run beside them.

``tests/run`` starts several pytest workers (pytest-xdist). A group is what one worker runs from its first test to its
last; a free worker takes the next group. Each worker that needs a cluster starts its own, in a folder and on ports of
its own, and so does each worker that needs a warm training engine: hence few groups for them.

A file is a group, so that its module's fixtures are made once, except where the tables below say otherwise.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path, PurePath

import pytest

TOGETHER = {
    # Their clusters keep accounts, which takes 7 s to start.
    "test_lifecycle": "lifecycle",
    "test_lifecycle_crashes": "lifecycle",
    "test_old_arrays_on_slurm": "cluster",
    "test_repeats": "cluster",
    "test_cluster_itself": "cluster",
    "test_doctor": "cluster",
    # The engine of the next release of Megatron-Bridge has a warm process of its own.
    "test_reduced_functions": "functions",
    "test_catalogue": "functions",
    "test_function_lengths": "functions",
    "test_functions_launched": "functions",
    "test_launched_functions": "functions",
    "test_validation": "functions",
    "test_other_engine": "functions",
    "test_newer_release": "functions",
}
"""File to the group that it shares with others."""

FOLDERS = {
    # They show what a person sees, and when; one Chromium serves all pages.
    "terminal": "terminal",
    "browser": "browser",
    # One process that has imported Megatron serves them all (tests/training/warm_engine.py).
    "training": "training",
}
"""Folder to the group of all its files, those in ``ALONE`` excepted."""

ALONE = frozenset({"test_launched_smoke"})
"""Files of such folders that need nothing of what the others share."""

SPREAD = frozenset({"test_run_crashes", "test_linters", "test_pythons"})
"""Files whose tests share nothing and take long: each test is a group."""

FIRST = (
    "lifecycle",
    "cluster",
    "test_pythons",
    "test_crashes",
    # Its runs have time limits: it computes 11 of its 156 s.
    "test_series",
    "terminal",
    "browser",
    "test_scripted",
    "test_llmb_run",
    # Of the unit tests the one that waits most.
    "test_supervise",
    # In a fresh clone the first training engine is there by now. Who comes earlier only waits for it.
    "training",
    # They wait for Slurm, beside the training, which computes.
    "test_time_limit",
    "test_why",
    "test_health_of_nodes",
    "test_executors_local",
    "test_health_looks",
    "test_launch_on_slurm",
    "test_run_crashes",
    "test_supervise_clock",
    # And here the second one.
    "functions",
    "test_launched_smoke",
    "test_quickstart",
)
"""Groups, or files of ``SPREAD``. What starts first, the longest first, those that wait beside those that compute; the
others follow."""


def group_of(nodeid: str) -> str:
    """The group of the test ``folder/file.py::test``."""
    group = _group_of_file(_file_of(nodeid))
    return nodeid if group in SPREAD else group


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@cache
def _group_of_file(file: str) -> str:
    """The group of a file's tests; of one of ``SPREAD`` its name."""
    path = PurePath(file)
    if path.stem in TOGETHER:
        return TOGETHER[path.stem]
    if path.parent.name in FOLDERS and path.stem not in ALONE:
        return FOLDERS[path.parent.name]
    return path.stem


def arrange(items: list[pytest.Item]) -> None:
    """Sort ``items`` so that the groups start in the order of ``FIRST``."""
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(_group_of_file(_file_of(item.nodeid)), len(places)))


def _by_file(items: list[pytest.Item]) -> dict[Path, list[pytest.Item]]:
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    return files


def shuffle(items: list[pytest.Item], seed: str) -> None:
    """Files in another order, and the tests of each."""
    order, files = random.Random(seed), list(_by_file(items).values())
    order.shuffle(files)
    for tests in files:
        order.shuffle(tests)
    items[:] = [item for tests in files for item in tests]
