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
    """One job as asked for on a command line or in a task file."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """What is said of it: by the fields of options (``FIELDS``), columns, settings of the framework and variables."""
    slurm: Mapping[str, str] = field(default_factory=dict)
    """Parts of ADDITIONAL_SLURM_PARAMS, and the option that each was given with."""
    dry_run: bool = False
    days: int = 0
    """It begins so many days from now."""
    repeat: int = 1
    """Which of several equal jobs this is, from 1."""
    where: str = field(default="", compare=False)
    """File and line of the task."""
    varied: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The combination of a sweep that this is: its value in each dimension (``starting.sweeps``)."""

    def with_settings(self, settings: Mapping[str, str | None]) -> JobSpec:
        """The same job with other settings, whose order says nothing; None: nothing is said of it."""
        merged = sorted({**self.settings, **settings}.items())
        return replace(self, settings={name: value for name, value in merged if value is not None})

    @property
    def workload(self) -> str:
        """The name of the workload; empty where none is given."""
        return self.settings.get("workload", "")

    @property
    def options(self) -> dict[str, str]:
        """The variables of ``launch.sh`` that this job's options and columns set, by name.

        These win over all others.
        """
        return {VARIABLES_OF[name]: value for name, value in self.settings.items() if name in VARIABLES_OF}

    @property
    def environment(self) -> dict[str, str]:
        """The variables that have no option or column: others of ``launch.sh``, and those of the job; by name."""
        known = {*VARIABLES_OF, "workload"}
        return {name: text for name, text in self.settings.items() if name not in known and not is_setting(name)}

    def digest(self, *more: object) -> str:
        """16 hexadecimal digits, the same for equal jobs, wherever they are asked for, and equal ``more``.

        Whether it is a dry run, and in how many days it begins, does not count.
        """
        content = (sorted(self.settings.items()), sorted(self.slurm.items()), self.repeat, more)
        return hashlib.sha256(repr(content).encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        """The job in words, for messages: where it is asked for, workload, size, dtype, scale, and what varies."""
        scale = self.settings.get("scale")
        named = ("workload", "size", "dtype")
        words = [self.where and f"{self.where}:", *map(self.settings.get, named), scale and f"{scale} GPUs"]
        words += [f"{name}={value}" for name, value in self.varied.items() if name not in (*named, "scale")]
        return " ".join(word for word in words if word)

    @property
    def combination(self) -> str:
        """What varies in a sweep, with this job's values: ``tp=2 mbs=1``; empty where nothing varies."""
        return " ".join(f"{name}={value}" for name, value in self.varied.items())


def one_job(*, workload: str, size: str | None, dtype: str | None, scale: str | None, **settings: Any) -> JobSpec:
    """The request for one job that ``options.one_job`` and ``options.job_settings`` describe.

    Raises:
        RequestError: a value is not what it should be, or a list
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
    """The request that the options of ``options.job_settings`` and the ``fields`` with an option of their own make.

    Empty fields say nothing. Without a workload it is a request for none yet, to be completed by ``having``.

    Raises:
        RequestError: a value is not what it should be
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
    """A planned job: what was asked, by which recipe, and what comes of it."""

    spec: JobSpec
    entry: CatalogEntry
    request: Request
    plan: JobPlan
    recipe: Recipe
    """That of ``entry``, with the functions of the release that the job trains in."""


@dataclass(frozen=True)
class Refused:
    """A job that cannot be planned, with the error that says why."""

    spec: JobSpec
    error: RequestError


@dataclass(frozen=True)
class RequestedJobs:
    """All jobs that a command asks for: those that are planned, and the others, with the reasons."""

    specs: Sequence[JobSpec]
    planned: Sequence[PlannedJob]
    refused: Sequence[Refused]


def variables_for(spec: JobSpec, workspace: Workspace) -> dict[str, str]:
    """The variables of ``launch.sh`` that request ``spec``: the caller's environment, changed by what options say.

    Raises:
        RequestError: an option and a variable of the job set the same
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
    """Raise RequestError for the first variable that is set for this job (``--env``) beside an option that sets it.

    One that is only exported gives way to the option.
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
    """The variables of ``launch.sh`` that options of ``spec`` set, each with the option as given: ``--set tp=2``."""
    found = {}
    for name, value in spec.options.items():
        option = VARIABLES[name].option
        found[name] = FieldNames({name: option})(name, value) if option else f"--set {name.lower()}={value}"
    for part, option in spec.slurm.items():
        variable = _SLURM_VARIABLES.get(option_name(part))
        if variable is not None:
            found[variable] = _as_given(part, option)
    return found


def _as_given(part: str, option: str) -> str:
    """An option of Slurm as it was given: ``--nodelist n1`` or ``--slurm-arg nodelist=n1``."""
    return f"{option} {part.removeprefix(option.lstrip('-') + '=')}"


def names_for(spec: JobSpec) -> FieldNames:
    """What messages about ``spec`` call its fields: options given, variables set, options where nothing is said."""
    options = {name: known.option for name, known in VARIABLES.items() if known.option}
    options["ADDITIONAL_SLURM_PARAMS"] = ", ".join(dict.fromkeys(spec.slurm.values())) or "--slurm-arg"
    variables, option_names = {**os.environ, **spec.environment}, spec.options
    return FieldNames(
        {name: known for name, known in options.items() if name in option_names or not variables.get(name)}
    )


def plan_job(spec: JobSpec, workspace: Workspace) -> PlannedJob:
    """Plan one job, and say in notices what planning chose.

    In a dry run without GPUs, the GPU type that is chosen for the first job is kept in ``workspace`` for the next ones.

    Raises:
        LLMBError: it cannot be planned; the message names options
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
    """Every one of ``specs``, planned or refused, also where two are the same job.

    Raises:
        RequestError: none of them can be planned here, whatever they ask for
    """
    wanted = [replace(spec, dry_run=dry_run) for spec in specs]
    outcomes = list(plan_each(wanted, workspace))
    planned = [outcome for outcome in outcomes if isinstance(outcome, PlannedJob)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    return RequestedJobs(wanted, planned, refused)


def plan_each(specs: Sequence[JobSpec], workspace: Workspace) -> Iterator[PlannedJob | Refused]:
    """Yields what becomes of every spec, in their order: its plan, or why it is refused.

    Repeats that follow each other have one plan, the same object.

    Raises:
        RequestError: none of them can be planned here, whatever they ask for
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
    """Raise RequestError where the variable ``LLMB_WORKLOAD`` names one folder for the runs of several workloads."""
    workloads = {spec.workload for spec in specs}
    if os.environ.get("LLMB_WORKLOAD") and len(workloads) > 1:
        raise RequestError(
            f"LLMB_WORKLOAD names one folder, but {len(workloads)} workloads are requested",
            remedy="unset LLMB_WORKLOAD: each workload has its folder in the installation",
        )


def say_warnings(planned: Sequence[PlannedJob]) -> None:
    """Print a notice for each warning of the plans, once.

    It begins with the jobs' names where it is not one of all of them.
    """
    warned: dict[str, dict[str, None]] = {}
    for item in planned:
        for warning in item.plan.preflight.warnings:
            warned.setdefault(warning, {})[item.plan.experiment_name] = None
    names = {item.plan.experiment_name for item in planned}
    for warning, titles in warned.items():
        for name in titles if len(titles) < len(names) else [""]:
            notice(f"{name}: {warning}".removeprefix(": "))
