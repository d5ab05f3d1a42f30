"""What a command line asks for, as the variables of ``launch.sh``: both make the same request and the same plan."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llmb_common.base.errors import RequestError
from llmb_common.base.notices import notice
from llmb_common.executors.slurm.options import option_name, override_additional
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.own_releases import recipe_of
from llmb_common.planning.request.read import Request
from llmb_common.planning.request.values import is_setting, settings_in, settings_of, settings_text
from llmb_common.planning.request.variables import VARIABLES, FieldNames
from llmb_common.planning.workspace import CatalogEntry, Workspace
from llmb_common.recipes.recipe import Recipe
from llmb_common.submission.launch import plan_from_variables, without_gpus
from llmb_run.starting.command_line import VARIABLES_OF, columns_of, environment_of, option_text, slurm_of


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """The request for one job, as a command line or a task file asks for it, before anything is planned.

    ``job_spec`` and ``combined_specs`` make it; it is never changed, only copied. Two specs are equal where they
    ask for the same job, repeat and day, and both or neither for a dry run, wherever they come from.

    ``with_settings`` returns a copy with other settings over its own, sorted by name, where None takes one away.
    ``digest`` returns 16 hexadecimal digits, equal for equal settings, Slurm options and repeat and equal ``more``
    (texts, numbers or tuples of such). Properties: ``workload`` is its name as given, empty where none is;
    ``options`` are the variables of ``launch.sh`` that options and columns set, ``environment`` all other
    variables, both as values by name, maybe none; ``title`` is the job for messages, begun by ``where`` and a colon
    if there is one (``tasks.yaml:12: grok1 314b fp8 128 GPUs tp=2``), ``combination`` the dimensions that vary,
    ``tp=2 mbs=1``, empty without any. None of them raises anything.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    """What is asked for, by name: fields of options (``FIELDS``), columns, settings of the framework and variables."""
    slurm: Mapping[str, str] = field(default_factory=dict)
    """Options for Slurm (parts of ADDITIONAL_SLURM_PARAMS), each with our option that gave it (``slurm_of``)."""
    dry_run: bool = False
    """Whether the job is to be shown only."""
    days: int = 0
    """In how many days, from this hour, the job may begin; 0: now."""
    repeat: int = 1
    """Which of several equal jobs this is, from 1."""
    where: str = field(default="", compare=False)
    """File and line of the task that asks for the job; empty: a command line does."""
    varied: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The job's value in each dimension that a sweep varies (``starting.sweeps``); empty: it is of no sweep.

    ``-`` where the recipe has the choice.
    """

    def with_settings(self, settings: Mapping[str, str | None]) -> JobSpec:
        """Return a copy of this job request with ``settings`` over its own; a setting of None is taken away.

        Settings of the copy are sorted by name.
        """
        merged = sorted({**self.settings, **settings}.items())
        return replace(self, settings={name: value for name, value in merged if value is not None})

    @property
    def workload(self) -> str:
        """The name of the job's workload as it was given; empty where none is given."""
        return self.settings.get("workload", "")

    @property
    def options(self) -> dict[str, str]:
        """The variables of ``launch.sh`` that this job's options and columns set, by name; empty: none.

        They win over the environment's.
        """
        return {VARIABLES_OF[name]: value for name, value in self.settings.items() if name in VARIABLES_OF}

    @property
    def environment(self) -> dict[str, str]:
        """The variables of this job that have no option or column, by name, with their values; empty: none.

        They are others of ``launch.sh``, and those for the job itself. The workload and settings of the framework
        are not among them.
        """
        known = {*VARIABLES_OF, "workload"}
        return {name: text for name, text in self.settings.items() if name not in known and not is_setting(name)}

    def digest(self, *more: object) -> str:
        """Return 16 hexadecimal digits that are the same for equal job requests and equal ``more``, in any process.

        What counts are settings, options for Slurm and the number of the repeat. It does not matter where the job is
        asked for. Whether it is a dry run, and in how many days the job begins, does not count. ``more`` are texts,
        numbers or tuples of such: their ``repr`` counts.
        """
        content = (sorted(self.settings.items()), sorted(self.slurm.items()), self.repeat, more)
        return hashlib.sha256(repr(content).encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        """The job for messages: ``tasks.yaml:12: grok1 314b fp8 128 GPUs tp=2``.

        That is where it is asked for (``where`` and a colon), workload, size, dtype, scale, and the other
        dimensions that vary; what is not given is left out. Empty where nothing is given.
        """
        scale = self.settings.get("scale")
        named = ("workload", "size", "dtype")
        others = {name: value for name, value in self.varied.items() if name not in (*named, "scale")}
        words = [
            f"{self.where}:" if self.where else "",
            *(self.settings.get(name) for name in named),
            f"{scale} GPUs" if scale else "",
            *(f"{name}={value}" for name, value in others.items()),
        ]
        return " ".join(word for word in words if word)

    @property
    def combination(self) -> str:
        """The dimensions that vary in the sweep of this job, with its values: ``tp=2 mbs=1``.

        Empty where nothing varies.
        """
        return " ".join(f"{name}={value}" for name, value in self.varied.items())


def one_job(*, workload: str, size: str | None, dtype: str | None, scale: str | None, **settings: Any) -> JobSpec:
    """Return the request for one job that ``options.one_job`` and ``options.job_settings`` describe.

    ``settings`` are those of ``job_spec``; None: not given. Whether such a workload exists is not checked.

    Raises:
        RequestError: an option has a wrong value, or one of the first four has several, with a comma
        ConfigError: ``nodelist`` or ``exclude`` is no host list
    """
    for option, value in {"-w": workload, "-s": size, "--dtype": dtype, "--scale": scale}.items():
        if value and "," in value:
            raise RequestError(
                f"{option} {value}: this is about one job",
                remedy=f"llmb-run submit ... {option} {value} starts several, llmb-run sweep compares them, and with "
                "--dry-run both only show them",
            )
    return job_spec(workload=workload, size=size, dtype=dtype, scale=scale, **settings)


def job_spec(
    *,
    env: Sequence[str],
    columns: Sequence[str],
    megatron: Sequence[str],
    slurm_arg: Sequence[str],
    nodelist: str | None,
    exclude: str | None,
    reservation: str | None,
    dry_run: bool = False,
    **fields: str | bool | None,
) -> JobSpec:
    """Return the request for one job, made of the options of ``options.job_settings`` and further ``fields``.

    Empty fields, None and False, say nothing; True is the setting ``true``. Without a workload the request is to be
    completed with ``with_settings``. Names are checked, and values only as far as they can be without a recipe.

    Args:
        env: ``NAME=VALUE`` for variables of the job
        columns: ``COLUMN=VALUE``, such as ``tp=4``; one with a comma is refused
        megatron: ``NAME=VALUE`` for settings of the framework
        slurm_arg: options for Slurm, ``NAME=VALUE`` or a flag
        nodelist: a host list, or a file with one, known by its ``/``; None: not given
        exclude: likewise, of nodes to avoid
        reservation: its name; None: not given
        dry_run: whether the job is to be shown only
        fields: values of options that have a field of their own (``FIELDS``) and ``workload``, by name, such as
            ``size``; these names are not checked, and their values may hold commas

    Raises:
        RequestError: an option has a wrong value
        ConfigError: ``nodelist`` or ``exclude`` is no host list
    """
    for text in columns:  # a task file may list values
        name, _, value = text.partition("=")
        if "," in value:
            values = value.strip("[]()")
            raise RequestError(
                f"--set {text} is one value", remedy=f"llmb-run sweep ... --vary {name}={values} tries each"
            )
    settings = {name: option_text(value) for name, value in fields.items() if value}
    settings |= environment_of(env) | columns_of(columns) | settings_of(megatron, "--megatron")
    slurm = slurm_of(slurm_arg, nodelist=nodelist, exclude=exclude, reservation=reservation)
    return JobSpec(slurm=slurm, dry_run=dry_run).with_settings(settings)


@dataclass(frozen=True)
class PlannedJob:
    """A planned job: the request ``spec``, the recipe that it is by, and the plan. ``plan_job`` makes it.

    ``entry`` is the workload's in the catalog, with its folder; ``request`` what the variables of ``launch.sh`` say.
    ``plan`` begins on the day that ``spec`` says.
    """

    spec: JobSpec
    entry: CatalogEntry
    request: Request
    plan: JobPlan
    recipe: Recipe
    """The recipe of ``entry``, with the functions of the release that the job trains in."""


@dataclass(frozen=True)
class Refused:
    """A job request ``spec`` that cannot be planned, with the error that says why.

    ``plan_each`` makes it, and ``without_equal_plans`` of a job that is asked for twice.
    """

    spec: JobSpec
    error: RequestError


@dataclass(frozen=True)
class RequestedJobs:
    """All job requests of one command, in ``specs``: those that are planned, and those that are refused.

    ``plan_options`` and ``plan_specs`` make it. Each request is in exactly one of the two, in the order of ``specs``.
    Combinations that are the same job as an earlier one may be among the refused.
    """

    specs: Sequence[JobSpec]
    planned: Sequence[PlannedJob]
    refused: Sequence[Refused]


def variables_for(spec: JobSpec, workspace: Workspace) -> dict[str, str]:
    """Return the variables of ``launch.sh`` that request ``spec``, as a new dictionary.

    They are the caller's whole environment, changed by the variables and then the options of ``spec``. Settings of the
    framework and options for Slurm are added to those in the environment, and win over equal ones. ``LLMB_INSTALL`` is
    that of ``workspace``. A dry run has ``DRY_RUN`` as the environment has it, or ``true``; any
    other request keeps that of the environment.

    Raises:
        RequestError: an option and a variable of the job set the same, a variable has a wrong form, or there is no
            installation
    """
    _refuse_duplicates(spec)
    variables = {**os.environ, "LLMB_INSTALL": str(workspace.install), **spec.environment, **spec.options}
    if spec.dry_run:  # a dry run for many GPUs plans for Slurm even on a laptop
        variables["DRY_RUN"] = os.environ.get("DRY_RUN") or "true"
    if megatron := {name: value for name, value in spec.settings.items() if is_setting(name)}:
        known = settings_in(variables.get("MEGATRON_SETTINGS"), "MEGATRON_SETTINGS")
        variables["MEGATRON_SETTINGS"] = settings_text(known | megatron)
    if spec.slurm:
        given = variables.get("ADDITIONAL_SLURM_PARAMS", "")
        variables["ADDITIONAL_SLURM_PARAMS"] = override_additional(given, *spec.slurm)
    return variables


_SLURM_VARIABLES = {"account": "SBATCH_ACCOUNT", "partition": "SBATCH_PARTITION", "time": "TIME_LIMIT"}
"""Options of Slurm that say the same as a variable."""


def _refuse_duplicates(spec: JobSpec) -> None:
    """Refuse a job request in which a variable (``--env``) and an option set the same.

    A variable that is only exported in the caller's environment gives way to the option.

    Raises:
        RequestError: there is such a variable, the first one; or the request's ``MEGATRON_SETTINGS`` have a wrong form
    """
    env = "env:" if spec.where else "--env"
    given = spec.environment
    for name, option in _options_by_variable(spec).items():
        if name in given:
            raise RequestError(
                f"{option} and {env} {name}={given[name]} set the same", remedy="leave one of them out", field=name
            )
    listed = {option_name(part) for part in given.get("ADDITIONAL_SLURM_PARAMS", "").split(";")}
    for part, option in spec.slurm.items():
        if option_name(part) in listed:
            raise RequestError(
                f"{_as_given(part, option)} and {env} ADDITIONAL_SLURM_PARAMS set the same",
                remedy="leave one of them out",
            )
    if "MEGATRON_SETTINGS" in given:
        for name in settings_in(given["MEGATRON_SETTINGS"], f"{env} MEGATRON_SETTINGS"):
            if name in spec.settings:
                raise RequestError(
                    f"--megatron {name}={spec.settings[name]} and {env} MEGATRON_SETTINGS set the same",
                    remedy="leave one of them out",
                )


def _options_by_variable(spec: JobSpec) -> dict[str, str]:
    """Return the variables of ``launch.sh`` that options of ``spec`` set, each with its option as the user may type it.

    Such as ``{"TP": "--set tp=2"}``; empty where none are set.
    """
    found = {}
    for name, value in spec.options.items():
        option = VARIABLES[name].option
        if option:
            found[name] = FieldNames({name: option})(name, value)
        else:
            found[name] = f"--set {name.lower()}={value}"
    for part, option in spec.slurm.items():
        variable = _SLURM_VARIABLES.get(option_name(part))
        if variable is not None:
            found[variable] = _as_given(part, option)
    return found


def _as_given(part: str, option: str) -> str:
    """Return ``part``, a setting for Slurm, as the user gave it: ``--nodelist n1`` or ``--slurm-arg nodelist=n1``.

    ``option`` is the option of ours that gave it.
    """
    return f"{option} {part.removeprefix(option.lstrip('-') + '=')}"


def names_for(spec: JobSpec) -> FieldNames:
    """Return what messages about ``spec`` call its fields, by variable of ``launch.sh``.

    Options that were given go by the option (``--dtype``), variables that are set, in the environment or with
    ``--env``, by their own name, and anything else that has an option by that option again.
    """
    options = {name: known.option for name, known in VARIABLES.items() if known.option}
    options["ADDITIONAL_SLURM_PARAMS"] = ", ".join(dict.fromkeys(spec.slurm.values())) or "--slurm-arg"
    variables, option_names = {**os.environ, **spec.environment}, spec.options
    return FieldNames(
        {name: known for name, known in options.items() if name in option_names or not variables.get(name)}
    )


def plan_job(spec: JobSpec, workspace: Workspace) -> PlannedJob:
    """Plan one job, and print in notices what planning chose; start nothing.

    In a dry run without GPUs, the GPU type that is chosen for the first job is kept in ``workspace`` for the next
    ones. ``workspace`` knows the recipes and the cluster.

    Raises:
        RequestError: there can be no such job, or no installation is named; the message names options
        LLMBError: configuration, recipe or catalogue are wrong
    """
    entry = workspace.workload(spec.workload)
    job_variables = {name: value for name, value in spec.environment.items() if name not in VARIABLES}
    variables = variables_for(spec, workspace)
    if workspace.planned_for is not None and not variables.get("GPU_TYPE"):
        variables["GPU_TYPE"] = workspace.planned_for
    request, plan = plan_from_variables(entry.folder, variables, job_variables, names_for(spec), notice)
    if request.dry_run and request.gpu_type is None and without_gpus(workspace.cluster, request):
        workspace.planned_for = plan.gpu_type
    recipe = recipe_of(plan.function, entry.recipe, workspace.cluster)
    return PlannedJob(spec, entry, request, plan.after_days(spec.days) if spec.days else plan, recipe)


def plan_specs(specs: Iterable[JobSpec], workspace: Workspace, *, dry_run: bool = False) -> RequestedJobs:
    """Plan all of ``specs``, and return them planned or refused; of two that are the same job, both are planned.

    ``dry_run`` replaces what the specs say of it. Starts nothing; prints notices. ``workspace`` knows the recipes
    and the cluster.

    Raises:
        RequestError: no installation is named, or ``LLMB_WORKLOAD`` names one folder for several workloads
        LLMBError: planning one failed otherwise than by its request
    """
    wanted = [replace(spec, dry_run=dry_run) for spec in specs]
    outcomes = list(plan_each(wanted, workspace))
    planned = [outcome for outcome in outcomes if isinstance(outcome, PlannedJob)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    return RequestedJobs(wanted, planned, refused)


def plan_each(specs: Sequence[JobSpec], workspace: Workspace) -> Iterator[PlannedJob | Refused]:
    """Yield for every job request its planned job, or why it is refused, in order.

    Each is planned when it is asked for, and notices are printed then. Repeats that follow each other share one
    plan. Errors come while the answer is read. ``workspace`` knows the recipes and the cluster.

    Raises:
        RequestError: no installation is named, or ``LLMB_WORKLOAD`` names one folder for several workloads
        LLMBError: planning one failed otherwise than by its request
    """
    assert workspace.install  # without one nothing can be planned: say so once
    refuse_one_folder_for_many(specs)
    last: PlannedJob | Refused | None = None
    for spec in specs:
        if last is not None and replace(last.spec, repeat=spec.repeat) == spec:
            last = replace(last, spec=spec)
        else:
            try:
                last = plan_job(spec, workspace)
            except RequestError as error:
                last = Refused(spec, error)
        yield last


def refuse_one_folder_for_many(specs: Sequence[JobSpec]) -> None:
    """Refuse jobs of several workloads while the environment's ``LLMB_WORKLOAD`` names one folder for all runs.

    It passes where that is empty or not set, and where all ``specs`` name the same workload in the same spelling.

    Raises:
        RequestError: there are several workloads, and it is set
    """
    workloads = {spec.workload for spec in specs}
    if os.environ.get("LLMB_WORKLOAD") and len(workloads) > 1:
        raise RequestError(
            f"LLMB_WORKLOAD names one folder, but {len(workloads)} workloads are requested",
            remedy="unset LLMB_WORKLOAD: each workload has its folder in the installation",
        )


def say_warnings(planned: Sequence[PlannedJob]) -> None:
    """Print a notice on stderr for each warning of the plans (``preflight.warnings``), once.

    A warning that not all kinds of jobs have is printed once for each kind that has it, behind the job's name
    (``experiment_name``) and a colon. Nothing is printed where no plan has any.
    """
    warned: dict[str, dict[str, None]] = {}
    for item in planned:
        for warning in item.plan.preflight.warnings:
            warned.setdefault(warning, {})[item.plan.experiment_name] = None
    names = {item.plan.experiment_name for item in planned}
    for warning, titles in warned.items():
        for name in titles if len(titles) < len(names) else [""]:
            notice(f"{name}: {warning}".removeprefix(": "))
