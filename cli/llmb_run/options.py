"""Options and arguments that several commands share, each defined once, with the values that a shell completes.

Recipes and the index are read only when a shell asks for them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmb_common.base import gpus
from llmb_common.base.engines import ENGINES
from llmb_common.base.errors import LLMBError
from llmb_common.base.run_states import ENDED_STATES, LIVE_STATES
from llmb_common.planning.request.variables import COLUMNS, VARIABLES
from llmb_run.app import JOB, NODES, F, SectionedOption

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from llmb_common.recipes.recipe import Recipe
    from llmb_common.recipes.rows import Configuration


def shared(*names: str, **settings: Any) -> Callable[[F], F]:
    """An option that may stand under a heading of its own (``under``)."""
    return click.option(*names, cls=SectionedOption, **settings)


def under(section: str, *decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, shown in the help under ``section``: those that are ``shared``."""
    own = together(*decorators)

    def decorate(function: F) -> F:
        before = len(getattr(function, "__click_params__", ()))
        function = own(function)
        for parameter in function.__click_params__[before:]:  # type: ignore[attr-defined]
            if isinstance(parameter, SectionedOption):
                parameter.section = section
        return function

    return decorate


def flag(*names: str, help: str) -> Callable[[F], F]:
    """A switch: an option without a value."""
    return click.option(*names, is_flag=True, help=help)


def several(*names: str, **settings: Any) -> Callable[[F], F]:
    """An option that may be repeated; a tuple, empty without it."""
    return shared(*names, multiple=True, **settings)


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
    return shared(known.option, *names, help=f"{known.in_help}{more}.", **settings)


class Number(click.FloatRange):
    """A finite number in a range: ``nan`` is in all of them, and nothing ever exceeds ``inf``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value!r} is not a finite number.", param, ctx)


def _completes(
    values: Callable[[click.Context], Iterable[str]],
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Those of the values that begin with what is typed."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        known = _verbs(context, parameter)
        with contextlib.suppress(LLMBError):  # a shell waits for an answer: no error may reach its prompt
            known += values(context)
        return [value for value in dict.fromkeys(known) if value.lower().startswith(incomplete.lower())]

    return complete


def _verbs(context: click.Context, parameter: click.Parameter) -> list[str]:
    """Those of a command that has verbs (``VerbCommand``), where one may stand: before its first argument."""
    first = isinstance(parameter, click.Argument) and not context.params.get(str(parameter.name))
    return [*getattr(context.command, "verbs", ())] if first else []


def _configurations(context: click.Context) -> list[Configuration]:
    return [known for recipe in _chosen(context) for known in recipe.configurations]


def _scales(context: click.Context) -> list[str]:
    sizes = _said(context, "size")
    known = [known for known in _configurations(context) if not sizes or known.size in sizes]
    return [*map(str, sorted({scale for one in known for scale in one.scales}))]


complete_workloads = _completes(lambda context: [recipe.workload for recipe in _recipes()])
complete_sizes = _completes(lambda context: [size for recipe in _chosen(context) for size in recipe.sizes])
complete_dtypes = _completes(lambda context: sorted({known.dtype for known in _configurations(context)}))
complete_variants = _completes(lambda context: [known.variant for known in _configurations(context)])
complete_scales = _completes(_scales)


def complete_runs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Ids of the newest runs; their names where more than a little of one is typed."""
    from llmb_common.planning.workspace import Workspace
    from llmb_common.runs.index.runs import RunFilter
    from llmb_common.runs.index.search import find_runs

    def known(context: click.Context) -> list[str]:
        rows = find_runs(Workspace().install, RunFilter(limit=200))
        return [row.run_id for row in rows] + ([row.name for row in rows] if len(incomplete) > 3 else [])

    return _completes(known)(context, parameter, incomplete)


def complete_suites(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of suites that come with LLMB; where none fits, files."""
    from click.shell_completion import CompletionItem

    from llmb_run.acceptance import suite

    known = [*_verbs(context, parameter), *suite.suites()]
    found = [CompletionItem(name) for name in known if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def _said(context: click.Context, name: str) -> list[str]:
    """What the command line says so far in an option that may be repeated."""
    value = context.params.get(name) or ()
    return [value] if isinstance(value, str) else [*value]


def _chosen(context: click.Context) -> list[Recipe]:
    """The recipes of the workloads already on the command line, or all; each also with the functions that the site
    has adopted."""
    from llmb_common.planning.workspace import Workspace

    workspace, names = Workspace(), {*_said(context, "workload")}
    recipes = [entry.recipe for entry in workspace.catalog]
    chosen = [recipe for recipe in recipes if {recipe.workload, recipe.name} & names] or recipes
    return [*chosen, *(own for recipe in chosen for own in workspace.adopted(recipe).values())]


def _recipes() -> list[Recipe]:
    from llmb_common.planning.workspace import Workspace

    return [entry.recipe for entry in Workspace().catalog]


_LIST = "; repeatable, or separated by commas"
_SIZE = ("MODEL_SIZE", "--size", "--model-size", "size")

runs = click.argument(
    "runs", metavar="[RUN]...", nargs=-1, help="Run ids, names, job ids or folders.", shell_complete=complete_runs
)
optional_run = click.argument(
    "run", metavar="[RUN]", required=False, help="Run id, name, job id or folder.", shell_complete=complete_runs
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

workload = shared(
    "-w", "--workload", metavar="NAME", required=True, help="Workload.", shell_complete=complete_workloads
)
size = setting(*_SIZE, more=", such as 405b", shell_complete=complete_sizes)
dtype = setting("DTYPE", "-d", shell_complete=complete_dtypes)
scale = setting("JOB_TOTAL_GPUS", shell_complete=complete_scales)
workloads = several(
    *("-w", "--workload"),
    metavar="NAME",
    help=f"Workload{_LIST}.",
    shell_complete=complete_workloads,
)
sizes = setting(*_SIZE, more=_LIST, multiple=True, shell_complete=complete_sizes)
dtypes = setting("DTYPE", "-d", more=_LIST, multiple=True, shell_complete=complete_dtypes)
scales = several(
    "--scale",
    metavar="GPUS",
    help="Numbers of GPUs, or 'all' of the recipe's; repeatable.",
    shell_complete=complete_scales,
)
gpu_type = setting("GPU_TYPE", shell_complete=_completes(lambda context: gpus.gpu_types()))
size_dtype_scale = under(JOB, size, dtype, scale)
one_job = under(JOB, workload, size_dtype_scale)
"""With ``job_settings`` the keyword arguments of ``starting.requests.one_job``."""
_COLUMN = VARIABLES[next(iter(COLUMNS))]

filters = under(
    "Which runs",
    workloads,
    sizes,
    dtypes,
    setting("JOB_TOTAL_GPUS", more=_LIST, multiple=True, shell_complete=complete_scales),
    several(
        "--state",
        metavar="STATE",
        help="Slurm state, such as RUNNING or TIMEOUT; repeatable.",
        shell_complete=_completes(lambda context: sorted(LIVE_STATES | ENDED_STATES)),
    ),
    several(
        "--where",
        metavar="NAME=VALUE",
        help="A column, variable, Megatron setting, image or engine of the job, such as tp=4; repeatable.",
    ),
    shared("--since", metavar="SPAN", help="Only runs from the last SPAN: 90m, 2h, 7d."),
    shared("--limit", metavar="N", type=click.IntRange(min=1), help="At most the N newest runs."),
)
"""Which runs: the keyword arguments of ``selecting.run_filter``."""

JOBS_LISTED = 20
"""How many runs ``jobs`` lists where nobody says how many."""

_software = under(
    JOB,
    gpu_type,
    setting("CONFIG_VARIANT", shell_complete=complete_variants),
    setting("LLMB_ENGINE", shell_complete=_completes(lambda context: ENGINES)),
    setting("RUN_CONF_IMAGE"),
)
_values = under(
    JOB,
    several("--env", metavar="NAME=VALUE", help="Set a variable of the job or of launch.sh; repeatable."),
    several(
        "--set",
        "columns",
        metavar="COLUMN=VALUE",
        help=f"{_COLUMN.in_help}, such as tp=4 or seq_length=4096; repeatable.",
    ),
)
_place = under(
    NODES,
    shared("--nodelist", metavar="HOSTS", help="Run on these nodes."),
    shared("--exclude", metavar="HOSTS", help="Avoid these nodes."),
    shared("--reservation", metavar="NAME", help="Slurm reservation."),
    several("--slurm-arg", metavar="KEY=VALUE", help="Another sbatch option, such as qos=high; repeatable."),
)
job_settings = together(
    _software,
    under(
        JOB,
        setting("MAX_STEPS"),
        setting("TIME_LIMIT"),
        _values,
        setting("MEGATRON_SETTINGS", more="; repeatable", multiple=True),
        setting("ENABLE_PROFILE", "-p", is_flag=True),
        setting("CHECK_FABRIC", is_flag=True),
        setting("FORCE", is_flag=True),
        setting("PREFLIGHT"),
    ),
    _place,
)
"""What a job may be given: the keyword arguments of ``starting.requests.job_spec``."""
node_settings = together(_software, _values, _place)
"""Those that decide which nodes a job gets, and what it needs of them."""

after = several("--after", metavar="JOB", help="Start when this run or Slurm job has ended; repeatable.")
dry_run = flag("--dry-run", help="Start nothing; print the batch script of one job, or a table of several.")
detach = flag("--detach", help="Without Slurm: return at once and leave the job running.")


def kept_in(what: str) -> Callable[[F], F]:
    """``--folder``: where campaigns of a kind (``what``, in the plural) are kept."""
    folder = click.Path(path_type=Path)
    return click.option(
        "--folder", metavar="DIR", type=folder, help=f"Where {what} are kept. Default: campaigns in the installation."
    )


spread_nodes = flag("--spread-nodes", "apart", help="Run repeats on different nodes, as far as there are enough.")
skip_unsupported = flag("--skip-unsupported", help="Leave out combinations that no recipe supports.")

_FROM_1 = click.IntRange(min=1)

planned_jobs = together(
    under(JOB, workloads, sizes, dtypes, scales),
    click.option("--min-scale", metavar="GPUS", type=_FROM_1, help="The recipe's numbers of GPUs, from this one up."),
    click.option("--max-scale", metavar="GPUS", type=_FROM_1, help="The recipe's numbers of GPUs, up to this one."),
    several(
        "--vary",
        metavar="NAME=VALUE,VALUE",
        help="A column, a variable of the job, or size, dtype, scale (GPUs), engine, image, variant; repeatable.",
    ),
    several("--zip", "zipped", metavar="'NAME=V,V NAME=V,V'", help="Settings that change together; repeatable."),
    click.option(
        "-r", "--repeats", metavar="N", type=click.IntRange(1, 10000), default=1, help="Runs of each combination."
    ),
    click.option(
        "--spread", metavar="DAYS", type=click.IntRange(1, 365), default=1, help="Days to spread repeats over."
    ),
    spread_nodes,
    job_settings,
    after,
    dry_run,
    flag("--again", help="Start all of them, even if an interrupted command could be continued."),
    detach,
)
"""Those that ``submit`` and ``sweep`` share, for ``StartOptions`` and ``starting.planner.plan_options``."""
