"""Why runs failed, found out once: diagnoses are kept in the index, as figures are."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from llmb_common import causes
from llmb_common.causes.answer import Diagnosis
from llmb_common.causes.diagnosis import diagnose
from llmb_common.decoding.structs import from_packed
from llmb_common.index.database import Kept, keep_figures, kept_figures
from llmb_common.machine.files import sha256_of_tree
from llmb_common.run_states import is_live
from llmb_common.runs.record import COMPLETED, RunRecord
from llmb_common.timing.log_files import RunFiles
from llmb_common.timing.runs import RecordedState, Status
from llmb_run.results.kept import stamp_of

_WINDOW = "why"
"""In the place of the window that figures are of."""


def reasons(
    install: Path | None, records: Iterable[RunRecord], judged: Mapping[str, Status] | None = None
) -> dict[str, Diagnosis]:
    """The diagnoses of those of ``records`` that have ended badly, by run id.

    ``judged`` are verdicts over logs by run id: a run that its scheduler calls complete may have failed all the same.
    """
    failed = [record for record in records if _failed(record, (judged or {}).get(record.paths.run_id))]
    known = kept_figures(install, {str(record.paths.log) for record in failed}) if install and failed else {}
    new: list[Kept] = []
    found: dict[str, Diagnosis] = {}
    for record in failed:
        status = (judged or {}).get(record.paths.run_id)
        not_finite = status.message if status and status.reason.startswith(("nan_", "inf_")) else ""
        files = RunFiles(record.paths.name, record.paths.folder, record.paths.log)
        stamp = stamp_of(files, RecordedState(record.state, f"{record.detail}\n{not_finite}"), _code())
        kept = known.get((str(record.paths.log), _WINDOW))
        diagnosis = _unpacked(kept.content) if kept and stamp and kept.stamp == stamp else None
        if diagnosis is None:
            diagnosis = diagnose(record, not_finite)
            packed = msgspec.msgpack.encode(diagnosis)
            new += [Kept(str(files.log), _WINDOW, str(files.folder), stamp, packed)] if stamp else []
        found[record.paths.run_id] = diagnosis
    if install and new:
        keep_figures(install, new)
    return found


def _failed(record: RunRecord, status: Status | None) -> bool:
    if is_live(record.state):
        return False
    return status.state == "Failed" if status else record.state != COMPLETED


def _unpacked(content: bytes) -> Diagnosis | None:
    try:
        found: Diagnosis = from_packed(content, Diagnosis)
    except msgspec.DecodeError:
        return None
    return found


@functools.cache
def _code() -> str:
    """Other code and another table may say something else of the same logs."""
    return sha256_of_tree(Path(causes.__file__ or "").parent, "*.[pyj]*")[:16]
