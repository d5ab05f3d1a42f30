"""What a report begins with: on what was measured, when and by whom, and the conclusion in one sentence."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from llmb_common.command.printable import counted, printable
from llmb_common.machine.files import user_name
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.record import RunRecord
from llmb_run.place import Place
from llmb_run.reporting.hosts import HostLine
from llmb_run.results.measuring import Measured

_MOST = 4
"""Values that are named; of the rest there is a count."""

_WORDS = {
    "fail": ("fails", "fail"),
    "inconclusive": ("is inconclusive", "are inconclusive"),
    "pass": ("passes", "pass"),
    "no reference": ("has no reference", "have no reference"),
    "no success": ("has no successful run", "have no successful run"),
}
"""Of one configuration and of several; any other verdict is its own word."""

_WORST_FIRST = ("fail", "no success", "", "inconclusive", "not judged", "no reference", "pass")
"""The empty one stands for verdicts that are not listed."""


class Conclusion(msgspec.Struct, frozen=True):
    """``kind`` is the worst verdict among the configurations."""

    kind: str
    text: str


def facts(found: Sequence[Measured], place: Place) -> tuple[tuple[str, str], ...]:
    """Cluster, GPUs, software, dates, who: what is known of each, with its name."""
    records = [item.record for item in found if item.record]
    lines = (
        ("Cluster", _cluster(records, place)),
        ("GPUs", _gpus(found)),
        ("Software", _software(found)),
        ("Measured", _dates(records)),
        ("By", place.cluster.operator or _owners(records)),
    )
    return tuple((name, printable(text)) for name, text in lines if text)


def _cluster(records: Sequence[RunRecord], place: Place) -> str:
    told = [record.plan.scheduler for record in records if record.plan.scheduler and record.plan.scheduler.queue]
    asked = f"{told[0].queue_word} {_listed(item.queue or '' for item in told)}" if told else ""
    hosts = _listed(str(record.manifest.get("host") or "") for record in records)
    words = [place.cluster.cluster_name, asked]
    return ", ".join(word for word in (*words, f"submitted from {hosts}" if hosts else "") if word)


def _gpus(found: Sequence[Measured]) -> str:
    nodes: dict[str, set[str]] = {}
    for item in found:
        if item.account.gpus:
            nodes.setdefault(item.account.gpus, set()).update(item.account.hosts)
    seen = [f"{counted(len(hosts), 'node')} with {gpus}" for gpus, hosts in nodes.items()]
    planned = (_planned(item.record.plan) for item in found if item.record and not item.account.gpus)
    return _listed([*seen, *planned], "; ")


def _planned(plan: JobPlan) -> str:
    if plan.device == "cpu":
        return f"none, {counted(plan.gpus, 'rank')} on CPUs"
    return f"{plan.gpus} {plan.gpu_type.upper()} (planned: no node's account)"


def _software(found: Sequence[Measured]) -> str:
    names = _listed(item.software for item in found if item.record)
    versions = (
        f"{title} {_listed(getattr(item.account, name) for item in found)}"
        for title, name in (("driver", "driver"), ("CUDA", "cuda"), ("NCCL", "nccl"))
        if any(getattr(item.account, name) for item in found)
    )
    return "; ".join(text for text in (names, ", ".join(versions)) if text)


def _dates(records: Sequence[RunRecord]) -> str:
    days = sorted(time.strftime("%Y-%m-%d", time.gmtime(record.created)) for record in records)
    if not days:
        return ""
    return days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"


def _owners(records: Sequence[RunRecord]) -> str:
    folders = (record.paths.folder for record in records)
    return _listed(user_name(folder.stat().st_uid) for folder in folders if folder.is_dir())


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
    sentence = "; ".join([*said, *_broken(results), *_slow(hosts)])
    return Conclusion(_kind(ordered[0]), f"{sentence[:1].upper()}{sentence[1:]}.")


def _counts(ordered: Sequence[dict[str, Any]]) -> list[str]:
    """How many of several configurations have each verdict, and what the worst one's says."""
    kinds = Counter((_kind(group), bool(group["indication"])) for group in ordered)
    first, *others = (_answer(kind, indication, count) for (kind, indication), count in kinds.items())
    count, _, answer = first.partition(" ")
    first = f"{count} of {len(ordered)} configurations {answer}"
    if _kind(ordered[0]) != "pass":
        first += f"{':' if count == '1' else ', among them'} {_said(ordered[0])}"
    return [first, *others]


def _order(group: dict[str, Any]) -> tuple[int, bool, float]:
    """The worst first: by verdict, and among equal ones by what they take longer than their reference."""
    kind = _kind(group)
    rank = _WORST_FIRST.index(kind if kind in _WORST_FIRST else "")
    return rank, bool(group["indication"]), -(group["difference"] or 0)


def _named(group: dict[str, Any]) -> str:
    return f"{group['title']}, {group['software']}"


def _said(group: dict[str, Any]) -> str:
    """Its name and verdict, without the word that the sentence has said."""
    return f"{_named(group)}, " + re.sub(rf"^(indication: )?{re.escape(_kind(group))}[,:] ", "", _text(group))


def _text(group: dict[str, Any]) -> str:
    return group["verdict_text"] or "no successful run"


def _kind(group: dict[str, Any]) -> str:
    return group["verdict"] or ("not judged" if group["run_ids"] else "no success")


def _answer(kind: str, indication: bool, count: int) -> str:
    one, several = _WORDS.get(kind, (f"is {kind}", f"are {kind}"))
    return f"{count} {one if count == 1 else several}{' as an indication' if indication else ''}"


def _broken(results: Sequence[dict[str, Any]]) -> list[str]:
    count = sum(result["status"] not in ("Success", "Running") for result in results)
    return [f"{count} of {counted(len(results), 'run')} did not succeed"] if count else []


def _slow(hosts: Sequence[HostLine]) -> list[str]:
    found = []
    for line in hosts:
        if line.slower is not None and line.host < min(line.together, default="\U0010ffff"):
            names = _listed([line.host, *line.together], " and ")
            found.append(f"runs with {names} are {line.slower:.1%} slower than those without")
    return found
