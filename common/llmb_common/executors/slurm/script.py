"""Slurm's parts of a batch script: ``#SBATCH`` lines, ``srun``, and mounts.

Where Slurm has no Pyxis a rank enters its image by ``enroot start``, with the environment passed by name. That drops
the caller's environment (``runtime.sh`` and ``enroot-switchroot.c`` of 4.1.2: ``clearenv``, then the image's variables
and those of ``--env``). Its hooks for Slurm and PyTorch, which would bring some of it back, are optional. ``--env`` of
a variable that is not set makes an empty one, so it is decided on the node which to name.

Slurm (22.05) announces a preemption with SIGCONT and SIGTERM to every process of the step, and says nothing to the
batch script. What Enroot mounts from an image is served by FUSE, kept by a stopped process that takes the mount away
when it wakes up: so each node's ranks start in one root that is unpacked for them (``enroot.sh``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from shlex import quote

from llmb_common.base.errors import RequestError
from llmb_common.base.files import shell_part
from llmb_common.base.words import SECRET_VARIABLES, mount_problem
from llmb_common.executors.base import PORT_BASE, PORT_COUNT, JobScript, Ranks
from llmb_common.executors.slurm.options import output_pattern, sbatch_line
from llmb_common.executors.slurm.words import SlurmPlan, slurm_of
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.request.read import TUNING_PREFIXES
from llmb_common.runs.paths import RunPaths

_NAMES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", *SECRET_VARIABLES)
_PREFIXES = ("SLURM_", "LLMB_", *TUNING_PREFIXES)
"""SLURM_* is for ranks, file names and NUMA binding; the others can also come from a site's prolog."""

LOCAL_FILE_SYSTEMS = (
    "bcachefs",
    "btrfs",
    "ext2/ext3",
    "f2fs",
    "jfs",
    "overlayfs",
    "ramfs",
    "reiserfs",
    "tmpfs",
    "xfs",
    "zfs",
)
"""File systems that nodes do not share, in the words of ``stat -f -c %T`` (coreutils)."""

ROOT_ROOM = 2
"""Free space for an unpacked image, in sizes of the image. Enroot's own do not compress files; others may."""


def enter_script(plan: JobPlan, mounts: Sequence[str], variables: Sequence[str]) -> str:
    """Return the Bash text by which each task of srun enters its Enroot container, run on the host.

    Its only argument is the task's own Bash text. ``mounts`` are as ``container_mounts`` returns them for Enroot;
    ``variables`` are the names of those that the container takes over, beside those of Slurm, of LLMB and with secrets.
    The plan must be for Slurm and have an image. No line break at the end.
    """
    writable = slurm_of(plan).container_writable
    lines = [
        "set -euo pipefail",
        f"names=({' '.join(dict.fromkeys((*_NAMES, *variables)))})",
        f"prefixes=({' '.join(_PREFIXES)})",
        f"local_kinds=({' '.join(LOCAL_FILE_SYSTEMS)}) room={ROOT_ROOM}",
        f"image={quote(plan.image or '')}",
        f"start=(enroot start{' --rw' if writable else ''}",
        *(f"  --mount {quote(mount)}" for mount in mounts),
        ")",
        f"saves={int(plan.checkpoint.enabled)}",
        shell_part(__file__, "enroot.sh"),
    ]
    return "\n".join(lines)


def container_mounts(plan: JobPlan, runtime: str) -> list[str]:
    """Return the mounts of a job's container as ``pyxis`` or ``enroot`` (``runtime``) takes them: ``SOURCE:TARGET``.

    The plan is for Slurm. Nothing is mounted or looked at here. Installation, workload, the folder of checkpoints and
    the one to load are mounted in this order at the same paths as outside, without those that are not set or lie in an
    earlier one; then follow those that were asked for, in their order, some with ``:FLAGS`` (Pyxis: ``+`` between
    flags, Enroot: commas).

    Raises:
        RequestError: a path cannot be mounted: ``mount_problem`` says why, as of a comma, a colon or a ``$`` in it,
            for Enroot also of a blank
    """
    # The file that Megatron reads first is next to a single checkpoint (iter_0000050).
    load = re.sub(r"/iter_[0-9]+$", "", plan.checkpoint.load or "")
    paths: list[str] = []
    for path in (plan.install, plan.workload_folder, plan.checkpoint.save, load):
        if path and not any(Path(path).is_relative_to(folder) for folder in paths):
            paths.append(path)
    asked_for = chain.from_iterable(mount.split(":")[:2] for mount in plan.mounts)
    for path in [*paths, *asked_for]:
        if problem := mount_problem(path, runtime):
            raise RequestError(f"the path {path} {problem}", remedy="rename it")
    mounts = [f"{path}:{path}" for path in paths] + list(plan.mounts)
    return [for_enroot(mount) for mount in mounts] if runtime == "enroot" else mounts


def for_enroot(mount: str) -> str:
    """Return a mount of the form ``SOURCE:TARGET`` or ``SOURCE:TARGET:FLAGS`` as Enroot takes it.

    ``+`` separates flags in ``mount``. Enroot separates them by commas and, given flags, omits its defaults, which
    Pyxis adds: so they are added here. A mount without flags is returned as it is.
    """
    source, *rest = mount.split(":")
    if len(rest) < 2:
        return mount
    return f"{source}:{rest[0]}:x-create=auto,rbind,{rest[1].replace('+', ',')}"


def directives(plan: JobPlan, job_name: str, output: str) -> list[str]:
    """Return the ``#SBATCH`` lines of the batch script of ``plan``, one for each option, without line breaks.

    ``output`` is Slurm's pattern for the batch log, as ``output_pattern`` returns it; ``job_name`` the usual name,
    which the site's prefix or the user's options may change. The plan's additional options replace those of the same
    name, and others of them follow at the end.

    Raises:
        RequestError: the plan is not for Slurm, a value cannot be expressed for it, or the image's path for Enroot
    """
    slurm = slurm_of(plan)
    if slurm.runtime == "enroot" and plan.image and (plan.image.startswith("-") or "'" in plan.image):
        # It puts the image's path between single quotes into a script of its own (4.1.2, runtime.sh).
        raise RequestError(
            f"Enroot cannot be given the image {plan.image}", remedy="rename it: no quotes, no leading dash"
        )
    options: dict[str, str | int | None] = {
        "job-name": slurm.job_name(job_name),
        "nodes": plan.nodes,
        "ntasks-per-node": plan.gpus_per_node,
        "time": plan.time_limit,
    }
    if slurm.account:
        options["account"] = slurm.account
    if slurm.partition:
        options["partition"] = slurm.partition
    options |= {"exclusive": None, "mem": 0}
    if slurm.gres:
        options["gres"] = slurm.gpus(plan.gpus_per_node)
    if slurm.segment:
        options["segment"] = slurm.segment
    if plan.cpu_pinning:
        options["cpus-per-task"] = plan.cpu_pinning
    if plan.checkpoint.enabled:
        options["signal"] = f"B:TERM@{plan.checkpoint.save_seconds}"
    options["output"] = output
    options["open-mode"] = "append"
    if not {"requeue", "no-requeue"} & dict(slurm.additional).keys():
        options["requeue"] = None  # after a node failure or preemption; the run continues in the same folder
    options |= dict(slurm.additional)  # the user has the last word
    return [sbatch_line(option, value) for option, value in options.items()]


def _try_on_gpus(event: str, status: str, options: str) -> list[str]:
    """Return the Bash lines that try a setting on the GPUs of all nodes by ``nvidia-smi``, and never fail.

    ``options`` is one text that follows ``nvidia-smi``, such as ``boost-slider --vboost 1``. The exit status is kept in
    the Bash variable that ``status`` names, and recorded in the run's events as the event that ``event`` names. The
    lines have no line breaks; the last is empty.
    """
    return [
        f"{status}=0",
        'timeout 60 srun --ntasks-per-node=1 --ntasks="$SLURM_JOB_NUM_NODES" \\',
        f"  sudo -n nvidia-smi {options} || {status}=$?",
        f'event {event} "${status}"',
        "",
    ]


def pyxis_options(slurm: SlurmPlan, image: str, mounts: Sequence[str]) -> list[str]:
    """Return the options of srun, one a word and not quoted, by which Pyxis runs a step in ``image``.

    ``slurm`` says whether the container is writable; ``mounts`` are as ``container_mounts`` returns them for Pyxis.
    """
    options = ["--no-container-mount-home"]
    # Enroot's own default is a read-only root, and core's helper for data indices and Triton's cache write to it.
    if slurm.container_writable:
        options.append("--container-writable")
    options.append(f"--container-image={image}")
    if mounts:
        options.append(f"--container-mounts={','.join(mounts)}")
    return options


def _job_variables(plan: JobPlan) -> list[str]:
    """Return the names of the environment variables that a job's containers must take over from the batch script.

    Those of the plan, in its order, come first, then LLMB's own, such as ``MASTER_ADDR``. Names may come twice.
    """
    ours = ["MASTER_ADDR", "MASTER_PORT", "LLMB_RUN_DIR", "LLMB_EXPERIMENT"]
    if plan.checkpoint.enabled:
        ours.append("LLMB_RESUME")
    return [*plan.env, *ours]


class SlurmScript(JobScript):
    """Writes batch scripts that start ranks with ``srun``, in a container by Pyxis or Enroot, or without one.

    Which of these the plan's part for Slurm says. Made without arguments. ``head`` returns the ``#SBATCH`` lines,
    ``launch`` those that start the ranks, both raising ``RequestError`` for what cannot be expressed; ``job_script``
    is Bash text for the supervisor.
    """

    ranks = Ranks(
        "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", job="${SLURM_JOB_ID}", node="${SLURM_NODEID}"
    )

    def head(self, plan: JobPlan, paths: RunPaths) -> list[str]:
        """Return the ``#SBATCH`` lines of the batch script of ``plan``; ``paths`` say the job's name and its batch log.

        They have no line breaks, and come one for each option.

        Raises:
            RequestError: a path or a value cannot be expressed for Slurm, or the image's path for Enroot; or the plan
                is not for Slurm
        """
        return directives(plan, paths.job_name, output_pattern(str(paths.batch_log)))

    def job_script(self) -> str:
        """Return the Bash text by which ``submission/supervise.sh`` looks at and ends steps of Slurm.

        It has the variables and functions that ``JobScript.job_script`` names, and no line break at its end.
        """
        return shell_part(__file__, "job.sh")

    def launch(self, plan: JobPlan) -> list[str]:
        """Return the Bash lines of a batch script that start the ranks of ``plan`` with ``srun`` in the background.

        They have no line break at their end; with Enroot one item is a text of many lines. First they set the
        rendezvous address and try the clock settings of ``plan`` on the GPUs. The ranks' output is appended to
        ``$log``.

        Raises:
            RequestError: a path cannot be expressed for the container runtime, or the plan is not for Slurm
        """
        slurm = slurm_of(plan)
        lines = [
            "# Rendezvous at the first node, by the address under which Slurm itself reaches it.",
            "master=${SLURMD_NODENAME:-$(hostname)}",
            'if [[ $(scontrol show node "$master" --oneliner) =~ \\ NodeAddr=([^\\ ]+) ]]; then',
            "  master=${BASH_REMATCH[1]}",
            "fi",
            "export MASTER_ADDR=$master",
        ]
        if "MASTER_PORT" not in plan.env:  # one of the shell that submits this is no wish of the plan's
            lines.append(f"export MASTER_PORT=$(({PORT_BASE} + SLURM_JOB_ID % {PORT_COUNT}))")
        lines.append("")
        if plan.checkpoint.enabled:
            lines += [
                "# A rank that cannot save yet, or has saved, ignores what tells it to, and is told again.",
                "task=\"trap '' TERM\"$'\\n'$task",
                "",
            ]
        if slurm.runtime == "enroot":
            lines += ["# How each rank enters its image, which gets no variable but those named here."]
            lines += ["IFS= read -r -d '' enter << 'ENTER' || true"]
            lines += [enter_script(plan, container_mounts(plan, "enroot"), _job_variables(plan)), "ENTER", ""]
        if plan.vboost:
            lines += ["# Clock boost needs rights that not every site gives: tried, recorded, never fatal."]
            lines += _try_on_gpus("vboost", "vboost", "boost-slider --vboost 1")
        if plan.memory_clock is not None:
            lines += ["# As NVIDIA's launcher does on these GPUs. It needs rights too: tried, recorded, never fatal."]
            lines += _try_on_gpus("memory-clock", "clock", f"-lmc {plan.memory_clock},{plan.memory_clock}")
        options = [f"--mpi={slurm.mpi}", "--kill-on-bad-exit=1"]
        if plan.cpu_pinning:
            options += [f"--cpus-per-task={plan.cpu_pinning}", "--cpu-bind=cores"]
        # Appending keeps the iterations of an earlier start when Slurm requeues the job.
        # A % in --output is a pattern to srun; doubled it is a %.
        options += ['--output="${log//%/%%}"', "--open-mode=append"]
        lines += ["srun \\", *(f"  {option} \\" for option in options)]
        if slurm.runtime == "pyxis":
            container = pyxis_options(slurm, plan.image or "", container_mounts(plan, "pyxis"))
            # Without it a value that the image itself sets would win over ours.
            container.append(f"--container-env={','.join(_job_variables(plan))}")
            lines += [f"  {quote(option)} \\" for option in container]
        return [*lines, '  bash -c "$enter" bash "$task" &' if slurm.runtime == "enroot" else '  bash -c "$task" &']
