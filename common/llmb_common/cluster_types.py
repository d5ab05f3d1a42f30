"""The ways of running jobs, by the name that ``cluster_type`` and CLUSTER_TYPE give them.

What all that plans, renders and shows must know of a way is in its ``Traits``; nobody asks for a name. How jobs are
started, looked at and ended is its executor's affair (``llmb_common.executors``), which is imported when one is needed.
A further way is registered here with both. Standard library only: the installer's bootstrap asks, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType

ClusterType = NewType("ClusterType", str)
"""The name of a registered way of running jobs."""

SLURM = ClusterType("slurm")
LOCAL = ClusterType("local")


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a way of running jobs can do. ``executor`` is ``module:class`` of a ``llmb_common.executors.Executor``."""

    name: ClusterType
    executor: str
    this_machine: bool
    """Jobs run on this machine: on its GPUs, on one node, with the programs that are found here."""
    queued: bool
    """A scheduler keeps the jobs and gives them ids. Otherwise whoever starts a job follows it to its end."""
    dependencies: bool = False
    """The scheduler can hold a job until others have ended. Otherwise whoever submits it waits for them."""
    containers: bool = False
    """Ranks run in images, where the site's ``runtime`` does not say ``none``."""
    slurm_options: bool = False
    """Jobs are described in Slurm's words: ``slurm`` of cluster_config.yaml, and of the plan."""
    unheeded: tuple[str, ...] = ()
    """Documented variables of a request that have no effect here."""
    job_id: str = r"[0-9]+"
    """The form of a job's id, as a regular expression."""


_REGISTERED: dict[str, Traits] = {}


def register(traits: Traits) -> None:
    """Make a way of running jobs known under its name."""
    _REGISTERED[traits.name] = traits


def names() -> Sequence[str]:
    """The names of all ways of running jobs, in the order in which they were registered."""
    return tuple(_REGISTERED)


def traits_of(name: str) -> Traits:
    """The traits of the way ``name``.

    Raises:
        ValueError: nobody has registered it.
    """
    if name not in _REGISTERED:
        raise ValueError(f"cluster_type {str(name)[:100]!r} is not one of {', '.join(_REGISTERED)}")
    return _REGISTERED[name]


register(
    Traits(
        name=SLURM,
        executor="llmb_common.executors.slurm:SlurmExecutor",
        this_machine=False,
        queued=True,
        dependencies=True,
        containers=True,
        slurm_options=True,
        job_id=r"[0-9]+(_[0-9]+)?",
    )
)
register(
    Traits(
        name=LOCAL,
        executor="llmb_common.executors.local:LocalExecutor",
        this_machine=True,
        queued=False,
        unheeded=(
            "ADDITIONAL_SLURM_PARAMS",
            "CPU_PER_TASK_PINNING",
            "ENABLE_VBOOST",
            "GPUS_PER_NODE",
            "RUN_CONF_MOUNTS",
            "TIME_LIMIT",
        ),
    )
)
