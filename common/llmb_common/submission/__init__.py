"""Submit plans: one, many, as arrays, in chains; and go on where an interrupted submission stopped.

The order of a submission: run folder with ``run.json`` in state SUBMITTING (synced), row in the index, the executor's
start (``sbatch``), job id into ``run.json``. Whatever moment the process dies at, ``recover`` finds out from the
scheduler whether the job exists (its name holds the run id) and goes on from there; the same run never gets a second
job. Should the scheduler be wrong, the job script itself ends a second job of the same run.
"""

from llmb_common.submission.chain import submit_chain
from llmb_common.submission.code import training_code
from llmb_common.submission.jobs import Job, Options
from llmb_common.submission.many import submit_many
from llmb_common.submission.recovery import recover
from llmb_common.submission.single import submit

__all__ = ["Job", "Options", "recover", "submit", "submit_chain", "submit_many", "training_code"]
