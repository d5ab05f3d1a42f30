"""Submit one job, or a chain of them; what a submission leaves on disk, and how an interrupted one is settled."""

from __future__ import annotations

import contextlib
import errno
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from llmb_common.base.errors import AnswerLost, RecordError, RequestError, SchedulerError
from llmb_common.base.files import fsync_folder, json_text
from llmb_common.base.processes import identify
from llmb_common.executors.base import executor_for
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.finding import stay_submitting
from llmb_common.runs.folders import remove_run, reserve, write_new
from llmb_common.runs.index.search import find_run, index_records
from llmb_common.runs.manifest import make_manifest, pack_code
from llmb_common.runs.paths import RunPaths, experiments_folder
from llmb_common.runs.record import FAILED, NOT_SUBMITTED, SUBMITTING, RunRecord, Submission, load_record, update_record
from llmb_common.submission.job_files import check_unchanged, job_text
from llmb_common.submission.jobs import JobToSubmit, Options, SubmissionContext, submission_of
from llmb_common.submission.observe import failure_of, observe, wait
from llmb_common.submission.preflight import check_job
from llmb_common.submission.script import render_script
from llmb_common.submission.supervisor import render_supervisor, supervisor_sha256


def create_run(
    plan: JobPlan, code: Path | bytes, manifest: dict[str, Any], submission: Submission | None = None
) -> RunRecord:
    """Create the complete folder of a new run; return its record, in state SUBMITTING. Nothing is submitted.

    The run gets a new ID, and its folder lies among the experiments of the plan's ``workload_folder``; missing
    folders above it are made. It holds the batch script, supervisor, job.json, training code and record, is there
    complete or not at all, and the record alone is synced to disk. ``code`` is the folder of the ``llmb_train``
    package, or what ``pack_code`` made of it. ``manifest``, an answer of ``make_manifest``, by whose ``code_sha256``
    the code is checked before it is executed, goes into the record, with the supervisor's hash added (the dict itself
    stays as it is); ``submission`` None: no key and no options.

    Raises:
        RequestError: the plan has a path that cannot be rendered; nothing has been written
        RecordError: the folder cannot be written, or the code not read; nothing is left of it
    """
    probe = RunPaths(
        experiments_folder(plan.workload_folder), plan.experiment_name, str(int(time.time())), secrets.token_hex(4)
    )
    render_script(plan, probe)  # a path that cannot be rendered must not leave anything behind
    making = None
    try:
        paths, making = reserve(probe)
        manifest = {**manifest, "supervisor_sha256": supervisor_sha256(plan.cluster_type)}
        record = RunRecord(paths, plan, manifest=manifest, submission=submission or Submission(), submitter=identify())
        record = record.with_state(SUBMITTING)
        _write_run_files(making, record, code if isinstance(code, bytes) else pack_code(code))
        making.rename(paths.folder)
        fsync_folder(paths.folder.parent)
    except OSError as error:
        if making is not None:  # half of it would keep a full disk full
            shutil.rmtree(making, ignore_errors=True)
        remedy = "check that LLMB_INSTALL exists, and check free space and quota; then run the same command again"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            remedy = (
                "in somebody else's installation, keep your runs elsewhere: export LLMB_WORKLOAD=/a/folder/of/yours"
            )
        raise RecordError(
            f"cannot write the run folder in {probe.folder.parent}: {error.strerror or error}",
            remedy=remedy,
        ) from error
    return record


def _write_run_files(making: Path, record: RunRecord, code: bytes) -> None:
    """Write all files of the new run ``record`` into the existing folder ``making``, later renamed to the run's.

    The record alone is synced to disk. ``code`` is the packed training code. The folder must have none of the files
    yet. After an error what was written stays.

    Raises:
        OSError: a file cannot be written
        RequestError: the plan has a path that cannot be rendered
    """
    paths, plan = record.paths, record.plan

    def here(path: Path) -> Path:
        """Return where ``path``, in the run's future folder, lies now: at the same place in the outer ``making``.

        Raises:
            ValueError: ``path`` is not in the run's folder
        """
        return making / path.relative_to(paths.folder)

    for folder in (paths.output, paths.profiles) if plan.profile else (paths.output,):
        here(folder).mkdir(mode=0o755)
    write_new(here(paths.code), code)
    write_new(here(paths.job), job_text(plan, paths))
    write_new(here(paths.supervisor), render_supervisor(plan.cluster_type))
    write_new(here(paths.script), render_script(plan, paths).encode(), mode=0o755)
    # The intent must survive a power failure. If one took the other files, the job would fail and say why.
    write_new(here(paths.record), json_text(record.as_dict()).encode(), sync=True)


PATIENCE_SECONDS = 360.0
"""How long ``recover`` waits for certainty that a lost ``sbatch`` left no job; it never takes that long."""

UNSETTLED = (SUBMITTING, NOT_SUBMITTED)


def recover(record: RunRecord, *, detach: bool = False) -> RunRecord:
    """Settle an interrupted submission: adopt its job or submit the run again; return the run's record.

    ``record`` is of the run, in whatever state. A run that has a job, or has ended, is returned as it is now; one
    that certainly has none is submitted again at once. Waits, up to 6 minutes, while it is too early to be sure
    which. A run that is submitted again gets a job of its own, also if it was a turn in a series; where there is no
    scheduler it is followed to its end, unless ``detach``. The record is saved, and the index written as far as
    ``observe`` does.

    Raises:
        AnswerLost: the scheduler cannot be asked, or another process is submitting the run
        LLMBError: as ``start`` and ``reset_to_submitting``, where the run is submitted again
        OSError: a file of the run fails to be read
    """
    record = await_submission(record)
    if record.state != NOT_SUBMITTED:
        return record
    return start(reset_to_submitting(record, record.submission.alone()), detach=detach)


def await_submission(record: RunRecord) -> RunRecord:
    """Wait until it is certain whether an interrupted submission has left a job; return the run's updated record.

    Its state is then never SUBMITTING: NOT_SUBMITTED means that there is no job, any other state that there is or
    was one. A record in another state than SUBMITTING is only brought up to date. Waits up to 6 minutes.

    Raises:
        AnswerLost: the scheduler cannot be asked, or it stays uncertain: another process is submitting the run
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    delay = 0.2
    while True:
        (seen,) = observe([record])
        record = seen.record
        if record.state != SUBMITTING:
            return record
        if seen.finding.unknown or time.monotonic() > deadline:
            raise AnswerLost(
                f"it is unknown whether {record.paths.name} has a job: "
                + (seen.finding.unknown or "another process is submitting it"),
                remedy="nothing is submitted twice; run the same command again later to settle it",
            )
        time.sleep(delay)
        delay = min(delay * 1.5, 5.0)


def start(record: RunRecord, *, detach: bool) -> RunRecord:
    """Start a run that is on record as SUBMITTING: submit its job, and return its saved record.

    The run's files, but not its packed code, are compared with its plan first. Where there is no scheduler, the run
    is followed to its end unless ``detach``. Where the scheduler's answer is lost but it shows the job, the record is
    returned as usual. The index is not written, but where an answer was lost.

    Raises:
        AnswerLost: nobody knows whether there is a job; the run stays on record
        SchedulerError: the scheduler refused; the run's folder has been removed
        RecordError: the run's files were changed, or its record cannot be written
        CheckFailed: a run that was followed failed; it stays on record
        Interrupted: the user ended a run that was followed
        LLMBError: the executor cannot start it for another reason; it stays on record
        OSError: a file of the run fails to be read, or the job's script cannot be started on this machine
    """
    check_unchanged(record, code=False)
    try:
        started = executor_for(record.plan.cluster_type).start(record, detach=detach)
    except AnswerLost as error:
        with contextlib.suppress(RecordError):  # that nobody knows whether there is a job matters more
            stay_submitting(record, error)
        # The answer was lost, but not necessarily the job. If the scheduler shows it, all is well.
        (seen,) = observe([record])
        if seen.record.job_id is None:
            raise
        return seen.record
    except SchedulerError:
        remove_run(record.paths)
        raise
    if started.state == FAILED:
        raise failure_of(started)
    return started


def reset_to_submitting(record: RunRecord, submission: Submission) -> RunRecord:
    """Put a run without a job on record as SUBMITTING by this process, with ``submission``; return its record.

    Its state on disk must be NOT_SUBMITTED. Nothing is submitted.

    Raises:
        AnswerLost: another process is submitting the run: its state is no longer NOT_SUBMITTED
        RecordError: the run's files were changed, or its record cannot be written
        RequestError: the plan on record names a path that cannot be rendered
        OSError: a file of the run fails to be read
    """
    check_unchanged(record)

    def claim(found: RunRecord) -> RunRecord:
        """Return a copy of ``found`` as SUBMITTING again, by this process, with ``submission``, without a job ID.

        Raises:
            AnswerLost: another process is submitting the run: its state is no longer NOT_SUBMITTED
        """
        # Under the lock: of two processes that settle the same run, only one submits it.
        if found.state != NOT_SUBMITTED:
            raise AnswerLost(
                f"{found.paths.name} is being submitted by another process",
                remedy="llmb-run jobs shows what becomes of it",
            )
        again = found.with_state(SUBMITTING, "again")
        return replace(again, submitter=identify(), submission=submission, job_id=None)

    return update_record(record.paths.folder, claim)


def submit(
    plan: JobPlan,
    recipe_folder: Path,
    options: Options | None = None,
    *,
    on_record: Callable[[RunRecord], None] = lambda record: None,
) -> RunRecord:
    """Put a new run on record, submit its job and return its record; or continue an interrupted submission like it.

    A run that is on record under the key of ``options`` and has a job, or has ended, is returned as it is.
    ``recipe_folder`` is the one with ``recipe.yaml``, of which the plan was made. ``on_record`` is called with the
    record once there is one, also for such a run, and before a run starts: without a scheduler the run is followed
    to its end, unless the options say ``detach``. ``options`` None: no key and nothing to follow or avoid. The
    record goes into the index.

    Raises:
        AnswerLost: nobody knows whether the job exists; the run stays on record, and ``recover`` settles it
        CheckFailed: a run that was followed failed
        LLMBError: a check failed or the scheduler refused, and nothing is left behind; or the run cannot be started
        OSError: a file of the training code or of the run cannot be read
    """
    job = JobToSubmit(plan, recipe_folder, options or Options())
    check_job(plan)
    context = SubmissionContext([job])
    record = submit_job(job, submission_of(plan, job.options), context, on_record)
    index_records(record)
    return record


def submit_job(
    job: JobToSubmit,
    submission: Submission,
    context: SubmissionContext,
    on_record: Callable[[RunRecord], None] = lambda record: None,
) -> RunRecord:
    """Continue the run that is on record for ``job``, or make a new run and start it; return its record.

    ``submission`` is what ``submission_of`` returns for the job, ``context`` that of all jobs of the command. A run
    on record that has a job, or has ended, is returned as it is. Without a scheduler that can hold jobs back, a new
    run first waits here until the runs that it follows have ended. ``on_record`` is called with the record in each
    case, before the run starts. What the job needs is not checked here, and the index is not written, but where an
    interrupted submission is settled.

    Raises:
        SchedulerError: the scheduler refused the job, whose run's folder is removed again, or has refused an equal
            one of this command already
        LLMBError: as ``submit``; as ``wait``, for the runs to follow; also where there is no such run
        OSError: as ``submit``
    """
    found = context.run_to_continue(job.plan, submission)
    if found is not None:
        on_record(found)
        if found.state in UNSETTLED:
            return recover(found, detach=job.options.detach)
        return found
    if job.options.after and not job.plan.traits.dependencies:
        earlier = []
        for word in job.options.after:
            row = find_run(Path(job.plan.install), word)
            earlier.append(load_record(row.folder))
        wait(earlier)
    context.refuse_like(job)
    record = new_run(job, submission, context)
    on_record(record)
    return start(record, detach=job.options.detach)


def new_run(job: JobToSubmit, submission: Submission, context: SubmissionContext) -> RunRecord:
    """Create the folder and the record of a new run for ``job``, and return the record, in state SUBMITTING.

    Nothing is submitted. ``submission`` goes into the record; ``context`` has the packed training code, and where
    it and the recipe come from.

    Raises:
        RequestError: the plan has a path that cannot be rendered
        RecordError: the folder cannot be written
        EnvironmentLacks: the recipe, the training code or the image's receipt cannot be read
    """
    manifest = make_manifest(job.plan, job.recipe_folder, context.folder, context.origin(job.recipe_folder))
    return create_run(job.plan, context.code, manifest, submission)


def submit_chain(
    plan: JobPlan,
    recipe_folder: Path,
    links: int,
    options: Options | None = None,
    *,
    on_link: Callable[[RunRecord], None] = lambda record: None,
) -> list[RunRecord]:
    """Submit ``links`` jobs, each of which starts when the previous one has ended; return their records, in order.

    The first is the job of ``plan``, each other goes on from the newest checkpoint of the chain. Checkpoints go to
    the first run's folder (or CHECKPOINT_DIR). ``recipe_folder`` is the one with ``recipe.yaml``, of which the plan
    was made. The first job follows the runs that ``options`` name (None: none); the other options are for all links,
    but with the key ``k`` link 1 has the key ``k#1``, link 2 ``k#2``. ``on_link`` is called with each link's record
    once it was submitted, or found on record. The records go into the index. If a later link is refused, the earlier
    ones stay.

    Raises:
        RequestError: a chain makes no sense here, as ``check_chain`` says
        LLMBError: as ``submit``
        OSError: as ``submit``
    """
    check_chain(plan, links)
    options = options or Options()
    check_job(plan)
    records: list[RunRecord] = []
    for link in range(1, links + 1):
        link_options = replace(options, key=f"{options.key}#{link}" if options.key else "")
        chain = ""
        if records:
            chain = records[0].paths.run_id
            plan = resuming_plan(plan, records[0].paths)
            link_options = replace(link_options, after=(records[-1].paths.run_id,))
        job = JobToSubmit(plan, recipe_folder, link_options)
        submission = msgspec.structs.replace(submission_of(plan, link_options), chain=chain, link=link)
        record = submit_job(job, submission, SubmissionContext([job]))
        if link == 1:
            # Only now is there an id, which names the chain.
            record = update_record(record.paths.folder, _as_chain_start)
        index_records(record)
        records.append(record)
        on_link(record)
    return records


def check_chain(plan: JobPlan, links: int) -> None:
    """Raise if it makes no sense to chain ``links`` jobs of ``plan``.

    Raises:
        RequestError: ``links`` is below 2, the job saves no checkpoints, or it ends a fixed number of steps after
            loading one
    """
    if links < 2:
        raise RequestError(f"a chain has at least 2 jobs, not {links}", remedy="--resume-chain 2 or more")
    if not plan.checkpoint.enabled:
        raise RequestError(
            "a chain resumes from checkpoints, and this job saves none",
            remedy="set ENABLE_CHECKPOINT=true and CHECKPOINT_INTERVAL",
        )
    if plan.exit_after is not None:
        raise RequestError(
            f"the job ends after {plan.exit_after} step: there is nothing to chain", remedy="set MAX_STEPS"
        )


def resuming_plan(plan: JobPlan, saved: RunPaths) -> JobPlan:
    """Return a copy of ``plan`` for a job that goes on from the newest checkpoint of the run with the paths ``saved``.

    It saves where that run does: in the plan's own folder for checkpoints (CHECKPOINT_DIR), or else in that run's.
    It loads no other checkpoint: ``load`` of its ``checkpoint`` is None, ``resume`` True. Whether there is one yet
    is not checked.
    """
    save = plan.checkpoint.save or str(saved.checkpoints)
    checkpoint = msgspec.structs.replace(plan.checkpoint, save=save, load=None, resume=True)
    return msgspec.structs.replace(plan, checkpoint=checkpoint)


def _as_chain_start(found: RunRecord) -> RunRecord:
    """Return a copy of ``found`` that is link 1 of the chain that its own run ID names; nothing is written."""
    member = msgspec.structs.replace(found.submission, chain=found.paths.run_id, link=1)
    return replace(found, submission=member)
