"""``supervisor.sh``: the Bash that is the same in all jobs of a scheduler, as a file beside each job's script.

It has the scheduler's functions (``job.sh``), those that watch over the ranks (``supervise.sh``), and what each node is
asked after a failure (``kernel.sh``). Only the node that runs the batch script reads it, so thousands of nodes do not.
"""

from __future__ import annotations

import hashlib

from llmb_common.base.cluster_types import ClusterType
from llmb_common.base.files import shell_part
from llmb_common.executors.base import APPEND, WAIT, script_for


def render_supervisor(cluster_type: ClusterType) -> bytes:
    """Return the content of ``supervisor.sh``, the Bash code that watches over a job's ranks; nothing is written.

    It is the same for all jobs of ``cluster_type``.

    Raises:
        ValueError: there is no such way of running jobs
    """
    parts = [
        script_for(cluster_type).job_script(),
        WAIT,
        APPEND,
        shell_part(__file__, "supervise.sh"),
        "\n".join(["IFS= read -r -d '' kernel << 'KERNEL' || true", shell_part(__file__, "kernel.sh"), "KERNEL"]),
    ]
    return ("\n\n".join(parts) + "\n").encode()


def supervisor_sha256(cluster_type: ClusterType) -> str:
    """Return the SHA-256 of the ``supervisor.sh`` that this release renders, as 64 hexadecimal digits in lower case.

    By it a batch script recognizes the supervisor that it was made with.

    Raises:
        ValueError: there is no such way of running jobs
    """
    return hashlib.sha256(render_supervisor(cluster_type)).hexdigest()
