"""End a run on this machine: first its script, which ends the ranks and records that, then whatever is left."""

from __future__ import annotations

from llmb_common.errors import AnswerLost, EnvironmentLacks, LLMBError, RecordError
from llmb_common.executors.local.follow import END_SECONDS
from llmb_common.executors.local.look import processes_of
from llmb_common.process import end_processes, is_alive, is_ours_to_end
from llmb_common.runs.facts import give_up
from llmb_common.runs.record import RunRecord


def end_processes_of(record: RunRecord) -> RunRecord | LLMBError:
    """The record of the run, which has ended, or why it was not ended."""
    name, process = record.paths.name, record.process
    if process is None:
        return AnswerLost(f"{name} is being started", remedy="cancel it again in a few seconds")
    alive = is_alive(process)
    if alive is None:
        return EnvironmentLacks(f"{name} runs on {process.host}, and this is another machine", remedy="cancel it there")
    if alive and not is_ours_to_end(process.pid):
        return RecordError(
            f"process {process.pid} on the record of {name} is not one that you may kill",
            remedy="the record was changed: look at the process (ps -p), and remove the run's folder",
            code="not-yours",
        )
    end_processes(process, lambda: processes_of(record), END_SECONDS)
    try:
        return give_up(record)
    except LLMBError as error:
        return error
