"""Slurm's executor."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from llmb_common.errors import EnvironmentLacks, RequestError
from llmb_common.executors import Executor, Ranks
from llmb_common.executors.engine import check_engine
from llmb_common.executors.slurm.options import output_pattern
from llmb_common.executors.slurm.script import directives, launch
from llmb_common.executors.slurm.words import slurm_of
from llmb_common.machine.shell_text import shell_part
from llmb_common.machine.trust import require_trusted
from llmb_common.planning.job_plan import JobPlan
from llmb_common.runs.paths import RunPaths

if TYPE_CHECKING:
    from llmb_common.errors import LLMBError
    from llmb_common.executors.holding import Held, Wanted
    from llmb_common.runs.finding import Finding
    from llmb_common.runs.record import RunRecord


class SlurmArrays:
    """Job arrays, and several runs in one allocation."""

    def most(self) -> int:
        from llmb_common.executors.slurm.array import largest_array

        return largest_array()

    def apart(self, plans: Sequence[JobPlan]) -> str:
        from llmb_common.executors.slurm.series import apart

        return apart(plans)

    def start(self, records: Sequence[RunRecord]) -> list[RunRecord]:
        from llmb_common.executors.slurm.array import start_array

        return start_array(records)


class SlurmExecutor(Executor):
    """Submits with ``sbatch --parsable``; the job's own script does the rest."""

    ranks = Ranks(
        "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", job="${SLURM_JOB_ID}", node="${SLURM_NODEID}"
    )
    arrays = SlurmArrays()

    def head(self, plan: JobPlan, paths: RunPaths) -> list[str]:
        return directives(plan, paths.job_name, output_pattern(str(paths.batch_log)))

    def job_script(self) -> str:
        return shell_part(__file__, "job.sh")

    def launch(self, plan: JobPlan) -> list[str]:
        return launch(plan)

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
        if plan.image is None:
            check_engine(plan)
        elif plan.image.startswith("/"):
            image, install = Path(plan.image), Path(plan.install)
            require_trusted(image, install, None if image.is_relative_to(install) else image.parent)

    def doubts(self, plan: JobPlan) -> list[str]:
        from llmb_common.executors.slurm.shared_folder import folder_doubts

        return folder_doubts(plan)

    def options(self, plan: JobPlan, after: Sequence[str], excluded: Mapping[str, str]) -> tuple[str, ...]:
        """``--dependency`` and ``--exclude``; the latter includes the plan's own list, which an option on the command
        line replaces.

        Raises:
            RequestError: the job asks for nodes that are excluded.
        """
        from llmb_common.runs.hostlist import compress, expand

        arguments = [f"--dependency=afterany:{':'.join(after)}"] if after else []
        if excluded:
            additional = dict(slurm_of(plan).additional)
            if both := set(excluded) & set(expand(additional.get("nodelist") or "")):
                reasons = ", ".join(f"{name} ({excluded[name]})" for name in sorted(both))
                raise RequestError(
                    f"the job requests excluded nodes: {reasons}",
                    remedy="llmb-run exclude remove, or other nodes",
                )
            arguments.append(f"--exclude={compress({*excluded, *expand(additional.get('exclude') or '')})}")
        return tuple(arguments)

    def start(self, record: RunRecord, *, detach: bool = False) -> RunRecord:
        from llmb_common.executors.slurm.sbatch import sbatch
        from llmb_common.runs.record import SUBMITTED, update_record

        job_id, remark = sbatch(record.submission.options, record.paths.script, record.job_name)
        return update_record(
            record.paths.folder, lambda found: replace(found, job_id=job_id).with_state(SUBMITTED, remark)
        )

    def look(self, records: Sequence[RunRecord]) -> dict[str, Finding]:
        from llmb_common.executors.slurm.look import look_at_slurm

        return look_at_slurm(records)

    def failed_nodes(self, nodes: str) -> list[str]:
        from llmb_common.executors.slurm.query import unfit_nodes

        return unfit_nodes(nodes)

    def nodes_now(self, nodes: str | None, partition: str | None) -> dict[str, str]:
        from llmb_common.executors.slurm.query import states_of_nodes

        found = states_of_nodes(nodes, partition)
        soon = ("idle", "completing", "planned")  # Slurm gives them within its patience
        return {name: "" if state in soon else f"{state}{reason and f' ({reason})'}" for name, state, reason in found}

    def hold(self, wanted: Wanted) -> AbstractContextManager[Held]:
        from llmb_common.executors.slurm.hold import hold

        return hold(wanted)

    def end(self, records: Sequence[RunRecord]) -> dict[str, RunRecord | LLMBError]:
        from llmb_common.executors.slurm.scancel import end_jobs

        return end_jobs(records)
