"""What a plan and a record say of the memory that a job will need: data only, in GiB on one rank."""

from __future__ import annotations

from typing import Literal

import msgspec


class StageMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rank of the pipeline stages ``first`` to ``last`` (from 0), at the moment when it holds most.

    ``activations``: what all micro-batches under way have saved for the backward pass; ``logits``: those of the last
    stage; ``dummy_gradients``: Transformer Engine's placeholders, one for each shape of a weight; ``transient``: what
    lives for the moment only.
    """

    first: int
    last: int
    layers: int
    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    dummy_gradients: float
    transient: float

    @property
    def parts(self) -> dict[str, float]:
        """The parts by name, in the order in which they are shown."""
        return {name: getattr(self, name) for name in self.__struct_fields__[3:]}

    @property
    def total(self) -> float:
        """The predicted peak of allocated memory."""
        return sum(self.parts.values())


class MemoryEstimate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The memory of a job. Stages that are alike are one entry.

    ``reserve``: what the allocator does not see (CUDA's context, NCCL's buffers) and what it loses to fragments;
    ``limit``: what the device has; ``at_least``: a validated lower bound of the peak, None where there is none.
    ``knowledge`` says how well jobs of the class ``kind`` are known: ``low`` and ``high`` are the errors of ``pairs``
    peaks, in percent of the measured one, None where nobody measured any. ``factor``: what was
    measured over what was predicted, here or by others. ``knob``: what would help most.
    """

    stages: tuple[StageMemory, ...]
    reserve: float
    limit: float
    kind: str
    knowledge: Literal["validated", "validated here", "not validated"]
    low: float | None = None
    high: float | None = None
    pairs: int = 0
    factor: float = 1.0
    at_least: float | None = None
    knob: str = ""

    @property
    def fullest(self) -> StageMemory:
        """The stage whose ranks need most."""
        return max(self.stages, key=lambda stage: stage.total)

    @property
    def peak(self) -> float:
        """Predicted peak of allocated memory on the fullest rank."""
        return self.fullest.total

    @property
    def fits(self) -> bool:
        """Whether the peak, as it was measured of such jobs, and the reserve are below the limit."""
        return self.peak * self.factor + self.reserve <= self.limit

    @property
    def certain(self) -> bool:
        """Whether a validated lower bound rules the job out."""
        return (self.at_least or 0) + self.reserve > self.limit

    @property
    def verdict(self) -> str:
        """``fits``, ``does not fit``, or ``may not fit`` where that is not certain."""
        return "fits" if self.fits else "does not fit" if self.certain else "may not fit"
