"""The ways of running jobs, by the name that ``cluster_type`` and CLUSTER_TYPE give them.

What all that plans, renders and shows must know of a way is in its ``Traits``; nobody asks for a name. How jobs are
started, looked at and ended is its executor's affair, which is imported when one is needed. Each folder of
``executors`` is a way, and has its ``TRAITS``. Standard library only: the installer's bootstrap asks, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NewType

ClusterType = NewType("ClusterType", str)
"""The name of a way of running jobs."""

SLURM = ClusterType("slurm")
LOCAL = ClusterType("local")


class Variable(NamedTuple):
    """One documented environment variable of a request to ``launch.sh``, and the option of ``llmb-run`` for it.

    READMEs, help texts and the reader of requests are made from it. ``meaning`` is a phrase without a period
    ("training steps") or, as a tuple, at least two values that the variable can have, as users write them (``("bf16",
    "fp8")``). The properties ``in_table`` and ``in_help`` are the meaning as text for READMEs (``training steps``,
    ``bf16 fp8``) and for help texts (``Training steps``, ``bf16 or fp8``). Nothing is checked.
    """

    meaning: str | tuple[str, ...]
    default: str = "-"
    """What applies without it, as text for people, not a value; ``{...}`` in it is what the recipe says."""
    choices: tuple[str, ...] = ()
    """The only values there are, checked when the variable is read; others depend on the recipe or have more forms."""
    option: str = ""
    """The option of ``llmb-run`` that stands for the variable, such as ``--max-steps``; empty: there is none."""
    metavar: str = ""
    """What stands for the option's value in help texts, such as ``N``; empty: click's own word, or no value."""
    read: str = "text"
    """How its value is read: a method of ``request.values.Reader``."""
    sets: str = ""
    """The field of a ``Request`` that takes its value; empty: none does alone."""
    remedy: str = ""
    """What a message tells users to do about a wrong value; empty: what its way of reading says."""

    @property
    def in_table(self) -> str:
        """The variable's meaning for the tables of READMEs: its phrase, or its possible values with blanks between."""
        return self.meaning if isinstance(self.meaning, str) else " ".join(self.meaning)

    @property
    def in_help(self) -> str:
        """The variable's meaning for help texts: ``Training steps``, or its values, ``bf16, fp8 or nvfp4``.

        A phrase is capitalized. Without a period. Values keep their case.
        """
        if isinstance(self.meaning, str):
            return self.meaning[:1].upper() + self.meaning[1:]
        *others, last = self.meaning
        return f"{', '.join(others)} or {last}"


class Traits(NamedTuple):
    """What one way of running jobs (Slurm, or this machine alone) can do.

    Asked by all that plans, renders and shows jobs. Each folder of ``llmb_common.executors`` has one, ``TRAITS``;
    ``traits_of`` finds it by name. ``settings_type``, a property, is the class that ``settings`` names, imported when
    it is first used.
    """

    name: ClusterType
    """As ``cluster_type`` in cluster_config.yaml has it: ``slurm``, ``local``."""
    executor: str
    """``module:class`` of a ``llmb_common.executors.base.Executor``, which starts, looks at and ends jobs."""
    this_machine: bool
    """Jobs run on this machine: on its GPUs, on one node, with the programs that are found here."""
    queued: bool
    """A scheduler keeps the jobs and gives them ids. Otherwise whoever starts a job follows it to its end."""
    script: str = ""
    """``module:class`` of its ``JobScript``, where that can be imported without the executor; empty: ``executor``."""
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
    """The form of a job's id, as a regular expression that matches all of it."""
    settings: str = "llmb_common.planning.scheduler:SchedulerSettings"
    """``module:class`` of a scheduler's own section of cluster_config.yaml, which also makes its part of plans."""
    variables: Mapping[str, Variable] = MappingProxyType({})
    """The documented variables of a request that only this scheduler reads."""

    @property
    def settings_type(self) -> Any:
        """The class of a scheduler's own section of ``cluster_config.yaml``; the first use imports its module."""
        return import_named(self.settings)


def import_named(text: str) -> Any:
    """Import the module in ``text``, of the form ``module:name``, and return what it calls ``name``.

    The name has no dots.

    Raises:
        ImportError: there is no such module
        AttributeError: it has no such name
    """
    module, _, name = text.partition(":")
    return getattr(import_module(module), name)


@lru_cache
def all_traits() -> dict[str, Traits]:
    """Return the ``Traits`` of every way of running jobs by its name (``slurm``, ``local``).

    Those with a queue come first, then by name. Found by importing each folder of ``llmb_common.executors``, once in a
    process: all callers get the same dict and must not change it.
    """
    folders = [file.parent.name for file in Path(__file__).parent.parent.glob("executors/*/__init__.py")]
    found: list[Traits] = [import_module(f"llmb_common.executors.{name}").TRAITS for name in folders]
    # The first one whose program is on PATH is the default: this machine alone comes last.
    return {traits.name: traits for traits in sorted(found, key=lambda traits: (not traits.queued, traits.name))}


def names() -> Sequence[str]:
    """Return the names of all ways of running jobs, as ``cluster_type`` takes them.

    Those with a queue come first, then by name.
    """
    return tuple(all_traits())


def traits_of(name: str) -> Traits:
    """Return the ``Traits`` of the way of running jobs that is called exactly ``name``, such as ``slurm``.

    Raises:
        ValueError: no way of running jobs has that name; the message lists those that there are
    """
    if name not in (known := all_traits()):
        raise ValueError(f"cluster_type {str(name)[:100]!r} is not one of {', '.join(known)}")
    return known[name]
