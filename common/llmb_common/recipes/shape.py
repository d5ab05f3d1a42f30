"""The numbers of a model that the rules of divisibility ask for, whoever describes it."""

from __future__ import annotations

import re
from typing import Literal, Protocol

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


class Kind(msgspec.Struct, frozen=True, array_like=True):
    """One kind of layer of a function's model: attention or what takes its place, ``dense`` or ``experts`` or nothing
    after it, and weights: of matrices that TP divides, of routed experts, and the rest."""

    mixer: Literal["attention", "latent", "mamba", "delta", ""]
    mlp: Literal["dense", "experts", ""]
    divided: int
    routed: int
    whole: int


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """The layers of a function's model in order (``3a58b``), and sizes inside them, as its catalogue says them.

    ``latent``: ranks of queries and keys, head, position and value of a head; ``mamba``: heads, their size, groups,
    state; ``delta``: heads of keys, their size, heads of values, their size. ``encoder``: weights of the first stage.
    """

    order: str
    kinds: dict[str, Kind]
    head_dim: int
    gated: bool
    expert_hidden: int | None = None
    latent: tuple[int, int, int, int, int] | None = None
    mamba: tuple[int, int, int, int] | None = None
    delta: tuple[int, int, int, int] | None = None
    encoder: int = 0

    @property
    def in_order(self) -> list[Kind]:
        runs = re.findall(r"([0-9]*)([a-z])", self.order)
        return [self.kinds[letter] for count, letter in runs for _ in range(int(count or 1))]


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
