"""Options and arguments that several commands share, each defined once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from llmb_common import gpus
from llmb_run import completion
from llmb_run.app import F, as_json


def flag(*names: str, help: str) -> Callable[[F], F]:
    """An option that is there or not."""
    return click.option(*names, is_flag=True, help=help)


def several(*names: str, **settings: Any) -> Callable[[F], F]:
    """An option that may be repeated; a tuple, empty without it."""
    return click.option(*names, multiple=True, **settings)


def together(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, in the order of the help."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


_SIZE = ("-s", "--size", "--model-size", "size")

runs = click.argument(
    "runs", metavar="[RUN]...", nargs=-1, help="Run ids, names, job ids or folders.", shell_complete=completion.runs
)
one_run = click.argument("run", metavar="RUN", help="Run id, name, job id or folder.", shell_complete=completion.runs)
optional_run = click.argument(
    "run", metavar="[RUN]", required=False, help="Run id, name, job id or folder.", shell_complete=completion.runs
)
json = click.option(
    "--json", is_flag=True, expose_value=False, callback=as_json, help="Print one JSON object, errors included."
)

workload = click.option(
    "-w", "--workload", metavar="NAME", required=True, help="Workload.", shell_complete=completion.workloads
)
size = click.option(*_SIZE, metavar="SIZE", help="Model size, such as 405b.", shell_complete=completion.sizes)
dtype = click.option("--dtype", metavar="DTYPE", help="bf16, fp8 or nvfp4.", shell_complete=completion.dtypes)
workloads = several(
    *("-w", "--workload"),
    metavar="NAME",
    help="Workload; repeatable, or separated by commas.",
    shell_complete=completion.workloads,
)
sizes = several(
    *_SIZE, metavar="SIZE", help="Model size; repeatable, or separated by commas.", shell_complete=completion.sizes
)
dtypes = several(
    "--dtype",
    metavar="DTYPE",
    help="bf16, fp8 or nvfp4; repeatable, or separated by commas.",
    shell_complete=completion.dtypes,
)
gpu_type = click.option("--gpu-type", metavar="TYPE", help=f"{', '.join(gpus.GPUS)} or cpu.")

filters = together(
    workloads,
    sizes,
    dtypes,
    several("--scale", metavar="GPUS", help="Number of GPUs; repeatable, or separated by commas."),
    several("--state", metavar="STATE", help="Slurm state, such as RUNNING or TIMEOUT; repeatable."),
    click.option("--since", metavar="SPAN", help="Only runs from the last SPAN: 90m, 2h, 7d."),
    click.option("--limit", metavar="N", type=click.IntRange(min=1), help="At most the N newest runs."),
)
"""Which runs: the keyword arguments of ``selecting.run_filter``."""

job_settings = together(
    flag("-p", "--profile", help="Profile with Nsight Systems."),
    gpu_type,
    click.option(
        "--variant",
        metavar="NAME",
        help="Generation of configurations, where a recipe has two.",
        shell_complete=completion.variants,
    ),
    click.option("--engine", metavar="RELEASE", help="Release of Megatron-Bridge, where a recipe runs on several."),
    click.option("--max-steps", metavar="N", help="Training steps."),
    click.option("--time-limit", metavar="TIME", help="Slurm time limit: HH:MM:SS, or minutes."),
    several("--env", metavar="NAME=VALUE", help="Set a variable of the job or of launch.sh; repeatable."),
    several("--set", "columns", metavar="COLUMN=VALUE", help="Override one column, such as tp=4; repeatable."),
    several("--slurm-arg", metavar="KEY=VALUE", help="Another sbatch option, such as qos=high; repeatable."),
    flag("--force", help="Accept an undocumented scale if the batch divides evenly."),
)
"""What a job may be given: the keyword arguments of ``starting.requests.ask_of``."""

after = several("--after", metavar="JOB", help="Start when this run or Slurm job has ended; repeatable.")
dry_run = flag("--dry-run", help="Start nothing: print the batch script of one job, or a table of several.")
detach = flag("--detach", help="Without Slurm: return at once and let the job keep running.")
no_array = flag("--no-array", help="Submit every run separately, even where one Slurm job array could hold them.")
skip_unsupported = flag("--skip-unsupported", help="Leave out combinations that no recipe has.")
