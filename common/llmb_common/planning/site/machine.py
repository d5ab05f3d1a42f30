"""What this machine has: GPUs by ``nvidia-smi``, nsys, a Slurm client."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from llmb_common.base import gpus
from llmb_common.base.cluster_types import LOCAL, SLURM, ClusterType, Traits, all_traits, import_named, traits_of
from llmb_common.base.programs import run_program
from llmb_common.planning.request.read import Request
from llmb_common.planning.site.cluster import ClusterConfig

NEWEST = (9999, 0)
"""A release that has everything."""


class Machine(NamedTuple):
    """The machine that a plan is for: its way of running jobs, its GPUs and its programs.

    ``detect_machine`` makes it. The property ``traits`` says what its way of running jobs can do (ValueError: there
    is no such way).
    """

    cluster_type: ClusterType
    gpu_type: str | None = None
    """Of this machine's GPUs; ``cpu``: it has none, or they are not asked for; None: not looked for, or no recipe knows
    them."""
    gpus: int = 0
    """Number of this machine's GPUs; 0 where they were not looked for."""
    has_nsys: bool = False
    """Whether nsys is on PATH here; False, too, where a scheduler runs jobs, as it is not looked for then."""
    release: tuple[int, int] = NEWEST
    """First two numbers of the release of the scheduler's program; (0, 0): it does not say; ``NEWEST``: there is none
    to ask."""
    mpi_types: Callable[[], tuple[str, ...]] = tuple
    """Called without arguments, it asks how the scheduler can start ranks (``none``, ``pmix``), for plans that need
    to know; an empty answer: nobody says."""

    @property
    def traits(self) -> Traits:
        """What this machine's way of running jobs can do.

        Raises:
            ValueError: there is no such way
        """
        return traits_of(self.cluster_type)


_SECONDS = 20.0


def gpu_names() -> list[str]:
    """Return the product name of each of this machine's GPUs (``NVIDIA H100 80GB HBM3``), in nvidia-smi's order.

    Equal GPUs are each there. Empty where nvidia-smi is missing, fails or does not answer within 20 seconds. It is
    asked anew with each call.
    """
    if shutil.which("nvidia-smi") is None:
        return []
    answer = run_program(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], _SECONDS)
    return answer.output.split("\n")[:-1] if answer.ok else []


_known_gpus: dict[tuple[str, int], list[str]] = {}
"""What ``gpu_names`` found, by the program that was asked and its time in nanoseconds."""


def _gpus_for_plans() -> list[str]:
    """Return the product names of this machine's GPUs in nvidia-smi's order, which it is asked for once for many
    plans.

    It may take seconds, and is asked again where it found none, or was replaced. Empty without any; the list is kept,
    and must not be changed.

    Raises:
        OSError: nvidia-smi vanished meanwhile
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    known = (program, Path(program).stat().st_mtime_ns)
    if not _known_gpus.get(known):
        _known_gpus[known] = gpu_names()
    return _known_gpus[known]


def detect_cluster_type() -> ClusterType:
    """Return how jobs run where nobody says it: by the scheduler whose program is on PATH, else on this machine
    (``local``).

    Of several schedulers it is the first that LLMB knows. The program is not started.
    """
    return next(
        (way.name for way in all_traits().values() if way.submits_with and shutil.which(way.submits_with)), LOCAL
    )


def detect_machine(cluster: ClusterConfig, request: Request) -> Machine:
    """Return what planning needs to know of this machine; asks nvidia-smi, or the scheduler's program for its release.

    How jobs run is what the request or else the site says; where neither does, it is detected. If no scheduler is
    found then, a dry run plans for the one whose variables the request has, or, with a GPU type other than ``cpu``
    and a number of GPUs, for Slurm; else jobs run on this machine. Where a scheduler runs jobs, or the request or the
    site says ``cpu``, this machine's GPUs are not looked for. The first GPU's type counts for all. What does not
    answer counts as not there.

    Raises:
        ValueError: the site or the request names no known way of running jobs
        OSError: nvidia-smi vanished meanwhile
    """
    wanted = request.cluster_type or cluster.cluster_type
    if wanted is None:
        wanted = detect_cluster_type()
        # People look at a cluster's plans on their laptops.
        if request.dry_run and traits_of(wanted).this_machine:
            large = request.gpu_type not in (None, "cpu") and (request.gpus or 0) > 0
            named_by_request = (
                way.name for way in all_traits().values() if not way.variables.keys().isdisjoint(request.scheduler)
            )
            wanted = next(named_by_request, SLURM if large else wanted)
    traits = traits_of(wanted)
    if not traits.this_machine:
        # A job for a cluster can be planned where its scheduler is not installed.
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
    """Return the kinds of MPI, such as ``none`` or ``pmix``, with which this machine's scheduler can start ranks.

    ``traits`` are of a way of running jobs that can say so (``mpi_types`` is not empty). Empty: it does not say
    now.
    """
    found: tuple[str, ...] = import_named(traits.mpi_types)()
    return found


def _release(program: str) -> tuple[int, int]:
    """Return the first two numbers of the release that ``program --version`` prints: (25, 11).

    (0, 0) where it prints none, does not answer in time, or is not there. ``program`` is a path: it is not looked
    for in PATH.
    """
    try:
        return _query_release(program, Path(program).stat().st_mtime_ns)
    except OSError:
        return 0, 0


@lru_cache(maxsize=4)
def _query_release(program: str, changed: int) -> tuple[int, int]:
    """Return the first two numbers of the release that ``program --version`` prints: (25, 11).

    (0, 0) where it prints none, or does not answer in time. It is asked once for many plans, and again with another
    ``changed``: the program file's time in nanoseconds. ``program`` is a path.
    """
    found = re.search(r"([0-9]+)\.([0-9]+)", run_program([program, "--version"], _SECONDS).output)
    return (int(found[1]), int(found[2])) if found else (0, 0)
