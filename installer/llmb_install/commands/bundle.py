"""``llmb-install bundle``: everything that an installation fetches, in one folder, for machines without a network."""

from __future__ import annotations

import argparse
import hashlib
import itertools
import platform
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

import llmb_common
from llmb_common.base.cluster_types import SLURM
from llmb_common.base.engines import DEFAULT_ENGINE
from llmb_common.base.errors import EnvironmentLacks, RequestError
from llmb_common.base.files import sha256_of, user_path
from llmb_common.base.outcome import Result
from llmb_common.base.printable import size
from llmb_install.answers.answers import load_recipes, stored_answers
from llmb_install.answers.given import expand_workloads
from llmb_install.answers.questions import Answers
from llmb_install.installation import Installation
from llmb_install.parts import bundles
from llmb_install.parts.engine import KINDS, MINIMUM_GLIBC, python_for
from llmb_install.parts.environment_build import (
    child_environment,
    further_indexes,
    lock_requirements,
    unavailable_error,
)
from llmb_install.parts.fetching import lock_hashes
from llmb_install.parts.image import Image
from llmb_install.parts.package_index import Sources
from llmb_install.parts.pip_settings import read_index_settings
from llmb_install.parts.refusals import OTHER_INDEX, Unavailable
from llmb_install.parts.uv import TOOL_MINIMUM, as_text, is_tool_python, running_version, version_of
from llmb_install.parts.uv import Version as Python
from llmb_install.working.artefact import read_receipt
from llmb_install.working.reporter import Reporter
from llmb_install.working.scratch import sweep, write, write_record
from llmb_install.working.transaction import install_lock

_TOOL_LOCKS = ("uv.txt", "tool.txt", "charts.txt", "hub.txt")
# What the oldest glibc can run is preferred: it serves all others, too. The names that wheels had before.
_EARLIER = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


_ANYWHERE = Answers(
    schema=1,
    install_path="/nonexistent",
    cluster_type=SLURM,
    gpu_type="h100",
    workloads=(),
    arch="x86_64",
    install_method="local",
    runtime="pyxis",
    env_type="venv",
)
"""Any cluster with containers."""


class Target(NamedTuple):
    """A kind of machine that a bundle serves, whatever its GPUs: its CPU architecture and its Python.

    ``bundle`` makes one for each pair of the two. Nothing is checked.
    """

    machine: str
    """The CPU architecture: ``x86_64`` or ``aarch64``."""
    python: Python
    """The version of Python as (3, minor)."""


def bundle(options: argparse.Namespace, clone: Path, path: Path) -> Result:
    """Run the command ``bundle``: write packages and images into the folder ``--to``, or finish an earlier attempt.

    ``path`` is the installation's folder, which need not exist; ``clone`` has recipes and lock files. Packages in
    ``--to`` that are not for the machines, Pythons and engines asked for now are removed. ``SHA256SUMS`` is removed
    at the beginning and written last, so that an unfinished bundle has none; what was fetched before an error stays
    for the next attempt. The result's data has the folder as ``bundle``, and what it is for: lists of ``platforms``,
    ``pythons`` (``3.12``), ``engines`` (releases) and ``images`` (sources), LLMB's release as ``llmb``, the
    fingerprint of the lock files as ``locks``, and ``schema``, 1. ``options`` is the parsed command line. Holds the
    folder's lock meanwhile.

    Raises:
        RequestError: the folder holds files that are no bundle's, or an option is wrong
        EnvironmentLacks: a package or an image cannot be had, or another installer is at work in the folder
        ConfigError: the installation's answer file is damaged
        RecipeError: a recipe is wrong
        RecordError: a file cannot be written
        OSError: the folder cannot be read or changed
    """
    folder = user_path(options.to, f"--to {options.to}")
    _require_bundle_folder(folder)
    releases, images = _wanted_content(options, clone, path, folder)
    machines_and_pythons = itertools.product(_machines(options), _pythons(options, releases))
    targets = [Target(machine, python) for machine, python in machines_and_pythons]
    pythons = sorted({target.python for target in targets})
    with Reporter(folder / ".llmb" / "logs", verbose=options.verbose) as reporter, install_lock(folder, reporter):
        (folder / bundles.SUMS).unlink(missing_ok=True)
        sweep(folder)
        sums = _fetch_wheels(clone, folder / "wheels", targets, releases, reporter)
        for image in images:
            sums |= _fetch_image(image, folder, reporter)
        about: dict[str, Any] = {
            "schema": 1,
            "llmb": llmb_common.__version__,
            "locks": bundles.locks_fingerprint(clone),
            "platforms": sorted({target.machine for target in targets}),
            "pythons": [as_text(python) for python in pythons],
            "engines": releases,
            "images": [image.source for image in images],
        }
        write_record(folder, folder / bundles.ABOUT, about)
        sums[bundles.ABOUT] = sha256_of(folder / bundles.ABOUT)
        lines = [f"{value}  {name}\n" for name, value in sorted(sums.items())]
        write(folder, folder / bundles.SUMS, "".join(lines))
    total = size(sum((folder / name).stat().st_size for name in sums))
    purpose = f"for {', '.join(about['platforms'])} with Python {', '.join(about['pythons'])}"
    text = f"{folder}: {len(sums)} files, {total}, {purpose}"
    remarks = [f"copy it and this clone, then there: ./installer.py --from {folder.name} ..."]
    return Result({"bundle": str(folder), **about}, f"{text}\n", remarks=remarks)


def _require_bundle_folder(folder: Path) -> None:
    """Raise unless ``folder`` is missing, empty, or holds nothing but a bundle that was begun.

    Raises:
        RequestError: it holds other files
        OSError: the folder cannot be read
    """
    present = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    foreign = present - {*_PARTS, bundles.SUMS}
    # What lies in wheels/ and is of no lock is removed: only where a bundle was begun.
    begun = present & {".llmb", bundles.SUMS}
    if foreign or (present and not begun):
        raise RequestError(f"{folder} holds other files than a bundle's", remedy="give --to a new or empty folder")


def _fetch_image(image: Image, folder: Path, reporter: Reporter) -> dict[str, str]:
    """Fetch ``image``, which is to lie in ``folder``; return the SHA-256 of it and of its receipt by their paths there.

    Raises:
        EnvironmentLacks: the image cannot be had
        RecordError: a file cannot be written
        OSError: the folder cannot be read or changed
    """
    image.path.parent.mkdir(parents=True, exist_ok=True)
    image.ensure(reporter)
    receipt = image.receipt_path()
    recorded = read_receipt(receipt) or {}
    return {
        str(image.path.relative_to(folder)): str(recorded["sha256"]),
        str(receipt.relative_to(folder)): sha256_of(receipt),
    }


_PARTS = (".llmb", bundles.ABOUT, "wheels", "images")


def _wanted_content(
    options: argparse.Namespace, clone: Path, path: Path, folder: Path
) -> tuple[list[str], list[Image]]:
    """Return what the bundle ``folder`` is to have: releases with a CPU engine, sorted, and images with paths in it.

    They are those of the workloads asked for, else of the installation in ``path``; without either, the default
    release, which is always among them, and no image. Images are for the architectures of ``--platform``, else that
    of the nodes of an installation with images, else this machine's; one for several architectures is there once for
    each. One that is installed here is copied from there. No images with ``--no-images``. Writes nothing. ``options``
    is the parsed command line, ``clone`` has the recipes; neither ``path`` nor ``folder`` need exist.

    Raises:
        EnvironmentLacks: an image is not installed here and cannot be imported without Enroot, or there is no recipe
        RequestError: a workload is unknown
        ConfigError: the installation's answer file is damaged
        RecipeError: a recipe is wrong
        OSError: the installation's, an image's or a recipe's folder may not be looked at
    """
    stored = stored_answers(path)
    answers = stored or _ANYWHERE
    if options.workloads:
        names = expand_workloads(options.workloads, load_recipes(clone))
        answers = replace(answers if answers.uses_images else _ANYWHERE, workloads=tuple(names))
    releases = {DEFAULT_ENGINE, *Installation(clone, answers).releases()}
    images = []
    for machine in [stored.arch] if stored and stored.uses_images and not options.platform else _machines(options):
        for own in Installation(clone, replace(answers, arch=machine)).images():
            own_file = own.path if own.is_complete() else None
            target = bundles.image_path(folder, machine, own.source)
            image = replace(own, path=target, receipts=folder / ".llmb" / "receipts", origin=own_file)
            if not (own_file or own.prefix or image.is_complete() or shutil.which("enroot") or options.no_images):
                raise EnvironmentLacks(
                    f"{own.source} for {machine} is not installed here, and Enroot, which imports it, is not on PATH",
                    remedy="make the bundle where Enroot is, or of an installation that has the image "
                    "(--install-path), or leave images out: --no-images",
                )
            images.append(image)
    return sorted(releases & KINDS.keys()), [] if options.no_images else images


def _machines(options: argparse.Namespace) -> list[str]:
    """Return the CPU architectures that a bundle is for, such as ``x86_64``: ``--platform``, else this machine's.

    Those of ``--platform`` are as given, in that order, repeated ones too; the list is never empty. ``options`` is
    the parsed command line.
    """
    return options.platform or [platform.machine()]


def _pythons(options: argparse.Namespace, releases: list[str]) -> list[Python]:
    """Return the versions of Python, as (3, minor), that a bundle is for: those of ``--python``, else those used here.

    Those of ``--python`` are in the order given, repeated ones too. Those used here are the Python that runs this and
    those that CPU engines of ``releases`` get on this machine, each once, sorted. ``options`` is the parsed command
    line.

    Raises:
        RequestError: ``--python`` names no version such as 3.12, or one before 3.10, which is too old for LLMB
        KeyError: the installer has no CPU engine of one of ``releases``
    """
    if options.python:
        if wrong := [text for text in options.python if not re.fullmatch(r"3\.\d{1,3}", text)]:
            raise RequestError(
                f"--python {wrong[0]} is not a version such as 3.12", remedy="give major and minor alone"
            )
        versions = [(3, int(text.partition(".")[2])) for text in options.python]
        if old := [version for version in versions if not is_tool_python(version)]:
            raise RequestError(
                f"--python {as_text(old[0])}: LLMB needs Python {as_text(TOOL_MINIMUM)} or newer",
                remedy="name a newer one",
            )
        return versions
    found = [version_of(python) for python in map(python_for, releases) if python]
    return sorted({running_version(), *(version for version in found if version)})


def _fetch_wheels(
    clone: Path, folder: Path, targets: list[Target], releases: list[str], reporter: Reporter
) -> dict[str, str]:
    """Fetch all packages that the lock files name for ``targets``; return the SHA-256 of each by ``wheels/NAME``.

    The lock files are those in ``clone`` of the tool and of the CPU engines of ``releases``. ``folder``, the bundle's
    ``wheels``, gets the packages, and is made. A package that is there already, with a hash of the lock file, is not
    fetched again, and is among those returned; all files in it that none of ``targets`` needs are removed at the end.
    After an error all that is there stays. ``reporter`` shows the progress.

    Raises:
        EnvironmentLacks: a package cannot be had
        RecordError: a package cannot be written
        OSError: the folder cannot be read or changed, or a lock file cannot be read
        KeyError: the installer has no CPU engine of one of ``releases``
    """
    folder.mkdir(parents=True, exist_ok=True)
    index_settings = read_index_settings(child_environment())
    sources = Sources(index_settings)
    present = {path.name: sha256_of(path) for path in folder.iterdir() if path.is_file()}
    wanted: set[str] = set()
    with reporter.step("packages") as step:
        for lock, target, newer in _target_locks(clone, targets, releases):
            text = lock.read_text(encoding="utf-8")
            locked = lock_hashes(text)
            for requirement in _requirements(text, target):
                package = requirement.name
                fits = target._replace(python=newer.get(requirement.name, target.python))
                more = further_indexes(package, index_settings)
                known = [name for name in present if present[name] in locked and name.endswith(".whl")]
                try:
                    name = _best_file(known, requirement, fits)
                    if name is None:
                        name = _best_file([link.name for link in sources.links(package, more=more)], requirement, fits)
                    if name is None:
                        raise Unavailable("the package index has no such file", OTHER_INDEX, absent=True)
                    # A file that was cut off or changed is fetched again.
                    if present.get(name) not in locked:
                        step.update(f"{len(wanted) + 1}: {name}")
                        content = sources.fetch(package, name.__eq__, locked, more)
                        write(folder.parent, folder / name, content)
                        present[name] = hashlib.sha256(content).hexdigest()
                except Unavailable as problem:
                    what = f"{requirement} for Python {as_text(target.python)} on {target.machine} cannot be had"
                    raise unavailable_error(what, problem) from problem
                wanted.add(name)
        step.update(f"{len(wanted)} files")
    for stale in present.keys() - wanted:
        (folder / stale).unlink()
    return {f"wheels/{name}": present[name] for name in wanted}


def _target_locks(
    clone: Path, targets: list[Target], releases: list[str]
) -> Iterator[tuple[Path, Target, dict[str, Python]]]:
    """Yield each lock file, a target that it is for, and the packages taken as if for another version of Python.

    Lock files are paths in ``clone``: those of the tool and of the CPU engines of ``releases``. The packages are a
    dictionary from name to that version, such as (3, 12); it is empty for the tool's own locks. The lock of an engine
    that does not run on a target's Python is left out. A lock file comes once for each of ``targets`` that it is for,
    target by target.

    Raises:
        KeyError: the installer has no CPU engine of one of ``releases``
    """
    locks = clone / "installer" / "locks"
    for target in targets:
        for name in _TOOL_LOCKS:
            yield locks / name, target, {}
        for kind in (KINDS[release] for release in releases):
            if kind.pythons[0] <= target.python <= kind.pythons[1]:
                yield locks / f"{kind.name}.txt", target, dict.fromkeys(kind.of_newer_python, (3, 12))


def _requirements(text: str, target: Target) -> Iterator[Requirement]:
    """Yield the pinned requirements in a lock file's ``text`` that hold for the ``target``'s machine and Python.

    They are in the file's order; markers are evaluated for Linux.
    """
    version = as_text(target.python)
    environment = {
        **{"python_version": version, "python_full_version": f"{version}.0", "platform_machine": target.machine},
        **{"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"},
    }
    for requirement in map(Requirement, lock_requirements(text)):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            yield requirement


def _best_file(names: Iterable[str], requirement: Requirement, target: Target) -> str | None:
    """Return which file of ``names`` best suits the pinned ``requirement`` on ``target``; None: none suits.

    ``names`` are file names. The wheel with the earliest of the tags of ``_wheel_tags`` wins, of equal ones the
    first. A source archive is taken only where no file is a wheel of that version, for whichever machine; names of
    another package, version or form are skipped. ``requirement`` has one version, behind ``==``.
    """
    (pin,) = requirement.specifier
    wanted = (canonicalize_name(requirement.name), Version(pin.version))
    ranks = {tag: rank for rank, tag in enumerate(_wheel_tags(target))}
    found: dict[str, int] = {}
    sources: list[str] = []
    for name in names:
        try:
            if name.endswith(".whl"):
                package, version, _, tags = parse_wheel_filename(name)
                if (package, version) == wanted:
                    own_ranks = [ranks[tag] for tag in tags if tag in ranks]
                    found[name] = min(own_ranks, default=len(ranks))
            elif parse_sdist_filename(name) == wanted:
                sources.append(name)
        except (InvalidWheelFilename, InvalidSdistFilename):  # noqa: PERF203
            continue
    if not found:
        return next(iter(sources), None)
    best = min(found, key=lambda name: found[name])
    return best if found[best] < len(ranks) else None


def _wheel_tags(target: Target) -> Iterable[Tag]:
    """Yield the wheel tags that the ``target`` takes, the best first: of those for its Python the oldest glibc first.

    Tags that any Python 3 takes come after those. None needs a newer glibc than 2.28.
    """
    platforms = []
    for minor in range(5, MINIMUM_GLIBC[1] + 1):
        platforms += [f"{_EARLIER[minor]}_{target.machine}"] if minor in _EARLIER else []
        platforms.append(f"manylinux_2_{minor}_{target.machine}")
    interpreter = f"cp{target.python[0]}{target.python[1]}"
    yield from cpython_tags(target.python, [interpreter], platforms)
    yield from compatible_tags(target.python, interpreter, platforms)
