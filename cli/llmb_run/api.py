"""LLMB from Python: plan a job, submit it, wait for runs, measure them.

These four functions keep their names and arguments within a minor version, and so does what they return. Import nothing
else of LLMB: other modules move. Everything raises ``LLMBError``, with ``message``, ``remedy``,
``code`` and ``exit_status`` as the commands have them; notices go to stderr.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from llmb_common.base.errors import LLMBError
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.workspace import Workspace
from llmb_common.runs.record import load_record
from llmb_common.submission import observe
from llmb_common.submission.jobs import Options
from llmb_common.submission.single import submit as submit_job
from llmb_run.results.run_columns import as_dicts
from llmb_run.results.selected import selected_runs
from llmb_run.selecting import one_folder
from llmb_run.starting.command_line import environment_of
from llmb_run.starting.requests import JobSpec, plan_job

__all__ = ["LLMBError", "measure", "plan", "submit", "wait"]


def plan(workload: str, *, install: str | os.PathLike[str] | None = None, **variables: object) -> JobPlan:
    """Return the plan of one job without starting it, the same that ``DRY_RUN=json ./launch.sh`` prints.

    Notices on what planning chose are printed on stderr.

    Args:
        workload: a recipe's name (``llama3.1``) or workload (``pretrain_llama3.1``)
        install: the installation's folder; None: ``LLMB_INSTALL``, else the current folder
        variables: those of ``launch.sh`` (``JOB_TOTAL_GPUS=256``), which win over the environment's; any other is
            passed on to the job's environment. Values are written as ``str`` writes them, None too: leave out what is
            not to be set.

    Raises:
        LLMBError: the job cannot be planned; message and remedy say why, and what to do
        OSError: the current folder, which is asked for, has been removed
    """
    environment = environment_of([f"{name}={value}" for name, value in variables.items()], "plan()")
    return plan_job(JobSpec(settings={"workload": workload, **environment}), _workspace(install)).plan


def submit(planned: JobPlan) -> str:
    """Submit a planned job to the installation that it was planned for, and return its run id.

    Every call starts another run. Returns when the job is queued, or, where there is no queue, when it has started;
    does not wait for its end.

    Raises:
        LLMBError: the installation does not exist, or the job was refused
        OSError: a file of the training code, or another that a submission needs, cannot be read
    """
    workspace = _workspace(planned.install)
    workspace.require_install()
    return submit_job(planned, workspace.workload(planned.workload).folder, Options(detach=True)).paths.run_id


def wait(*runs: str, install: str | os.PathLike[str] | None = None, timeout: float | None = None) -> dict[str, str]:
    """Wait until ``runs`` have ended, and return the state of each by the word that named it in ``runs``.

    Each word names one run: a run id or its beginning, a name, job id or folder; ``install`` is the installation's
    folder, None: ``LLMB_INSTALL``, else the current folder. States are in capitals, as the command ``jobs`` lists them;
    a run that failed raises nothing. After ``timeout`` seconds, returns the states as they are then; None: no limit.
    Without runs, returns {} at once.

    Raises:
        LLMBError: there is no such run, a word is the beginning of several run ids, none of the runs will ever
            start, or the scheduler has not answered for a quarter of an hour
    """
    workspace = _workspace(install)
    records = [load_record(one_folder(workspace, run)) for run in runs]
    ended = observe.wait(records, timeout=timeout) if records else []
    return {run: record.state for run, record in zip(runs, ended, strict=True)}


def measure(*runs: str, install: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """Return each run's figures and verdict, as the list ``runs`` of ``llmb-run results --json`` has them.

    ``runs`` are run ids, names, job ids or folders, also of logs alone; without any, all of the installation.
    ``install`` is the installation's folder, None: ``LLMB_INSTALL``, else the current folder. Those named by a path
    come first, then the others, each in the order given; without words, the newest run is first. Runs that have failed
    or not ended are among them. The list is never empty. docs/reference.md describes the fields.

    Raises:
        LLMBError: there is no run at all, or a word names none or several
        OSError: the log of a run is to be read again for its steps, and cannot be
    """
    return as_dicts(selected_runs(_workspace(install), runs, {}))


def _workspace(install: str | os.PathLike[str] | None) -> Workspace:
    """Return the workspace of the installation at ``install``, a path that may be relative to the current folder.

    None: the installation that ``LLMB_INSTALL`` names, else the current folder. Whether it exists is not checked here.

    Raises:
        RequestError: ``install`` is None, and ``LLMB_INSTALL`` cannot be used as a path
        OSError: the current folder, which is asked for, has been removed
    """
    return Workspace(Path(install).absolute() if install is not None else None)
