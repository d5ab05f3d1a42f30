"""The numbers of a model that the rules of divisibility ask for, whoever describes it."""

from __future__ import annotations

from typing import Protocol

import msgspec


class ExpertsOf(Protocol):
    @property
    def experts(self) -> int: ...
    @property
    def ffn(self) -> int: ...
    @property
    def shared_ffn(self) -> int | None: ...


class ShapeOf(Protocol):
    """A model's numbers. None: the model has no such layer, or pads it until it divides."""

    @property
    def layers(self) -> int: ...
    @property
    def ffn(self) -> int | None: ...
    @property
    def heads(self) -> int: ...
    @property
    def query_groups(self) -> int: ...
    @property
    def vocabulary(self) -> int | None: ...
    @property
    def attention_chunk(self) -> int | None: ...
    @property
    def moe(self) -> ExpertsOf | None: ...


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    experts: int
    top_k: int
    ffn: int
    shared_ffn: int | None = None

    @property
    def every(self) -> int:
        """A catalogue does not say which layers have experts."""
        return 1


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The architecture of a function, as its catalogue says it."""

    layers: int
    hidden: int
    heads: int
    query_groups: int
    ffn: int | None = None
    vocabulary: int | None = None
    mtp_layers: int = 0
    moe: Experts | None = None
    provider: str = ""

    @property
    def attention_chunk(self) -> int | None:
        return None
