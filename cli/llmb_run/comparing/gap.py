"""What may make a run slower than this site's best run of the same work, and how to find out whether it does."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import Literal, TypeAlias

import msgspec

from llmb_common.index.rows import RunFilter
from llmb_common.planning.job_plan import JobPlan
from llmb_common.request.variables import COLUMNS
from llmb_common.results.comparison import EVIDENCE, differences, unequal_work
from llmb_common.results.references import release_spread
from llmb_common.roles import fields_of
from llmb_common.runs.record import RunRecord
from llmb_run.place import Place
from llmb_run.results.measuring import Measured, measure
from llmb_run.selecting import load_rows, select_rows
from llmb_run.starting.command_line import SWITCHES

MOST = 200
"""Newest runs among which the best is looked for."""

Kind: TypeAlias = Literal["software", "setting", "launch", "nodes"]
_ORDER: tuple[Kind, ...] = ("software", "setting", "launch", "nodes")

_SOFTWARE = ("image", "engine", "software", "image digest", "driver", "cuda", "nccl", "kernel", "llmb")
_NAMED = ("image", "engine", "dtype", "variant")
_UNTOLD = ("engine_python", "hosts", "recipe_sha256", "code_sha256", *fields_of(JobPlan, "derived"))
"""What follows from the rest, or is another each time."""


class Difference(msgspec.Struct, frozen=True):
    """``test``: the command that shows what it is worth; empty where nobody can choose it for a job."""

    kind: Kind
    name: str
    here: str
    there: str
    test: str = ""


class Gap(msgspec.Struct, frozen=True):
    """``published``: in words, against what the run is judged; empty where that is nothing of its software.

    ``best``: run id of the fastest run of the same work, None where this is it. ``slower``: by what share this one is.
    """

    published: str
    best: str | None = None
    slower: float | None = None
    differences: tuple[Difference, ...] = ()


def gap_of(record: RunRecord, place: Place) -> Gap:
    """What the run of ``record`` has otherwise than this site's best."""
    own = next((item for item in measure([record.paths.folder], place) if item.record is not None), None)
    if own is None:
        return Gap("")
    best = _best(record, own, place)
    if best is None or best.record is None or best.good is None or own.good is None:
        return Gap(_published(own))
    found = [
        _difference(record, best.record, *item) for item in differences([record], [best.record]) if _tells(item[0])
    ]
    ordered = sorted(found, key=lambda item: (_ORDER.index(item.kind), not item.test))
    slower = own.good.seconds / best.good.seconds - 1
    return Gap(_published(own), best.record.paths.run_id, slower, tuple(ordered))


def _published(own: Measured) -> str:
    verdict = own.verdict
    if verdict is None or verdict.reference is None or verdict.difference is None or own.record is None:
        return ""
    said = f"{verdict.difference:+.1%} against {verdict.reference}"
    if verdict.reference.same_software:
        return said
    spread = release_spread(own.record.plan)
    return f"{said}; another release alone makes {spread.fastest:+.0%} to {spread.slowest:+.0%} by the published rows"


def _best(record: RunRecord, own: Measured, place: Place) -> Measured | None:
    """The fastest run of the same work on as many GPUs of the kind; None where that is the run itself."""
    plan = record.plan
    wanted = RunFilter(workloads=(plan.workload,), model_sizes=(plan.model_size,), gpus=(plan.gpus,), limit=MOST)
    records, _ = load_rows(select_rows(place, [], wanted))
    alike = [item for item in records if item.plan.gpu_type == plan.gpu_type and not unequal_work(plan, item.plan)]
    timed = [item for item in measure([item.paths.folder for item in alike], place) if item.good is not None]
    best = min(timed, key=lambda item: item.good.seconds if item.good else 0.0, default=None)
    if best is None or best.record is None or own.good is None or best.record.paths.run_id == record.paths.run_id:
        return None
    return best


def _tells(name: str) -> bool:
    return name.partition(".")[0] not in _UNTOLD


def _difference(record: RunRecord, best: RunRecord, name: str, here: str, there: str) -> Difference:
    kind: Kind = "launch"
    if name in _SOFTWARE:
        kind = "software"
    elif name in EVIDENCE:
        kind = "nodes"
    elif name in COLUMNS.values() or name.startswith(("env ", "megatron.")) or name in _NAMED:
        kind = "setting"
    # What only this run sets cannot be unset: the best run with it shows the same.
    sides = ((record, there), (best, here))
    tests = (
        f"llmb-run ab --base {base.paths.run_id} --change {quote(change)}"
        for base, value in sides
        for change in _changes(name, value)
    )
    return Difference(kind, name, here, there, next(tests, ""))


def _changes(name: str, value: str) -> Iterator[str]:
    """What ``ab --change`` takes to make it ``value``; none where that says nothing."""
    if value in ("", "-", "null"):
        return
    if name.startswith("env "):
        yield f"{name.removeprefix('env ')}={value}"
    elif name in COLUMNS.values() or name in _NAMED or name.startswith("megatron."):
        yield f"{name.removeprefix('megatron.')}={value}"
    elif name in SWITCHES:
        yield f"{SWITCHES[name]}={value}"


def lines_of(gap: Gap) -> list[tuple[str, list[str]]]:
    """For people: a name and the lines under it."""
    found = [("published", [gap.published])] if gap.published else []
    if gap.best is None:
        return [*found, ("best", ["no faster run of the same work is on record here"])]
    found.append(("best", [f"{gap.best}: this run takes {gap.slower or 0.0:.1%} more time"]))
    for kind in _ORDER:
        these = [item for item in gap.differences if item.kind == kind]
        if these:
            found.append((kind, [line for item in these for line in _told(item)]))
    if not gap.differences:
        found.append(("differs", ["nothing on record: nodes, neighbours or the day"]))
    return found


def _told(item: Difference) -> list[str]:
    said = f"{item.name}: {item.here[:40] or '-'} here, {item.there[:40] or '-'} there"
    return [said, *([f"  {item.test}"] if item.test else [])]
