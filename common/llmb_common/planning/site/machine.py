"""What this machine has: GPUs by ``nvidia-smi``, nsys, a Slurm client."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

from llmb_common.base import gpus
from llmb_common.base.cluster_types import LOCAL, SLURM, ClusterType, Traits, all_traits, import_named, traits_of
from llmb_common.base.processes import run_program
from llmb_common.planning.request.read import Request
from llmb_common.planning.site.cluster import ClusterConfig

NEWEST = (9999, 0)
"""A release that has everything."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine that a plan is for: its cluster type, GPUs and programs.

    ``gpu_type`` None: no GPU was looked for or found. ``release``: of the scheduler's program, if there is one to ask.
    """

    cluster_type: ClusterType
    gpu_type: str | None = None
    gpus: int = 0
    has_nsys: bool = False
    release: tuple[int, int] = NEWEST
    mpi_types: Callable[[], tuple[str, ...]] = field(default=tuple, compare=False)
    """Asks how the scheduler can start ranks (``none``, ``pmix``), for plans that need to know; nothing where nobody
    says."""

    @property
    def traits(self) -> Traits:
        """What this machine's way of running jobs can do."""
        return traits_of(self.cluster_type)


_SECONDS = 20.0


def gpu_names() -> list[str]:
    """Product names of this machine's GPUs by nvidia-smi, one for each GPU; empty where it is missing or fails."""
    if shutil.which("nvidia-smi") is None:
        return []
    answer = run_program(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], _SECONDS)
    return answer.output.split("\n")[:-1] if answer.ok else []


_known_gpus: dict[tuple[str, int], list[str]] = {}
"""What ``gpu_names`` found, by the program that was asked and its time in nanoseconds."""


def _gpus_for_plans() -> list[str]:
    """As ``gpu_names``, asked once for many plans: nvidia-smi may take seconds.

    Asked again where it found none, or was replaced.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    known = (program, Path(program).stat().st_mtime_ns)
    if not _known_gpus.get(known):
        _known_gpus[known] = gpu_names()
    return _known_gpus[known]


def detect_cluster_type() -> ClusterType:
    """How jobs run where nobody says: by the scheduler whose program is on PATH, else on this machine."""
    return next(
        (way.name for way in all_traits().values() if way.submits_with and shutil.which(way.submits_with)), LOCAL
    )


def detect_machine(cluster: ClusterConfig, request: Request) -> Machine:
    """The facts of the machine that planning needs; asks nvidia-smi or the scheduler's program for its release.

    A dry run for GPUs plans for a scheduler even where there is none.
    """
    wanted = request.cluster_type or cluster.cluster_type
    if wanted is None:
        wanted = detect_cluster_type()
        if request.dry_run and traits_of(wanted).this_machine:
            large = request.gpu_type not in (None, "cpu") and (request.gpus or 0) > 0
            named_by_request = (
                way.name for way in all_traits().values() if not way.variables.keys().isdisjoint(request.scheduler)
            )
            wanted = next(named_by_request, SLURM if large else wanted)
    traits = traits_of(wanted)
    if not traits.this_machine:
        program = shutil.which(traits.submits_with)
        if program is None:
            return Machine(cluster_type=wanted)
        mpi_types = partial(_mpi_types, traits) if traits.mpi_types else tuple
        return Machine(cluster_type=wanted, release=_release(program), mpi_types=mpi_types)
    if request.gpu_type == "cpu" or cluster.gpu_type == "cpu":
        return Machine(cluster_type=wanted, gpu_type="cpu", has_nsys=shutil.which("nsys") is not None)
    names = _gpus_for_plans()
    return Machine(
        cluster_type=wanted,
        gpu_type=gpus.type_of(names[0]) if names else "cpu",
        gpus=len(names),
        has_nsys=shutil.which("nsys") is not None,
    )


def _mpi_types(traits: Traits) -> tuple[str, ...]:
    """The kinds of MPI (``none``, ``pmix``) that this machine's scheduler can start ranks with."""
    found: tuple[str, ...] = import_named(traits.mpi_types)()
    return found


def _release(program: str) -> tuple[int, int]:
    """The first two numbers of the release that ``program --version`` says; (0, 0): it says none or is not there.

    ``program`` is a path: it is not looked for in PATH.
    """
    try:
        return _query_release(program, Path(program).stat().st_mtime_ns)
    except OSError:
        return 0, 0


@lru_cache(maxsize=4)
def _query_release(program: str, changed: int) -> tuple[int, int]:
    """The release that ``program --version`` says; (0, 0): none. Asked once for many plans.

    ``changed``: the program's time in nanoseconds, as another release may replace it meanwhile.
    """
    found = re.search(r"([0-9]+)\.([0-9]+)", run_program([program, "--version"], _SECONDS).output)
    return (int(found[1]), int(found[2])) if found else (0, 0)
