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

``env`` and ``set`` of a task are added to those of the defaults, those of an override to the task's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import msgspec

from llmb_common.errors import ConfigError, located
from llmb_common.strict_yaml import convert, load_text
from llmb_run.place import Place
from llmb_run.starting.requests import Ask, check_job_variable, columns_of, slurm_of
from llmb_run.starting.sweeps import sweep

T = TypeVar("T")
At = Callable[[str], str]
"""File and line of the value at a path such as ``$.tasks[3]``."""

Positive = Annotated[int, msgspec.Meta(ge=1)]
Repeats = Annotated[int, msgspec.Meta(ge=1, le=10000)]
Words = str | tuple[str, ...]
Values = dict[str, str | int]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every level may say of a job. None: not said here."""

    profile: bool | None = None
    gpu_type: str | None = None
    variant: str | None = None
    engine: str | None = None
    max_steps: Positive | None = None
    time_limit: str | Positive | None = None
    env: Values = {}
    set: dict[str, str | int | bool] = {}
    slurm: dict[str, str | int | None] = {}
    force: bool | None = None
    preflight: str | None = None


class When(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs of a task an override is for; every condition must hold."""

    size: Words | None = None
    dtype: Words | None = None
    scale: Positive | tuple[Positive, ...] | None = None


class Override(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    when: When
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
        base = _with(Ask(workload=""), defaults)
    with located(at(path)):
        base = _with(base, task)
        # A task that says which scales it runs at says all of it.
        scaled = task if (task.scale, task.min_scale, task.max_scale) != (None, None, None) else defaults
        asks = sweep(
            base,
            place,
            workloads=_words(task.workload),
            sizes=_words(task.size or defaults.size),
            dtypes=_words(task.dtype or defaults.dtype),
            scales=_words(scaled.scale),
            min_scale=scaled.min_scale,
            max_scale=scaled.max_scale,
            repeats=task.repeats or defaults.repeats or 1,
        )
    for number, override in enumerate(task.overrides):
        with located(at(f"{path}.overrides[{number}]")):
            fits = [_fits(ask, override.when) for ask in asks]
            if not any(fits):
                raise ConfigError("an override matches no job of its task", remedy="correct its 'when', or remove it")
            asks = [_with(ask, override.use) if fit else ask for ask, fit in zip(asks, fits, strict=True)]
    return asks


def _words(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, tuple) else [str(value)]


def _fits(ask: Ask, when: When) -> bool:
    pairs = ((ask.size, when.size), (ask.dtype, when.dtype), (ask.scale, when.scale))
    return all(wanted is None or actual in _words(wanted) for actual, wanted in pairs)


def _with(ask: Ask, settings: Settings) -> Ask:
    """``ask`` with what ``settings`` say."""
    for name, value in settings.env.items():
        check_job_variable(name, str(value), "env")
    names = ("profile", "gpu_type", "variant", "engine", "force", "preflight")
    said: Any = {name: getattr(settings, name) for name in names}
    said = {name: value for name, value in said.items() if value is not None}
    return replace(
        ask,
        **said,
        max_steps=ask.max_steps if settings.max_steps is None else str(settings.max_steps),
        time_limit=ask.time_limit if settings.time_limit is None else str(settings.time_limit),
        environment={**ask.environment, **{name: str(value) for name, value in settings.env.items()}},
        columns={**ask.columns, **columns_of([f"{key}={_word(value)}" for key, value in settings.set.items()])},
        slurm={
            **ask.slurm,
            **slurm_of([k if v is None else f"{k}={v}" for k, v in settings.slurm.items()], "slurm"),
        },
    )


def _word(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
