"""Configurations as ``results`` names and counts them, and each in a word."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from llmb_common.base.printable import first_few, percent, printable
from llmb_common.measured.run import MeasuredRun, Outcome, mean_step_seconds
from llmb_common.results.configuration import deviations, differing_settings
from llmb_common.results.odd_runs import SlowNode, culprit
from llmb_run.results.groups import Group, record_of
from llmb_run.results.words import WITHOUT_A_TIME, standing, word_of

_MOST_ASKED = 5
"""Runs with a slow node whose records are read for the reason."""

_DAYS = 7
"""For how long a slow node is excluded."""

_SHOWN_SHARE = 0.0005
"""A share that is printed as 0.0 %."""


@dataclass(frozen=True)
class Line:
    """One configuration, or one log that LLMB did not make, as the summary shows it."""

    name: str
    runs: Sequence[MeasuredRun]
    group: Group | None = None

    @cached_property
    def outcomes(self) -> Counter[Outcome]:
        """How many of the line's runs came to each outcome."""
        return Counter(run.outcome for run in self.runs)

    @cached_property
    def slow_node(self) -> SlowNode | None:
        """The node, or nodes of which one is meant, that slows down some of the line's runs.

        None where none is known to.
        """
        dated = sorted(self.runs, key=lambda run: run.created)
        return culprit([run.good for run in dated if run.good])

    def why_slow(self, node: str) -> str:
        """Why the line's runs with ``node`` are slow, in a few words, by what they recorded; else by how much."""
        ran_on_it = [run for run in self.runs if run.good and node in run.good.nodes.split(",")]
        newest = sorted(ran_on_it, key=lambda run: -run.created)[:_MOST_ASKED]
        texts = list(chain.from_iterable(run.problems for run in newest))
        share = self.slow_node.share if self.slow_node else 0.0
        return why_slow(node, [text for text in texts if names_a_node(text, [node])], share)

    @property
    def seconds(self) -> float | None:
        """Mean step time in seconds: of a configuration the one that is compared, of a log what it shows.

        None: it has none.
        """
        return self.group.shown_seconds if self.group else mean_step_seconds(self.runs)

    @property
    def difference(self) -> float | None:
        """The configuration's step time over its reference's, less 1; None where nothing was compared."""
        return self.group.verdict.difference if self.group and self.group.verdict else None

    @property
    def indication(self) -> bool:
        """Whether the verdict is an indication: its reference was measured with other software."""
        verdict = self.group.verdict if self.group else None
        return bool(verdict and verdict.reference and verdict.decision and not verdict.reference.same_software)

    @property
    def word(self) -> str:
        """How the configuration stands, as one of ``WORST_FIRST`` in capitals."""
        word = self.group.word if self.group else word_of(None, self.outcomes, judged=0, in_reference=0)
        return word.upper()

    @property
    def count(self) -> str:
        """How many runs it has, and what became of those without a step time, unless ``word`` does: ``5, 1 failed``."""
        others = [(self.outcomes[outcome], outcome) for outcome in WITHOUT_A_TIME if outcome.upper() != self.word]
        others_text = "".join(f", {number} {what}" for number, what in others if number)
        return f"{len(self.runs)}{others_text}"


def _urgency(line: Line) -> tuple[bool, tuple[int, bool, float]]:
    """A sort key: lines with a slow node first, then by how badly they stand."""
    return line.slow_node is None, standing(line.word.lower(), line.difference, indication=line.indication)


def lines_of(found: Sequence[MeasuredRun], groups: Sequence[Group], names: Sequence[str]) -> list[Line]:
    """A line for each configuration, what matters most first, then one for each log that LLMB did not make.

    Args:
        found: all runs, among which the logs are
        groups: the configurations
        names: what to call them, one for each group
    """
    known = [Line(name, item.members, item) for name, item in zip(names, groups, strict=True)]
    logs = [Line(printable(run.timing.files.name), [run]) for run in found if run.row is None]
    return [*sorted(known, key=_urgency), *logs]


def names_of(groups: Sequence[Group]) -> list[str]:
    """What each configuration is called: recipe, size, dtype, GPUs, and in what it differs from others of that name.

    Names are in the order of ``groups``.
    """
    plans = [record_of(item.members[0]).plan for item in groups]
    bases = [f"{plan.recipe} {plan.model_size} {plan.dtype} on {plan.gpus} {plan.gpu_type}" for plan in plans]
    if len(set(bases)) == 1 < len(bases):
        differing = differing_settings(plans)
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
        lambda at: software_said(groups[at]),
        lambda at: groups[at].key,
    )
    for say in further:
        names = _distinguishing_names(names, [say(at) for at in range(len(groups))])
    return names


def software_said(item: Group) -> str:
    """The software that a group's runs trained in; of runs that have not begun to, in words."""
    nothing_yet = item.live == len(item.members)
    return "software not known yet" if nothing_yet and not item.runs else item.software


def _distinguishing_names(names: Sequence[str], words: Sequence[str]) -> list[str]:
    """``names``, with its word added to each name that several have with different words."""
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


def without_shared(name: str, shared: str) -> str:
    """A configuration's name without the part that all share; ``as documented`` where nothing is left."""
    return name.removeprefix(shared).lstrip(", ") or "as documented" if shared else name


def names_a_node(text: str, nodes: Iterable[str]) -> bool:
    """Whether a text names one of the nodes; ``n12`` is not ``n1``."""
    return any(re.search(rf"(?<![\w.-]){re.escape(node)}(?![\w-])", text) for node in nodes)


def why_slow(node: str, findings: Sequence[str], share: float) -> str:
    """Why a node is slow, by findings that name it: ``GPU 3 is too hot``; where there are none, by how much."""
    for finding in findings:
        if hot := re.search(r"(GPU \d+) \(too hot", finding):
            return f"{hot[1]} is too hot"
    if findings:
        return printable(findings[0]).replace(f"{node} ", "").replace(node, node.partition(".")[0])
    return f"runs with it are {percent(share)} slower than those without it"


def exclude_command(nodes: Sequence[str], reason: str) -> tuple[str, ...]:
    """The words of the command, after ``llmb-run``, that keeps later jobs off slow nodes."""
    return ("exclude", "add", ",".join(nodes), "--days", str(_DAYS), "--reason", reason)


def relative_speed(share: float) -> str:
    """``4.1 % slower than``: how a step time compares, by its difference as a share."""
    if abs(share) < _SHOWN_SHARE:
        return "as fast as"
    return f"{percent(abs(share))} {'slower' if share > 0 else 'faster'} than"


def one_of_text(nodes: Sequence[str]) -> str:
    """Nodes of which one is meant: its name, or ``one of n1, n2``."""
    return nodes[0] if len(nodes) == 1 else f"one of {first_few(nodes)}"
