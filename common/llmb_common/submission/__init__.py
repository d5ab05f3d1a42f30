"""Submit plans, individually, as series or chains, and pick up interrupted submissions where they stopped.

A submission first writes the run folder, with ``run.json`` in state SUBMITTING, and syncs it; then the executor starts
the job (``sbatch``), the job id goes into ``run.json``, and the run into the index. Whenever the process may die,
``recover`` learns from the scheduler whether the job exists (its name holds the run id) and continues from there; a run
never gets a second job. Should the scheduler be wrong, the job script itself ends a second job of the same run.
"""
