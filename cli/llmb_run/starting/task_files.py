"""A task file as specs. It has one of two forms.

The short one: a workload header, then ``(dtype, [scales], repeats[, profile])`` lines.

::

    # comments and empty lines are allowed
    pretrain_llama3.1_405b:
    (fp8, [128, 256], 3)
    ([fp8, bf16], 512, 1, true)

    pretrain_grok1 314b:
    (bf16, all, 1)

The header is a workload, alone or with a size after ``_`` or a space. Quotes around words are allowed.

The YAML form: defaults, sweeps and overrides, read strictly.

::

    defaults:                       # for every task that does not say otherwise
      gpu_type: h100
      time_limit: "00:45:00"
      env: {NCCL_DEBUG: WARN}
    tasks:
      - workload: pretrain_llama3.1
        size: [8b, 70b]             # a list is a sweep: every combination runs
        dtype: [fp8, bf16]
        scale: [64, 128]            # numbers, or all; or min_scale and max_scale
        repeats: 3
        overrides:                  # the last one that fits wins
          - when: {size: 70b, scale: 128}
            use: {time_limit: "01:30:00", set: {recompute_layers: 8}}
      - workload: pretrain_grok1
        scale: 128
        set: {mbs: [1, 2]}          # so are these, and of engine, image, variant and gpu_type
        env: {NCCL_ALGO: [Ring, Tree]}
        zip: {tp: [4, 8], pp: [8, 4]}   # these change together

``env`` and ``set`` of a task are added to those of the defaults, those of an override to the task's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from llmb_common.base.errors import ConfigError, located
from llmb_common.base.strict_yaml import convert, load_text, read_text
from llmb_common.planning.request.values import settings_of
from llmb_common.planning.request.variables import NAMED
from llmb_common.planning.site.cluster import NVIDIAS_KEYS
from llmb_common.planning.workspace import Workspace
from llmb_run.starting.command_line import check_job_variable, columns_of, option_text, slurm_of
from llmb_run.starting.planner import combined_specs
from llmb_run.starting.requests import JobSpec
from llmb_run.starting.sweeps import changed_spec, dimension

_HEADER = re.compile(r"(?P<name>[A-Za-z][\w.+-]*)(?:[ \t]+(?P<size>[\w.+-]+))?[ \t]*:\Z")
_WORD = r"""(?:'[^']*'|"[^"]*"|[\w.+-]+)"""
_PART = rf"(?:{_WORD}|\[\s*{_WORD}(?:\s*,\s*{_WORD})*\s*,?\s*\])"
_TASK = re.compile(rf"\(\s*{_PART}(?:\s*,\s*{_PART})*\s*,?\s*\)")

MAX_REPEATS = 10000


def parse_text(text: str, where: str, workspace: Workspace) -> list[JobSpec]:
    """Return the job requests in a task file of the short form (``(fp8, [128, 256], 3)``), in order.

    A header line (``pretrain_llama3.1_405b:``) names the workload of the tasks below it. Empty: it has no tasks.
    ``text`` is the file's content, ``where`` its name, for messages; each request has it, with the line, in its
    ``where``. ``workspace`` knows the recipes.

    Raises:
        ConfigError: a line is wrong, ``cluster_config.yaml`` or a recipe's catalogue is, or there is no
            installation; the message has ``where`` and the line
    """
    specs: list[JobSpec] = []
    base: JobSpec | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = _without_comment(raw)
        if not line:
            continue
        at = f"{where}:{number}"
        if header := _HEADER.match(line):
            base = _header_spec(header["name"], header["size"], at, workspace)
            continue
        if not line.startswith("("):
            raise ConfigError(
                f"{at}: {line!r} is neither a header nor a task",
                remedy="pretrain_llama3.1_405b:  or  (fp8, [128, 256], 3)",
            )
        if base is None:
            raise ConfigError(f"{at}: a task before the first header", remedy="write  pretrain_llama3.1_405b:  above")
        specs += [replace(spec, where=at) for spec in _task_specs(line, at, base, workspace)]
    return specs


def _without_comment(line: str) -> str:
    """Return a line of a task file without its comment, from the first ``#`` on, and the blanks around it.

    Empty: there is nothing else in it.
    """
    return line.split("#", 1)[0].strip()


def _header_spec(name: str, size: str | None, at: str, workspace: Workspace) -> JobSpec:
    """Return the request for the workload and size that a header of the short form names, without anything else.

    ``name`` is the header's, without its colon: ``pretrain_llama3.1_405b`` is the workload pretrain_llama3.1 and
    its size 405b, in any case; a size may hold ``_`` itself. ``size`` is what the header says apart from the name;
    None: nothing. A header without a size leaves it to the recipe. ``workspace`` knows the recipes.

    Raises:
        ConfigError: there is no such workload or size, or ``cluster_config.yaml`` or a recipe is wrong; the message
            has ``at``, file and line
    """
    with located(at):
        if size is None:
            workloads = [entry.recipe.workload for entry in workspace.catalog]
            begins = [workload for workload in workloads if name.lower().startswith(f"{workload}_")]
            if begins and name.lower() not in workloads:
                workload = max(begins, key=len)
                name, size = workload, name[len(workload) + 1 :]
        recipe = workspace.workload(name).recipe
        return JobSpec().with_settings({"workload": recipe.workload, "size": recipe.model(size).size if size else None})


def _words_of_part(part: str) -> list[str]:
    """Return the words in one part of a task line, a single word or a list in brackets, without their quotes.

    Such as ``fp8`` and ``bf16`` of ``[fp8, 'bf16']``; in the order of the part.
    """
    return [word.strip("'\"") for word in re.findall(_WORD, part)]


def _task_specs(line: str, at: str, base: JobSpec, workspace: Workspace) -> list[JobSpec]:
    """Return the job requests of one task line of the short form, ``(fp8, [128, 256], 3)``: dtypes, scales, repeats.

    At least one, in the order of ``combined_specs``. A fourth part, ``true`` or ``false`` in any case, says whether
    to profile. Repeats go from 1 to ``MAX_REPEATS``. ``base`` has the header's workload and size. ``workspace``
    knows the recipes.

    Raises:
        ConfigError: the line is no task, or asks for something impossible; the message has ``at``, file and line
    """
    # Only read, never evaluated as Python.
    if not _TASK.fullmatch(line):
        raise ConfigError(f"{at}: {line!r} is not a task", remedy="for example (fp8, [128, 256], 3)")
    values = [_words_of_part(part) for part in re.findall(_PART, line)]
    if not all(word.strip() for word in chain.from_iterable(values)):
        raise ConfigError(f"{at}: a part of {line!r} is empty", remedy="give it a value")
    if not 3 <= len(values) <= 4:
        raise ConfigError(
            f"{at}: a task has 3 or 4 parts, this one {len(values)}",
            remedy="(dtype, [scales], repeats) or (dtype, [scales], repeats, profile)",
        )
    dtypes, scales, repeats, *profile = values
    is_number = len(repeats) == 1 and re.fullmatch(r"[1-9][0-9]*", repeats[0]) is not None
    if not is_number or int(repeats[0]) > MAX_REPEATS:
        raise ConfigError(
            f"{at}: repeats {', '.join(repeats)!r} is not a whole number from 1 to {MAX_REPEATS}",
            remedy="write how often each job is to run, such as 3",
        )
    words = {"true": "true", "false": None}
    profile_setting = None
    if profile:
        said = ", ".join(profile[0])
        if said.lower() not in words:
            raise ConfigError(f"{at}: profile {said!r} is neither true nor false", remedy="write true or false")
        profile_setting = words[said.lower()]
    base = base.with_settings({"profile": profile_setting})
    with located(at):
        return combined_specs(base, workspace, {"dtype": dtypes, "scale": scales}, repeats=int(repeats[0]))


T = TypeVar("T")
At = Callable[[str], str]
"""File and line of the value at a path such as ``$.tasks[3]``."""

Positive = Annotated[int, msgspec.Meta(ge=1)]
Repeats = Annotated[int, msgspec.Meta(ge=1, le=10000)]
Words = str | tuple[str, ...]
SettingValue = str | int | bool | float
SettingValues = dict[str, SettingValue | tuple[SettingValue, ...]]
"""Of each name one value, or a list: a sweep."""


class TaskSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of jobs that a YAML task file may have on each level: defaults, task, override.

    Most are called as an option of ``llmb-run`` (``max_steps``: ``--max-steps``), and take its values;
    ``time_limit`` is a text such as ``2h``, or a number of minutes. The later level wins, setting by setting. None
    or an empty mapping: not said on this level. ``gpu_type``, ``variant``, ``engine`` and ``image`` may have
    several values, which make a job for each, but not in an override. ``env``, ``set`` (columns) and ``megatron``
    hold a value, or several, by name; ``slurm`` holds options for Slurm by name; None: the option is a flag.
    ``profile`` and ``force`` are switches, of which False takes back a True of an earlier level. ``preflight`` is
    what to do with jobs that may not fit. ``read_content`` decodes it, and refuses unknown keys, wrong types and
    empty values; whether values are known ones is checked later, by ``specs_of_task`` and by planning.
    """

    profile: bool | None = None
    gpu_type: Words | None = None
    variant: Words | None = None
    engine: Words | None = None
    image: Words | None = None
    max_steps: Positive | None = None
    time_limit: str | Positive | None = None
    env: SettingValues = {}
    set: SettingValues = {}
    megatron: SettingValues = {}
    slurm: dict[str, str | int | None] = {}
    force: bool | None = None
    preflight: str | None = None


class Override(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings in a YAML task file for some of a task's jobs: those that meet every condition of ``when``.

    A condition is a dimension with its wanted values, of which the job's request has one; a dimension that the
    request leaves to the recipe fits none. ``use`` has single values alone; ``specs_of_task`` refuses lists, a name
    in ``when`` that is no dimension, and an override that fits no job. ``read_content`` decodes it with its task,
    and refuses unknown keys and empty values.
    """

    when: SettingValues
    use: TaskSettings


class Sweep(TaskSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a task in a YAML task file, or of all tasks, whose values may be lists; None: not given.

    It has the fields of ``TaskSettings``, too. ``size`` and ``dtype`` are called as the recipe calls them.
    ``scale`` is one or several numbers of GPUs, or ``all``; ``min_scale`` and ``max_scale`` are bounds, which are
    included, for the documented numbers of GPUs. ``repeats``: how many runs of each job, 10000 at most; None: one.
    ``read_content`` decodes it, and refuses unknown keys.
    """

    size: Words | None = None
    dtype: Words | None = None
    scale: Positive | str | tuple[Positive, ...] | None = None
    min_scale: Positive | None = None
    max_scale: Positive | None = None
    repeats: Repeats | None = None


class Task(Sweep, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One task of a YAML task file: workloads, and the values of settings that their jobs combine.

    It has the fields of ``Sweep``, too. ``workload`` is one name or several, each combined with all else. The
    dimensions in ``zip`` change together, so they have equally many values. All ``overrides`` that fit a job apply
    to it, in order: of two that set the same, the last wins. Decoding refuses unknown keys; names and values are
    checked by ``specs_of_task``.
    """

    workload: Words
    zip: SettingValues = {}
    overrides: tuple[Override, ...] = ()


class TaskFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a YAML task file: its tasks, and ``defaults`` for all of them.

    ``read_content`` decodes it, and refuses unknown keys. ``tasks`` are in the file's order.
    """

    tasks: tuple[Task, ...]
    defaults: Sweep = Sweep()


def read_content(text: str, where: str, kind: type[T]) -> tuple[T, At]:
    """Return (content, place): the YAML ``text`` of a task file or a suite as a ``kind``, and a finder.

    ``kind`` is the struct to return. The finder takes a path such as ``$.tasks[3]``, counted from 0, and returns file
    and line of what is there. ``where`` is the file's name.

    Raises:
        ConfigError: something in the text is wrong or empty; the message has file and line
    """
    data, lines = load_text(text, where)

    def place_of(path: str) -> str:
        """Return ``FILE:LINE`` of the value at ``path`` (``$.tasks[3]``); line 1 for a path that is not there.

        The file is ``where`` of ``read_content``.
        """
        return f"{where}:{lines.get(path, 1)}"

    for path in _empty_values(data, "$"):
        key = path.removeprefix("$.")
        raise ConfigError(f"{place_of(path)}: {key} is empty", remedy="give it a value, or remove the key")
    return convert(data, lines, kind, where), place_of


def _empty_values(value: Any, path: str) -> Iterator[str]:
    """Yield the paths, from ``path`` on, at which ``value`` is None, a blank text, or an empty list or mapping.

    In the file's order, each as ``$.tasks[3].zip``. Not within ``env`` and ``slurm``, which must not be empty
    themselves: a variable may be empty, and an option of Slurm be a flag.
    """
    if value is None or value in ([], {}) or (isinstance(value, str) and not value.strip()):
        yield path
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _empty_values(item, f"{path}[{number}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in ("env", "slurm") or not item:
                yield from _empty_values(item, f"{path}.{key}")


def specs_of_task(task: Task, defaults: Sweep, workspace: Workspace, path: str, at: At) -> list[JobSpec]:
    """Return the request for every job of one task in a YAML task file, in the order of ``combined_specs``.

    Values of the task win over ``defaults``, and those of its overrides, in order, over both; a task with a scale
    or bounds of its own takes neither from the defaults. ``path`` (``$.tasks[3]``) and ``at``, which makes file and
    line of a path, tell messages where the task stands; the requests' ``where`` stays empty. ``workspace`` knows
    the recipes.

    Raises:
        ConfigError: something in the task or the defaults is wrong, an override fits no job, or there is no
            installation; the message has file and line
    """
    with located(at("$.defaults")):
        base, usual = _with_task_settings(JobSpec(), defaults), _dimension_values(defaults)
    with located(at(path)):
        base, own = _with_task_settings(base, task), _dimension_values(task)
        zipped = {dimension(name): _value_texts(values) for name, values in task.zip.items()}
        usual = {name: values for name, values in usual.items() if name not in zipped}
        # A task that says which scales it runs at says all of it.
        scaled = (task.scale, task.min_scale, task.max_scale) != (None, None, None) or "scale" in zipped
        bounds = task if scaled else defaults
        specs = combined_specs(
            base,
            workspace,
            usual | ({"scale": []} if scaled else {}) | own,
            [zipped] if zipped else [],
            min_scale=bounds.min_scale,
            max_scale=bounds.max_scale,
            repeats=task.repeats or defaults.repeats or 1,
        )
    for number, override in enumerate(task.overrides):
        with located(at(f"{path}.overrides[{number}]")):
            fits = [_meets_condition(spec, override.when) for spec in specs]
            use = _dimension_values(override.use)
            for name in (name for name, values in use.items() if len(values) > 1):
                raise ConfigError(
                    f"{name}: an override takes one value, and this is a list",
                    remedy="put the list into the task itself",
                )
            if not any(fits):
                raise ConfigError("an override matches no job of its task", remedy="correct its 'when', or remove it")
            single_values = {name: values[0] for name, values in use.items()}
            for at_spec, fit in enumerate(fits):
                if fit:
                    changed = changed_spec(specs[at_spec], single_values)
                    specs[at_spec] = _with_task_settings(changed, override.use)
    return specs


def _value_texts(value: Any) -> list[str]:
    """Return the texts of a value as a user writes them: one for each item of a tuple, else one.

    They are as ``option_text`` writes them: ``true``, ``NA`` for None, a list as one text in brackets. An empty
    tuple gives an empty list.
    """
    return [option_text(item) for item in (value if isinstance(value, tuple) else (value,))]


def _meets_condition(spec: JobSpec, when: SettingValues) -> bool:
    """Return whether a job has one of the wanted values in every dimension of ``when``, an override's condition.

    The settings of the request ``spec`` count, as the file writes them: False for a dimension that it leaves to the
    recipe. True for an empty ``when``.

    Raises:
        RequestError: a name in ``when`` is no dimension
    """
    return all(spec.settings.get(dimension(name)) in _value_texts(wanted) for name, wanted in when.items())


def _dimension_values(settings: TaskSettings) -> dict[str, list[str]]:
    """Return the values that ``settings`` of a task file give to dimensions, by name, each a list of texts.

    A dimension without a value is left out.

    Raises:
        RequestError: a name or a value is not valid
    """
    given = {name: getattr(settings, name, None) for name in NAMED}
    found = {name: _value_texts(value) for name, value in given.items() if value}
    set_texts = {name: ",".join(_value_texts(value)) for name, value in settings.set.items()}
    columns = columns_of([f"{name}={text}" for name, text in set_texts.items()])
    found |= {name: values.split(",") for name, values in columns.items()}
    megatron = {name: _value_texts(values) for name, values in settings.megatron.items()}
    settings_of([f"{name}={texts[0]}" for name, texts in megatron.items()], "megatron")
    found |= megatron
    for name, values in settings.env.items():
        found[name] = _value_texts(values)
        for value in found[name]:
            check_job_variable(name, value, "env")
    return found


def _with_task_settings(spec: JobSpec, settings: TaskSettings) -> JobSpec:
    """Return ``spec`` changed by what ``settings`` of a task file say besides dimensions.

    Those are switches, limits and Slurm's options. False takes a switch away that ``spec`` has.

    Raises:
        RequestError: one is no option for Slurm
    """
    named = {name: getattr(settings, name) for name in ("profile", "force", "preflight", "max_steps", "time_limit")}
    given = {name: value for name, value in named.items() if value is not None}
    settings_texts = {name: option_text(value) if value else None for name, value in given.items()}
    slurm_options = [name if value is None else f"{name}={value}" for name, value in settings.slurm.items()]
    slurm = slurm_of(slurm_options, "slurm")
    return replace(spec.with_settings(settings_texts), slurm={**spec.slurm, **slurm})


def read_tasks(path: Path, workspace: Workspace) -> list[JobSpec]:
    """Return the request for every job in a task file of either form, YAML or the short one, in order; at least one.

    It is the short form where one of the first two lines with content begins with ``(``. Each request has file and
    line in its ``where``. ``workspace`` knows the recipes. Starts and plans nothing.

    Raises:
        ConfigError: the file cannot be read, something in it is wrong, it has no task, or its jobs cannot be
            planned here at all, as without an installation; the message has file and line. Code ``nvidias-config``:
            it is a configuration of NVIDIA's own launcher
    """
    text = read_text(path)
    if {line.partition(":")[0] for line in text.splitlines()} & {*NVIDIAS_KEYS}:
        raise ConfigError(
            f"{path} is a configuration of NVIDIA's own llmb-run, and no task file",
            remedy="cli/README.md shows both forms of a task file; the smallest: one line pretrain_llama3.1_8b: and "
            "below it (fp8, 8, 1)",
            code="nvidias-config",
        )
    # The short form has a task in one of its first two lines; YAML has "key: value" there.
    begins = [line for line in map(_without_comment, text.splitlines()) if line][:2]
    if any(line.startswith("(") for line in begins):
        specs = parse_text(text, str(path), workspace)
    else:
        content, at = read_content(text, str(path), TaskFile)
        specs = []
        for number, task in enumerate(content.tasks):
            key = f"$.tasks[{number}]"
            found = specs_of_task(task, content.defaults, workspace, key, at)
            specs += [replace(spec, where=at(key)) for spec in found]
    if not specs:
        raise ConfigError(f"{path}:1: no task", remedy="cli/README.md shows both forms of a task file")
    return specs
