"""Options and arguments that several commands share, each defined once, with the values that a shell completes.

Recipes and the index are read only when a shell asks for them.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmb_common.base import gpus
from llmb_common.base.engines import ENGINES
from llmb_common.base.errors import LLMBError, result_or_error
from llmb_common.base.run_states import ENDED_STATES, LIVE_STATES
from llmb_common.planning.request.variables import COLUMNS, NAMED, VARIABLES
from llmb_run.app import JOB, NODES, F, SectionedOption

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from llmb_common.recipes.recipe import Recipe
    from llmb_common.recipes.rows import Configuration


def shared(*names: str, **settings: Any) -> Callable[[F], F]:
    """Return a decorator that adds an option to a command, like ``click.option``, whose arguments it takes.

    ``names`` are the option's, with dashes; ``settings`` are those of ``click.option``, but for ``cls``. The help shows
    it below a heading where ``under`` has named one, else among the command's own.
    """
    return click.option(*names, cls=SectionedOption, **settings)


def under(section: str, *decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Return several option decorators as one, in which help lists their options in the order given.

    The help shows the options made by ``shared`` below the heading ``section``, also those that had another one;
    options made otherwise stay among the command's own.
    """
    own = together(*decorators)

    def decorate(function: F) -> F:
        """Add the options to the command ``function``, with their heading, and return it.

        Options and heading are the enclosing function's ``decorators`` and ``section``.
        """
        before = len(getattr(function, "__click_params__", ()))
        function = own(function)
        for parameter in function.__click_params__[before:]:  # type: ignore[attr-defined]
            if isinstance(parameter, SectionedOption):
                parameter.section = section
        return function

    return decorate


def flag(*names: str, help: str) -> Callable[[F], F]:
    """Return a decorator that adds a switch to a command, an option without a value; False where it is not given.

    ``names`` are its names, with dashes; ``help`` its text in the help.
    """
    return click.option(*names, is_flag=True, help=help)


def several(*names: str, **settings: Any) -> Callable[[F], F]:
    """Return a decorator that adds an option which may be repeated.

    ``names`` are its names, with dashes. Its value is a tuple, empty where it is not given. ``settings`` are those
    of ``click.option``. The help shows it as ``shared`` says.
    """
    return shared(*names, multiple=True, **settings)


def together(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Return several decorators as one, applied so that help lists their options in the order given."""

    def decorate(function: F) -> F:
        """Apply all decorators of the enclosing function to ``function``, the last one first, and return the result."""
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def setting(variable: str, *names: str, more: str = "", **settings: Any) -> Callable[[F], F]:
    """Return a decorator that adds the option for a variable of ``launch.sh``, with help from ``VARIABLES``.

    The option is called as ``VARIABLES`` says, which must name one. ``names``: further names that click takes, such
    as a short option or the name of the function's parameter. ``more``: text for the end of the help, before its
    full stop. ``settings`` are those of ``click.option``, but for ``help``; a ``metavar`` in ``VARIABLES`` counts
    before theirs.

    Raises:
        KeyError: there is no such variable
    """
    known = VARIABLES[variable]
    if known.metavar:
        settings["metavar"] = known.metavar
    return shared(known.option, *names, help=f"{known.in_help}{more}.", **settings)


class Number(click.FloatRange):
    """The click type of an option whose value is a finite number in a range.

    It is made from the bounds, as click's own type ``click.FloatRange``. That lets ``nan`` pass every range, and
    ``inf`` one without an upper end; ``convert``, which click calls with the value, returns the number, and refuses
    both with click's error for a bad value.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the option's value as a finite number in the range.

        ``value`` is text or a number; ``param`` and ``ctx`` are click's, for the message.

        Raises:
            click.BadParameter: it is no number, out of the range, or not finite
        """
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value!r} is not a finite number.", param, ctx)


def _completion(
    values: Callable[[click.Context], Iterable[str]],
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a shell completion, as click takes one, that offers ``values`` and the command's verbs.

    ``values``, called with click's context, returns all words. Offered are those that begin with what is typed,
    each once, verbs first. Upper and lower case are the same. If ``values`` raises an LLMBError, only verbs are
    offered: nothing may reach the shell's prompt.
    """

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        """Return the words that begin with ``incomplete``, in any case, each once, verbs first; empty: none does.

        They are the verbs of the command and the ``values`` of the enclosing function. ``context`` and ``parameter``
        are click's.
        """
        known = _verbs(context, parameter)
        # A shell waits for an answer: neither an error nor a notice may reach its prompt.
        with contextlib.suppress(LLMBError), contextlib.redirect_stderr(io.StringIO()):
            known += values(context)
        return [value for value in dict.fromkeys(known) if value.lower().startswith(incomplete.lower())]

    return complete


def _verbs(context: click.Context, parameter: click.Parameter) -> list[str]:
    """Return the verbs of the command (``show`` of ``accept``) if ``parameter`` is an argument without a value yet.

    In the order of the command's ``verbs``; ``context`` is click's. Empty where ``parameter`` is an option, the
    argument has a value already, or the command has no verbs.
    """
    first = isinstance(parameter, click.Argument) and not context.params.get(str(parameter.name))
    return [*getattr(context.command, "verbs", ())] if first else []


def _configurations(context: click.Context) -> list[Configuration]:
    """Return the documented configurations of the workloads on the command line so far.

    Without any known workload there, returns those of all. ``context`` is click's, of that line.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecipeError: a recipe's catalogue cannot be read
        RequestError: ``LLMB_REPO`` is set and contains no recipe, or ``LLMB_INSTALL`` cannot be used as a path
    """
    return list(chain.from_iterable(recipe.configurations for recipe in _chosen_recipes(context)))


def _scales(context: click.Context) -> list[str]:
    """Return the documented numbers of GPUs as text, rising, for the workloads and sizes on the command line so far.

    Empty: nothing is documented for these. ``context`` is click's, of that line.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecipeError: a recipe's catalogue cannot be read
        RequestError: ``LLMB_REPO`` is set and contains no recipe, or ``LLMB_INSTALL`` cannot be used as a path
    """
    sizes = _values_so_far(context, "size")
    known = [known for known in _configurations(context) if not sizes or known.size in sizes]
    scales = set(chain.from_iterable(one.scales for one in known))
    return [str(scale) for scale in sorted(scales)]


complete_workloads = _completion(lambda context: _workloads())
complete_sizes = _completion(
    lambda context: list(chain.from_iterable(recipe.sizes for recipe in _chosen_recipes(context)))
)
complete_dtypes = _completion(lambda context: sorted({known.dtype for known in _configurations(context)}))
complete_variants = _completion(lambda context: [known.variant for known in _configurations(context)])
complete_scales = _completion(_scales)


_MOST_RUNS = 200


def complete_runs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return what a shell offers for a run: ids of the newest runs that begin with ``incomplete``, in any case.

    ``context`` and ``parameter`` are click's. Each is there once, the newest first, behind the command's verbs if it
    has any. At most ``_MOST_RUNS`` runs are looked at. Names of runs follow where more than three characters are typed.
    Only verbs without a readable installation; empty where nothing begins so.
    """
    from llmb_common.planning.workspace import Workspace
    from llmb_common.runs.index.database import newest_runs

    def known(context: click.Context) -> list[str]:
        """Return the ids of the newest runs of this installation, at most ``_MOST_RUNS``, the newest first.

        Empty: there is none yet. Their names follow if ``incomplete`` of the enclosing function has more than three
        characters.

        Raises:
            RequestError: there is no installation
            RecordError: the list of folders outside the installation cannot be read
        """
        install = Workspace().install
        rows = newest_runs(install, _MOST_RUNS) or _found_runs(install)
        ids = [run_id for run_id, _ in rows]
        names = [name for _, name in rows]
        # Names are long and begin alike: offered at once, they would hide the ids.
        return [*ids, *names] if len(incomplete) > 3 else ids

    return _completion(known)(context, parameter, incomplete)


def _found_runs(install: Path) -> list[tuple[str, str]]:
    """Return (run id, name) of the newest runs by a search in the run folders, for an installation without an index.

    At most ``_MOST_RUNS`` of those in ``install``, the newest first; empty: there are none.

    Raises:
        RecordError: the list of folders outside the installation cannot be read
    """
    from llmb_common.runs.index.runs import RunFilter
    from llmb_common.runs.index.search import find_runs

    return [(row.run_id, row.name) for row in find_runs(install, RunFilter(limit=_MOST_RUNS))]


def complete_suites(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return what a shell offers for a suite: verbs and LLMB's suites that begin with ``incomplete``.

    ``context`` and ``parameter`` are click's. Upper and lower case differ. Where none does, the shell is told to offer
    files. Where a recipe, from which suites are made, cannot be read, no suite is offered, and nothing is raised.
    """
    from click.shell_completion import CompletionItem

    from llmb_run.acceptance import suite

    known = _verbs(context, parameter)
    with contextlib.suppress(LLMBError):  # no error may reach the shell's prompt
        known += suite.suites()
    found = [CompletionItem(name) for name in known if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


_TYPICAL = {
    "fsdp": ("true", "false"),
    "cuda_graph": ("true", "false"),
    "mbs": ("1", "2", "4"),
    **dict.fromkeys(("tp", "pp", "cp", "ep", "etp", "vp"), ("1", "2", "4", "8")),
}
"""Values of columns that a shell offers, whether a model divides by them or not."""


_CHOSEN = tuple(name for name, known in VARIABLES.items() if known.choices and not known.option)
"""Variables of a job with few values."""


def _values_of_setting(context: click.Context, name: str) -> Iterable[str]:
    """Return the values that a shell offers behind ``name=``, as far as there are few; some may be there twice.

    Upper and lower case are the same in ``name``. Empty: any value may stand there, or none is known. ``context``
    is click's: the workloads and sizes on the command line so far count.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RecipeError: a recipe's catalogue cannot be read
        RequestError: ``LLMB_REPO`` is set and contains no recipe, or ``LLMB_INSTALL`` cannot be used as a path
    """
    variable = VARIABLES.get(name.upper())
    known: dict[str, Callable[[], Iterable[str]]] = {  # most need no recipe
        "workload": _workloads,
        "size": lambda: (one.size for one in _configurations(context)),
        "dtype": lambda: sorted({one.dtype for one in _configurations(context)}),
        "scale": lambda: _scales(context),
        "gpu_type": gpus.gpu_types,
        "variant": lambda: (one.variant for one in _configurations(context)),
        "engine": lambda: ENGINES,
    }
    wanted = name.lower()
    if wanted in known:
        return known[wanted]()
    return _TYPICAL.get(wanted, variable.choices if variable else ())


def complete_settings(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return what a shell offers for NAME=VALUE: names with their ``=``, and behind that the values that are known.

    ``incomplete`` is what is typed, ``context`` click's. The names are the plan's columns; for any option but ``--set``
    (whose ``parameter`` is called ``columns``) also those in ``NAMED``, such as ``dtype``, and variables with few
    values. Each is the whole word: ``tp=``, ``dtype=bf16,fp8``. Names match in any case, values in theirs. Behind a
    comma it offers values that are not in the list yet, each with all that is typed before it. Empty: nothing is known,
    or there is no readable configuration.
    """
    name, equals, values = incomplete.partition("=")
    columns = [column.lower() for column in COLUMNS]
    if not equals:
        # --set takes columns alone.
        named = [] if parameter.name == "columns" else [*NAMED, *_CHOSEN]
        return [f"{known}=" for known in [*columns, *named] if known.lower().startswith(name.lower())]
    before, comma, last = values.rpartition(",")
    with contextlib.suppress(LLMBError):
        found = dict.fromkeys(_values_of_setting(context, name))
        given = before.split(",")
        left = [value for value in found if value not in given]
        return [f"{name}={before}{comma}{value}" for value in left if value.startswith(last)]
    return []


def _values_so_far(context: click.Context, name: str) -> list[str]:
    """Return the values of the option whose parameter is ``name`` on the command line so far, in order.

    Empty: it is not there. ``context`` is click's, of that line.
    """
    value = context.params.get(name) or ()
    return [value] if isinstance(value, str) else [*value]


def _chosen_recipes(context: click.Context) -> list[Recipe]:
    """Return the recipes of the workloads on the command line so far, or, without any known one, of all workloads.

    Unknown workloads are passed over. Recipes that the site has adopted from other releases are added at the end.
    ``context`` is click's, of that line.

    Raises:
        ConfigError: ``cluster_config.yaml`` is wrong, or not trusted
        RequestError: ``LLMB_REPO`` is set and contains no recipe, or ``LLMB_INSTALL`` cannot be used as a path
        RecipeError: a recipe's catalogue cannot be read
    """
    from llmb_common.planning.workspace import Workspace

    workspace = Workspace()
    named = [result_or_error(workspace.workload, name) for name in _values_so_far(context, "workload")]
    entries = [entry for entry in named if not isinstance(entry, LLMBError)] or workspace.catalog
    chosen = [entry.recipe for entry in entries]
    return [*chosen, *chain.from_iterable(workspace.adopted(recipe).values() for recipe in chosen)]


def _workloads() -> list[str]:
    """Return the names of all workloads that LLMB knows here: what ``Workspace().workload_names`` returns.

    In the order of their folders' names, maybe empty.

    Raises:
        ConfigError: ``cluster_config.yaml`` cannot be read, or is not trusted
        RequestError: ``LLMB_REPO`` is set and contains no recipe, or ``LLMB_INSTALL`` cannot be used as a path
        OSError: the installation's folder may not be looked at
    """
    from llmb_common.planning.workspace import Workspace

    return Workspace().workload_names()


_LIST = "; repeatable, or separated by commas"
_SIZE = ("MODEL_SIZE", "--size", "size")

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
    "-w",
    "--workload",
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
gpu_type = setting("GPU_TYPE", shell_complete=_completion(lambda context: gpus.gpu_types()))
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
        shell_complete=_completion(lambda context: sorted(LIVE_STATES | ENDED_STATES)),
    ),
    several(
        "--where",
        metavar="NAME=VALUE",
        help="A column, variable, Megatron setting, image or engine of the job, such as tp=4; repeatable.",
        shell_complete=complete_settings,
    ),
    shared("--since", metavar="SPAN", help="Only runs from the last SPAN: 90m, 2h, 7d."),
    shared("--limit", metavar="N", type=click.IntRange(1, 999_999_999), help="At most the N newest runs."),
)
"""Which runs: the keyword arguments of ``selecting.run_filter``."""

JOBS_LISTED = 20
"""How many runs ``jobs`` lists where nobody says how many."""

_software = under(
    JOB,
    gpu_type,
    setting("CONFIG_VARIANT", shell_complete=complete_variants),
    setting("LLMB_ENGINE", shell_complete=_completion(lambda context: ENGINES)),
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
        shell_complete=complete_settings,
    ),
)
_nodelist = under(NODES, shared("--nodelist", metavar="HOSTS", help="Run on these nodes."))
_place = under(
    NODES,
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
    _nodelist,
    _place,
)
"""What a job may be given: the keyword arguments of ``starting.requests.job_spec``."""
node_settings = together(_software, _values, _place)
"""Those that decide which nodes a job may get, and what it needs of them."""

after = several("--after", metavar="JOB", help="Start when this run or Slurm job has ended; repeatable.")
dry_run = flag("--dry-run", help="Start nothing; print the batch script of one job, or a table of several.")
detach = flag("--detach", help="Without Slurm: return at once and leave the job running.")


def kept_in(what: str) -> Callable[[F], F]:
    """Return a decorator that adds the option ``--folder``, where campaigns are kept; its value is a path or None.

    None, if it is not given, means ``campaigns`` in the installation. ``what`` names these campaigns, in the plural, in
    the option's help: ``tunings``.
    """
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
        shell_complete=complete_settings,
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
