"""What every rank runs: NUMA binding, the profiler's prefix, then ``python -m llmb_train job.json``.

The text is a here-document in the batch script, so that a dry run shows all of it, and is passed to ``bash -c``.
"""

from __future__ import annotations

import re
from shlex import quote

from llmb_common.executors import Ranks
from llmb_common.machine.shell_text import shell_part
from llmb_common.planning.job_plan import JobPlan, ProfilePlan


def task_script(plan: JobPlan, ranks: Ranks) -> str:
    """The task's bash text, without a final line break. Every value is quoted; nothing is evaluated."""
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
        lines += _nsys(plan.profile, ranks)
    python = quote(plan.engine_python) if plan.engine_python and plan.image is None else "python3"
    lines.append(f'exec "${{prefix[@]}}" {python} -u -m llmb_train "$LLMB_RUN_DIR/job.json"')
    return "\n".join(lines)


def _double_quoted(name: str) -> str:
    """``name`` for use between double quotes: ``${VARIABLE}`` is expanded, anything else is literal."""
    parts = re.split(r"(\$\{[A-Z_]+\})", name)
    return "".join(part if i % 2 else re.sub(r'([\\"`$])', r"\\\1", part) for i, part in enumerate(parts))


def _nsys(profile: ProfilePlan, ranks: Ranks) -> list[str]:
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
    name = _double_quoted(name)
    options = [
        "nsys profile -s none -t 'nvtx,cuda' --force-overwrite=true",
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
