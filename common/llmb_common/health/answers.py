"""What the program of the second stage may answer; a node's output may hold anything else."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from llmb_common.base.printable import printable
from llmb_common.base.structs import from_plain

_Figure = Annotated[float, msgspec.Meta(gt=0, lt=1e9)]
_Number = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,4}$")]


class _Value(msgspec.Struct):
    """What a GPU gave by itself, or a rank together with others."""

    seconds: tuple[_Figure, ...] = ()
    log: tuple[str, ...] = ()
    tflops: _Figure | None = None
    copy: _Figure | None = None
    to_gpu: _Figure | None = None
    from_gpu: _Figure | None = None


class _Result(msgspec.Struct):
    """What became of one call on a node: a value, an error, or that it hung."""

    value: _Value | msgspec.UnsetType = msgspec.UNSET
    error: str = ""
    died: bool = False
    hung: str = ""
    stuck: bool = False
    state: str = ""
    step: int = 0


class _NodeAnswer(msgspec.Struct):
    """The answer of a node to an order."""

    error: str = ""
    alone: dict[_Number, _Result] = {}  # msgspec copies it
    load: tuple[Any, ...] = ()
    ranks: dict[_Number, _Result] = {}


def readable(answer: dict[str, Any]) -> dict[str, Any]:
    """What a node has said, unchanged, if it is what its program says; else ``{"error": ...}`` with the reason."""
    try:
        from_plain(answer, _NodeAnswer)
    except msgspec.ValidationError as error:
        return {"error": f"its answer cannot be read: {printable(str(error))[:200]}"}
    return answer
