"""Where two results of one campaign differ: what its pack says, and what its logs say."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

from llmb_run.acceptance.outcome import headline

_WORKLOAD = (
    *("title", "prescreen", "gpus", "verdict", "indication", "required", "step_seconds", "performance"),
    *("performance_low", "performance_high", "performance_limit", "confidence"),
)
_REFERENCE = ("kind", "seconds", "software", "source", "same_software")
_RUN = ("run", "run_id", "state", "step_seconds")
_PATH = re.compile(r"(?:/[^\s/:]+)+/")


def without_paths(text: str) -> str:
    """``text`` without the folders of its files: a pack is judged in another place."""
    return _PATH.sub("", text)


def differences(said: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Sentences. ``said`` is ``campaign/verdicts.json``, which may have any shape, ``found`` what its logs say."""
    if said["outcome"] != found["outcome"] or said["accepted"] != found["accepted"]:
        yield f"campaign/verdicts.json says {headline({**said})}, its logs say {headline({**found})}: {found['why']}"
    elif found["outcome"] in ("accepted", "not judged"):
        yield from _of("campaign/verdicts.json", ("indication", "why"), said, found)
    for old, new in _pairs(said["workloads"], found["workloads"]):
        yield from _of_workload(new.get("title") or old.get("title") or "a workload", old, new)


def _of_workload(title: str, said: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    yield from _of(title, _WORKLOAD, said, found)
    if found.get("verdict") == "pass":  # what else is in it names files, and what a log says
        yield from _of(title, ("text",), said, found)
    yield from _of(f"{title}, reference", _REFERENCE, said.get("reference") or {}, found.get("reference") or {})
    for old, new in _pairs(said.get("runs", ()), found.get("runs", ())):
        yield from _of_run(f"{title}, run {new.get('run', old.get('run'))}", old, new)
    reruns = [[rerun["run"] for rerun in item.get("reruns", ())] for item in (said, found)]
    if reruns[0] != reruns[1]:
        yield f"{title}: it says that runs {reruns[0]} are reruns, its logs say {reruns[1]}"


def _of_run(title: str, said: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    yield from _of(title, _RUN, said, found)
    for name in ("fault", "failure"):
        if bool(said.get(name)) != bool(found.get(name)):
            yield f"{title}: {name}: it says {_shown(said.get(name))}, its logs say {_shown(found.get(name))}"
    untold = set(_problems(found)) - set(_problems(said))
    yield from (f"{title}: it does not say: {text}" for text in sorted(untold))


def _problems(run: Mapping[str, Any]) -> Iterator[str]:
    """What the run's nodes and its log have against it."""
    result = run.get("result") or {}
    yield from (without_paths(text) for text in result.get("notices", ()))
    yield from (item["text"] for item in result.get("findings", ()) if item["severity"] == "problem")


def _pairs(said: Iterable[Any], found: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    nothing: dict[str, Any] = {}
    return zip_longest(said, found, fillvalue=nothing)


def _of(title: str, names: tuple[str, ...], said: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    for name in names:
        old, new = said.get(name), found.get(name)
        if not _same(old, new):
            yield f"{title}: {name.replace('_', ' ')}: it says {_shown(old)}, its logs say {_shown(new)}"


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=1e-9)
    return bool(old == new)


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "nothing"
    return f"{value:.6g}" if isinstance(value, float) else without_paths(str(value))[:200]
