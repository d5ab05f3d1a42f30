"""What a report answers on its first screen: pass, fail or open, in one sentence; one figure beside its reference; what
to do about it; and which configuration of a sweep is the fastest."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from llmb_common.base.printable import counted, first_few, percent
from llmb_run.reporting.hosts import HostLine
from llmb_run.results.groups import Board
from llmb_run.results.lines import exclude_command, relative_speed, why_slow
from llmb_run.results.words import WORST_FIRST, standing

Word: TypeAlias = Literal["PASS", "FAIL", "OPEN", "FASTEST"]

_WORDS: dict[str, Word] = {"pass": "PASS", "fail": "FAIL", "not training": "FAIL", "failed": "FAIL"}
"""Of the words of ``results``; whatever else there is leaves the question open."""

_SAID = {
    "not training": ("does not train as planned", "do not train as planned"),
    "fail": ("fails", "fail"),
    "failed": ("has failed", "have failed"),
    "preempted": ("was preempted", "were preempted"),
    "cancelled": ("was cancelled", "were cancelled"),
    "not submitted": ("was not submitted", "were not submitted"),
    "open": ("is open", "are open"),
    "running": ("is running", "are running"),
    "waiting": ("is waiting to start", "are waiting to start"),
    "incomplete": ("has an incomplete log", "have incomplete logs"),
    "stopped early": ("was told to end before its last step", "were told to end before their last step"),
    "too short": ("is too short to be measured", "are too short to be measured"),
    "nothing left": ("had nothing left to train", "had nothing left to train"),
    "not compared": ("was not compared", "were not compared"),
    "no reference": ("has no reference", "have no reference"),
    "baseline": ("is the baseline itself", "are baselines themselves"),
    "pass": ("passes", "pass"),
}
"""Of one configuration and of several, by the word that ``results`` has for it."""

_STALLS_SHOWN = 0.005
"""Of the step time: what less cost is not worth a line."""

_MOST_ALSO = 3


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The first screen of a report: how the runs did, and what to do.

    ``word`` is PASS, FAIL, OPEN or FASTEST; ``text`` one sentence, or a few, with a full stop. Any other field is empty
    where there is nothing to say. ``conclude``, ``of_campaign`` and ``of_tuning`` make it.
    """

    word: Word
    text: str
    figure: str = ""
    """The figure that decides: ``10.51 s a step``."""
    reference: str = ""
    """What ``figure`` is held against: ``10.23 s, NVIDIA's result``."""
    todo: str = ""
    """What to do, in a sentence, which ends in a colon where ``command`` completes it."""
    command: str = ""
    """The command line that does what ``todo`` says."""
    fastest: str = ""
    """Which configuration of a sweep is the fastest, in a sentence."""
    fastest_command: str = ""
    """The command line that trains the configuration of ``fastest`` again."""
    also: tuple[str, ...] = ()
    """What else a reader must know, each in a sentence."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs a report has, and how they ended.

    ``build`` makes it. ``runs``: all. ``failed``: ended without a result, the cancelled, preempted and never submitted
    ones too. ``unsuccessful``: ended without success: these, and those whose steps did not suffice. ``live``: have not
    ended. These four are numbers of runs.
    """

    runs: int
    failed: int
    unsuccessful: int
    live: int
    others: tuple[str, ...] = ()
    """What became of ended runs that did not succeed and have not failed either: ``2 too short``."""
    causes: tuple[str, ...] = ()
    """Why runs failed, the commonest cause first."""


class Deciding(NamedTuple):
    """The configuration that decides the answer of a report, the worst one, as JSON (by ``GROUP``) in ``group``.

    ``build`` makes it. ``todo`` and ``command``: what ``results`` says is next, as a sentence and as a command
    line; empty: nothing. ``without``: the configuration's mean step time in seconds, stalls included, over the runs
    that had no slow node; None where all of its timed runs or none had no slow node.
    """

    group: Mapping[str, Any]
    todo: str = ""
    command: str = ""
    without: float | None = None
    excluded: frozenset[str] = frozenset()
    """Names of nodes that later jobs are kept off already."""
    urgent: bool = False
    """Whether ``todo`` is about a bad node, and so is to be done whatever the verdict is."""


def worst_first(groups: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the positions of ``groups``, configurations as JSON by ``GROUP``, the one with the worst verdict first.

    Verdicts (``word``) are in the order of ``WORST_FIRST``. Among equal ones, those that were compared with other
    software come last, and the slowest against its reference first; equals stay in their order. Positions count from 0.
    Needed are the keys ``word``, ``difference`` (None: not compared, which counts as 0) and ``indication``.

    Raises:
        ValueError: the ``word`` of a group is none of ``WORST_FIRST``
    """

    def order(at: int) -> tuple[int, bool, float]:
        """Return the sort key of the configuration at the position ``at``, by its verdict; the worst sorts first.

        Positions are those in ``groups`` of the enclosing function.

        Raises:
            ValueError: the ``word`` of the group is none of ``WORST_FIRST``
        """
        group = groups[at]
        return standing(group["word"], group["difference"], indication=bool(group["indication"]))

    return sorted(range(len(groups)), key=order)


def conclude(
    groups: Sequence[Mapping[str, Any]],
    counts: Counts,
    hosts: Sequence[HostLine],
    deciding: Deciding | None,
    sweeps: Sequence[Board] = (),
) -> Answer:
    """Return the answer of a report for its first screen: pass, fail, open or the fastest, and what to do.

    The worst configuration decides; a slow node that is not excluded is what to do first.

    Args:
        groups: the configurations, as JSON by ``GROUP``, in any order; that of ``deciding`` must be among them
        counts: how many runs there are, and how they ended
        hosts: all nodes of the runs; the slow ones have ``slower``
        deciding: the worst configuration; None: no run was recorded by LLMB, and the answer is OPEN
        sweeps: rankings, each with a configuration that has a step time; of several, the one with most configurations
            is the answer where nothing has a verdict, else an addition to it
    """
    slow = [line for line in hosts if line.slower is not None]
    board = max(sweeps, key=lambda item: len(item.configurations), default=None)
    also = _further_sentences(counts, slow, deciding)
    if deciding is None:
        return Answer(word="OPEN", text=f"{counted(counts.runs, 'run')}, none recorded by LLMB.", also=also)
    if board and not {group["word"] for group in groups} & {"pass", "fail", "not training", "open"}:
        return msgspec.structs.replace(_of_sweep(board), also=also)
    kind = str(deciding.group["word"])
    todo, command = _next_action(kind, deciding, hosts, slow)
    figure, reference = _figures_text(deciding.group)
    return Answer(
        word=_WORDS.get(kind, "OPEN"),
        text=plain(_verdict_counts(groups) + _deciding_sentence(kind, groups, deciding, slow, counts)),
        figure=figure,
        reference=plain(reference),
        todo=todo,
        command=command,
        fastest=_fastest_sentence(board) if board else "",
        fastest_command=board.command if board else "",
        also=also,
    )


def of_campaign(campaign: Mapping[str, Any]) -> Answer:
    """Return the answer of an acceptance campaign for a report: its verdict, and its worst workload's speed.

    ``campaign`` is as ``for_report`` makes it; ``text`` is its headline and why, ``also`` its first remarks, all
    without parentheses. The worst timed workload is the one whose performance is the least above what is required of
    it, or the most below; where nothing is required, 0 counts. ``figure`` is its share of the reference's speed,
    ``reference`` the share that is required. Both are empty without a timed workload; ``reference`` also where the
    worst has no requirement. The word is ``PASS``, ``FAIL``, or ``OPEN`` for any other outcome.
    """
    words: dict[str, Word] = {"accepted": "PASS", "not accepted": "FAIL"}
    timed = [item for item in campaign["workloads"] if item["performance"] is not None]
    worst = min(timed, key=lambda item: item["performance"] - (item["required"] or 0), default=None)
    required = ""
    if worst and worst["required"]:
        required = f"{percent(worst['required'])} required, {worst['title']}"
    return Answer(
        word=words.get(campaign["outcome"], "OPEN"),
        text=plain(f"{campaign['headline']}: {campaign['why']}."),
        figure=f"{percent(worst['performance'])} of the reference's speed" if worst else "",
        reference=plain(required),
        also=tuple(plain(text) for text in campaign["remarks"][:_MOST_ALSO]),
    )


def of_tuning(tuning: Mapping[str, Any]) -> Answer:
    """Return the answer of a tuning for a report: its conclusion, and the winner's command if a winner was found.

    ``tuning`` is its result as JSON values, of which ``conclusion`` (text), ``found`` (boolean) and, if that is
    true, ``winner`` with its ``command`` count. The word is FASTEST with a winner, else OPEN.
    """
    text = plain(tuning["conclusion"])
    found: bool = tuning["found"]
    return Answer(
        word="FASTEST" if found else "OPEN",
        text=f"{text[:1].upper()}{text[1:].rstrip('.')}.",
        todo="Train with it:" if found else "",
        command=tuning["winner"]["command"] if found else "",
    )


def named(group: Mapping[str, Any], others: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return a configuration's name for people: ``llama3.1 70b mbridge fp8 on 64 H100``.

    ``group`` is the configuration as JSON by ``GROUP``, of which ``title`` and ``software`` are needed. Where several
    of ``others``, the configuration itself among them, have that name, it is the whole title with the software instead:
    ``TITLE with SOFTWARE``.
    """
    name = _short_title(group["title"])
    same = [other for other in others if _short_title(other["title"]) == name]
    return f"{plain(group['title'])} with {group['software']}" if len(same) > 1 else name


def _short_title(title: str) -> str:
    """Return a configuration's title without what stands in parentheses, and with the GPU type in capitals.

    ``llama3.1 70b mbridge fp8 (mx) on 64 h100`` becomes ``llama3.1 70b mbridge fp8 on 64 H100``.
    """
    without_scaling = re.sub(r" \([^()]*\)", "", title)
    return re.sub(r"(?<= on )\d+ [a-z]+\d+", lambda found: found[0].upper(), plain(without_scaling))


def plain(text: str) -> str:
    """Return ``text`` without parentheses: what stands in them is set off by a comma before it, in nested ones, too.

    ``a (b) c`` becomes ``a, b c``. A parenthesis without a partner is dropped.
    """
    innermost = re.compile(r" ?\(([^()]*)\)")
    while innermost.search(text):
        text = innermost.sub(r", \1", text)
    return re.sub(r"[()]", "", text)


def short_names(hosts: Sequence[HostLine]) -> dict[str, str]:
    """Return the name to show for each node of ``hosts``, by its whole name.

    It is the part before the first dot where no other of these nodes has that, else the whole name.
    """
    firsts = {line.host: line.host.partition(".")[0] for line in hosts}
    counts = Counter(firsts[line.host] for line in hosts)
    return {host: first if counts[first] == 1 else host for host, first in firsts.items()}


def _verdict_counts(groups: Sequence[Mapping[str, Any]]) -> str:
    """Return the beginning of a sentence that counts configurations by verdict, the worst first, ending in ``: ``.

    ``groups`` are all of them, at least one, as JSON. ``1 of 7 configurations fails, 5 are open: ``; where all
    agree, ``Both configurations ...`` or ``All 3 ...``. Empty for a single one, which needs no count.
    """
    if len(groups) == 1:
        return ""
    kinds = Counter(str(group["word"]) for group in groups)
    if len(kinds) == 1:
        (kind,) = kinds
        every = "Both" if len(groups) == 2 else f"All {len(groups)}"
        return f"{every} configurations {_SAID[kind][1]}: "
    parts: list[str] = []
    for kind in sorted(kinds, key=WORST_FIRST.index):
        of_all = "" if parts else f" of {len(groups)} configurations"
        number = kinds[kind]
        singular, plural = _SAID[kind]
        parts.append(f"{number}{of_all} {plural if number > 1 else singular}")
    return f"{', '.join(parts)}: "


def _deciding_sentence(
    kind: str,
    groups: Sequence[Mapping[str, Any]],
    deciding: Deciding,
    slow: Sequence[HostLine],
    counts: Counts,
) -> str:
    """Return the sentence on the configuration that decides: its speed against the reference, or why there is none.

    ``NAME is 4.1 % slower than NVIDIA's result; up to 3 % slower would pass.`` With ``deciding.without`` it ends in ``;
    without n1 it is 1.2 % slower than that.`` It has a full stop at its end.

    Args:
        kind: how it stands, as one of ``WORST_FIRST``
        groups: all configurations, so that its name tells it from the others
        deciding: that configuration
        slow: the slow nodes
        counts: how all runs ended, for the cause of a failure
    """
    group, name = deciding.group, named(deciding.group, groups)
    if group["difference"] is None or kind not in ("pass", "fail", "open"):
        return f"{name} {_uncompared_clause(kind, group, counts)}."
    sentence = f"{name} is {relative_speed(group['difference'])} {_reference_owner(group)}"
    if deciding.without is not None:
        alone = deciding.without / group["reference"]["seconds"] - 1
        return f"{sentence}; without {first_few(_node_names(slow))} it is {relative_speed(alone)} that."
    if kind == "pass":
        return f"{sentence}."
    if kind == "fail":
        return f"{sentence}; up to {percent(group['tolerance'])} slower would pass."
    if group["reference_too_uncertain"]:
        return f"{sentence}, which has too few runs to decide."
    return (
        f"{sentence}; {counted(group['runs'], 'run')} cannot tell that from the limit of {percent(group['tolerance'])}."
    )


def _uncompared_clause(kind: str, group: Mapping[str, Any], counts: Counts) -> str:
    """Return what to say of a configuration that was compared with nothing: ``has failed: out of memory``.

    It goes behind the configuration's name. ``kind``: how it stands, as one of ``WORST_FIRST``; ``group``: the
    configuration as JSON, of which ``not_training`` (a list of texts) and ``verdict_text`` are needed; ``counts``: how
    all runs ended, whose commonest cause is taken for its own. The text has no full stop.
    """
    text, _ = _SAID[kind]
    if kind == "failed" and counts.causes:
        return f"{text}: {counts.causes[0]}"
    if kind == "not training" and group["not_training"]:
        return f"{text}: {group['not_training'][0]}"
    if kind == "no reference":
        return f"{text}: no published result and no baseline of this site"
    return f"{text}: {group['verdict_text']}" if kind == "not compared" else text


def _reference_owner(group: Mapping[str, Any]) -> str:
    """Return whose result a configuration is compared with, for a sentence: ``NVIDIA's result``.

    It may also be ``this site's baseline`` or ``its reference``, with ``with SOFTWARE`` behind it where that is another
    than the configuration's. ``group`` is the configuration as JSON, and its ``reference`` must not be None.
    """
    reference = group["reference"]
    owner = {"published": "NVIDIA's result", "baseline": "this site's baseline"}.get(reference["kind"], "its reference")
    return owner if reference["same_software"] else f"{owner} with {reference['software'].rpartition(', ')[2]}"


def _figures_text(group: Mapping[str, Any]) -> tuple[str, str]:
    """Return (step time, reference) as texts: ``5.74 s a step``, stalls included, and ``5.51 s, SOURCE``.

    ``group`` is the configuration as JSON; ``difference``, ``step_seconds`` and ``reference`` are needed. Either is
    empty where there is none; where nothing was compared, the step time is without stalls, and the reference is empty.
    """
    if group["difference"] is None:
        return (f"{_seconds_text(group['step_seconds'])} a step" if group["step_seconds"] else ""), ""
    reference = group["reference"]
    mean = reference["seconds"] * (1 + group["difference"])
    return f"{_seconds_text(mean)} a step", f"{_seconds_text(reference['seconds'])}, {reference['source']}"


def _seconds_text(value: float) -> str:
    """Return a step time in seconds as text with its unit: ``5.74 s``.

    It has three digits after the point below 1 s, else two.
    """
    digits = 3 if value < 1 else 2
    return f"{value:.{digits}f} s"


def _node_names(slow: Sequence[HostLine]) -> list[str]:
    """Return the names of slow nodes without their domains, in the order given; whole where two would be equal."""
    known = short_names(slow)
    return [known[line.host] for line in slow]


def _next_action(kind: str, deciding: Deciding, hosts: Sequence[HostLine], slow: Sequence[HostLine]) -> tuple[str, str]:
    """Return (sentence, command) on what to do next; each is empty where there is none.

    Such as ``Nothing to do.`` and an empty command for a pass. Bad nodes, then slow ones, that are not excluded yet
    outrank all else, a pass too: whatever they slow down proves nothing. ``kind`` is how the deciding configuration
    stands, one of ``WORST_FIRST``; ``hosts`` are all nodes, ``slow`` the slow ones.
    """
    if deciding.urgent:
        return deciding.todo, deciding.command
    within = [line for line in slow if line.host not in deciding.excluded]
    if within:
        return _take_out(hosts, within)
    if kind == "pass":
        return "Nothing to do.", ""
    return deciding.todo, deciding.command if deciding.todo else ""


def _take_out(hosts: Sequence[HostLine], slow: Sequence[HostLine]) -> tuple[str, str]:
    """Return (sentence, command) on slow nodes, at least one: why and how to exclude all of them.

    The sentence is such as ``Take n1 out: REASON.``, with a full stop; the command is ``llmb-run exclude add ...``,
    quoted for a shell. The reason is the first node's. ``hosts`` are all nodes, so that short names stay unique.
    """
    known = short_names(hosts)
    names = [known[line.host] for line in slow]
    first = slow[0]
    reason = why_slow(first.host, first.findings, first.slower or 0.0)
    if len(slow) == 1:
        text = f"Take {names[0]} out: {reason}."
    elif {line.host for line in slow} == {first.host, *first.together}:
        text = f"Take {' and '.join(names)} out: one of them is slow; they were always in the same runs."
    else:
        text = f"Take {first_few(names)} out: runs with any of them are slower."
    words = exclude_command([line.host for line in slow], reason)
    return plain(text), f"llmb-run {shlex.join(words)}"


def _further_sentences(counts: Counts, slow: Sequence[HostLine], deciding: Deciding | None) -> tuple[str, ...]:
    """Return further sentences for the first screen of a report, the weightiest first, at most ``_MOST_ALSO``.

    Each has a full stop and no parentheses: ``2 of 9 runs ended without a result, mostly for this reason: CAUSE.``
    They are on slow nodes (unless ``deciding`` tells of these), runs since the last look, failures, runs without a step
    time or end, and stalls.
    ``counts``: how all runs ended; ``slow`` are the slow nodes; ``deciding`` is None where no run was recorded. Empty:
    there are none of these.
    """
    sentences = []
    runs = counted(counts.runs, "run")
    if slow and (deciding is None or deciding.without is None):
        slower = max(line.slower or 0.0 for line in slow)
        sentences.append(
            f"Runs with {first_few(_node_names(slow))} are up to {percent(slower)} slower than those without."
        )
    later = deciding.group["later_difference"] if deciding else None
    if later is not None:
        sentences.append(f"Its newest runs, which wait for the next look, are {relative_speed(later)} those judged.")
    if counts.failed:
        often = "" if counts.failed == 1 else "mostly "
        cause = f", {often}for this reason: {counts.causes[0]}" if counts.causes else ""
        sentences.append(f"{counts.failed} of {runs} ended without a result{cause}.")
    if counts.others:
        sentences.append(f"Not failed, but without a step time: {first_few(counts.others)}.")
    if counts.live:
        sentences.append(f"{counts.live} of {runs} {'has' if counts.live == 1 else 'have'} not ended.")
    stalls = deciding.group["stall_share"] if deciding else None
    if deciding and stalls and stalls >= _STALLS_SHOWN:
        steady = _seconds_text(deciding.group["step_seconds"])
        sentences.append(f"Stalls cost {percent(stalls)} of the step time: a steady step takes {steady}.")
    return tuple(plain(text) for text in sentences[:_MOST_ALSO])


def _of_sweep(board: Board) -> Answer:
    """Return the answer for a report on a sweep without references: which configuration is the fastest.

    ``board`` must have a configuration with a step time. The word is FASTEST, or OPEN where several tie for first
    place. ``figure`` is its tokens per second and GPU (``10,240 tokens/s a GPU``), ``reference`` those of the next one,
    in a tie the next that shares the first place (``10,100, the next``); empty where unknown.
    """
    first, *others = board.configurations
    tied = [item for item in others if item.place == first.place]
    behind = next((item for item in others if item.place not in (None, first.place)), None)
    compared = tied[0] if tied else behind
    return Answer(
        word="OPEN" if tied else "FASTEST",
        text=_fastest_sentence(board),
        figure=f"{first.tokens:,.0f} tokens/s a GPU" if first.tokens else "",
        reference=f"{compared.tokens:,.0f}, the next" if compared and compared.tokens else "",
        todo="Run those that share first place again: more runs may tell them apart." if tied else "Train with it:",
        command="" if tied else board.command,
    )


_TIMES = 2.0
"""A ratio from which on it is said in times, not in per cent."""


def _fastest_sentence(board: Board) -> str:
    """Return the sentence on a ranking: which configuration is the first, and by how much.

    ``tp 4 is the fastest of 6 configurations of TITLE: the next takes 2.1 % longer for a token.`` If several tie
    for first place, it says how many. ``board`` must have a configuration with a step time. It ends with a full
    stop.
    """
    first, *others = board.configurations
    settings = zip(board.names, first.values, strict=True)
    name = ", ".join(f"{setting} {value}" for setting, value in settings)
    of_all = f"of {counted(len(board.configurations), 'configuration')} of {_short_title(board.title)}"
    if tied := sum(item.place == first.place for item in others):
        return plain(f"{tied + 1} {of_all} tie for first place, {name} among them: these runs do not tell them apart.")
    behind = next((item.behind for item in others if item.behind), None)
    lead = ""
    if behind and behind.ratio >= _TIMES:
        lead = f": the next takes {behind.ratio:.1f} times as long for a token"
    elif behind:
        lead = f": the next takes {percent(behind.ratio - 1)} longer for a token"
    return plain(f"{name} is the fastest {of_all}{lead}.")
