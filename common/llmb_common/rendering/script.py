"""JobPlan -> the batch script, as one pure function: the same text for the same plan and paths.

The Slurm script and the local one differ in their head and in what starts the ranks; everything else is shared.
"""

from __future__ import annotations

from shlex import quote

from llmb_common.errors import RequestError
from llmb_common.planning.job_plan import JobPlan, SlurmPlan
from llmb_common.rendering.enroot import enter_script
from llmb_common.rendering.mounts import container_mounts
from llmb_common.rendering.supervise import events, run_step, supervisor
from llmb_common.rendering.task import task_script
from llmb_common.runs.paths import ArrayPaths, RunPaths
from llmb_common.slurm.options import output_pattern, sbatch_line
from llmb_common.words import line_problem

PORT_BASE, PORT_COUNT = 21000, 9000
"""Rendezvous ports, by the job's id: two jobs meet on one only where they share a node and their ids differ by a
multiple of 9000. Linux takes ports of outgoing connections from 32768 up, and one that holds the rendezvous port ends
the job at its start; 30000 to 32767 are Kubernetes' node ports, 20048 and 20049 those of NFS."""


def render_script(plan: JobPlan, paths: RunPaths) -> str:
    """The batch script. Raises RequestError where a path cannot be said to Python, Slurm or a container."""
    _check(plan, paths)
    lines = ["#!/bin/bash"]
    if plan.slurm is not None:
        lines += _directives(plan, plan.slurm, paths.job_name, output_pattern(str(paths.batch_log)))
    lines += ["", *_comment(plan), "", "set -euo pipefail", ""]
    lines += [
        f"export LLMB_RUN_DIR={quote(str(paths.folder))}",
        f"export LLMB_EXPERIMENT={quote(plan.experiment_name)}",
    ]
    lines += ["unset PYTHONPATH  # the login node's; an image has its own"]
    lines += ["log=$LLMB_RUN_DIR/$LLMB_EXPERIMENT/log-$LLMB_EXPERIMENT.out", 'touch "$log"', ""]
    lines += _environment(plan)
    lines += ["", *events(plan)]
    lines += ["", "# What each rank runs.", "IFS= read -r -d '' task << 'TASK' || true", task_script(plan)]
    lines += ["TASK", ""]
    lines += [*supervisor(plan), ""]
    lines += _slurm_launch(plan, plan.slurm) if plan.slurm is not None else _local_launch(plan)
    lines += run_step(plan)
    return "\n".join(lines) + "\n"


def _check(plan: JobPlan, paths: RunPaths) -> None:
    """What no quoting helps against; plans of old records come here too."""
    image, python = plan.image or "", plan.engine_python or ""
    for what, value in (("the run's folder", str(paths.output)), ("engine.python", python), ("the image", image)):
        if problem := line_problem(value):
            raise RequestError(f"{what} {value!r} {problem}", remedy="rename it")
    if plan.slurm is not None and plan.slurm.runtime == "enroot" and (image.startswith("-") or "'" in image):
        # It puts the image's path between single quotes into a script of its own (4.1.2, runtime.sh).
        raise RequestError(f"Enroot cannot be told the image {image}", remedy="rename it: no quote, no dash in front")
    if ":" in str(paths.folder):
        raise RequestError(
            f"the path {paths.folder} holds a colon, which PYTHONPATH cannot say", remedy="rename LLMB_INSTALL"
        )


def render_array(plan: JobPlan, array: ArrayPaths, size: int) -> str:
    """The script of a job array: its task N runs the script in the run folder to which the link N leads.

    Raises RequestError where a path cannot be said to Slurm.
    """
    if plan.slurm is None:
        raise RequestError("job arrays need Slurm", remedy="submit the runs one by one")
    name = plan.experiment_name
    # Through the link: also what Slurm itself says of a task (time limit, memory) goes into that run's log.
    output = f"{output_pattern(str(array.folder))}/%a/{output_pattern(f'{name}/sbatch_{name}.out')}"
    lines = ["#!/bin/bash", *_directives(plan, plan.slurm, array.job_name, output)]
    lines += [sbatch_line("array", f"0-{size - 1}"), ""]
    lines += [f'exec bash {quote(str(array.folder))}/"$SLURM_ARRAY_TASK_ID"/{quote(f"{name}.sbatch")}']
    return "\n".join(lines) + "\n"


def _directives(plan: JobPlan, slurm: SlurmPlan, job_name: str, output: str) -> list[str]:
    options: dict[str, str | int | None] = {
        "job-name": job_name,
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
        kind = f"gpu:{slurm.gres_type}" if slurm.gres_type else "gpu"
        options["gres"] = f"{kind}:{plan.gpus_per_node}"
    if slurm.segment:
        options["segment"] = slurm.segment
    if plan.cpu_pinning:
        options["cpus-per-task"] = plan.cpu_pinning
    if plan.checkpoint.enabled:
        options["signal"] = f"TERM@{plan.checkpoint.save_seconds}"
    options["output"] = output
    options["open-mode"] = "append"
    if not {"requeue", "no-requeue"} & dict(slurm.additional).keys():
        options["requeue"] = None  # after a node failure or preemption; the run goes on in the same folder
    options |= dict(slurm.additional)  # the user's word is the last
    return [sbatch_line(option, value) for option, value in options.items()]


def _comment(plan: JobPlan) -> list[str]:
    precision = f"{plan.dtype} ({plan.fp8_recipe})" if plan.fp8_recipe else plan.dtype
    columns = f"TP {plan.tp}, PP {plan.pp}, CP {plan.cp}, VP {plan.vp or 'NA'}, EP {plan.ep or 'NA'}, DP {plan.dp}"
    flags = [
        f"MBS {plan.mbs}, GBS {plan.gbs}, GA {plan.ga}",
        *(["FSDP"] if plan.fsdp else []),
        *(["CUDA graphs"] if plan.cuda_graph else []),
        *([f"{plan.recompute_layers} layers recomputed"] if plan.recompute_layers else []),
        *([f"{plan.offload_layers} layers offloaded"] if plan.offload_layers else []),
    ]
    kind = "ranks on CPUs" if plan.device == "cpu" else f"{plan.gpu_type.upper()} GPUs"
    return [
        f"# {plan.workload} {plan.model_size} {precision} on {plan.gpus} {kind}, {plan.max_steps} steps",
        f"# {columns}",
        f"# {', '.join(flags)}",
    ]


def _environment(plan: JobPlan) -> list[str]:
    lines = [f"export {name}={quote(item.value)}" for name, item in plan.env.items()]
    if plan.device == "cpu" and "OMP_NUM_THREADS" not in plan.env:
        # One thread a rank, or ranks on one machine fight for the same cores.
        lines.append("export OMP_NUM_THREADS=1")
    if plan.checkpoint.resume:
        lines.append("export LLMB_RESUME=1")
    elif plan.checkpoint.enabled:
        # A requeued job goes on from what it saved itself.
        lines.append("export LLMB_RESUME=$((${SLURM_RESTART_COUNT:-0} > 0))")
    return lines


def _slurm_launch(plan: JobPlan, slurm: SlurmPlan) -> list[str]:
    lines = [
        "# Rendezvous at the first node, by the address under which Slurm itself reaches it.",
        "master=${SLURMD_NODENAME:-$(hostname)}",
        'if [[ $(scontrol show node "$master" --oneliner) =~ \\ NodeAddr=([^\\ ]+) ]]; then',
        "  master=${BASH_REMATCH[1]}",
        "fi",
        "export MASTER_ADDR=$master",
        f"export MASTER_PORT=${{MASTER_PORT:-$(({PORT_BASE} + SLURM_JOB_ID % {PORT_COUNT}))}}",
        "",
    ]
    if slurm.runtime == "enroot":
        lines += ["# How each rank enters its image, which gets no variable but those named here."]
        lines += ["IFS= read -r -d '' enter << 'ENTER' || true"]
        lines += [enter_script(plan, container_mounts(plan, "enroot"), _job_variables(plan)), "ENTER", ""]
    if plan.vboost:
        lines += [
            "# Clock boost needs rights that not every site gives: tried, recorded, never fatal.",
            "vboost=0",
            'timeout 60 srun --ntasks-per-node=1 --ntasks="$SLURM_JOB_NUM_NODES" \\',
            "  sudo -n nvidia-smi boost-slider --vboost 1 || vboost=$?",
            'event vboost "$vboost"',
            "",
        ]
    options = [f"--mpi={slurm.mpi}", "--kill-on-bad-exit=1"]
    if plan.cpu_pinning:
        options += [f"--cpus-per-task={plan.cpu_pinning}", "--cpu-bind=cores"]
    # Appending keeps the iterations of an earlier start when Slurm requeues the job.
    # A % in --output is a pattern to srun; doubled it is a %.
    options += ['--output="${log//%/%%}"', "--open-mode=append"]
    lines += ["srun \\", *(f"  {option} \\" for option in options)]
    if slurm.runtime == "none":
        lines.append('  bash -c "$task" &')
    elif slurm.runtime == "pyxis":
        lines += [f"  {option} \\" for option in _pyxis(plan, slurm)]
        lines.append('  bash -c "$task" &')
    else:
        lines.append('  bash -c "$enter" bash "$task" &')
    return lines


def _pyxis(plan: JobPlan, slurm: SlurmPlan) -> list[str]:
    image = plan.image or ""
    # Without --container-env a value that the image itself sets would win over ours. Enroot's own default is a
    # read-only root, and core's helper for data indices and Triton's cache write to it.
    return [
        "--no-container-mount-home",
        *(["--container-writable"] if slurm.container_writable else []),
        f"--container-image={quote(image)}",
        f"--container-mounts={quote(','.join(container_mounts(plan, 'pyxis')))}",
        f"--container-env={quote(','.join(_job_variables(plan)))}",
    ]


def _job_variables(plan: JobPlan) -> list[str]:
    ours = ["MASTER_ADDR", "MASTER_PORT", "LLMB_RUN_DIR", "LLMB_EXPERIMENT"]
    return [*plan.env, *ours, *(["LLMB_RESUME"] if plan.checkpoint.enabled else [])]


def _local_launch(plan: JobPlan) -> list[str]:
    """torchrun starts the ranks; its own messages and theirs go to the documented log."""
    python = quote(plan.engine_python) if plan.engine_python else "python3"
    return [
        f"{python} -u -m torch.distributed.run --standalone --nproc-per-node={plan.gpus} \\",
        '  --no-python bash -c "$task" >> "$log" 2>&1 &',
    ]
