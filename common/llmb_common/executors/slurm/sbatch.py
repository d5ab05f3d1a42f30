"""``sbatch``: the job was accepted, or refused, or nobody knows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from llmb_common.errors import AnswerLost, SchedulerError
from llmb_common.executors.slurm.command import run_slurm

SUBMIT_SECONDS = 120
"""How long ``sbatch`` may take. After that nobody knows whether the job was accepted."""


def sbatch(options: Sequence[str], script: Path, job_name: str) -> tuple[str, str]:
    """Submit ``script``; returns the job id and what ``sbatch`` remarked.

    Under ``timeout``: should this process be killed, ``sbatch`` still ends, and it is soon certain whether the job
    exists.

    Raises:
        AnswerLost: nobody knows whether there is a job.
        SchedulerError: there is none; code ``refused`` or ``no-program``.
    """
    command = ["timeout", "--kill-after=5", str(SUBMIT_SECONDS), "sbatch", "--parsable", *options, str(script)]
    try:
        answer = run_slurm(command, SUBMIT_SECONDS + 10)
    except SchedulerError as error:
        if error.code == "no-program":
            raise
        raise _unknown(job_name, error.message) from error
    job_id = parse_job_id(answer.output) if answer.status == 0 else None
    if job_id is None:
        complaint = answer.errors.strip() or answer.output.strip()
        if answer.status == 0 or answer.status in _TIMED_OUT or _AMBIGUOUS.search(complaint):
            raise _unknown(job_name, f"sbatch (exit status {answer.status}) said {complaint[:300]!r}")
        raise refusal(complaint)
    return job_id, answer.errors.strip()[:500]


_TIMED_OUT = (124, 137)
_AMBIGUOUS = re.compile(r"timed out|zero bytes|reset by peer|unexpected message|transport endpoint|i/o error", re.I)
"""Errors after which the controller may have the job all the same: the request was sent, the answer was lost."""


def _unknown(job_name: str, message: str) -> AnswerLost:
    return AnswerLost(
        f"it is unknown whether the job was accepted: {message}",
        remedy=f"nothing is submitted twice: llmb-run jobs settles it, or the same command again (job name {job_name})",
    )


def parse_job_id(output: str) -> str | None:
    """The job id in the output of ``sbatch --parsable``: ``123`` or ``123;cluster``, on the last line that has one."""
    for line in reversed(output.splitlines()):
        if found := re.fullmatch(r"([0-9]+)(;\S+)?", line.strip()):
            return found[1]
    return None


_ADVICE = (
    (r"invalid account", "set SBATCH_ACCOUNT; sacctmgr show assoc user=$USER lists yours"),
    (r"invalid partition", "set SBATCH_PARTITION; sinfo lists the partitions"),
    (r"time limit|PartitionTimeLimit", "lower TIME_LIMIT, or choose a partition that allows it (sinfo -o '%P %l')"),
    (r"node count|more processors than|configuration is not available", "fewer GPUs, or another partition"),
    (r"gres|without gpu", "set SBATCH_GPUS_PER_NODE to the GPUs of a node, or unset it on a cluster without GRES"),
    (r"unrecognized option|invalid option", "this Slurm or its container plugin does not know that option"),
    (r"invalid node name", "is it in --nodelist, or on the list of llmb-run exclude?"),
    (r"requested reservation", "scontrol show reservation lists them, and whose they are"),
    (r"dependency problem", "the job that this one should follow is no longer known; leave out --after"),
    (r"invalid qos", "set qos=... in ADDITIONAL_SLURM_PARAMS or with --slurm-arg; sacctmgr show qos lists them"),
    (r"unable to contact|socket timed out|connection refused", "the controller is busy or down: try again later"),
)


def refusal(answer: str) -> SchedulerError:
    """The refusal in sbatch's own words, with advice where the cause is known."""
    text = answer.strip() or "no message"
    remedy = next((advice for pattern, advice in _ADVICE if re.search(pattern, text, re.IGNORECASE)), "")
    return SchedulerError(f"sbatch refused the job: {text}", remedy=remedy, code="refused")
