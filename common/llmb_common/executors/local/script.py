"""The part of a batch script that starts the ranks on this machine: all that a dry run needs."""

from __future__ import annotations

from shlex import quote

from llmb_common.base.files import shell_part
from llmb_common.executors.base import JobScript
from llmb_common.planning.job_plan import JobPlan


class TorchrunScript(JobScript):
    """Writes batch scripts that start all ranks on one machine with torchrun, without a container.

    No scheduler reads them, so ``head`` is empty. ``job_script`` returns Bash text for the supervisor, ``launch`` the
    lines that start the ranks, whatever characters paths have; neither raises.
    """

    def job_script(self) -> str:
        """Return the Bash text by which ``submission/supervise.sh`` looks at and ends ranks under torchrun.

        It has the variables and functions that ``JobScript.job_script`` names, and no line break at its end.
        """
        return shell_part(__file__, "job.sh")

    def launch(self, plan: JobPlan) -> list[str]:
        """Return the Bash lines, without line breaks, that start all ranks of ``plan`` with torchrun in the background.

        Torchrun is that of the plan's engine, or of ``python3`` where the plan has none. Each rank runs ``$task``; the
        messages of torchrun and the ranks are appended to ``$log``. The ranks meet on the loopback interface, at a port
        that the kernel chooses: ``--standalone`` would give them the name of this machine, and where that does not
        resolve they wait for minutes and fail.
        """
        python = quote(plan.engine_python) if plan.engine_python else "python3"
        here = "127.0.0.1"
        return [
            "# All ranks are here. Else gloo looks up the name of this machine for each process group.",
            "export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo}",
            f"{python} -u -m torch.distributed.run --rdzv-backend=c10d --rdzv-endpoint={here}:0 --local-addr={here} \\",
            f'  --nproc-per-node={plan.gpus} --no-python bash -c "$task" >> "$log" 2>&1 &',
        ]
