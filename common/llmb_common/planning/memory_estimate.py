"""What a rank of each pipeline stage holds at its peak, part by part, and which layers a stage has."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from llmb_common.planning.divisibility import Layout, pipeline_slots
from llmb_common.planning.job_plan import StageMemory
from llmb_common.planning.memory_layers import Body, Layer, Saved, Storage, element_count


class Stage(msgspec.Struct, frozen=True):
    """The layers that one pipeline stage holds, chunk by chunk, and the micro-batches that it holds for each.

    There is one chunk without virtual stages, else VP of them; the property ``layers`` is a tuple of the layers of
    all, in the order of chunks. ``stages_of`` makes all stages of a model.
    """

    chunks: tuple[tuple[Layer, ...], ...]
    under_way: tuple[int, ...]
    """For each chunk, how many micro-batches have run forward and not yet backward at the peak."""
    first: bool
    """Whether it is the first stage, which has the embedding."""
    last: bool
    """Whether it is the last stage, which has the loss."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of all chunks of this pipeline stage, in the order of chunks."""
        return tuple(chain.from_iterable(self.chunks))


def stages_of(body: Body, layout: Layout, counts: Sequence[int] | None = None, *, early: int = 0) -> list[Stage]:
    """Return the pipeline stages of a model in order, each with its layers; there are PP of them.

    Args:
        body: the model
        layout: the job's columns
        counts: number of layers of each chunk in the model's order, where a recipe says so itself: PP*VP numbers, which
            must add up to the model's layers (not checked). None, or another number of chunks: as evenly as Megatron
            would
        early: micro-batches that an interleaved schedule starts before its usual ones; without VP it changes nothing

    Raises:
        ZeroDivisionError: there are fewer GPUs than one replica of the model takes
    """
    layers, parts = len(body.layers), layout.pp * (layout.vp or 1)
    slots = pipeline_slots(layers, layout.pp, layout.vp)
    if counts is not None and len(counts) == parts:
        sizes = list(counts)
    elif slots is None:  # where a function divides them in its own way
        edges = [layers * part // parts for part in range(parts + 1)]
        sizes = [end - start for start, end in pairwise(edges)]
    else:
        sizes = [slots // parts] * parts
        if slots > layers:  # of 126 layers in 128 slots the first and the last chunk have one less
            sizes[0] -= 1
            sizes[-1] -= 1
    ends = list(accumulate(sizes))
    pieces = [body.layers[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    return [
        Stage(
            tuple(pieces[rank :: layout.pp]),
            microbatches_under_way(layout, rank, early),
            first=rank == 0,
            last=rank == layout.pp - 1,
        )
        for rank in range(layout.pp)
    ]


def chunks_of(settings: Mapping[str, Any], layout: Layout, layers: int) -> tuple[int, ...] | None:
    """Return how many layers each pipeline chunk has, in the model's order, as the framework's settings say.

    ``settings`` are by name without section. They say so by ``pipeline_model_parallel_layout``, a list of names for
    each chunk, or a text in which ``t`` is a layer (``Et*4|(t*4|)*14tmL``); else by both
    ``num_layers_in_first_pipeline_stage`` and ``num_layers_in_last_pipeline_stage``, if there are three stages or
    more and no virtual ones; what is between is divided evenly, rounded down. ``layers`` is the model's number.
    None: they do not say, and all layers are divided evenly. Whether it fits ``layout`` and ``layers`` is not
    checked.
    """
    layout_text = settings.get("pipeline_model_parallel_layout")
    if isinstance(layout_text, str):
        expanded = re.sub(r"\(([^()]*)\)\*([0-9]+)", lambda found: found[1] * int(found[2]), layout_text)
        flat = re.sub(r"(.)\*([0-9]+)", lambda found: found[1] * int(found[2]), expanded)
        return tuple(chunk.count("t") for chunk in flat.split("|"))
    if layout_text:
        return tuple(chunk.count("decoder") for chunk in layout_text)
    first = settings.get("num_layers_in_first_pipeline_stage")
    last = settings.get("num_layers_in_last_pipeline_stage")
    if first is None or last is None or layout.pp < 3 or (layout.vp or 1) > 1:
        return None
    between = layout.pp - 2
    return (first, *[(layers - first - last) // between] * between, last)


def microbatches_under_way(layout: Layout, rank: int, early: int = 0) -> tuple[int, ...]:
    """Return, for each chunk of a pipeline stage, how many micro-batches it holds when its memory is fullest.

    That is at the end of its warm-up and one pass further. ``rank`` is the stage, from 0; ``early`` is how many
    passes the schedule starts before its usual ones, with interleaving only. Without VP it is a tuple of one
    number, else of VP. megatron-core 0.16 to 0.19, ``pipeline_parallel/schedules.py``: without interleaving a rank
    runs PP - rank - 1 forward passes ahead; with it 2(PP - rank - 1) + (VP - 1)PP, in groups of PP micro-batches a
    chunk.

    Raises:
        ZeroDivisionError: there are fewer GPUs than one replica of the model takes
    """
    vp = layout.vp or 1
    if vp == 1:
        return (min(layout.pp - rank, layout.ga),)
    ahead = 2 * (layout.pp - rank - 1) + (vp - 1) * layout.pp + early
    passes = min(ahead + 1, layout.ga * vp)
    of_chunks = Counter((turn // layout.pp) % vp for turn in range(passes))
    return tuple(of_chunks[chunk] for chunk in range(vp))


GIB = 2**30

_GATHERED_UNITS = 2
"""Layers that FSDP holds whole at once: the one in use and the next (``fsdp_double_buffer``)."""


class MemoryInput(Struct, frozen=True, kw_only=True):
    """Everything that the memory of a job depends on: model, layout, bytes per element, and what is not kept.

    ``job_of`` makes it of a plan. The property ``tokens`` is the number, a float, of one micro-batch's tokens that
    a rank gets, divided by CP, not yet by TP.
    """

    body: Body
    layout: Layout
    storage: Storage = Storage()
    """Bytes per element of each kind of number."""
    counts: tuple[int, ...] | None = None
    """Layers of each pipeline chunk in the model's order; None: divided evenly."""
    early: int = 0
    """Micro-batches that the schedule starts before its usual ones."""
    recomputed: frozenset[str] = frozenset()
    """Modules whose results are computed again, under megatron-core's names."""
    offloaded: frozenset[str] = frozenset()
    """Modules whose results are sent to the host, likewise."""
    instances: int = 1
    """Copies of what FSDP shards; 1: each element is on one rank. A number that does not divide DP counts as 1."""

    @property
    def tokens(self) -> float:
        """The tokens of one micro-batch that a rank of this job gets: divided by CP, not yet by TP."""
        return self.layout.seq_len * self.layout.mbs / self.layout.cp


def stages_memory(job: MemoryInput) -> tuple[StageMemory, ...]:
    """Return the peak memory of one rank of every pipeline stage, part by part in GiB, in the order of stages.

    Neighboring stages that are alike in layers and all parts are one entry (``first`` to ``last``), so that there may
    be fewer than PP.

    Raises:
        ZeroDivisionError: there are fewer GPUs than one replica of the model takes
    """
    found: list[StageMemory] = []
    for index, stage in enumerate(stages_of(job.body, job.layout, job.counts, early=job.early)):
        weights, gradients, optimizer, copies = _state_bytes(job, stage)
        activations = _activation_bytes(job, stage)
        logits, moment = _transient_bytes(job, stage)
        own = StageMemory(
            first=index,
            last=index,
            layers=len(stage.layers),
            weights=weights / GIB,
            gradients=gradients / GIB,
            optimizer=optimizer / GIB,
            activations=activations / GIB,
            logits=logits / GIB,
            dummy_gradients=_dummy_gradient_bytes(job, stage) / GIB,
            # The optimizer's step comes when activations are gone: its copies may be more than these.
            transient=max(moment, copies - activations - logits) / GIB,
        )
        if found and (found[-1].layers, found[-1].parts) == (own.layers, own.parts):
            own = replace(found.pop(), last=index)
        found.append(own)
    return tuple(found)


def _layers(job: MemoryInput, stage: Stage) -> tuple[Layer, ...]:
    """Return the layers of a pipeline stage of ``job``; those of the last one include the heads that predict
    further tokens.
    """
    return (*stage.layers, *job.body.heads) if stage.last else stage.layers


def _state_bytes(job: MemoryInput, stage: Stage) -> tuple[float, float, float, float]:
    """Return bytes on one rank of ``stage``: (weights, gradients, optimizer state, fp32 copies of gradients).

    They are not rounded. DP of the layout must not be 0.
    """
    layout, storage, body = job.layout, job.storage, job.body
    layers = _layers(job, stage)
    products = sum(layer.weights.divided for layer in layers) / layout.tp
    routed = sum(layer.weights.routed for layer in layers) / _expert_ranks(layout)
    others = sum(layer.weights.whole for layer in layers) + _end_weights(body, layout, stage)
    shards, expert_shards = layout.dp * layout.cp, (layout.expert_dp or 1)
    if layout.fsdp:
        copies = job.instances if layout.dp % job.instances == 0 else 1
        shards, expert_shards = shards // copies, max(expert_shards // copies, 1)
    parameter_shards, experts_held = (shards, expert_shards) if layout.fsdp else (1, 1)
    sharded = (products + others) / shards + routed / expert_shards
    weights = (products * storage.weights + others * storage.others) / parameter_shards
    weights += routed * storage.weights / experts_held
    gradients = storage.gradients * ((products + others) / parameter_shards + routed / experts_held)
    return weights, gradients, storage.optimizer * sharded, storage.copies * sharded


def _expert_ranks(layout: Layout) -> int:
    """Return the number of ranks among which the weights of the experts of a layer are divided."""
    return (layout.ep or 1) * (layout.etp or layout.tp)


def _end_weights(body: Body, layout: Layout, stage: Stage) -> float:
    """Return the number of weights on one rank of ``stage`` that belong to no layer: at both ends of the model.

    They are the embedding, the output layer, the last norm, what joins the heads for further tokens, and an encoder.
    """
    heads = len(body.heads) if stage.last else 0
    vocabularies = (stage.first or heads > 0) + stage.last
    count = vocabularies * body.vocabulary * body.hidden / layout.tp
    count += stage.last * body.final_norm + heads * 2 * body.hidden * body.hidden / layout.tp
    count += stage.first * body.encoder
    return count


def _activation_bytes(job: MemoryInput, stage: Stage) -> float:
    """Return the bytes on one rank of ``stage`` that all micro-batches under way have saved for their backward pass."""
    layout, total = job.layout, 0.0
    for chunk, count in zip(stage.chunks, stage.under_way, strict=True):
        kept = chunk[layout.recompute_layers :]
        inputs = (len(chunk) - len(kept)) * _hidden_bytes(job)
        # At the turn from forward to backward all that is offloaded has gone, and nothing has come back.
        saved = sum(_saved_bytes(job, layer) for layer in kept[layout.offload_layers :])
        total += count * (inputs + saved)
    if stage.last:
        of_heads = sum(_saved_bytes(job, layer) for layer in job.body.heads)
        total += (2 + 4 * job.body.further) * _hidden_bytes(job) + of_heads
    return total


def _hidden_bytes(job: MemoryInput) -> float:
    """Return the bytes on one rank of the hidden states of one micro-batch between two layers, in bf16, divided by
    TP.
    """
    return 2 * job.body.hidden * job.tokens / job.layout.tp


def _saved_bytes(job: MemoryInput, layer: Layer) -> float:
    """Return the bytes on one rank that one micro-batch saves in one layer for its backward pass."""
    gathered = layer.expert_hidden * (job.layout.etp or job.layout.tp)  # by the ranks that share an expert
    copied = (*layer.expert, Saved(inputs=gathered, modules=("moe",), offload=("expert_fc1", "fused_group_mlp")))
    own = sum(_kept_bytes(job, saved) for saved in layer.saved)
    copies = layer.copies * sum(_kept_bytes(job, saved) for saved in copied)
    return job.tokens / job.layout.tp * (own + copies)


def _kept_bytes(job: MemoryInput, saved: Saved) -> float:
    """Return the bytes that are kept of ``saved`` for one token, undivided; 0 where that is recomputed or offloaded.

    Attention keeps its output a second time where the product after it has it in FP8, and with CP, where ranks
    exchange it (all-to-all, Transformer Engine 2.8 and later).
    """
    if not job.recomputed.isdisjoint(saved.modules) or not job.offloaded.isdisjoint(saved.offload):
        return 0.0
    inputs = job.storage.inputs
    output = 2.0 if inputs == 2 else 2 + inputs
    if job.layout.cp > 1 and inputs == 2:
        output += 2
    return 2 * saved.plain + inputs * saved.inputs + 4 * saved.single + output * saved.output


def _transient_bytes(job: MemoryInput, stage: Stage) -> tuple[float, float]:
    """Return bytes on one rank of ``stage`` that live at the peak only: (logits, all else).

    Logits are 0 but on the last stage. The peak is at the backward pass of the last layer, or of what comes after it.
    """
    layout, body = job.layout, job.body
    gathered_hidden = 2 * body.hidden * job.tokens  # hidden states that TP's ranks have gathered
    layers = set(_layers(job, stage))
    in_layer = max((_layer_transient_bytes(job, layer) for layer in layers), default=0.0)
    in_layer += (layout.pp > 1) * _hidden_bytes(job) + _gathered_bytes(job, stage)
    if not stage.last:
        return 0.0, in_layer
    logits = job.storage.logits * (1 + body.further) * job.tokens * body.vocabulary / layout.tp
    buffer = gathered_hidden if layout.tp > 1 else 0.0  # megatron-core keeps it
    own_hidden = _hidden_bytes(job) if layout.tp > 1 else 0.0
    at_end = gathered_hidden + buffer + own_hidden + _gathered_bytes(job, stage)
    return logits, max(at_end, in_layer + buffer - logits)


def _layer_transient_bytes(job: MemoryInput, layer: Layer) -> float:
    """Return the most bytes on one rank that gradients inside one layer take, of one micro-batch.

    That is at the first product of its MLP, or at the tokens before and after each exchange with the experts.
    """
    layout, tokens = job.layout, job.tokens / job.layout.tp
    gathered_hidden = 2 * job.body.hidden * job.tokens
    in_mlp = 2 * layer.wide * tokens
    in_exchange = 2 * layer.copies * (layer.expert_wide + 4 * layer.expert_hidden) * tokens
    moments = [in_mlp, in_exchange]
    if layout.tp > 1:
        moments += [gathered_hidden + layer.wide * tokens, 2 * gathered_hidden - layer.wide * tokens]
    again = _saved_bytes(job, layer) if layout.recompute_layers else 0.0
    return max(moments) + _hidden_bytes(job) + again


def _gathered_bytes(job: MemoryInput, stage: Stage) -> float:
    """Return the bytes of the layers of ``stage`` that FSDP holds whole on a rank at the peak, with their gradients.

    The largest layer counts, as often as layers are held at once; 0 without FSDP.
    """
    if not job.layout.fsdp:
        return 0.0
    layout, storage = job.layout, job.storage
    expert_ranks = _expert_ranks(layout)
    sizes = [layer.weights.divided / layout.tp + layer.weights.routed / expert_ranks for layer in stage.layers]
    largest = max(sizes, default=0.0)
    return _GATHERED_UNITS * largest * (storage.weights + storage.gradients)


def _dummy_gradient_bytes(job: MemoryInput, stage: Stage) -> float:
    """Return the bytes on one rank of ``stage`` of the placeholders for gradients that are accumulated elsewhere.

    0 with FSDP. Transformer Engine keeps one for each shape of a weight, since 2.3 (``get_dummy_wgrad``); of experts
    since 2.10. The output layer has one, too (megatron-core, ``tensor_parallel/layers.py``).
    """
    layout, body = job.layout, job.body
    if layout.fsdp:
        return 0.0
    layers = set(_layers(job, stage))
    shapes = frozenset(chain.from_iterable(layer.shapes for layer in layers))
    expert_shapes = frozenset(chain.from_iterable(layer.expert_shapes for layer in layers))
    dense = element_count(shapes) / layout.tp
    experts = element_count(expert_shapes) / (layout.etp or layout.tp)
    output_layer = stage.last * body.vocabulary * body.hidden / layout.tp
    return 2 * (dense + experts + output_layer)
