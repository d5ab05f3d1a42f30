"""What a command line asks for, as the variables of ``launch.sh``: both make the same request and the same plan."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from llmb_common.errors import RequestError, did_you_mean, located
from llmb_common.planning.job_plan import JobPlan
from llmb_common.request.fields import FieldNames
from llmb_common.request.read import Request
from llmb_common.request.variables import COLUMNS, VARIABLES
from llmb_common.secrets import is_secret_name
from llmb_common.slurm.hostlist import expand
from llmb_common.slurm.options import option_name, override_additional, parse_additional
from llmb_common.words import is_variable_name, job_variable_problem
from llmb_run.place import CatalogEntry, Place


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One job as asked for on a command line or in a task file. None: not said."""

    workload: str
    size: str | None = None
    dtype: str | None = None
    scale: str | None = None
    profile: bool = False
    gpu_type: str | None = None
    variant: str | None = None
    engine: str | None = None
    max_steps: str | None = None
    time_limit: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    slurm: Mapping[str, str] = field(default_factory=dict)
    """Parts of ADDITIONAL_SLURM_PARAMS, and the option that each was given with."""
    force: bool = False
    preflight: str | None = None
    dry_run: bool = False
    repeat: int = 1
    """Which of several equal jobs this is, from 1."""
    where: str = field(default="", compare=False)
    """File and line of the task."""

    @property
    def title(self) -> str:
        words = [self.where and f"{self.where}:", self.workload, self.size, self.dtype]
        words.append(self.scale and f"{self.scale} GPUs")
        return " ".join(word for word in words if word)


def ask_of(
    *,
    env: Sequence[str],
    columns: Sequence[str],
    slurm_arg: Sequence[str],
    nodelist: str | None,
    exclude: str | None,
    reservation: str | None,
    **settings: Any,
) -> Ask:
    """The options of ``options.job_settings``, of no workload yet.

    Raises:
        RequestError: a value is not what it should be
    """
    return Ask(
        workload="",
        environment=environment_of(env),
        columns=columns_of(columns),
        slurm=slurm_of(slurm_arg, nodelist=nodelist, exclude=exclude, reservation=reservation),
        **settings,
    )


@dataclass(frozen=True)
class Asked:
    """A planned job: what was asked, by which recipe, and what comes of it."""

    ask: Ask
    entry: CatalogEntry
    request: Request
    plan: JobPlan


def variables_for(ask: Ask, place: Place, *, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of ``launch.sh`` that ask for ``ask``: the caller's environment, then the options."""
    variables = {**base, "LLMB_INSTALL": str(place.install), **ask.environment, **_said(ask)}
    if ask.dry_run:  # a dry run for many GPUs plans for Slurm even on a laptop
        variables["DRY_RUN"] = base.get("DRY_RUN") or "true"
    variables |= {name.upper(): value for name, value in ask.columns.items()}
    if ask.slurm:
        given = variables.get("ADDITIONAL_SLURM_PARAMS", "")
        variables["ADDITIONAL_SLURM_PARAMS"] = override_additional(given, *ask.slurm)
    return variables


def _said(ask: Ask) -> dict[str, str]:
    """The variables that ``ask`` sets by options of their own, which win over all others."""
    said = {
        "MODEL_SIZE": ask.size,
        "DTYPE": ask.dtype,
        "JOB_TOTAL_GPUS": ask.scale,
        "GPU_TYPE": ask.gpu_type,
        "CONFIG_VARIANT": ask.variant,
        "LLMB_ENGINE": ask.engine,
        "MAX_STEPS": ask.max_steps,
        "TIME_LIMIT": ask.time_limit,
        "ENABLE_PROFILE": "true" if ask.profile else None,
        "FORCE": "true" if ask.force else None,
        "PREFLIGHT": ask.preflight,
    }
    return {name: value for name, value in said.items() if value is not None}


def names_for(ask: Ask) -> FieldNames:
    """What messages call the fields: the options given, the variables set, and options for what nobody has said."""
    said = _said(ask)
    options = {name: known.option for name, known in VARIABLES.items() if known.option}
    options["ADDITIONAL_SLURM_PARAMS"] = ", ".join(dict.fromkeys(ask.slurm.values())) or "--slurm-arg"
    variables = {**os.environ, **ask.environment}
    return FieldNames({name: option for name, option in options.items() if name in said or not variables.get(name)})


def plan_ask(ask: Ask, place: Place) -> Asked:
    """Plan one job.

    Raises:
        LLMBError: it cannot be planned; the message names options
    """
    from llmb_common.launch import plan_from_variables

    entry = place.workload(ask.workload)
    job_variables = {name: value for name, value in ask.environment.items() if name not in VARIABLES}
    request, plan = plan_from_variables(entry.folder, variables_for(ask, place), job_variables, names_for(ask))
    return Asked(ask, entry, request, plan)


def plan_all(asks: Iterable[Ask], place: Place, *, skip_unsupported: bool = False) -> tuple[list[Asked], list[str]]:
    """Plan every job before the first one starts; the plans, and why others were skipped.

    Raises the error where there is one job; RequestError that lists all that cannot be planned where there are more.
    """
    planned: list[Asked] = []
    problems: list[str] = []
    all_asks = list(asks)
    assert place.install  # without one nothing can be planned: say so once
    refuse_one_folder_for_many(all_asks)
    for ask in all_asks:
        # Repeats follow each other, and have one plan.
        last = planned[-1] if planned else None
        if last is not None and replace(last.ask, repeat=ask.repeat) == ask:
            planned.append(replace(last, ask=ask))
            continue
        outcome = _plan_or_error(ask, place)
        if isinstance(outcome, Asked):
            planned.append(outcome)
        elif len(all_asks) == 1:
            with located(ask.where) if ask.where else nullcontext():
                raise outcome
        elif (problem := f"{ask.title}: {outcome.message}") not in problems:
            problems.append(problem)
    if problems and not (skip_unsupported and planned):
        raise RequestError(
            "nothing was started; these jobs cannot be planned:\n  " + "\n  ".join(problems),
            remedy="correct them, or leave them out with --skip-unsupported",
        )
    return planned, problems


def _plan_or_error(ask: Ask, place: Place) -> Asked | RequestError:
    try:
        return plan_ask(ask, place)
    except RequestError as error:
        return error


def refuse_one_folder_for_many(asks: Sequence[Ask]) -> None:
    """Raise RequestError where ``LLMB_WORKLOAD`` names one folder for the runs of several workloads."""
    workloads = {ask.workload for ask in asks}
    if os.environ.get("LLMB_WORKLOAD") and len(workloads) > 1:
        raise RequestError(
            f"LLMB_WORKLOAD names one folder, but {len(workloads)} workloads are asked for",
            remedy="unset LLMB_WORKLOAD: each workload has its folder in the installation",
        )


def refuse_several(options: Mapping[str, str | None]) -> None:
    """Refuse a list with commas: ``submit`` takes those, ``single`` starts one job.

    Raises:
        RequestError: a value has a comma
    """
    for option, value in options.items():
        if value and "," in value:
            raise RequestError(
                f"{option} {value}: single starts one job",
                remedy=f"llmb-run submit ... {option} {value} starts several",
            )


def environment_of(values: Sequence[str]) -> dict[str, str]:
    """``--env NAME=VALUE`` options.

    Raises:
        RequestError: it is anything else, or a secret
    """
    result: dict[str, str] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not is_variable_name(name):
            raise RequestError(f"--env {text!r} is not NAME=VALUE", remedy="for example --env NCCL_DEBUG=INFO")
        check_job_variable(name, value, "--env")
        _refuse_twice(name, result, "--env")
        result[name] = value
    return result


def check_job_variable(name: str, value: str, where: str) -> None:
    """Refuse what a job cannot be given.

    Raises:
        RequestError: it is not a name, is a secret, has a line break, or is the script's own
    """
    if is_secret_name(name):
        raise RequestError(
            f"{where}: {name} looks like a secret, which does not belong on a command line or in a task file",
            remedy=f"export {name} in the environment instead: jobs receive it by name",
            code="secret",
        )
    if problem := job_variable_problem(name, value):
        raise RequestError(f"{where}: {problem}", remedy="correct it, or leave it out")
    if name in ("DRY_RUN", "PATH") or name.startswith(("LLMB_", "SLURM_")):
        raise RequestError(f"{where}: {name} cannot be set for a job", remedy="export it before llmb-run")


def columns_of(values: Sequence[str]) -> dict[str, str]:
    """``--set COLUMN=VALUE`` options, by the plan's names (tp, pp, gbs, ...).

    Raises:
        RequestError: there is no such column, or no value
    """
    known = {variable.lower(): column for variable, column in COLUMNS.items()}
    result: dict[str, str] = {}
    for text in values:
        name, equals, value = text.partition("=")
        key = name.strip().lower().replace("-", "_")
        if not equals or not value.strip():
            raise RequestError(f"--set {text!r} is not COLUMN=VALUE", remedy="for example --set tp=4")
        if key not in known:
            is_variable = name.strip().upper() in VARIABLES
            raise RequestError(
                f"--set: no column {name!r}{did_you_mean(key, known)}",
                remedy=f"--env {text}" if is_variable else f"one of {', '.join(known)}",
            )
        _refuse_twice(key, result, "--set")
        result[key] = value.strip()
    return result


def _refuse_twice(name: str, given: Collection[str], option: str) -> None:
    """Also where both say the same: a line that says a thing twice was put together wrongly."""
    if name in given:
        raise RequestError(f"{option}: {name} is given twice", remedy="give it once")


def slurm_of(values: Sequence[str], said: str = "--slurm-arg", **named: str | None) -> dict[str, str]:
    """What ``said`` gives, and the options with a name (nodelist, exclude, ...), as ``Ask.slurm``.

    Raises:
        RequestError: one is not an option for Slurm, or given twice
    """
    parts: dict[str, str] = {}
    for text in values:
        if ";" in text:
            raise RequestError(f"{said} {text!r} contains a semicolon", remedy="one option at a time")
        _refuse_twice(option_name(text), set(map(option_name, parts)), said)
        parts[text] = said
    for name, value in named.items():
        if value is None:
            continue
        if ";" in value:
            raise RequestError(f"--{name} {value!r} is not a valid value", remedy=f"for example --{name} n1,n2")
        if name != "reservation" and "/" not in value:  # with one it is a file that has the list
            with located(f"--{name}"):
                expand(value)
        _refuse_twice(name, set(map(option_name, parts)), said)
        parts[f"{name}={value}"] = f"--{name}"
    for part, option in parts.items():
        parse_additional(part, option)
    return parts
