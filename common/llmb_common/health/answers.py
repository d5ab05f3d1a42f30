"""What the program of the second stage may answer; a node's output may hold anything else."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from llmb_common.base.printable import printable
from llmb_common.base.structs import from_plain

_Figure = Annotated[float, msgspec.Meta(gt=0, lt=1e9)]
_Number = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,4}$")]


class _Value(msgspec.Struct):
    """What the program on a node measured in one call: of one GPU by itself, or of a rank that worked with others.

    Decoded to check an answer's form: figures must be above 0 and below 1e9, unknown keys are no fault. What was not
    measured is None or empty.
    """

    seconds: tuple[_Figure, ...] = ()
    """How long each all-reduce took, in seconds, in their order."""
    log: tuple[str, ...] = ()
    """Lines of NCCL's log."""
    tflops: _Figure | None = None
    """TFLOP/s of a matrix product on one GPU."""
    copy: _Figure | None = None
    """GB/s of a copy within the GPU's memory, reads and writes counted."""
    to_gpu: _Figure | None = None
    """GB/s from the host's memory to the GPU."""
    from_gpu: _Figure | None = None
    """GB/s from the GPU to the host's memory."""


class _Result(msgspec.Struct):
    """What became of one call to the program on a node: a value, an error, or that the call hung.

    One of ``value``, ``error`` and ``hung`` is there, which is not checked; ``died`` goes with an error, ``state`` and
    ``stuck`` with ``hung``. What does not apply is unset or empty. Decoded to check an answer's form: values of other
    types are refused, unknown keys are no fault.
    """

    value: _Value | msgspec.UnsetType = msgspec.UNSET
    """What the call measured."""
    error: str = ""
    """Why it gave no value."""
    died: bool = False
    """Its process ended without a word."""
    hung: str = ""
    """How the call hung; empty: it did not."""
    stuck: bool = False
    """No signal ends its process."""
    state: str = ""
    """The state, as ps shows it, of the process of a call that hung: ``T`` is stopped."""
    step: int = 0
    """How many steps a rank had begun in the end."""


class _NodeAnswer(msgspec.Struct):
    """The whole answer of one node to an order of the fabric check; ``error`` where it could not carry it out.

    Decoded by ``readable`` alone. What the order did not ask for is empty, and so is ``error`` where nothing went
    wrong; keys of ``alone`` and ``ranks`` are numbers of at most four digits, as text.
    """

    error: str = ""
    alone: dict[_Number, _Result] = {}  # msgspec copies it
    """Of each GPU by itself, by its index."""
    load: tuple[Any, ...] = ()
    """Looks at the node's GPUs under load, in their order."""
    ranks: dict[_Number, _Result] = {}
    """Of each rank that worked with others, by its number."""


def readable(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a node unchanged if it has the form that the node's program gives it.

    Unknown keys are no fault. Else ``{"error": ...}`` with the reason, a clause; never raises.
    """
    try:
        from_plain(answer, _NodeAnswer)
    except msgspec.ValidationError as error:
        return {"error": f"its answer cannot be read: {printable(str(error))[:200]}"}
    return answer
