"""What the job's containers see of the machine, in the syntax of Pyxis and of Enroot."""

from __future__ import annotations

import re

from llmb_common.errors import RequestError
from llmb_common.planning.job_plan import JobPlan
from llmb_common.words import mount_problem


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
