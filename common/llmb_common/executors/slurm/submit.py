"""``sbatch`` of one run or of several: it was accepted, or refused, or nobody knows.

Runs that fit the same allocation can share a job as a *series*: one after the other on the same nodes, so that node,
neighbours and day are the same for all of them. Each run keeps its folder, its logs, and the script that it would have
as a job of its own; the script of the series only finds the run folders, and bounds each run by its own time limit.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from shlex import quote

import msgspec

from llmb_common.base.errors import AnswerLost, RecordError, SchedulerError
from llmb_common.base.files import shell_part, unwritable, write_atomic
from llmb_common.base.hostlist import compress, expand
from llmb_common.base.words import clock_text, limit_seconds
from llmb_common.executors.base import APPEND, WAIT
from llmb_common.executors.slurm.options import output_pattern
from llmb_common.executors.slurm.query import limits_of, run_slurm, unknown_nodes
from llmb_common.executors.slurm.script import directives
from llmb_common.executors.slurm.words import slurm_of
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.finding import stay_submitting
from llmb_common.runs.paths import SharedPaths
from llmb_common.runs.record import SUBMITTED, SUBMITTING, RunRecord, update_record

SUBMIT_SECONDS = 150
"""How long ``sbatch`` may take; after that nobody knows whether the job was accepted. Where the queue is full, it tries
again for 120 s by itself (1 to 15 s apart; 22.05, ``sbatch.c``), and its last word is that there is no job."""


def sbatch(options: Sequence[str], script: Path, job_name: str) -> tuple[str, str]:
    """Submit ``script`` with sbatch; return (job id, remark), the remark empty where sbatch made none.

    The id is text without the cluster: ``123``. ``options`` are words of sbatch's command line before the script;
    ``job_name`` is only for messages. Nothing is put on record here. Where Slurm refuses an excluded node
    (``--exclude=``) that it does not know, such as a pod that is gone, it is submitted again, once, without that node,
    and the remark says so. It runs under the program ``timeout``, so that sbatch ends even if this process is killed,
    and it is soon certain whether the job exists.

    Raises:
        AnswerLost: nobody knows whether there is a job
        SchedulerError: there is none; code ``refused`` or ``no-program``
    """
    try:
        return _sbatch(options, script, job_name)
    except SchedulerError as error:
        known, gone = _without_unknown(options) if _UNKNOWN_NODE.search(error.message) else (options, ())
        if error.code != "refused" or not gone:
            raise
    job_id, remark = _sbatch(known, script, job_name)
    unknown_nodes_remark = f"Slurm does not know {', '.join(gone)[:200]}: not excluded"
    return job_id, f"{unknown_nodes_remark}; {remark}" if remark else unknown_nodes_remark


_UNKNOWN_NODE = re.compile("invalid node name", re.IGNORECASE)


def _without_unknown(options: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return (options, nodes): ``options`` without the excluded nodes that Slurm does not know, and those nodes.

    The options are sbatch's; one that would exclude nobody is dropped. They come back as they are, with no nodes, where
    Slurm does not answer.
    """
    kept: list[str] = []
    gone: list[str] = []
    for option in options:
        if not option.startswith(_EXCLUDE):
            kept.append(option)
            continue
        excluded = expand(option.removeprefix(_EXCLUDE))
        try:
            unknown = unknown_nodes(excluded)
        except SchedulerError:
            return list(options), ()
        gone += unknown
        known = [name for name in excluded if name not in unknown]
        if known:
            kept.append(f"{_EXCLUDE}{compress(known)}")
    return kept, tuple(gone)


_EXCLUDE = "--exclude="


def _sbatch(options: Sequence[str], script: Path, job_name: str) -> tuple[str, str]:
    """Run sbatch once for ``script``; return (job id, remark): what it wrote to standard error, at most 500 characters.

    ``options`` are words of its command line before the script; ``job_name`` is only for messages. Nothing is put on
    record here.

    Raises:
        AnswerLost: nobody knows whether there is a job
        SchedulerError: there is none; code ``refused``, with a remedy for known messages, or ``no-program``
    """
    command = ["timeout", "--kill-after=5", str(SUBMIT_SECONDS), "sbatch", "--parsable", *options, str(script)]
    try:
        answer = run_slurm(command, SUBMIT_SECONDS + 10)
    except SchedulerError as error:
        if error.code == "no-program":
            raise
        raise _submission_unknown_error(job_name, error.message) from error
    ids = _JOB_ID.findall(answer.output) if answer.status == 0 else []
    if not ids:
        complaint = answer.errors.strip() or answer.output.strip()
        # 124 and 137: timeout has ended it.
        if answer.status in (0, 124, 137) or _AMBIGUOUS.search(complaint):
            raise _submission_unknown_error(job_name, f"sbatch (exit status {answer.status}) said {complaint[:300]!r}")
        # Slurm says the same of every limit.
        asked = complaint.replace("(job submit limit, user's size and/or time limits)", "")
        fitting = (advice for pattern, advice in _ADVICE if re.search(pattern, asked, re.IGNORECASE))
        remedy = next(fitting, "")
        if remedy == _OTHER_NODES and any(option.startswith(_EXCLUDE) for option in options):
            remedy += ", or fewer excluded nodes (llmb-run exclude list)"
        said = re.sub(r"(?m)^(?:sbatch: )?(?:error: )?(?:sbatch: )?", "", complaint)
        raise SchedulerError(f"sbatch refused the job: {said or 'no message'}", remedy=remedy, code="refused")
    return ids[-1], answer.errors.strip()[:500]


_JOB_ID = re.compile(r"^\s*(?:Submitted batch job )?([0-9]+)(?:;\S+| on cluster \S+)?\s*$", re.MULTILINE)
"""123 or 123;cluster; in words where a site's own sbatch drops ``--parsable``. The last line that has one counts."""

_AMBIGUOUS = re.compile(
    r"timed out|zero bytes|reset by peer|unexpected message|transport endpoint|i/o error"
    r"|(send|receive|shutdown) failure|longer than data received|insane message|delayed socket error|broken pipe",
    re.IGNORECASE,
)
"""Errors after which the controller may have the job all the same: the request was sent, the answer was lost, or could
not be read (src/common/slurm_errno.c of 22.05 and 26.05, and the system's own)."""


def _submission_unknown_error(job_name: str, message: str) -> AnswerLost:
    """Return, without raising it, the error that nobody knows whether Slurm has accepted a job.

    ``message`` is what is known of it; the remedy names ``job_name``.
    """
    return AnswerLost(
        f"it is unknown whether the job was accepted: {message}",
        remedy=f"nothing is submitted twice: llmb-run jobs settles it, or the same command again (job name {job_name})",
    )


_OTHER_NODES = "ask for fewer GPUs, or choose another partition"

_ADVICE = (
    (r"invalid account", "set SBATCH_ACCOUNT; sacctmgr show assoc user=$USER lists yours"),
    (r"invalid partition|no partition specified", "set SBATCH_PARTITION; sinfo lists the partitions"),
    (
        r"permitted to use this partition|partition not available|permission denied",
        "set SBATCH_PARTITION to one that is up (sinfo) and that SBATCH_ACCOUNT may use (scontrol show partition)",
    ),
    (
        r"unable to accept job|job queue full",
        "the queue is full (MaxJobCount); run the same command again some minutes after jobs have ended (Slurm counts "
        "them until MinJobAge)",
    ),
    (r"SubmitJob", "this is a limit of the site; run the same command again when some of your jobs have ended"),
    (
        r"time ?limit|MaxWallDuration",
        "lower TIME_LIMIT, or choose a partition or QOS that allows it (sinfo -o '%P %l'; sacctmgr show qos)",
    ),
    (
        r"node count|more processors than|configuration (is )?not available|Max[a-z]+Per(Job|Node)",
        _OTHER_NODES,
    ),
    (
        r"accounting/QOS policy|\b(QOS|Assoc)(Grp|Min|Max)",
        "this is a limit of your account or QOS: sacctmgr show qos, and sacctmgr show assoc user=$USER, list them",
    ),
    (
        r"gres|\(TRES\)|without gpu",
        "set SBATCH_GPUS_PER_NODE to the GPUs of a node, or unset it on a cluster without GRES",
    ),
    (
        r"unrecognized option|invalid option",
        "leave that option out: this Slurm, or its container plugin, does not know it (sbatch --help)",
    ),
    (
        r"invalid node name",
        "correct --nodelist, or remove the name with llmb-run exclude remove; sinfo -N lists the nodes",
    ),
    (r"requested reservation", "scontrol show reservation lists them and their users"),
    (r"dependency problem", "the job to follow is no longer known; leave out --after"),
    (r"invalid qos", "set qos=... in ADDITIONAL_SLURM_PARAMS or with --slurm-arg; sacctmgr show qos lists them"),
    (r"invalid feature", "correct constraint=... in ADDITIONAL_SLURM_PARAMS or --slurm-arg; sinfo -o %f lists them"),
    (r"required node not available", "sinfo -R says why; leave out --nodelist, or name other nodes"),
    (
        r"unable to contact|socket timed out|connection refused|standby mode|rate limit|submissions disabled",
        "the controller is busy or down: try again later",
    ),
    (
        r"authentication error|munge|configuration source|incompatible versions",
        "Slurm does not work on this machine: use another login node, or ask the administrator",
    ),
    (r"\baccount\b", "set SBATCH_ACCOUNT to one that may run there; sacctmgr show assoc user=$USER lists yours"),
)
"""Patterns of what sbatch complains of, whatever their case, and what to do; the first that is found counts."""


_GRACE_SECONDS = 120
"""Between the end that a run is told at its limit and the one that it is not told."""

_ON_NODES = 'timeout 60 srun --ntasks-per-node=1 --ntasks="$SLURM_JOB_NUM_NODES"'


def _shared_by_allocation(plan: JobPlan) -> dict[str, object]:
    """Return what the allocation of a job has only once, such as its nodes and partition, as values to compare.

    The keys are the names that messages have for each, such as ``nodes`` or ``the folder of runs``, the same for all
    plans. The plan must be for Slurm.
    """
    slurm = slurm_of(plan)
    return {
        "nodes": plan.nodes,
        "GPUs per node": plan.gpus_per_node,
        "the folder of runs": plan.workload_folder,
        "account": slurm.account,
        "partition": slurm.partition,
        "gres": slurm.gres,
        "gres type": slurm.gres_type,
        "segment": slurm.segment,
        "additional": slurm.additional,
    }


def series_conflict(plans: Sequence[JobPlan]) -> str:
    """Return why runs of ``plans`` cannot be a series, which shares one Slurm job, as a clause; empty: they can.

    It has no full stop, such as "they differ in nodes". They cannot where something differs that an allocation has
    only once, such as nodes, account, partition or options of sbatch; where one of them checks its nodes before it
    trains or has its time limit among the options of sbatch; or where together they take longer than the partition
    allows. Where Slurm does not tell that limit, sbatch will. At least one plan is needed, and all must be for Slurm.
    """
    first, *others = [_shared_by_allocation(plan) for plan in plans]
    differing = [name for name, value in first.items() if any(other[name] != value for other in others)]
    if differing:
        return f"they differ in {', '.join(differing)}"
    if any(plan.check_fabric for plan in plans):
        return "the nodes are checked before each of them"
    if "time" in dict(slurm_of(plans[0]).additional):
        return "the time limit is among the additional Slurm options"
    total = sum(limit_seconds(plan.time_limit) for plan in plans)
    try:
        most, _ = limits_of(slurm_of(plans[0]).effective_partition)
    except SchedulerError:
        return ""  # then sbatch will say
    if most is None or total <= most:
        return ""
    return f"together they may take {total // 60} minutes, and the partition allows {most // 60}"


def render_series(records: Sequence[RunRecord], series: SharedPaths) -> str:
    """Return the batch script of a series: one Slurm job in which runs, at least one, take turns; nothing is written.

    ``records`` are the runs', in the order of turns; ``series`` has the paths of the series, for the log and the links.
    In turn N, from 0 on, it runs the script in the run folder to which the link N in the folder of the series leads.
    The job's time limit is the sum of all; ``series_conflict`` must have nothing against the runs. It ends with a line
    break.

    Raises:
        RequestError: a path or a value cannot be expressed for Slurm
    """
    plans = [record.plan for record in records]
    limits = [limit_seconds(plan.time_limit) for plan in plans]
    # Pinning is srun's affair here: each run says its own. The longest save decides when the job is told to end.
    longest = max(plans, key=lambda plan: plan.checkpoint.save_seconds if plan.checkpoint.enabled else -1)
    series_plan = msgspec.structs.replace(longest, time_limit=clock_text(sum(limits)), cpu_pinning=None)
    saves = [plan.checkpoint.save_seconds if plan.checkpoint.enabled else 0 for plan in plans]
    warned = [max(limit - save, 1) for limit, save in zip(limits, saves, strict=True)]
    graces = [max(save, _GRACE_SECONDS) for save in saves]
    lines = ["#!/bin/bash", *directives(series_plan, series.job_name, output_pattern(str(series.log))), ""]
    lines += ["set -euo pipefail", "", f"folder={quote(str(series.folder))}"]
    lines += [f"names=({' '.join(quote(plan.experiment_name) for plan in plans)})"]
    lines += [f"limits=({' '.join(map(str, warned))})"]
    lines += [f"graces=({' '.join(map(str, graces))})", ""]
    lines += [*_reset_function(plans), "", WAIT, "", APPEND, "", shell_part(__file__, "series.sh")]
    return "\n".join(lines) + "\n"


def _reset_function(plans: Sequence[JobPlan]) -> list[str]:
    """Return the lines of the Bash function ``reset``, which undoes what earlier runs of a series have set on GPUs.

    ``plans`` are the runs', in the order of turns. The batch script calls it before each turn, with the turn's number
    from 0 on. What a run sets stays set: a later one that has it otherwise would train with it. It does nothing where
    all runs are alike.
    """
    settings = (
        ("boost-slider --vboost 0", [plan.vboost for plan in plans]),
        ("--reset-memory-clocks", [plan.memory_clock is not None for plan in plans]),
    )
    cases: list[str] = []
    for undo, is_set in settings:
        if any(is_set) and not all(is_set):
            others = [turn for turn, this in enumerate(is_set) if not this]
            undone = [f"    {turn}) {_ON_NODES} sudo -n nvidia-smi {undo} || true ;;" for turn in others]
            cases += ["  case $1 in", *undone, "  esac"]
    return ["# shellcheck disable=SC2329  # called below", "reset() {  # turn", *(cases or ["  :"]), "}"]


AT_ONCE = 4
FRESH_SECONDS = 60
"""Older records are confirmed before ``sbatch``, lest others take the runs for abandoned."""


def start(record: RunRecord, *, detach: bool = False) -> RunRecord:
    """Submit a run's script with sbatch; return its record, saved, as SUBMITTED and with the job's id.

    The script is there already. ``detach`` has no effect under Slurm. After an error the record is as before.

    Raises:
        AnswerLost: nobody knows whether there is a job, or it exists and could not be recorded
        SchedulerError: there is no job
        OSError: the job exists, and reading the run's record fails
    """
    return _as_submitted(record, *sbatch(record.submission.options, record.paths.script, record.job_name))


def start_series(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Submit runs in state SUBMITTING as one Slurm job, in which they take turns; return their records as SUBMITTED.

    They are of one series, at least one; the records come in the order of ``records``, saved, with the job's id. The
    folder of the series, which must not exist, is made, and removed where the job is refused; after other errors it may
    remain.

    Raises:
        AnswerLost: nobody knows whether there is a job: the runs stay SUBMITTING, with this error as their detail; or
            there is one, but a run's record could not be saved; or another process has given a run up, and none exists
        SchedulerError: there is no job; the caller removes the runs
        RecordError: the folder of the series, or a record, cannot be written, and there is no job; or nobody knows
            whether there is one, and that cannot be put on record
        RequestError: a path or a value cannot be expressed for Slurm; no folder is made
        OSError: reading a run's record fails, before the submission or after it
    """
    first = records[0]
    series = first.shared
    assert series is not None
    _make_folder(series, records)
    if abs(time.time() - first.created) > FRESH_SECONDS:  # the clock that made them may differ
        for record in records:
            update_record(record.paths.folder, _still_submitting)
    try:
        job_id, remark = sbatch(first.submission.options, series.script, series.job_name)
    except AnswerLost as error:
        for record in records:
            stay_submitting(record, error)
        raise
    except SchedulerError:
        shutil.rmtree(series.folder, ignore_errors=True)
        raise
    with ThreadPoolExecutor(AT_ONCE, "accepted") as pool:  # the disk, not Python, takes the time
        return list(pool.map(lambda record: _as_submitted(record, job_id, remark), records))


def _make_folder(series: SharedPaths, records: Sequence[RunRecord]) -> None:
    """Create the folder of a series of runs, with its batch script and a link to each run, named by its turn.

    Turns count from 0, in the order of ``records``. The folder is removed again where it or a link cannot be written,
    not where only the script cannot.

    Raises:
        RecordError: the folder exists already, or it or the script cannot be written
        RequestError: a path or a value cannot be expressed for Slurm; no folder is made
    """
    text = render_series(records, series)
    made = False
    try:
        series.folder.mkdir(mode=0o755)  # its links say which scripts run: nobody else changes them
        made = True
        for turn, record in enumerate(records):
            (series.folder / str(turn)).symlink_to(os.path.relpath(record.paths.folder, series.folder))
    except OSError as error:
        if made:  # one that was there before is another job's
            shutil.rmtree(series.folder, ignore_errors=True)
        raise unwritable(series.folder, error) from error
    write_atomic(series.script, text, mode=0o755)


def _still_submitting(found: RunRecord) -> RunRecord:
    """Return a copy of the record ``found`` as still being submitted (SUBMITTING), with the present time.

    Judged by ``found`` alone, which must have been read just now. Nothing is written: that is for the caller to do.

    Raises:
        AnswerLost: another process has given the run up: its state is no longer SUBMITTING
    """
    if found.state != SUBMITTING:
        raise AnswerLost(
            f"another process has declared {found.paths.name} abandoned",
            remedy="run the same command again to settle it",
        )
    return found.with_state(SUBMITTING, "confirmed")


def _as_submitted(record: RunRecord, job_id: str, remark: str) -> RunRecord:
    """Put on record that sbatch has accepted the run's job ``job_id``; return the record, saved, as SUBMITTED.

    ``remark`` is what sbatch remarked, kept with the state; empty: nothing.

    Raises:
        AnswerLost: the record cannot be saved, but the job exists
        OSError: reading the record fails, but the job exists
    """
    try:
        return update_record(
            record.paths.folder, lambda found: replace(found, job_id=job_id).with_state(SUBMITTED, remark)
        )
    except RecordError as error:  # the run must stay: its job exists
        raise AnswerLost(
            f"job {job_id} was accepted, but {error.message}", remedy="llmb-run jobs settles it"
        ) from error
