"""Why a run failed: everything that it left is read, and one answer is given."""

from __future__ import annotations

import contextlib
import os.path
from collections.abc import Iterator, Sequence
from pathlib import Path

from llmb_common.causes.answer import Diagnosis
from llmb_common.causes.deciding import Outcome, decide, outcome_of
from llmb_common.causes.hangs import RankFile, find_stuck, read_ranks
from llmb_common.causes.places import Places
from llmb_common.causes.reading import Complaint, Reading, read_complaints
from llmb_common.errors import LLMBError
from llmb_common.runs.evidence.nodes import FOLDER, read_nodes
from llmb_common.runs.finding import attempts_of
from llmb_common.runs.hostlist import expand
from llmb_common.runs.record import RunRecord
from llmb_common.timing.job_events import read_events

_MOST_KERNEL_LOGS = 8192


def diagnose(record: RunRecord, not_finite: str = "") -> Diagnosis:
    """The diagnosis of a run that has ended badly, or is believed to have.

    ``not_finite`` says at which iteration a figure was not a number, where the verdict over its log is that.
    """
    paths, plan = record.paths, record.plan
    events = read_events(paths.events)
    places, ranks = Places(plan.gpus, plan.gpus_per_node), read_ranks(paths.folder)
    places.add_order(events.nodes)
    places.add_nodes(read_nodes(paths.folder))
    _add_ranks(places, ranks)
    logs = [(paths.log, max(0, events.log_from - 1)), (paths.batch_log, max(0, events.batch_from - 1))]
    readings = [read_complaints(*log) for log in logs] + list(_kernel_logs(paths.folder, places))
    outcome = outcome_of(record.state, record.detail, events.problem, _failed(record))
    if events.full:
        outcome = Outcome("disk-full", f"{events.problem}; it is on {_file_system(paths.folder)}")
    outcome = Outcome("nan", not_finite) if not_finite else outcome
    return _diagnose(readings, outcome, places, paths.folder, ranks)


def diagnose_logs(logs: Sequence[Path]) -> Diagnosis:
    """The diagnosis of logs that LLMB did not make, the ranks' own first; their folder may hold more."""
    folder = logs[0].parent if logs else None
    ranks = read_ranks(folder) if folder else []
    places = Places()
    _add_ranks(places, ranks)
    return _diagnose([read_complaints(log) for log in logs], Outcome(), places, folder, ranks)


def _diagnose(
    readings: Sequence[Reading],
    outcome: Outcome,
    places: Places,
    folder: Path | None,
    ranks: Sequence[RankFile],
) -> Diagnosis:
    for reading in readings:
        places.add_complaints(reading.complaints)
    if readings and (places.world is None or not places.hosts):
        places.add_log(readings[0].log)
    hang = find_stuck(folder, ranks, readings, places)
    return decide(readings, outcome, hang, places)


def _add_ranks(places: Places, ranks: Sequence[RankFile]) -> None:
    for item in ranks:
        places.hosts[item.rank] = item.host
        places.processes[item.pid] = item.rank
        if item.local == 0:
            places.first[item.host] = item.rank


def _kernel_logs(folder: Path, places: Places) -> Iterator[Reading]:
    """What the kernel of each node said, where the job could read it."""
    for file in sorted((folder / FOLDER).glob("*.kernel.log"))[:_MOST_KERNEL_LOGS]:
        reading = read_complaints(file)
        host = file.name.removesuffix(".kernel.log")
        ours = (item for item in reading.complaints if _is_ours(item, places))
        reading.complaints = [item._replace(line=item.line._replace(host=host)) for item in ours]
        reading.last = ""
        yield reading


def _is_ours(item: Complaint, places: Places) -> bool:
    """A GPU is the job's; a process that crashed or was killed may be anybody's."""
    return item.signature.id not in ("segfault", "host-memory") or (item.place.pid or 0) in places.processes


def _file_system(folder: Path) -> Path:
    return next((path for path in (folder, *folder.parents) if os.path.ismount(path)), folder)


def _failed(record: RunRecord) -> list[str]:
    """The nodes that the scheduler says have failed."""
    with contextlib.suppress(LLMBError):
        return [node for attempt in attempts_of(record)[-1:] for node in expand(attempt.failed or "")]
    return []
