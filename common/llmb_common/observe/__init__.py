"""What became of the runs: ask the scheduler (or this machine), bring ``run.json`` up to date, wait, cancel.

::

    observe(records)   -> [Observation]   record, the queue's reason, start time; unknown where nobody could be asked
    refresh(records)   -> [RunRecord]     the same, records only
    wait(records)      -> [RunRecord]     until all have ended
    cancel(records)    -> [RunRecord]     end them; the first refusal is raised
    end_runs(records)  -> [RunRecord or LLMBError]    the same, each refusal in its place

A question that fails says nothing about a job: its record stays as it is and the observation says ``unknown``.
The same functions serve every executor.
"""

from llmb_common.observe.cancel import cancel, end_runs
from llmb_common.observe.runs import Observation, observe, refresh
from llmb_common.observe.waiting import wait

__all__ = ["Observation", "cancel", "end_runs", "observe", "refresh", "wait"]
