"""The YAML form of a task file: defaults, sweeps and overrides, read strictly.

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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import msgspec

from llmb_common.decoding.strict_yaml import convert, load_text
from llmb_common.errors import ConfigError, located
from llmb_common.request.values import settings_of
from llmb_run.place import Place
from llmb_run.starting.requests import Ask
from llmb_run.starting.said import as_said, check_job_variable, columns_of, slurm_of
from llmb_run.starting.sweeps import sweep
from llmb_run.starting.varying import NAMED, changed, dimension

T = TypeVar("T")
At = Callable[[str], str]
"""File and line of the value at a path such as ``$.tasks[3]``."""

Positive = Annotated[int, msgspec.Meta(ge=1)]
Repeats = Annotated[int, msgspec.Meta(ge=1, le=10000)]
Words = str | tuple[str, ...]
Value = str | int | bool | float
Values = dict[str, Value | tuple[Value, ...]]
"""Of each name one value, or a list: a sweep."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every level may say of a job. None: not said here."""

    profile: bool | None = None
    gpu_type: Words | None = None
    variant: Words | None = None
    engine: Words | None = None
    image: Words | None = None
    max_steps: Positive | None = None
    time_limit: str | Positive | None = None
    env: Values = {}
    set: Values = {}
    megatron: Values = {}
    slurm: dict[str, str | int | None] = {}
    force: bool | None = None
    preflight: str | None = None


class Override(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``when``: the value of dimensions, or values; every condition must hold."""

    when: Values
    use: Settings


class Sweep(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    size: Words | None = None
    dtype: Words | None = None
    scale: Positive | str | tuple[Positive, ...] | None = None
    min_scale: Positive | None = None
    max_scale: Positive | None = None
    repeats: Repeats | None = None


class Task(Sweep, frozen=True, kw_only=True, forbid_unknown_fields=True):
    workload: Words
    zip: Values = {}
    overrides: tuple[Override, ...] = ()


class TaskFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tasks: tuple[Task, ...]
    defaults: Sweep = Sweep()


def parse_yaml(text: str, where: str, place: Place) -> list[Ask]:
    """The asks of a file in this form.

    Raises:
        ConfigError: something in it is wrong; with ``where`` and the line
    """
    content, at = read_content(text, where, TaskFile)
    asks: list[Ask] = []
    for number, task in enumerate(content.tasks):
        path = f"$.tasks[{number}]"
        asks += [replace(ask, where=at(path)) for ask in asks_of_task(task, content.defaults, place, path, at)]
    return asks


def read_content(text: str, where: str, kind: type[T]) -> tuple[T, At]:
    """What a task file or a suite holds, and where each value is.

    Raises:
        ConfigError: something in it is wrong, or empty; with ``where`` and the line
    """
    data, lines = load_text(text, where)

    def at(path: str) -> str:
        return f"{where}:{lines.get(path, 1)}"

    for path in _empty(data, "$"):
        key = path.removeprefix("$.")
        raise ConfigError(f"{at(path)}: {key} is empty", remedy="give it a value, or remove the key")
    return convert(data, lines, kind, where), at


def _empty(value: Any, path: str) -> Iterator[str]:
    """Where a key has nothing for a value. A variable may be empty, and an option of Slurm be a flag."""
    if value is None or value in ([], {}) or (isinstance(value, str) and not value.strip()):
        yield path
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _empty(item, f"{path}[{number}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in ("env", "slurm") or not item:
                yield from _empty(item, f"{path}.{key}")


def asks_of_task(task: Task, defaults: Sweep, place: Place, path: str, at: At) -> list[Ask]:
    """Every job of the task at ``path`` of its file.

    Raises:
        ConfigError: something in it is wrong; with file and line
    """
    with located(at("$.defaults")):
        base, usual = _with(Ask(workload=""), defaults), _said(defaults)
    with located(at(path)):
        base, own = _with(base, task), _said(task)
        zipped = {dimension(name): _words(values) for name, values in task.zip.items()}
        usual = {name: values for name, values in usual.items() if name not in zipped}
        # A task that says which scales it runs at says all of it.
        scaled = (task.scale, task.min_scale, task.max_scale) != (None, None, None) or "scale" in zipped
        bounds = task if scaled else defaults
        asks = sweep(
            base,
            place,
            usual | ({"scale": []} if scaled else {}) | own,
            [zipped] if zipped else [],
            min_scale=bounds.min_scale,
            max_scale=bounds.max_scale,
            repeats=task.repeats or defaults.repeats or 1,
        )
    for number, override in enumerate(task.overrides):
        with located(at(f"{path}.overrides[{number}]")):
            fits = [_fits(ask, override.when) for ask in asks]
            use = _said(override.use)
            for name in (name for name, values in use.items() if len(values) > 1):
                raise ConfigError(f"{name}: an override has one value of each", remedy="a list belongs into the task")
            if not any(fits):
                raise ConfigError("an override matches no job of its task", remedy="correct its 'when', or remove it")
            asks = [_overridden(ask, override.use, use) if fit else ask for ask, fit in zip(asks, fits, strict=True)]
    return asks


def _words(value: Any) -> list[str]:
    if value is None:
        return []
    values = value if isinstance(value, tuple) else (value,)
    return [as_said(item) for item in values]


def _fits(ask: Ask, when: Values) -> bool:
    return all(ask.value(dimension(name)) in _words(wanted) for name, wanted in when.items())


def _said(settings: Settings) -> dict[str, list[str]]:
    """The values of every dimension that ``settings`` name."""
    found = {name: _words(value) for name in NAMED if (value := getattr(settings, name, None))}
    columns = columns_of([f"{name}={','.join(_words(value))}" for name, value in settings.set.items()])
    found |= {name: values.split(",") for name, values in columns.items()}
    settings_of([f"{name}={_words(values)[0]}" for name, values in settings.megatron.items()], "megatron")
    found |= {name: _words(values) for name, values in settings.megatron.items()}
    for name, values in settings.env.items():
        found[name] = _words(values)
        for value in found[name]:
            check_job_variable(name, value, "env")
    return found


def _overridden(ask: Ask, settings: Settings, said: Mapping[str, Sequence[str]]) -> Ask:
    return _with(changed(ask, {name: values[0] for name, values in said.items()}), settings)


def _with(ask: Ask, settings: Settings) -> Ask:
    """``ask`` with what ``settings`` say besides dimensions."""
    said: Any = {name: getattr(settings, name) for name in ("profile", "force", "preflight")}
    said = {name: value for name, value in said.items() if value is not None}
    return replace(
        ask,
        **said,
        max_steps=ask.max_steps if settings.max_steps is None else str(settings.max_steps),
        time_limit=ask.time_limit if settings.time_limit is None else str(settings.time_limit),
        slurm={
            **ask.slurm,
            **slurm_of([k if v is None else f"{k}={v}" for k, v in settings.slurm.items()], "slurm"),
        },
    )
