"""What commands print with ``--json``, held against ``docs/llmb.schema.json``."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from functools import cache
from typing import Any

from support.repository import REPOSITORY

HAS_VALIDATOR = importlib.util.find_spec("fastjsonschema") is not None
"""A single file of tests runs without that package, too; ``tests/run`` installs it."""


def assert_as_documented(command: str, data: Any) -> None:
    """``data`` is as the schema has it for ``command``; None, of a command that failed, always is."""
    if data is None or not HAS_VALIDATOR:
        return
    validate = _validator(command)
    try:
        validate(data)
    except ValueError as error:
        raise AssertionError(
            f"{command}: {error}: describe it in docs/reference.md, then run python -m tools --write"
        ) from error


@cache
def _validator(command: str) -> Callable[[Any], Any]:
    import fastjsonschema

    definitions = _definitions()
    name = command.replace(" ", "-")
    assert name in definitions, f"{command}: describe it in docs/reference.md, then run python -m tools --write"
    # The Draft-07 library leaves unknown definitions alone, and follows the references that are used.
    schema = {**definitions[name], "definitions": definitions}
    # No defaults, which would be written into the data, nor details of errors, which take half the time to compile.
    compiled: Callable[[Any], Any] = fastjsonschema.compile(schema, use_default=False, detailed_exceptions=False)
    return compiled


@cache
def _definitions() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((REPOSITORY / "docs" / "llmb.schema.json").read_text(encoding="utf-8"))
    definitions: dict[str, Any] = document["definitions"]
    return definitions
