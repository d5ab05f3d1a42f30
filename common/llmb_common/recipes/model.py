"""What a recipe says of a model: its architecture, or that a function has it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from llmb_common.request.columns import Positive

Ratio = Annotated[float, msgspec.Meta(gt=0)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]


class MoE(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Experts of a mixture-of-experts model. ``every`` 2: every second layer is MoE, starting with the second."""

    experts: Positive
    top_k: Positive
    ffn: Positive
    shared_ffn: Positive | None = None
    every: Positive = 1
    router: Literal["softmax", "sigmoid"] = "softmax"
    pre_softmax: bool = False
    aux_loss: float = 0.0
    capacity_factor: Ratio = 1.0
    probabilities_on_input: bool = False


class Architecture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A transformer, in the numbers that Megatron needs. Becomes ``architecture`` of job.json unchanged."""

    layers: Positive
    hidden: Positive
    ffn: Positive
    heads: Positive
    query_groups: Positive
    head_dim: Positive
    vocabulary: Positive
    activation: Literal["silu", "squared_relu"]
    gated: bool
    norm: Literal["rmsnorm", "layernorm"]
    norm_epsilon: Ratio
    zero_centered_gamma: bool = False
    rope_base: Positive
    rope_scaling: Ratio | None = None
    rotary_percent: Ratio = 1.0
    rope_interleaved: bool = False
    no_rope_interval: Positive | None = None
    attention_chunk: Positive | None = None
    tied_embeddings: bool = False
    init_std: Ratio = 0.02
    moe: MoE | None = None


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the documents say of checkpoints of one size: printed size, GPU counts, smallest count tested to load."""

    printed_size: str
    scales: tuple[Positive, Positive]
    load_minimum: Positive
    warning: str = ""
    """What speaks against checkpoints of this size, one clause; a plan that saves or loads one repeats it."""


class Reduced(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The numbers of a reduced copy of a function's model: everything else stays as the function has it."""

    layers: Positive
    hidden: Positive
    experts: Positive | None = None


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model size. ``parameters`` is the exact count of the real model, as the tests measure it; None: not known."""

    size: Name
    title: str
    parameters: Positive | None = None
    sequence_length: Positive
    architecture: Architecture | None = None
    """None: rows of this size name a function of the recipe's catalogue, which has it."""
    reduced: Reduced | None = None
    """A copy of the function's model that is small enough for a CPU."""
    checkpoint: Checkpoint | None = None
    large: bool = False
    """70b and larger: NVIDIA's scripts set ``NCCL_P2P_NET_CHUNKSIZE`` for these where PP > 1."""

    @property
    def listed(self) -> Architecture:
        """The architecture of a model that the recipe itself describes."""
        assert self.architecture is not None, f"{self.size} is described by a function"
        return self.architecture
