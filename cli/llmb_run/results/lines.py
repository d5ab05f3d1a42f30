"""Configurations as ``results`` names and counts them, and each in a word."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from llmb_common.command.printable import first_few, printable
from llmb_common.results.configuration import deviations, told_apart
from llmb_common.results.odd_runs import SlowNode, culprit
from llmb_run.results.groups import Group, recorded
from llmb_run.results.measured import MeasuredRun, Outcome

WITHOUT_A_TIME: tuple[Outcome, ...] = (
    *("running", "waiting", "not training", "failed", "too short", "stopped early", "incomplete", "nothing left"),
)
"""What is said of a configuration without a step time: of its runs' outcomes the first of these."""


@dataclass(frozen=True)
class Line:
    """One configuration, or one log that LLMB did not make, as the summary shows it."""

    name: str
    runs: Sequence[MeasuredRun]
    group: Group | None = None

    @cached_property
    def outcomes(self) -> Counter[Outcome]:
        """How many runs came to what."""
        return Counter(run.outcome for run in self.runs)

    @cached_property
    def slow_node(self) -> SlowNode | None:
        """The node that slows down some of its runs; None where none is known to."""
        dated = sorted(self.runs, key=lambda run: run.created)
        return culprit([run.good for run in dated if run.good])

    @property
    def seconds(self) -> float | None:
        """Mean step time of the runs that every figure is of."""
        judged = self.group.runs if self.group else self.runs
        times = [run.step_seconds for run in judged if run.step_seconds]
        return statistics.fmean(times) if times else None

    @property
    def difference(self) -> float | None:
        """Step time over the reference's, less 1; None where there is none."""
        return self.group.verdict.difference if self.group and self.group.verdict else None

    @property
    def indication(self) -> bool:
        """Whether its reference was measured with other software."""
        verdict = self.group.verdict if self.group else None
        return bool(verdict and verdict.reference and verdict.decision and not verdict.reference.same_software)

    @property
    def word(self) -> str:
        """The verdict, or else what became of the runs."""
        if self.group is None or not (self.group.runs or self.group.in_reference):
            known = [outcome for outcome in WITHOUT_A_TIME if self.outcomes[outcome]]
            return known[0].upper() if known else "NOT COMPARED"
        verdict = self.group.verdict
        if verdict is None or verdict.kind == "not judged":
            return "NOT COMPARED"
        if verdict.kind == "fail" and verdict.not_training:
            return "NOT TRAINING"
        if not self.group.runs:
            return "BASELINE"
        return verdict.kind.upper()

    @property
    def count(self) -> str:
        """How many runs it has, and what became of those that have no step time."""
        others = [(self.outcomes[outcome], outcome) for outcome in WITHOUT_A_TIME if outcome.upper() != self.word]
        told = "".join(f", {number} {what}" for number, what in others if number)
        return f"{len(self.runs)}{told}"


ORDER = ("NOT TRAINING", "FAIL", "OPEN", "RUNNING", "WAITING", "FAILED", "INCOMPLETE", "TOO SHORT")


def _urgency(line: Line) -> tuple[bool, int]:
    return line.slow_node is None, ORDER.index(line.word) if line.word in ORDER else len(ORDER)


def lines_of(found: Sequence[MeasuredRun], groups: Sequence[Group], names: Sequence[str]) -> list[Line]:
    """A line for each configuration, which have ``names``, and for each log that LLMB did not make; what matters most
    comes first."""
    known = [Line(name, item.members, item) for name, item in zip(names, groups, strict=True)]
    logs = [Line(printable(run.timing.files.name), [run]) for run in found if run.row is None]
    return [*sorted(known, key=_urgency), *logs]


def names_of(groups: Sequence[Group]) -> list[str]:
    """What each configuration is called: model, dtype, GPUs, and in what it differs from others of that name."""
    plans = [recorded(item.members[0]).plan for item in groups]
    bases = [f"{plan.recipe} {plan.model_size} {plan.dtype} on {plan.gpus} {plan.gpu_type}" for plan in plans]
    if len(set(bases)) == 1 < len(bases):
        differing = told_apart(plans)
        marks = [
            ", ".join(f"{name}={values[at]}" for name, values in differing.items() if values[at] != "-")
            for at in range(len(plans))
        ]
    else:
        marks = [deviations(plan).removeprefix(", ") for plan in plans]
    names = [f"{base}, {mark}".removesuffix(", ") for base, mark in zip(bases, marks, strict=True)]
    further: tuple[Callable[[int], str], ...] = (
        lambda at: plans[at].variant,
        lambda at: plans[at].precision,
        lambda at: groups[at].software,
        lambda at: groups[at].key,
    )
    for say in further:
        names = _told_apart_by(names, [say(at) for at in range(len(groups))])
    return names


def _told_apart_by(names: Sequence[str], words: Sequence[str]) -> list[str]:
    """``names``, with the word behind each that others share, where their words differ."""
    of_name: dict[str, set[str]] = {}
    for name, word in zip(names, words, strict=True):
        of_name.setdefault(name, set()).add(word)
    pairs = zip(names, words, strict=True)
    return [f"{name}, {word}" if len(of_name[name]) > 1 else name for name, word in pairs]


def shared_by(names: Sequence[str]) -> str:
    """What all names begin with: model, dtype and GPUs, or else the recipe; empty where there is one name, or nothing
    is shared."""
    for end in (", ", " "):
        heads = {name.partition(end)[0] for name in names}
        if len(names) > 1 and len(heads) == 1:
            return heads.pop()
    return ""


def without(name: str, shared: str) -> str:
    """What a name has beyond what all share."""
    return name.removeprefix(shared).lstrip(", ") or "as documented" if shared else name


def any_of(nodes: Sequence[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"one of {first_few(nodes)}"
