"""The Slurm executor: ``sbatch`` of the rendered script."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from llmb_common.errors import EnvironmentLacks, SchedulerError
from llmb_common.planning.job_plan import JobPlan
from llmb_common.run import SUBMITTED, RunRecord, remove_run

SUBMIT_SECONDS = 120
"""How long ``sbatch`` may take. Past it nobody knows whether the job was accepted."""


class SlurmExecutor:
    """Submits with ``sbatch --parsable``; the job's own script does the rest."""

    def check(self, plan: JobPlan) -> None:
        if shutil.which("sbatch") is None:
            raise EnvironmentLacks(
                "sbatch is not on PATH", remedy="run on a login node of the cluster, or set CLUSTER_TYPE=local"
            )
        if plan.image and plan.image.startswith(("/", "./", "../")) and not Path(plan.image).is_file():
            raise EnvironmentLacks(
                f"the container image {plan.image} is missing",
                remedy="run ./installer.py, or set RUN_CONF_IMAGE to an image that exists",
                code="no-image",
            )
        if plan.slurm is not None and plan.slurm.runtime == "none":
            check_engine(plan)

    def start(self, record: RunRecord) -> RunRecord:
        command = ["sbatch", "--parsable", str(record.paths.script)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=SUBMIT_SECONDS,
                env=clean_environment(),
            )
        except subprocess.TimeoutExpired as error:
            raise SchedulerError(
                f"sbatch did not answer in {SUBMIT_SECONDS} s; it is unknown whether the job was accepted",
                remedy=f"look for the job name {record.paths.job_name} in squeue before submitting again",
                code="unknown",
            ) from error
        except OSError as error:
            remove_run(record)
            raise SchedulerError(f"cannot run sbatch: {error.strerror or error}") from error
        if done.returncode != 0:
            remove_run(record)
            raise refusal(done.stderr or done.stdout)
        job_id = parse_job_id(done.stdout)
        if job_id is None:
            raise SchedulerError(
                f"sbatch succeeded but gave no job id: {done.stdout.strip()[:200]!r}",
                remedy=f"look for the job name {record.paths.job_name} in squeue before submitting again",
                code="unknown",
            )
        record = replace(record, job_id=job_id).with_state(SUBMITTED, done.stderr.strip())
        record.save()
        return record


def check_engine(plan: JobPlan) -> None:
    """Raise EnvironmentLacks when the Python that should train is not there."""
    if plan.engine_python is None:
        raise EnvironmentLacks(
            "no training engine is installed",
            remedy="run ./installer.py --quickstart, or set engine.python in cluster_config.yaml to a Python that "
            "has Megatron-Bridge",
            code="no-engine",
        )
    if not Path(plan.engine_python).is_file():
        raise EnvironmentLacks(
            f"the training engine's Python {plan.engine_python} is missing",
            remedy="run the installer again; it repairs the engine",
            code="no-engine",
        )


def parse_job_id(output: str) -> str | None:
    """The job id in the answer of ``sbatch --parsable``: ``123`` or ``123;cluster``, on the last line that has one."""
    for line in reversed(output.splitlines()):
        if found := re.fullmatch(r"([0-9]+)(;\S+)?", line.strip()):
            return found[1]
    return None


def clean_environment() -> dict[str, str]:
    """The environment for ``sbatch``: what another job left behind (``SLURM_*``) or options that would override the
    script (``SBATCH_*``) is taken out; where Slurm finds its own configuration stays."""
    keep = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_TIME_FORMAT"}
    return {
        name: value
        for name, value in os.environ.items()
        if name in keep or not name.startswith(("SLURM_", "SBATCH_", "SRUN_"))
    }


_ADVICE = (
    (r"invalid account", "set SBATCH_ACCOUNT; sacctmgr show assoc user=$USER lists yours"),
    (r"invalid partition", "set SBATCH_PARTITION; sinfo lists the partitions"),
    (r"time limit|PartitionTimeLimit", "lower TIME_LIMIT, or choose a partition that allows it (sinfo -o '%P %l')"),
    (r"node count|more processors than|configuration is not available", "fewer GPUs, or another partition"),
    (r"gres|without gpu", "set SBATCH_GPUS_PER_NODE to the GPUs of a node, or unset it on a cluster without GRES"),
    (r"unrecognized option|invalid option", "this Slurm or its container plugin does not know that option"),
    (r"invalid qos", "set qos=... in ADDITIONAL_SLURM_PARAMS; sacctmgr show qos lists them"),
    (r"unable to contact|socket timed out|connection refused", "the controller is busy or down: try again later"),
)


def refusal(answer: str) -> SchedulerError:
    """sbatch's refusal in its own words, with advice where the cause is a known one."""
    text = answer.strip() or "no message"
    remedy = next((advice for pattern, advice in _ADVICE if re.search(pattern, text, re.IGNORECASE)), "")
    return SchedulerError(f"sbatch refused the job: {text}", remedy=remedy, code="refused")
