"""What Megatron's own validation says of the functions of a catalogue, as its own file beside ``recipe.yaml``.

``python -m llmb_train.catalogue FILE --validation`` writes it, in the engine that wrote the catalogue.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from llmb_common.decoding.structs import read_generated


class Validated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result for one function at its own number of GPUs.

    ``needs``: packages of the container that validation asked for, and what the user has to give. ``refused``: why
    Megatron does not train it even then; None: it does.
    """

    needs: tuple[str, ...]
    refused: str | None


class Validation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The results of one engine."""

    schema: Literal[1]
    release: str
    core: str
    date: str
    functions: dict[str, Validated]


def read_validation(path: Path) -> Validation:
    """The whole file.

    Raises:
        RecipeError: it cannot be read.
    """
    remedy = "write it again: python -m llmb_train.catalogue FILE --validation, in the engine of the catalogue"
    document: Validation = read_generated(path, Validation, remedy=remedy)
    return document
