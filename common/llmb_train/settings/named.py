"""Settings of the framework that the user asked for by name: set last, checked against the classes that are there."""

from __future__ import annotations

import difflib
import enum
import os
import typing
from collections.abc import Iterator
from typing import Any

from llmb_train.errors import JobError
from llmb_train.job import FunctionJob, Job
from llmb_train.manifest import NOTICE_PREFIX


def apply(job: Job | FunctionJob, config: Any) -> None:
    """Set them in ``config``. The log says which of them it has anyway.

    Raises:
        JobError: there is no such section or field here, or it takes no such value
    """
    for name, value in job.megatron.items():
        section, field = _section(config, name)
        before = found(config, name)
        setattr(section, field, _converted(section, field, value, name))
        if found(config, name) == before and os.environ.get("RANK", "0") == "0":
            print(f"{NOTICE_PREFIX}{name}={before} is what this job has anyway", flush=True)


def found(config: Any, name: str) -> Any:
    """What the setting is in ``config``, as JSON has it: an enumeration's member by its name."""
    section, _, field = name.partition(".")
    return _plain(getattr(getattr(config, section, None), field, None))


def title(config: Any, name: str) -> str:
    """The setting, and what of the same name is set after it."""
    section, _, field = name.partition(".")
    later = [other for other in ("mixed_precision", "comm_overlap") if hasattr(getattr(config, other, None), field)]
    return name + "".join(f" (set {other}.{field})" for other in later if other != section)


def _section(config: Any, name: str) -> tuple[Any, str]:
    title, _, field = name.partition(".")
    if isinstance(getattr(config, title, None), str):  # the name of a mixed precision
        from megatron.bridge.training.mixed_precision import get_mixed_precision_config

        setattr(config, title, get_mixed_precision_config(getattr(config, title)))
    section = getattr(config, title, None)
    if section is None:
        sections = ", ".join(sorted(key for key, value in vars(config).items() if hasattr(value, "__dict__")))
        raise JobError(f"{name}: this job has no section {title}", remedy=f"it has {sections}")
    if not hasattr(section, field):
        near = difflib.get_close_matches(field, list(vars(section)), 1)
        raise JobError(
            f"{name}: {type(section).__name__} has no field {field}" + (f" (did you mean {near[0]}?)" if near else ""),
            remedy="correct --megatron (MEGATRON_SETTINGS), or leave it out",
        )
    return section, field


def _converted(section: Any, field: str, value: Any, name: str) -> Any:
    """``value`` as the type of the field wants it."""
    from llmb_train.catalogue.fields import kind_of, takes

    hint = _hint(section, field)
    kinds = kind_of(hint).split("|")
    if not takes(kinds, value):
        raise JobError(
            f"{name} is {value!r}, and {type(section).__name__} takes {', '.join(kinds)}",
            remedy="correct --megatron (MEGATRON_SETTINGS), or leave it out",
        )
    if isinstance(value, list):
        return [_member(hint, item) for item in value]
    if "dtype" in kinds and isinstance(value, str):
        import torch

        return getattr(torch, value.removeprefix("torch."))
    if isinstance(value, int) and not isinstance(value, bool) and "int" not in kinds and "float" in kinds:
        return float(value)
    return _member(hint, value)


def _hint(section: Any, field: str) -> Any:
    try:
        return typing.get_type_hints(type(section)).get(field, Any)
    except (NameError, TypeError):  # a name that is imported for type checkers only
        return Any


def _member(hint: Any, value: Any) -> Any:
    """The member of an enumeration in ``hint`` that ``value`` names; else ``value``."""
    members = {name: member for kind in _enumerations(hint) for name, member in kind.__members__.items()}
    return members.get(value, value) if isinstance(value, str) else value


def _enumerations(hint: Any) -> Iterator[type[enum.Enum]]:
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        yield hint
    for part in typing.get_args(hint):
        yield from _enumerations(part)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    text = str(value)
    return text.removeprefix("torch.") if text.startswith("torch.") else value
