"""Options and arguments that several commands share, each defined once."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from llmb_common.request.variables import COLUMNS, VARIABLES
from llmb_run import completion
from llmb_run.app import F


def flag(*names: str, help: str) -> Callable[[F], F]:
    """A switch: an option without a value."""
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


def setting(variable: str, *names: str, more: str = "", **settings: Any) -> Callable[[F], F]:
    """The option for a variable of ``launch.sh``, in the words of their table. ``more``: what it says beside them.

    ``names``: its further names, the parameter's among them.
    """
    known = VARIABLES[variable]
    if known.metavar:
        settings["metavar"] = known.metavar
    return click.option(known.option, *names, help=f"{known.in_help}{more}.", **settings)


class Number(click.FloatRange):
    """A finite number in a range: ``nan`` is in all of them, and nothing ever exceeds ``inf``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value!r} is not a finite number.", param, ctx)


_LIST = "; repeatable, or separated by commas"
_SIZE = ("MODEL_SIZE", "--size", "--model-size", "size")

runs = click.argument(
    "runs", metavar="[RUN]...", nargs=-1, help="Run ids, names, job ids or folders.", shell_complete=completion.runs
)
one_run = click.argument("run", metavar="RUN", help="Run id, name, job id or folder.", shell_complete=completion.runs)
optional_run = click.argument(
    "run", metavar="[RUN]", required=False, help="Run id, name, job id or folder.", shell_complete=completion.runs
)
budget = click.option(
    "--budget", metavar="GPU-HOURS", type=Number(min=0, min_open=True), help="Most GPU-hours. Default: no limit."
)
until_clear = together(
    click.option(
        "--resolution", metavar="PERCENT", default="1%", help="Smallest difference that matters. Default: 1%."
    ),
    click.option(
        "--pairs", metavar="N", type=click.IntRange(6, 400), default=24, help="Most pairs of runs. Default: 24."
    ),
    budget,
)
"""Those of ``comparing.strategy.rule_of``."""

workload = click.option(
    "-w", "--workload", metavar="NAME", required=True, help="Workload.", shell_complete=completion.workloads
)
size = setting(*_SIZE, more=", such as 405b", shell_complete=completion.sizes)
dtype = setting("DTYPE", shell_complete=completion.dtypes)
scale = setting("JOB_TOTAL_GPUS", shell_complete=completion.scales)
workloads = several(
    *("-w", "--workload"),
    metavar="NAME",
    help=f"Workload{_LIST}.",
    shell_complete=completion.workloads,
)
sizes = setting(*_SIZE, more=_LIST, multiple=True, shell_complete=completion.sizes)
dtypes = setting("DTYPE", more=_LIST, multiple=True, shell_complete=completion.dtypes)
scales = several(
    "--scale",
    metavar="GPUS",
    help="Numbers of GPUs, or 'all' of the recipe's; repeatable.",
    shell_complete=completion.scales,
)
gpu_type = setting("GPU_TYPE", shell_complete=completion.gpu_types)
size_dtype_scale = together(size, dtype, scale)
one_job = together(workload, size_dtype_scale)
"""With ``job_settings`` the keyword arguments of ``starting.requests.one_job``."""
many_jobs = together(workloads, sizes, dtypes, scales)
"""Those of ``starting.sweeps.many_jobs``."""

_COLUMN = VARIABLES[next(iter(COLUMNS))]

filters = together(
    workloads,
    sizes,
    dtypes,
    setting("JOB_TOTAL_GPUS", more=_LIST, multiple=True, shell_complete=completion.scales),
    several(
        "--state",
        metavar="STATE",
        help="Slurm state, such as RUNNING or TIMEOUT; repeatable.",
        shell_complete=completion.states,
    ),
    several(
        "--where",
        metavar="NAME=VALUE",
        help="A column, variable, Megatron setting, image or engine of the job, such as tp=4; repeatable.",
    ),
    click.option("--since", metavar="SPAN", help="Only runs from the last SPAN: 90m, 2h, 7d."),
    click.option("--limit", metavar="N", type=click.IntRange(min=1), help="At most the N newest runs."),
)
"""Which runs: the keyword arguments of ``selecting.run_filter``."""

job_settings = together(
    setting("ENABLE_PROFILE", "-p", is_flag=True),
    gpu_type,
    setting("CONFIG_VARIANT", shell_complete=completion.variants),
    setting("LLMB_ENGINE", shell_complete=completion.engines),
    setting("RUN_CONF_IMAGE"),
    setting("MAX_STEPS"),
    setting("TIME_LIMIT"),
    several("--env", metavar="NAME=VALUE", help="Set a variable of the job or of launch.sh; repeatable."),
    several("--set", "columns", metavar="COLUMN=VALUE", help=f"{_COLUMN.in_help}, such as tp=4; repeatable."),
    setting("MEGATRON_SETTINGS", more="; repeatable", multiple=True),
    click.option("--nodelist", metavar="HOSTS", help="Run on these nodes."),
    click.option("--exclude", metavar="HOSTS", help="Avoid these nodes."),
    click.option("--reservation", metavar="NAME", help="Slurm reservation."),
    several("--slurm-arg", metavar="KEY=VALUE", help="Another sbatch option, such as qos=high; repeatable."),
    setting("FORCE", is_flag=True),
    setting("PREFLIGHT"),
)
"""What a job may be given: the keyword arguments of ``starting.requests.job_spec``."""

after = several("--after", metavar="JOB", help="Start when this run or Slurm job has ended; repeatable.")
dry_run = flag("--dry-run", help="Start nothing; print the batch script of one job, or a table of several.")
detach = flag("--detach", help="Without Slurm: return at once and leave the job running.")


def kept_in(what: str) -> Callable[[F], F]:
    """``--folder``: where campaigns of a kind (``what``, in the plural) are kept."""
    folder = click.Path(path_type=Path)
    return click.option(
        "--folder", metavar="DIR", type=folder, help=f"Where {what} are kept. Default: campaigns in the installation."
    )


no_array = flag("--no-array", help="Submit every run separately, even where one Slurm job array could hold them.")
spread_nodes = flag("--spread-nodes", "apart", help="Run repeats on different nodes, as far as there are enough.")
skip_unsupported = flag("--skip-unsupported", help="Leave out combinations that no recipe supports.")
