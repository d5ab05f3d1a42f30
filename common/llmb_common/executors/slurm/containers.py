"""What a job's containers see of the machine, in the syntax of Pyxis and of Enroot, and how a rank enters its image
where Slurm has no Pyxis: ``enroot start``, with the environment passed by name.

``enroot start`` drops the caller's environment (``runtime.sh`` and ``enroot-switchroot.c`` of 4.1.2: ``clearenv``, then
the image's variables and those of ``--env``). Its hooks for Slurm and PyTorch, which would bring some of it back, are
optional. ``--env NAME`` of a variable that is not set makes an empty one, so it is decided on the node which to name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from shlex import quote

from llmb_common.command.secrets import SECRET_VARIABLES
from llmb_common.command.words import mount_problem
from llmb_common.errors import RequestError
from llmb_common.executors.slurm.words import slurm_of
from llmb_common.machine.shell_text import shell_part
from llmb_common.planning.job_plan import JobPlan
from llmb_common.request.read import TUNING_PREFIXES

_NAMES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", *SECRET_VARIABLES)
_PREFIXES = ("SLURM_", "LLMB_", *TUNING_PREFIXES)
"""SLURM_* is for ranks, file names and NUMA binding; the others can also come from a site's prolog."""


def enter_script(plan: JobPlan, mounts: Sequence[str], variables: Sequence[str]) -> str:
    """The bash text that each task runs on the host, with the task's own text as its only argument."""
    writable = slurm_of(plan).container_writable
    lines = [
        "set -euo pipefail",
        f"names=({' '.join(dict.fromkeys((*_NAMES, *variables)))})",
        f"prefixes=({' '.join(_PREFIXES)})",
        shell_part(__file__, "enroot.sh"),
    ]
    if plan.checkpoint.enabled:
        lines += [
            "# Slurm signals every process of the step, but those that serve the image must live until all is saved.",
            "# An ignored signal stays ignored in child processes; ranks install a handler of their own.",
            "trap '' TERM",
        ]
    lines.append(f"exec enroot start{' --rw' if writable else ''} \\")
    lines += [f"  --mount {quote(mount)} \\" for mount in mounts]
    lines.append(f'  "${{options[@]}}" {quote(plan.image or "")} bash -c "$1"')
    return "\n".join(lines)


def container_mounts(plan: JobPlan, runtime: str) -> list[str]:
    """Mounts for ``pyxis`` or ``enroot``: installation, workload and checkpoints at the same paths as outside, then
    those that were asked for.

    Raises:
        RequestError: this runtime has no way to express a path.
    """
    # The file that Megatron reads first is next to a single checkpoint (iter_0000050).
    load = re.sub(r"/iter_[0-9]+$", "", plan.checkpoint.load or "")
    paths: list[str] = []
    for path in (plan.install, plan.workload_folder, plan.checkpoint.save, load):
        if path and not any(is_below(path, folder) for folder in paths):
            paths.append(path)
    for path in [*paths, *(part for mount in plan.mounts for part in mount.split(":")[:2])]:
        if problem := mount_problem(path, runtime):
            raise RequestError(f"the path {path} {problem}", remedy="rename it")
    mounts = [f"{path}:{path}" for path in paths] + list(plan.mounts)
    return [for_enroot(mount) for mount in mounts] if runtime == "enroot" else mounts


def is_below(path: str, folder: str) -> bool:
    """Whether ``path`` is ``folder`` or inside it, by their text alone."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def for_enroot(mount: str) -> str:
    """Enroot separates flags by commas and, given flags, omits its defaults, which Pyxis adds."""
    source, *rest = mount.split(":")
    if len(rest) < 2:
        return mount
    return f"{source}:{rest[0]}:x-create=auto,rbind,{rest[1].replace('+', ',')}"
