"""What became of runs: ask the scheduler (or this machine), update ``run.json``, wait, cancel.

::

    observe(records)   -> [Observation]   record, the queue's reason, start time; unknown where nobody could be asked
    refresh(records)   -> [RunRecord]     the same, records only
    wait(records)      -> [RunRecord]     until all have ended
    cancel(records)    -> [RunRecord]     end them; the first refusal is raised
    end_runs(records)  -> [RunRecord or LLMBError]    the same, with each refusal in its place

A failed question says nothing about a job: its record is left alone, and the observation says ``unknown``.
The same functions serve every executor.
"""

from llmb_common.observe.cancel import cancel, end_runs
from llmb_common.observe.runs import Observation, observe, refresh
from llmb_common.observe.waiting import wait

__all__ = ["Observation", "cancel", "end_runs", "observe", "refresh", "wait"]
