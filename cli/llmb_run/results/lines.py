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
    """One line of the summary of ``results``: a configuration with its runs, or one log that LLMB did not write.

    ``lines_of`` makes it. ``name`` is what people read; ``runs`` are all of them, whatever became of them. ``group``
    is None for such a log.

    Properties: ``word`` says how it stands, one of ``WORST_FIRST`` in capitals. ``seconds`` is its mean step time in
    seconds, ``difference`` that over the reference's, less 1 (above 0: slower); each is None where there is none.
    ``indication``: whether it was compared with other software. ``outcomes`` counts what became of the runs; ``count``
    is the text of their number, of those judged, if not all, and of those without a time, but for the outcome that
    ``word`` names already: ``5, 3 judged, 1 failed``. ``slow_node`` is the node that slows some of them down
    (``SlowNode``), or several of which one does; None where none is known.

    ``why_slow(node)`` returns the reason for the node of that name, a clause without a full stop; it raises
    RecordError where a run's record cannot be read.
    """

    name: str
    runs: Sequence[MeasuredRun]
    group: Group | None = None

    @cached_property
    def outcomes(self) -> Counter[Outcome]:
        """How many of the line's runs came to each outcome, such as ``failed``; 0 for any other."""
        return self.group.outcomes if self.group else Counter(run.outcome for run in self.runs)

    @cached_property
    def slow_node(self) -> SlowNode | None:
        """The node that slows down some of the line's runs, or several nodes of which one does; excluded ones, too.

        They are several (``SlowNode.nodes``) where they were always in the same runs. None where none is known to.
        """
        return slow_node_of(self.runs)

    def why_slow(self, node: str) -> str:
        """Return why the line's runs with ``node``, its name as runs have it, are slow: ``GPU 3 is too hot``.

        The text is a fragment without a full stop. It comes from what the nodes of the newest ``_MOST_ASKED`` such
        runs recorded; where these recorded nothing of it, it says by how much runs with the line's slow node are
        slower. Nothing checks that ``node`` is slow: 0.0 % where the line has no slow node.

        Raises:
            RecordError: the record of a run cannot be read
        """
        ran_on_it = [run for run in self.runs if run.good and node in run.good.nodes.split(",")]
        newest = sorted(ran_on_it, key=lambda run: -run.created)[:_MOST_ASKED]
        texts = list(chain.from_iterable(run.problems for run in newest))
        share = self.slow_node.share if self.slow_node else 0.0
        return why_slow(node, [text for text in texts if names_a_node(text, [node])], share)

    @property
    def seconds(self) -> float | None:
        """The line's mean step time in seconds, stalls included.

        Of a configuration it is the one that is compared, of a log its own. None: there is none.
        """
        return self.group.shown_seconds if self.group else mean_step_seconds(self.runs)

    @property
    def difference(self) -> float | None:
        """The configuration's step time over its reference's, less 1, above 0 slower.

        None where nothing was compared.
        """
        return self.group.verdict.difference if self.group and self.group.verdict else None

    @property
    def indication(self) -> bool:
        """Whether the configuration was compared with other software, so that its verdict is an indication only.

        False where nothing was compared.
        """
        verdict = self.group.verdict if self.group else None
        return bool(verdict and verdict.reference and verdict.decision and not verdict.reference.same_software)

    @property
    def word(self) -> str:
        """How the configuration or log stands, as one of ``WORST_FIRST`` in capitals: ``PASS``, ``NO REFERENCE``."""
        word = self.group.word if self.group else word_of(None, self.outcomes, judged=0, in_reference=0)
        return word.upper()

    @property
    def count(self) -> str:
        """The number of the line's runs, and how many of them ended without a step time: ``5, 3 judged, 1 failed``.

        These are counted by their outcome; one that ``word`` names already is left out. The number of judged ones is
        there where further runs have a step time, as do those of a baseline, and those that wait for the next look.
        """
        judged = 0
        if self.group and (self.group.waiting or self.group.in_reference):
            judged = len(self.group.runs)
        judged_text = f", {judged} judged" if judged else ""
        others = [(self.outcomes[outcome], outcome) for outcome in WITHOUT_A_TIME if outcome.upper() != self.word]
        others_text = "".join(f", {number} {what}" for number, what in others if number)
        return f"{len(self.runs)}{judged_text}{others_text}"


def _urgency(line: Line) -> tuple[bool, tuple[int, bool, float]]:
    """Return the sort key of a line of the summary: those with a slow node first, then those that stand worst.

    A smaller key is more urgent.
    """
    return line.slow_node is None, standing(line.word.lower(), line.difference, indication=line.indication)


def lines_of(found: Sequence[MeasuredRun], groups: Sequence[Group], names: Sequence[str]) -> list[Line]:
    """Return a line for each configuration, the most urgent first, then one for each log that LLMB did not write.

    The most urgent have a slow node, then those follow that stand worst (``standing``); of equals, in the order of
    ``groups``. Logs are in the order of ``found``. Empty without groups and logs.

    Args:
        found: all runs, among which the logs are
        groups: the configurations of the other runs
        names: what to call them, one for each group, in the order of ``groups``
    """
    known = [Line(name, item.members, item) for name, item in zip(names, groups, strict=True)]
    logs = [Line(printable(run.timing.files.name), [run]) for run in found if run.row is None]
    return [*sorted(known, key=_urgency), *logs]


def names_of(groups: Sequence[Group]) -> list[str]:
    """Return a name for each configuration, in order: ``llama3.1 405b fp8 on 128 gb200, tp=4``.

    That is recipe, size, dtype, GPUs, and what sets it apart: the settings in which the configurations differ, or,
    where they are of several jobs, those that are not the recipe's; nothing where there are none. Variant, precision,
    software and at last the configuration's key follow only where names would be equal; those of one configuration in
    two images may still be. Empty without groups.

    Raises:
        RecordError: the record of a configuration's first run is gone, or cannot be read
    """
    plans = [record_of(item.members[0]).plan for item in groups]
    bases = [f"{plan.recipe} {plan.model_size} {plan.dtype} on {plan.gpus} {plan.gpu_type}" for plan in plans]
    # One job with several settings: what is equal in all of them need not be said.
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
    """Return the software in which a group's runs trained, as text: ``nemo:26.08``, the name of an image, or versions.

    It is that of the group's first run (``Group.software``), never empty. ``software not known yet`` where all runs
    of the group are queued or running.
    """
    nothing_yet = item.live == len(item.members)
    return "software not known yet" if nothing_yet and not item.runs else item.software


def _distinguishing_names(names: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return ``names``, in order, where equal names with different ``words`` get their word behind a comma and a blank.

    ``words`` has one for each name. Equal names with equal words stay, and so do names that are there once.
    """
    of_name: dict[str, set[str]] = {}
    for name, word in zip(names, words, strict=True):
        of_name.setdefault(name, set()).add(word)
    told_apart = []
    for name, word in zip(names, words, strict=True):
        is_shared = len(of_name[name]) > 1
        told_apart.append(f"{name}, {word}" if is_shared else name)
    return told_apart


def shared_by(names: Sequence[str]) -> str:
    """Return what all names begin with: the text before the first comma (model, dtype, GPUs), else the first word.

    The first word, the recipe, only where the former is not the same in all. ``names`` are as ``names_of`` makes
    them. Empty where there is one name at most, or nothing is shared.
    """
    for end in (", ", " "):
        heads = {name.partition(end)[0] for name in names}
        if len(names) > 1 and len(heads) == 1:
            return heads.pop()
    return ""


def without_shared(name: str, shared: str) -> str:
    """Return a configuration's name without ``shared``, the beginning that all names have (``shared_by``).

    Commas and blanks behind it go, too. ``as documented`` where nothing is left. Unchanged for an empty ``shared``.
    """
    return name.removeprefix(shared).lstrip(", ") or "as documented" if shared else name


def names_a_node(text: str, nodes: Iterable[str]) -> bool:
    """Return whether ``text`` names one of ``nodes`` as a whole word, in the same case: ``n12`` is not ``n1``.

    A domain may follow: ``n1.cluster`` names ``n1``. False without nodes.
    """
    return any(re.search(rf"(?<![\w.-]){re.escape(node)}(?![\w-])", text) for node in nodes)


def why_slow(node: str, findings: Sequence[str], share: float) -> str:
    """Return why a node is slow, a fragment without a full stop: ``GPU 3 is too hot``.

    A GPU that is too hot is named first, else it is the first finding; without findings, the text says by how much:
    ``runs with it are 4.1 % slower than those without it``. ``findings`` are sentences, without a full stop, that name
    ``node``; in the answer its name is left out, or without its domain. ``share``: how much slower runs with it are,
    0.02 for 2 %.
    """
    for finding in findings:
        if hot := re.search(r"(GPU \d+) \(too hot", finding):
            return f"{hot[1]} is too hot"
    if findings:
        return printable(findings[0]).replace(f"{node} ", "").replace(node, node.partition(".")[0])
    return f"runs with it are {percent(share)} slower than those without it"


def exclude_command(nodes: Sequence[str], reason: str) -> tuple[str, ...]:
    """Return the words behind ``llmb-run`` of the command that keeps later jobs off slow nodes for ``_DAYS`` days.

    They are ``exclude``, ``add``, the names of ``nodes``, at least one, joined with commas, ``--days``, the number,
    ``--reason`` and ``reason``, not quoted for a shell. ``reason`` is what the list of excluded nodes will show.
    """
    return ("exclude", "add", ",".join(nodes), "--days", str(_DAYS), "--reason", reason)


def slow_node_of(repeats: Iterable[MeasuredRun]) -> SlowNode | None:
    """Return the node that slows down some of ``repeats``, runs of one configuration in any order, as ``culprit`` does.

    None where none is known to; runs without a step time that counts are left out.

    Raises:
        RecordError: the record of a run is gone, or cannot be read
        RecipeError, ConfigError: a recipe's files, or the site's configuration, cannot be read
    """
    dated = sorted(repeats, key=lambda run: run.created)
    return culprit([run.good for run in dated if run.good])


def size_of_change(ratio: float, low: float, high: float) -> str:
    """Return by how much step times changed, without direction: ``4.1 ± 0.6 %``.

    ``ratio`` is the new step time over the old one, with ``low`` and ``high`` as bounds.
    """
    half_interval = (high - low) / 2
    return f"{100 * abs(ratio - 1):.1f} ± {percent(half_interval)}"


def relative_speed(share: float) -> str:
    """Return how a step time compares, for a sentence: ``4.1 % slower than``, ``2.0 % faster than``, ``as fast as``.

    ``share`` is the step time over the one that the sentence goes on with, less 1: above 0 is slower. Less than
    ``_SHOWN_SHARE`` (what rounds to 0.0 %) in either direction is ``as fast as``.
    """
    if abs(share) < _SHOWN_SHARE:
        return "as fast as"
    return f"{percent(abs(share))} {'slower' if share > 0 else 'faster'} than"


def one_of_text(nodes: Sequence[str]) -> str:
    """Return nodes of which one is meant, at least one, as text: the name of a single one, or ``one of n1, n2``.

    Of more than three, the first three and how many more: ``one of n1, n2, n3 and 2 more``.
    """
    return nodes[0] if len(nodes) == 1 else f"one of {first_few(nodes)}"
