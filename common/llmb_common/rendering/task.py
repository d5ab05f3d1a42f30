"""What every rank runs: NUMA binding, the profiler's prefix, then ``python -m llmb_train job.json``.

The text goes into the batch script as a here-document, so that a dry run shows all of it, and is handed to ``bash -c``.
"""

from __future__ import annotations

import re
from shlex import quote

from llmb_common.planning.job_plan import JobPlan, ProfilePlan


def task_script(plan: JobPlan) -> str:
    """The task's bash text, without a final line break. Every value is quoted; nothing is evaluated."""
    slurm = plan.cluster_type == "slurm"
    lines = [
        "set -euo pipefail",
        'cd -- "$LLMB_RUN_DIR/$LLMB_EXPERIMENT"',
        "export PYTHONPATH=$LLMB_RUN_DIR/code.zip${PYTHONPATH:+:$PYTHONPATH}",
        "prefix=()",
    ]
    if slurm and plan.device == "cuda" and not plan.cpu_pinning:
        lines += _numa_binding()
    if plan.profile is not None and plan.profile.tool == "nsys":
        lines += _nsys(plan.profile, slurm=slurm)
    python = quote(plan.engine_python) if plan.engine_python and _outside_container(plan) else "python3"
    lines.append(f'exec "${{prefix[@]}}" {python} -u -m llmb_train "$LLMB_RUN_DIR/job.json"')
    return "\n".join(lines)


def _outside_container(plan: JobPlan) -> bool:
    return plan.slurm is None or plan.slurm.runtime == "none"


def _numa_binding() -> list[str]:
    """Bind each rank to the NUMA node beside its GPU, by the number of nodes that really have CPUs.

    GB200 and GB300 show many more NUMA nodes, made of GPU memory: those have an empty CPU list.
    """
    return [
        "if command -v numactl > /dev/null; then",
        "  numa=()",
        "  for list in /sys/devices/system/node/node[0-9]*/cpulist; do",
        '    [[ -r $list && -n $(< "$list") ]] || continue',
        "    node=${list%/cpulist}",
        '    numa+=("${node##*/node}")',
        "  done",
        "  if (( ${#numa[@]} > 1 )); then",
        "    node=${numa[SLURM_LOCALID * ${#numa[@]} / ${SLURM_NTASKS_PER_NODE:-1}]}",
        '    prefix=(numactl "--cpunodebind=$node" "--membind=$node")',
        "  fi",
        "fi",
    ]


def _double_quoted(name: str) -> str:
    """``name`` between double quotes: ``${VARIABLE}`` is expanded, anything else stays as it is."""
    parts = re.split(r"(\$\{[A-Z_]+\})", name)
    return "".join(part if i % 2 else re.sub(r'([\\"`$])', r"\\\1", part) for i, part in enumerate(parts))


def _nsys(profile: ProfilePlan, *, slurm: bool) -> list[str]:
    # PROCESS_ID is the documents' word for what nsys itself fills in as %p.
    name = profile.file.replace("${PROCESS_ID}", "%p")
    if not slurm:
        for variable, value in (("SLURM_JOB_ID", "local"), ("SLURM_NODEID", "0")):
            name = name.replace(f"${{{variable}}}", value)
        name = name.replace("${SLURM_LOCALID}", "${LOCAL_RANK}").replace("${SLURM_PROCID}", "${RANK}")
    name = _double_quoted(name)
    options = [
        "nsys profile -s none -t 'nvtx,cuda' --force-overwrite=true",
        "--capture-range=cudaProfilerApi --capture-range-end=stop --cuda-graph-trace=node",
    ]
    if profile.gpu_metrics:
        # Each rank its own GPU, as NeMo-Run: one GPU's counters can be read by one process at a time.
        options.append(f'--gpu-metrics-devices="{"$SLURM_LOCALID" if slurm else "$LOCAL_RANK"}"')
    # Not by its whole path: nsys would expand a % in that.
    command = f'  prefix+=({" ".join(options)} -o "nsys_profile/{name}")'
    if profile.ranks is None:
        return [command.strip()]
    ranks = " ".join(str(rank) for rank in profile.ranks)
    rank = "$SLURM_PROCID" if slurm else "$RANK"
    return [f"profiled={quote(f' {ranks} ')}", f'if [[ $profiled == *" {rank} "* ]]; then', command, "fi"]
