"""A job on the command line: what options say of it, each checked, and the command that asks for a plan."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from pathlib import Path

from llmb_common.base.engines import image_file_name
from llmb_common.base.errors import RequestError, did_you_mean, located
from llmb_common.base.gpus import per_node
from llmb_common.base.hostlist import expand
from llmb_common.base.words import is_secret_name, is_variable_name, job_variable_problem
from llmb_common.executors.slurm.options import option_name, parse_additional
from llmb_common.planning.job_plan import JobPlan
from llmb_common.planning.request.values import name_value_pairs, refuse_twice
from llmb_common.planning.request.variables import COLUMNS, VARIABLES, column_of
from llmb_common.recipes.recipe import Recipe
from llmb_run.habits import column_named

FIELDS = {
    variable: "size" if known.option == "-s" else known.option.removeprefix("--").replace("-", "_")
    for variable, known in VARIABLES.items()
    if known.option and variable != "MEGATRON_SETTINGS"
}
"""The variables of ``launch.sh`` that have an option of their own, and what a ``JobSpec`` and task files call them."""
VARIABLES_OF = {name: variable for variable, name in (FIELDS | COLUMNS).items()}
"""Those of the columns, too: each by its name there."""


def environment_of(values: Sequence[str], option: str = "--env") -> dict[str, str]:
    """Return the variables of a job that ``--env NAME=VALUE`` options set, by name; a value may be empty.

    ``values`` are the options' values. ``option``: what messages call the option; where it ends with ``()``, as a
    call of Python, their remedies show its arguments. Names keep their case.

    Raises:
        RequestError: one is not ``NAME=VALUE``, is given twice (also with the same value), looks like a secret,
            names an option or a column in place of its variable (``tp``), or cannot be set for a job
    """
    result: dict[str, str] = {}
    for name, value in name_value_pairs(values, option, f"{option} NCCL_DEBUG=INFO", fits=is_variable_name, empty=True):
        if name in VARIABLES_OF:
            right = f"{VARIABLES_OF[name]}={value}"
            # A call of Python is written otherwise than an option.
            remedy = f"{option[:-1]}..., {right})" if option.endswith("()") else f"{option} {right}"
            raise RequestError(f"{option}: {name} is not a variable", remedy=remedy)
        check_job_variable(name, value, option)
        refuse_twice(name, value, result, option)
        result[name] = value
    return result


def check_job_variable(name: str, value: str, where: str) -> None:
    """Refuse a variable that cannot be passed to a job; ``where`` is what messages call its place.

    Raises:
        RequestError: ``name`` is no variable's name, looks like a secret (code ``secret``), is ``DRY_RUN``, ``PATH``,
            one of bash's own or of the job script's (all in lower case but ``http_proxy`` and the like), or begins
            with ``LLMB_`` or ``SLURM_``; or ``value`` has a line break
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
        remedy = "leave it out"
        if name == "DRY_RUN":
            remedy = "use --dry-run"
        elif name.startswith("LLMB_"):
            remedy = f"export {name}={value} in the shell that submits: jobs inherit it"
        raise RequestError(f"{where}: {name} cannot be set for a job", remedy=remedy)


def columns_of(values: Sequence[str]) -> dict[str, str]:
    """Return the values that ``--set COLUMN=VALUE`` options give, by the plan's names of columns (tp, pp, gbs, ...).

    ``values`` are the options' values, without ``--set``. Names may be in any case, or those of variables
    (``SEQ_LENGTH``); those returned are in lower case. Values are texts, not checked here. Empty without
    ``values``.

    Raises:
        RequestError: there is no such column, no value, or the same column twice, also with the same value
    """
    known = [variable.lower() for variable in COLUMNS]
    result: dict[str, str] = {}
    for name, value in name_value_pairs(values, "--set", "--set tp=4", form="COLUMN=VALUE"):
        column = column_of(name)
        if column is None:
            remedy = f"one of {', '.join(known)}"
            if name.upper() in VARIABLES:
                remedy = f"--env {name}={value}"
            elif called := column_named(name):
                remedy = f"--set {called}={value}"
            raise RequestError(f"--set: no column {name!r}{did_you_mean(name.lower(), known)}", remedy=remedy)
        refuse_twice(column, value, result, "--set")
        result[column] = value
    return result


def option_text(value: object) -> str:
    """Return the value of a column or setting as options take it: ``NA`` for None, ``true``, ``[a,b]``.

    A dictionary is JSON; anything else as ``str`` writes it. Only lists, no tuples, are written in brackets.
    """
    if value is None:
        return "NA"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value)
    return f"[{','.join(map(option_text, value))}]" if isinstance(value, list) else str(value)


def setting_text(value: object) -> str:
    """Return the value of a framework's setting as ``--megatron`` takes it: ``none`` for None.

    Any other value is as ``option_text`` has it.
    """
    return "none" if value is None else option_text(value)


def _refuse_option_twice(name: str, given: Collection[str], option: str) -> None:
    """Refuse the Slurm option ``name`` if it is among ``given``, the names of the options before it.

    Names are long ones without dashes (``nodelist``); ``option`` is what messages call its place.

    Raises:
        RequestError: it is
    """
    if name in given:
        raise RequestError(f"{option}: {name} is given twice", remedy="give it once")


def slurm_of(values: Sequence[str], source_option: str = "--slurm-arg", **named: str | None) -> dict[str, str]:
    """Return options for Slurm, each with our option that gave it: ``{"nodelist=n1,n2": "--nodelist"}``.

    That is the form of ``JobSpec.slurm``, in the order given: first ``values``, unchanged, then ``named``.

    Args:
        values: the values of ``--slurm-arg``: ``NAME=VALUE`` or a flag, with or without dashes, one option each
        source_option: what messages call that option
        named: values of the options of their own (``nodelist``, ``exclude``, ``reservation``), by name without
            dashes; None: not given. A list of hosts with a ``/`` is a file that has the list, which is not read
            here.

    Raises:
        RequestError: one is no option that Slurm jobs may have, has a wrong value, has a semicolon, or is given
            twice
        ConfigError: ``nodelist`` or ``exclude`` is no host list
    """
    parts: dict[str, str] = {}
    for text in values:
        if ";" in text:
            raise RequestError(f"{source_option} {text!r} contains a semicolon", remedy="one option at a time")
        _refuse_option_twice(option_name(text), set(map(option_name, parts)), source_option)
        parts[text] = source_option
    for name, value in named.items():
        if value is None:
            continue
        if ";" in value:
            raise RequestError(f"--{name} {value!r} is not a valid value", remedy=f"for example --{name} n1,n2")
        if name != "reservation" and "/" not in value:  # with one it is a file that has the list
            with located(f"--{name}"):
                expand(value)
        _refuse_option_twice(name, set(map(option_name, parts)), source_option)
        parts[f"{name}={value}"] = f"--{name}"
    for part, option in parts.items():
        parse_additional(part, option)
    return parts


SWITCHES = {"vboost": "ENABLE_VBOOST", "cpu_pinning": "CPU_PER_TASK_PINNING"}
"""Fields of a plan that decide its speed, and that a variable of their own sets."""
VARIABLE_OF = {**SWITCHES, "fp8_recipe": "FP8_RECIPE", "moe_routing": "MOE_ROUTING"}
"""Those and further fields that neither a column nor an option sets, but a variable of ``launch.sh``."""


def command_for(plan: JobPlan, recipe: Recipe) -> str:
    """Return the command that starts a plan's configuration: ``llmb-run single -w ... --set tp=2``.

    ``recipe`` is its workload's. The command is quoted for a shell. It has the recipe's own number of steps, whatever
    the plan has, and neither time limit nor options for Slurm.

    Raises:
        RecipeError: a recipe's catalogue cannot be read
    """
    return f"llmb-run single {shlex.join(_command_words(plan, recipe))}"


def _command_words(plan: JobPlan, recipe: Recipe) -> Iterator[str]:
    """Yield the words behind ``llmb-run single`` that ask for the configuration of ``plan``, not quoted.

    ``recipe`` is its workload's. An option's value is a word of its own. ``--force`` is among them where the number of
    GPUs is not documented.

    Raises:
        RecipeError: a recipe's catalogue cannot be read
    """
    yield from ("-w", plan.workload, "-s", plan.model_size, "--dtype", plan.dtype, "--scale", str(plan.gpus))
    yield from ("--gpu-type", plan.gpu_type, "--variant", plan.variant)
    if plan.engine != recipe.engine:
        yield from ("--engine", plan.engine)
    own_image = image_file_name(recipe.engines.get(plan.engine, ""))
    if plan.image is not None and Path(plan.image).name != own_image:
        yield from ("--image", plan.image)
    for column in plan.overridden:
        yield from ("--set", f"{column}={option_text(getattr(plan, column))}")
    for name, value in plan.megatron.items():
        yield from ("--megatron", f"{name}={setting_text(value)}")
    for name, value in variables_of(plan, recipe).items():
        yield from ("--env", f"{name}={value}")
    for name, on in (("ENABLE_NCCLTRACE", plan.nccl_trace), ("ENABLE_CHECKPOINT", plan.checkpoint.enabled)):
        if on:
            yield from ("--env", f"{name}=true")
    if plan.profile is not None:
        yield "--profile"
    rows = recipe.rows_for(plan.gpu_type, size=plan.model_size)
    documented = set(chain.from_iterable(row.scales for row in rows))
    own_scale = plan.function is not None and f"_{plan.gpus}gpu_" in plan.function.name
    if plan.gpus not in documented and not own_scale:
        yield "--force"


def variables_of(plan: JobPlan, recipe: Recipe) -> dict[str, str]:
    """Return the variables that a command for ``plan`` has to set with ``--env``, with their values, by name.

    They are those that the caller set, and the variables of ``launch.sh`` that decide the speed, have no option of
    their own, and are not as the recipe has them. Empty: there are none.
    """
    found = {name: item.value for name, item in plan.env.items() if item.source == "environment"}
    for field, name in SWITCHES.items():
        value = getattr(plan, field)
        if value:
            found[name] = option_text(value)
    if plan.fp8_recipe is not None and plan.fp8_recipe != recipe.measured_as(plan.variant).fp8_recipe:
        found[VARIABLE_OF["fp8_recipe"]] = plan.fp8_recipe
    if plan.nodes > 1 and plan.gpus_per_node != per_node(plan.gpu_type):
        found["GPUS_PER_NODE"] = str(plan.gpus_per_node)
    if plan.moe_routing == "balanced":
        found[VARIABLE_OF["moe_routing"]] = plan.moe_routing
    return found
