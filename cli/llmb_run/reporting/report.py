"""``Report``: everything that a report says, as plain data. HTML, Markdown and JUnit are functions of it (``forms``).

It begins with what was measured, where, when and by whom, and the conclusion in one sentence.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from llmb_common import __version__
from llmb_common.command.printable import counted, printable
from llmb_common.machine.files import user_name
from llmb_common.results.comparison import facts
from llmb_common.results.configuration import title_of
from llmb_common.results.history import History
from llmb_common.results.scaling import ScalingLine
from llmb_common.results.steps import after_warm_up
from llmb_common.runs.record import RunRecord
from llmb_common.timing.records import Iteration
from llmb_common.timing.runs import NO_FAILURE, RunTiming
from llmb_run import columns
from llmb_run.reporting.hosts import HostLine, host_lines
from llmb_run.results.groups import GROUP, boards, group, ranking_as_dict
from llmb_run.results.measured import MeasuredRun, explain, reference_lines
from llmb_run.results.run_columns import RUN, as_dict
from llmb_run.results.series import SCALING, history_lines, scales_of, scaling_lines
from llmb_run.workspace import Workspace

_MOST = 4
"""Values that are named; of the rest there is a count."""

_WORDS = {
    "fail": ("fails", "fail"),
    "open": ("is open", "are open"),
    "pass": ("passes", "pass"),
    "no reference": ("has no reference", "have no reference"),
    "no success": ("has no successful run", "have no successful run"),
    "running": ("has not ended", "have not ended"),
}
"""Of one configuration and of several; any other verdict is its own word."""

_WORST_FIRST = ("fail", "no success", "", "open", "running", "not judged", "no reference", "pass")
"""The empty one stands for verdicts that are not listed."""


class Conclusion(msgspec.Struct, frozen=True):
    """``kind`` is the worst verdict among the configurations."""

    kind: str
    text: str


def facts_of_site(found: Sequence[MeasuredRun], workspace: Workspace) -> tuple[tuple[str, str], ...]:
    """Cluster, GPUs, software, dates, who: what is known of each, with its name."""
    records = [item.record for item in found if item.record]
    days = sorted(time.strftime("%Y-%m-%d", time.gmtime(record.created)) for record in records)
    folders = (record.paths.folder for record in records)
    owners = _listed(user_name(folder.stat().st_uid) for folder in folders if folder.is_dir())
    lines = (
        ("Cluster", _cluster(records, workspace)),
        ("GPUs", _gpus(found)),
        ("Software", _software(found)),
        ("Measured", " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))),
        ("By", workspace.cluster.operator or owners),
    )
    return tuple((name, printable(text)) for name, text in lines if text)


def _cluster(records: Sequence[RunRecord], workspace: Workspace) -> str:
    told = [record.plan.scheduler for record in records if record.plan.scheduler and record.plan.scheduler.queue]
    asked = f"{told[0].queue_word} {_listed(item.queue or '' for item in told)}" if told else ""
    hosts = _listed(str(record.manifest.get("host") or "") for record in records)
    words = [workspace.cluster.cluster_name, asked]
    return ", ".join(word for word in (*words, f"submitted from {hosts}" if hosts else "") if word)


def _gpus(found: Sequence[MeasuredRun]) -> str:
    nodes: dict[str, set[str]] = {}
    for item in found:
        if item.account.gpus:
            nodes.setdefault(item.account.gpus, set()).update(item.account.hosts)
    seen = [f"{counted(len(hosts), 'node')} with {gpus}" for gpus, hosts in nodes.items()]
    plans = (item.record.plan for item in found if item.record and not item.account.gpus)
    planned = (
        f"none, {counted(plan.gpus, 'rank')} on CPUs"
        if plan.device == "cpu"
        else f"{plan.gpus} {plan.gpu_type.upper()} (planned: no node's account)"
        for plan in plans
    )
    return _listed([*seen, *planned], "; ")


def _software(found: Sequence[MeasuredRun]) -> str:
    names = _listed(item.software for item in found if item.record)
    versions = (
        f"{title} {_listed(getattr(item.account, name) for item in found)}"
        for title, name in (("driver", "driver"), ("CUDA", "cuda"), ("NCCL", "nccl"))
        if any(getattr(item.account, name) for item in found)
    )
    return "; ".join(text for text in (names, ", ".join(versions)) if text)


def _listed(values: Iterable[str], between: str = ", ") -> str:
    names = list(dict.fromkeys(value for value in values if value))
    more = [f"{len(names) - _MOST} more"] if len(names) > _MOST else []
    return between.join([*names[:_MOST], *more])


def conclude(
    groups: Sequence[dict[str, Any]], results: Sequence[dict[str, Any]], hosts: Sequence[HostLine]
) -> Conclusion:
    """One sentence on the configurations (``group_as_dict``), the runs (``as_dict``) and the nodes.

    Verdicts against other software are counted apart from the others.
    """
    if not groups:
        return Conclusion("not judged", f"{counted(len(results), 'run')}, and nothing to judge.")
    ordered = sorted(groups, key=_order)
    said = _counts(ordered) if len(groups) > 1 else [f"{_named(ordered[0])}: {_text(ordered[0])}"]
    if broken := sum(result["status"] not in NO_FAILURE for result in results):
        said.append(f"{broken} of {counted(len(results), 'run')} did not succeed")
    if live := sum(result["status"] == "Running" for result in results):
        said.append(f"{live} of {counted(len(results), 'run')} {'has' if live == 1 else 'have'} not ended")
    for line in hosts:
        if line.slower is not None and line.host < min(line.together, default="\U0010ffff"):  # once of those together
            names = _listed([line.host, *line.together], " and ")
            said.append(f"runs with {names} are {line.slower:.1%} slower than those without")
    sentence = "; ".join(said)
    return Conclusion(_kind(ordered[0]), f"{sentence[:1].upper()}{sentence[1:]}.")


def _counts(ordered: Sequence[dict[str, Any]]) -> list[str]:
    """How many of several configurations have each verdict, and what the worst one's says."""
    kinds = Counter((_kind(item), bool(item["indication"])) for item in ordered)
    said: list[str] = []
    for (kind, indication), count in kinds.items():
        one, several = _WORDS.get(kind, (f"is {kind}", f"are {kind}"))
        of_all = "" if said else f" of {len(ordered)} configurations"
        answer = f"{one if count == 1 else several}{' as an indication' if indication else ''}"
        said.append(f"{count}{of_all} {answer}")
    worst, (count, *_) = ordered[0], kinds.values()
    if (kind := _kind(worst)) != "pass":
        # Its verdict without the word that the sentence has said.
        text = re.sub(rf"^(indication: )?{re.escape(kind)}[,:] ", "", _text(worst))
        said[0] += f"{':' if count == 1 else ', among them'} {_named(worst)}, {text}"
    return said


def _order(group: dict[str, Any]) -> tuple[int, bool, float]:
    """The worst first: by verdict, and among equal ones by what they take longer than their reference."""
    kind = _kind(group)
    rank = _WORST_FIRST.index(kind if kind in _WORST_FIRST else "")
    return rank, bool(group["indication"]), -(group["difference"] or 0)


def _named(group: dict[str, Any]) -> str:
    return f"{group['title']}, {group['software']}"


def _text(group: dict[str, Any]) -> str:
    return group["verdict_text"] or "no successful run"


def _kind(group: dict[str, Any]) -> str:
    if group["verdict"]:
        return str(group["verdict"])
    if group["run_ids"]:
        return "not judged"
    return "running" if group["live"] and not group["unsuccessful"] else "no success"


_MOST_VALUES = 8


class Value(msgspec.Struct, frozen=True):
    """One value of a fact, and the runs that have it; ``-`` where they do not know."""

    value: str
    runs: tuple[str, ...]


class Fact(msgspec.Struct, frozen=True):
    """``values`` are the commonest, ``others`` counts the rest."""

    name: str
    values: tuple[Value, ...]
    others: int = 0


class Differing(msgspec.Struct, frozen=True):
    """Runs of one title, such as ``grok1 314b nemo2 bf16 on 256 h100``, and the facts in which they differ."""

    title: str
    facts: tuple[Fact, ...]


def differing(found: Sequence[MeasuredRun]) -> tuple[Differing, ...]:
    """One for each title with runs that differ, in the order of the first runs."""
    together: dict[str, dict[str, Mapping[str, str]]] = {}
    for item in found:
        if item.record:
            together.setdefault(title_of(item.record.plan), {})[item.record.paths.run_id] = facts(item.record)
    listed = ((title, _differing_facts(runs)) for title, runs in together.items())
    return tuple(Differing(title, differ) for title, differ in listed if differ)


def _differing_facts(runs: Mapping[str, Mapping[str, str]]) -> tuple[Fact, ...]:
    differ = []
    for name in dict.fromkeys(name for known in runs.values() for name in known if name != "hosts"):
        by_value: dict[str, list[str]] = {}
        for run, known in runs.items():
            by_value.setdefault(known.get(name, "-"), []).append(run)
        if len(by_value) > 1:
            ordered = sorted(by_value.items(), key=lambda item: -len(item[1]))
            values = tuple(Value(value, tuple(named)) for value, named in ordered[:_MOST_VALUES])
            differ.append(Fact(name, values, len(ordered) - len(values)))
    return tuple(differ)


_DIGITS = 6
_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


class StepColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of equal length, seconds and TFLOP/s per GPU; ``total`` is how many steps the log has.

    ``quantiles`` are of all steps after warm-up: least, 5, 25, 50, 75, 95 %, greatest; empty where there are none.
    """

    total: int
    index: list[int]
    seconds: list[float]
    loss: list[float | None]
    quantiles: list[float]


def steps_of(timing: RunTiming, most: int) -> StepColumns:
    """At most about ``most`` steps of a run."""
    items = thin(timing.iterations, most)
    steady = sorted(item.seconds for item in after_warm_up(timing))
    return StepColumns(
        total=len(timing.iterations),
        index=[item.index for item in items],
        seconds=[_short(item.seconds) for item in items],
        loss=[_finite(item.loss) for item in items],
        quantiles=[_short(quantile(steady, share)) for share in _QUANTILES] if steady else [],
    )


def thin(items: Sequence[Iteration], most: int) -> list[Iteration]:
    """``items``, or of each stretch of equal length its fastest and slowest step and its highest loss, in order."""
    if len(items) <= most:
        return list(items)
    stretches = max(1, most // 3)
    kept: set[int] = set()
    for number in range(stretches):
        places = range(len(items) * number // stretches, len(items) * (number + 1) // stretches)
        kept.add(min(places, key=lambda at: items[at].seconds))
        kept.add(max(places, key=lambda at: items[at].seconds))
        kept.add(max(places, key=lambda at: _finite(items[at].loss) or -math.inf))
    return [items[at] for at in sorted(kept | {0, len(items) - 1})]


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of sorted values, between neighbours linearly."""
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def _finite(value: float | None) -> float | None:
    return _short(value) if value is not None and math.isfinite(value) else None


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


MOST_POINTS = 30_000
"""Steps that a report holds, over all runs: a page of 500 runs stays a few megabytes."""


_PAGE = {name: columns.described(listed) for name, listed in (("runs", RUN), ("groups", GROUP), ("scaling", SCALING))}


class ReportRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run. ``result`` is what ``results --json`` says of it. ``name`` is its run id, or the log's name where it has
    none; ``title`` and ``software`` are None there too."""

    result: dict[str, Any]
    name: str
    title: str | None
    software: str | None
    hosts: tuple[str, ...]
    steps: StepColumns


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """``groups`` are what ``results --group`` says; ``references`` say what the verdicts were compared with."""

    title: str
    made: float
    """Unix time."""
    version: str
    facts: tuple[tuple[str, str], ...]
    """Cluster, GPUs, software and so on, each with its name."""
    conclusion: Conclusion
    groups: tuple[dict[str, Any], ...]
    runs: tuple[ReportRun, ...]
    sweeps: tuple[dict[str, Any], ...]
    """What ``results --rank`` says of configurations that differ in more than their scale and precision."""
    scaling: tuple[ScalingLine, ...]
    scales: tuple[list[dict[str, Any]], ...]
    """The rows of each of ``scaling``."""
    histories: tuple[History, ...]
    differing: tuple[Differing, ...]
    hosts: tuple[HostLine, ...]
    references: tuple[str, ...]
    columns: dict[str, list[dict[str, str]]] = msgspec.field(default_factory=lambda: dict(_PAGE))
    """The page's columns of figures: key, heading, unit and how a value is written, for each of its tables."""
    campaign: dict[str, Any] | None = None
    """The verdicts of the acceptance campaign that the runs are of, where they are one's: ``outcome.for_report``."""
    tuning: dict[str, Any] | None = None
    """Conclusion, trials and winner of the tuning that the runs are of."""

    @property
    def ok(self) -> bool:
        """Whether no run failed or is incomplete."""
        return all(run.result["status"] in NO_FAILURE for run in self.runs)


_DOCUMENTED = {"gpus", "gbs", "dtype", "fp8_recipe", "software"}
"""What configurations differ in that nobody varied."""


def build(found: Sequence[MeasuredRun], workspace: Workspace, title: str = "LLMB report") -> Report:
    """The report on measured runs, in their order."""
    explain(found)
    most = max(30, MOST_POINTS // max(1, len(found)))
    groups = tuple(columns.as_dict(GROUP, item) for item in group(found))
    sweeps = [board for board in ranking_as_dict(boards(found, workspace)) if board["command"]]
    runs = tuple(_run(item, most) for item in found)
    hosts, lines = host_lines(found), scaling_lines(found, workspace)
    return Report(
        title=title,
        made=round(time.time()),
        version=__version__,
        facts=facts_of_site(found, workspace),
        conclusion=conclude(groups, [run.result for run in runs], hosts),
        groups=groups,
        runs=runs,
        sweeps=tuple(board for board in sweeps if not {*board["differing"]} <= _DOCUMENTED),
        scaling=tuple(lines),
        scales=tuple([columns.as_dict(SCALING, row) for row in scales_of(line)] for line in lines),
        histories=tuple(history_lines(found)),
        differing=differing(found),
        hosts=hosts,
        references=tuple(reference_lines(found)),
    )


def _run(item: MeasuredRun, most: int) -> ReportRun:
    result = as_dict(item)
    return ReportRun(
        result=result,
        name=result["run_id"] or result["name"],
        title=title_of(item.record.plan) if item.record else None,
        software=item.software or None,
        hosts=item.account.hosts,
        steps=steps_of(item.timing, most),
    )
