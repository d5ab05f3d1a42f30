"""The generated files beside ``recipe.yaml``, which nobody writes by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from llmb_common.errors import RecipeError
from llmb_common.structs import from_json


def read_generated(path: Path, kind: Any, *, remedy: str, what: str = "") -> Any:
    """The file ``path`` as a ``kind``. ``what`` it is, in the message; ``remedy``: how to get it back.

    Raises:
        RecipeError: it cannot be read, or is no ``kind``.
    """
    try:
        return from_json(path.read_bytes(), kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise RecipeError(f"cannot read {what}{path}: {error}", remedy=remedy) from error
