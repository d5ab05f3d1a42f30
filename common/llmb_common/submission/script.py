"""JobPlan -> the batch script, as one pure function: the same text for the same plan and paths.

The executor writes what is its scheduler's: the head, and what starts the ranks. Everything else is common to all. What
every rank runs (NUMA binding, the profiler's prefix, then ``python -m llmb_train job.json``) is a here-document in it,
and is passed to ``bash -c``. What is the same in all jobs of a scheduler is in ``supervisor.sh``, which it reads from
the run's folder.
"""

from __future__ import annotations

import re
from shlex import quote

from llmb_common.base.cluster_types import traits_of
from llmb_common.base.errors import RequestError
from llmb_common.base.files import shell_part
from llmb_common.base.words import limit_seconds, line_problem
from llmb_common.executors.base import Ranks, script_for
from llmb_common.planning.job_plan import JobPlan, ProfilePlan
from llmb_common.planning.outlook import START_SECONDS, most_check_seconds
from llmb_common.runs.paths import RunPaths
from llmb_common.submission.supervisor import supervisor_sha256


def task_script(plan: JobPlan, ranks: Ranks) -> str:
    """Return the Bash text that each rank runs to start training, without a final line break.

    It binds a rank on a GPU to the cores near it, where ``ranks`` tells how many a node has and the plan has no
    ``cpu_pinning``, puts Nsight Systems before Python for ranks to profile, and ends by replacing the shell with
    Python. Values from the plan are quoted. Nothing is written or executed. ``ranks`` says how a rank learns its
    number. The text expects ``LLMB_RUN_DIR`` and ``LLMB_EXPERIMENT`` in the environment.
    """
    lines = [
        "set -euo pipefail",
        'cd -- "$LLMB_RUN_DIR/$LLMB_EXPERIMENT"',
        "export PYTHONPATH=$LLMB_RUN_DIR/code.zip${PYTHONPATH:+:$PYTHONPATH}",
        "prefix=()",
    ]
    if ranks.per_node is not None and plan.device == "cuda" and not plan.cpu_pinning:
        lines += [
            f"local_rank=${ranks.local_rank} local_ranks=${{{ranks.per_node}:-1}}",
            shell_part(__file__, "numa.sh"),
        ]
        if plan.fast_cores is not None:
            stride, count = plan.fast_cores
            lines += [f"core_stride={stride} core_count={count}", shell_part(__file__, "cores.sh")]
    if plan.profile is not None and plan.profile.tool == "nsys":
        lines += _nsys_lines(plan.profile, ranks)
    python = quote(plan.engine_python) if plan.engine_python and plan.image is None else "python3"
    lines.append(f'exec "${{prefix[@]}}" {python} -u -m llmb_train "$LLMB_RUN_DIR/job.json"')
    return "\n".join(lines)


def _nsys_lines(profile: ProfilePlan, ranks: Ranks) -> list[str]:
    """Return the lines of Bash that put Nsight Systems before the training command of the ranks to profile.

    They add to the array ``prefix``, which must exist. ``profile`` has the tool ``nsys``; its ``ranks`` None: all
    ranks are profiled. ``ranks`` names the variables by which a rank knows its number; Slurm's in the report's name
    are replaced by them. Reports go to ``nsys_profile`` in the working folder.
    """
    # PROCESS_ID is NVIDIA's placeholder for what nsys itself fills in as %p.
    name = profile.file.replace("${PROCESS_ID}", "%p")
    # NVIDIA's names of reports contain Slurm's variables.
    for variable, word in (
        ("SLURM_JOB_ID", ranks.job),
        ("SLURM_NODEID", ranks.node),
        ("SLURM_LOCALID", f"${{{ranks.local_rank}}}"),
        ("SLURM_PROCID", f"${{{ranks.rank}}}"),
    ):
        name = name.replace(f"${{{variable}}}", word)
    # Between double quotes ${VARIABLE} is expanded, and anything else is to be literal.
    name = re.sub(r'(\$\{[A-Z_]+\})|([\\"`$])', lambda found: found[1] or f"\\{found[2]}", name)
    trace = profile.trace.replace("'", r"'\''")
    options = [
        f"nsys profile -s none -t '{trace}' --force-overwrite=true",
        "--capture-range=cudaProfilerApi --capture-range-end=stop --cuda-graph-trace=node",
    ]
    if profile.gpu_metrics:
        # Each rank its own GPU, as in NeMo-Run: only one process at a time can read a GPU's counters.
        options.append(f'--gpu-metrics-devices="${ranks.local_rank}"')
    # Not the full path: nsys would expand a % in it.
    command = f'  prefix+=({" ".join(options)} -o "nsys_profile/{name}")'
    if profile.ranks is None:
        return [command.strip()]
    chosen = " ".join(str(rank) for rank in profile.ranks)
    return [f"profiled={quote(f' {chosen} ')}", f'if [[ $profiled == *" ${ranks.rank} "* ]]; then', command, "fi"]


START_PATIENCE = 4
"""A step counts as hung where its first iteration takes so many times as long as is assumed of a start."""

HANG_SECONDS = 600
"""A step counts as hung after so long without a new iteration, but not before 20 times the median step."""

TEARDOWN_SECONDS = 300
"""How long ranks may take to exit after the last iteration."""

LONG_SECONDS = 1800
"""The minimum for both where a checkpoint or a profile is written between steps or at the end; the first iteration may
take so much longer where a checkpoint is read or a profiler started."""


_ABOUT = (
    "# A run of LLMB. This script needs the run's folder (LLMB_RUN_DIR), where supervisor.sh watches over the ranks.",
    "# The job's own part: variables, from LLMB_RUN_DIR on; what each rank runs (TASK); what starts them, at the end.",
)


def render_script(plan: JobPlan, paths: RunPaths, sha256: str | None = None) -> str:
    """Return the text of the job's batch script, with a final line break; nothing is written.

    The same arguments give the same text. ``paths`` are the run's, whose folder need not exist. ``sha256``: the
    script accepts only a ``supervisor.sh`` with this SHA-256, as the run's record has it; None: the one that this
    release renders.

    Raises:
        RequestError: Python, the scheduler or the container runtime cannot express one of the paths
    """
    _refuse_unquotable_paths(plan, paths)
    script = script_for(plan.cluster_type)
    lines = ["#!/bin/bash", *_ABOUT, *script.head(plan, paths), "", *_comment_lines(plan), "", "set -euo pipefail", ""]
    lines += [
        f"export LLMB_RUN_DIR={quote(str(paths.folder))}",
        f"export LLMB_EXPERIMENT={quote(plan.experiment_name)}",
    ]
    lines += ["unset PYTHONPATH  # the login node's; an image has its own"]
    lines += ["log=$LLMB_RUN_DIR/$LLMB_EXPERIMENT/log-$LLMB_EXPERIMENT.out", ""]
    lines += [f"export {name}={quote(item.value)}" for name, item in plan.env.items()]
    if plan.device == "cpu" and "OMP_NUM_THREADS" not in plan.env:
        # One thread a rank, or ranks on one machine fight for the same cores.
        lines.append("export OMP_NUM_THREADS=1")
    lines += [
        "",
        "# What watches over the ranks, in the run's folder. Only the file that was made with this script will do.",
        f"sha256={quote(str(sha256 or supervisor_sha256(plan.cluster_type)))}",
        shell_part(__file__, "load.sh"),
        "",
        _patience_line(plan),
    ]
    if plan.checkpoint.resume:
        lines.append("export LLMB_RESUME=1")
    elif plan.checkpoint.enabled:  # a requeued job resumes from what it saved itself
        lines.append("export LLMB_RESUME=$((restarts > 0))")
    lines.append("begin")
    if plan.checkpoint.resume:
        lines.append(f"require_checkpoint {quote(plan.checkpoint.save or str(paths.checkpoints))}")
    if plan.check_fabric:
        python = f"{plan.install}/venvs/llmb/bin/python"
        lines += ["# Before training, its own nodes are checked, and the fabric between them."]
        lines += [f"check_nodes {most_check_seconds(plan)} {quote(python)}"]
    lines += ["", "# What each rank runs.", "IFS= read -r -d '' task << 'TASK' || true"]
    lines += [task_script(plan, script.ranks), "TASK", ""]
    lines += [*script.launch(plan), 'follow "$!"']
    return "\n".join(lines) + "\n"


def _refuse_unquotable_paths(plan: JobPlan, paths: RunPaths) -> None:
    """Raise if the run's folder, the image or the engine's Python is a path that no quoting can protect.

    Plans of old records are rendered too, so the planner's checks are not enough.

    Raises:
        RequestError: such a path is not one line of text, or the run's folder has a colon in it
    """
    image, python = plan.image or "", plan.engine_python or ""
    for what, value in (("the run's folder", str(paths.output)), ("engine.python", python), ("the image", image)):
        if problem := line_problem(value):
            raise RequestError(f"{what} {value!r} {problem}", remedy="rename it")
    if ":" in str(paths.folder):
        raise RequestError(
            f"the path {paths.folder} contains a colon, which PYTHONPATH cannot express",
            remedy="choose another LLMB_INSTALL or LLMB_WORKLOAD",
        )


def _patience_line(plan: JobPlan) -> str:
    """Return the line of Bash variables with the seconds that ``supervise.sh`` allows for start, step and exit.

    As ``start_seconds=N hang_seconds=N teardown_seconds=N limit_seconds=N``, for the job of ``plan``. The first three
    are longer where checkpoints are saved or the job is profiled (``start_seconds`` also where one is loaded).
    ``limit_seconds``, after which the scheduler ends the job, is 0 where no scheduler does so, or where ranks may be
    saving a checkpoint then.
    """
    start, hang, teardown = START_PATIENCE * START_SECONDS, HANG_SECONDS, TEARDOWN_SECONDS
    # A checkpoint may take twice as long as the site's rate says before a step counts as hung.
    long = max(LONG_SECONDS, 2 * plan.checkpoint.save_seconds)
    if plan.checkpoint.enabled or plan.checkpoint.load is not None or plan.profile is not None:
        start += long
    if plan.checkpoint.enabled or plan.profile is not None:
        hang = teardown = long
    ends = traits_of(plan.cluster_type).queued and not plan.checkpoint.enabled
    limit = limit_seconds(plan.time_limit) if ends else 0
    return f"start_seconds={start} hang_seconds={hang} teardown_seconds={teardown} limit_seconds={limit}"


def _comment_lines(plan: JobPlan) -> list[str]:
    """Return the comment lines (``# ...``) of the batch script that describe the job to a reader, at least three.

    They have no line breaks. In order: workload, model, scale and steps; the function, if the plan has one;
    parallelism; batch and flags; a published step time, if there is one. That of the batch is such as
    ``# MBS 1, GBS 128, GA 16, FSDP``.
    """
    columns = f"TP {plan.tp}, PP {plan.pp}, CP {plan.cp}, VP {plan.vp or 'NA'}, EP {plan.ep or 'NA'}, DP {plan.dp}"
    flags = [
        f"MBS {plan.mbs}, GBS {plan.gbs}, GA {plan.ga}",
        *(["FSDP"] if plan.fsdp else []),
        *(["CUDA graphs"] if plan.cuda_graph else []),
        *([f"{plan.recompute_layers} layers recomputed"] if plan.recompute_layers else []),
        *([f"{plan.offload_layers} layers offloaded"] if plan.offload_layers else []),
    ]
    seconds, software = plan.preflight.reference_step_seconds, plan.preflight.reference_software
    return [
        f"# {plan.workload} {plan.model_size} {plan.precision} on {plan.scale}, {plan.max_steps} steps",
        *([f"# {plan.function.name} of Megatron-Bridge {plan.function.release}"] if plan.function else []),
        f"# {columns}",
        f"# {', '.join(flags)}",
        *([f"# published: {seconds:g} s a step ({software})"] if seconds is not None and software else []),
    ]
