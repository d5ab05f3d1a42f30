"""The ways of running jobs, by the name that ``cluster_type`` and CLUSTER_TYPE give them.

What all that plans, renders and shows must know of a way is in its ``Traits``; nobody asks for a name. How jobs are
started, looked at and ended is its executor's affair, which is imported when one is needed. Each folder of
``executors`` is a way, and has its ``TRAITS``. Standard library only: the installer's bootstrap asks, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NewType

ClusterType = NewType("ClusterType", str)
"""The name of a way of running jobs."""

SLURM = ClusterType("slurm")
LOCAL = ClusterType("local")


@dataclass(frozen=True)
class Variable:
    """``meaning`` is a phrase, or the values that there are. ``default`` is for people, ``{...}`` in it the recipe's
    own (see ``tools.readme_tables``)."""

    meaning: str | tuple[str, ...]
    default: str = "-"
    choices: tuple[str, ...] = ()
    """The only values there are, checked when the variable is read; others depend on the recipe or have more forms."""
    option: str = ""
    """What ``llmb-run`` has instead."""
    metavar: str = ""
    """What stands for the option's value in help texts; empty: it has none."""
    read: str = "text"
    """How its value is read: a method of ``request.values.Reader``."""
    sets: str = ""
    """The field of a ``Request`` that its value is; empty: it is one of several that make a field, or of none."""
    remedy: str = ""
    """What to do about a wrong value, beside what its way of reading says."""

    @property
    def in_table(self) -> str:
        """What the variable means, as the tables of READMEs have it: the phrase, or its values with blanks between."""
        return self.meaning if isinstance(self.meaning, str) else " ".join(self.meaning)

    @property
    def in_help(self) -> str:
        """What the variable means, as the beginning of a sentence: ``Training steps``, or ``bf16, fp8 or nvfp4``."""
        if isinstance(self.meaning, str):
            return self.meaning[:1].upper() + self.meaning[1:]
        *others, last = self.meaning
        return f"{', '.join(others)} or {last}"


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a way of running jobs can do.

    ``executor`` is ``module:class`` of a ``llmb_common.executors.base.Executor``. ``script`` is that of its
    ``JobScript``, where that can be imported without the executor; empty: the executor.
    """

    name: ClusterType
    executor: str
    this_machine: bool
    """Jobs run on this machine: on its GPUs, on one node, with the programs that are found here."""
    queued: bool
    """A scheduler keeps the jobs and gives them ids. Otherwise whoever starts a job follows it to its end."""
    script: str = ""
    submits_with: str = ""
    """The scheduler's program: where it is on PATH, and nobody says otherwise, jobs run this way."""
    dependencies: bool = False
    """The scheduler can hold a job until others have ended. Otherwise whoever submits it waits for them."""
    containers: bool = False
    """Ranks run in images, where the site's ``runtime`` does not say ``none``."""
    slurm_options: bool = False
    """The installer asks and looks for what Slurm must be told."""
    unheeded: tuple[str, ...] = ()
    """Documented variables of a request that have no effect here."""
    mpi_types: str = ""
    """``module:function`` that asks how the scheduler can start ranks; empty: nobody needs to know."""
    job_id: str = r"[0-9]+"
    """The form of a job's id, as a regular expression."""
    settings: str = "llmb_common.planning.scheduler:SchedulerSettings"
    """``module:class`` of a scheduler's own section of cluster_config.yaml, which also makes its part of plans."""
    variables: Mapping[str, Variable] = field(default_factory=dict)
    """The documented variables of a request that only this scheduler reads."""

    @property
    def settings_type(self) -> Any:
        """The class of the scheduler's section of ``cluster_config.yaml``; its module is imported now."""
        return import_named(self.settings)


def import_named(text: str) -> Any:
    """Return the object that ``text``, of the form ``module:name``, names; the module is imported now.

    Raises:
        ImportError: there is no such module
        AttributeError: it has no such name
    """
    module, _, name = text.partition(":")
    return getattr(import_module(module), name)


@lru_cache
def all_traits() -> dict[str, Traits]:
    """Return the traits of all ways of running jobs by their name, those with a queue first.

    Looked up once and kept.
    """
    folders = [file.parent.name for file in Path(__file__).parent.parent.glob("executors/*/__init__.py")]
    found: list[Traits] = [import_module(f"llmb_common.executors.{name}").TRAITS for name in folders]
    return {traits.name: traits for traits in sorted(found, key=lambda traits: (not traits.queued, traits.name))}


def names() -> Sequence[str]:
    """The names of all ways of running jobs, as ``cluster_type`` takes them."""
    return tuple(all_traits())


def traits_of(name: str) -> Traits:
    """The traits of a way of running jobs, by its name (``slurm``).

    Raises:
        ValueError: there is none.
    """
    if name not in (known := all_traits()):
        raise ValueError(f"cluster_type {str(name)[:100]!r} is not one of {', '.join(known)}")
    return known[name]
