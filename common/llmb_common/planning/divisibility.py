"""Who must divide whom: every arithmetic rule that Megatron asserts, checked before anything queues.

Sources: megatron-core 0.16 ``ModelParallelConfig``/``TransformerConfig.__post_init__``, ``parallel_state`` and
``num_microbatches_calculator``; Megatron-Bridge 0.3 ``ConfigContainer.validate``. Two of them (EP against experts,
layers against PP and VP) Megatron finds only while building the model, that is on 1024 GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from msgspec.structs import replace

from llmb_common.base.errors import RequestError
from llmb_common.planning.request.variables import COLUMNS, variable_of
from llmb_common.recipes.columns import Columns, Positive, Work
from llmb_common.recipes.model import AnyShape


class Layout(Columns[int], frozen=True, kw_only=True):
    """The layout columns of one job (TP, PP, CP, batch sizes and so on), resolved for its number of GPUs.

    The fields are those of ``Columns``, of which ``vp``, ``ep`` and ``etp`` may be None (not used), ``seq_len``
    (sequence length in tokens) and ``gpus``, the number in all. Three properties follow from them, rounded down, as
    nothing is refused where they do not divide: ``dp`` is the data-parallel size (0: too few GPUs for one replica),
    ``ga`` the number of micro-batches that a rank runs in a step (ZeroDivisionError where ``dp`` is 0),
    ``expert_dp`` the data-parallel size of experts (None: ``ep`` is None).
    """

    seq_len: Work[Positive]
    gpus: int

    @property
    def dp(self) -> int:
        """The data-parallel size of this layout: how many replicas of the model share the batch, rounded down.

        0 where there are fewer GPUs than one replica takes.
        """
        return self.gpus // (self.tp * self.pp * self.cp)

    @property
    def ga(self) -> int:
        """The gradient accumulation of this layout: the number of micro-batches that a rank runs in one step.

        It is rounded down.

        Raises:
            ZeroDivisionError: there are fewer GPUs than one replica of the model takes
        """
        return self.gbs // (self.mbs * self.dp)

    @property
    def expert_dp(self) -> int | None:
        """The data-parallel size of this layout's experts: how many replicas of each expert there are, rounded down.

        Where ``etp`` is None, TP counts as ETP. None: ``ep`` is None.
        """
        if self.ep is None:
            return None
        return self.gpus // (self.pp * self.ep * (self.etp or self.tp))


assert Layout.__struct_fields__ == (*COLUMNS.values(), "gpus")  # which help texts need before msgspec

Broken = Iterator[tuple[str, str]]
"""Rules that are broken, each with its remedy."""


def refuse_first(broken: Broken) -> None:
    """Raise for the first (message, remedy) that ``broken`` yields; return None where it yields none.

    Raises:
        RequestError: code ``does-not-divide``: there is a broken rule
    """
    for message, remedy in broken:
        raise RequestError(message, remedy=remedy, code="does-not-divide")


def broken_rules(layout: Layout, model: AnyShape, family: str) -> Broken:
    """Yield (what is wrong, what to do) for every rule that a layout breaks for a model that a recipe lists.

    Nothing for a valid layout. ``model`` has the numbers of the model; by the recipe's ``family`` CUDA graphs
    capture whole iterations or single layers.

    Raises:
        ZeroDivisionError: only after the first problem, where there are fewer GPUs than one replica takes
    """
    yield from of_numbers(layout, model)
    if pipeline_slots(model.layers, layout.pp, layout.vp) is None:
        parts = f"PP*VP = {layout.pp}*{layout.vp}" if layout.vp else f"PP = {layout.pp}"
        layers = f"neither {model.layers} layers nor {model.layers + 2} (with embedding and loss)"
        yield f"{layers} are divisible by {parts}", "choose other PP, VP"
    yield from of_memory_savers(layout, model)
    yield from _of_graphs(layout, whole_iteration=captures_iterations(family))


def captures_iterations(family: str) -> bool:
    """Return whether CUDA graphs of a recipe's ``family`` capture whole iterations, not single layers.

    True for ``llama3``; False for every other name.
    """
    return family == "llama3"


def of_numbers(c: Layout, a: AnyShape) -> Broken:
    """Yield (what does not divide, what to do) for a layout and a model; nothing where all divides.

    How layers are divided among pipeline stages is not looked at. ``c`` is the job's layout, ``a`` has the numbers of
    the model.

    Raises:
        ZeroDivisionError: only after the first problem, where there are fewer GPUs than one replica takes
    """
    yield from _of_world(c)
    yield from _of_tensors(c, a)
    yield from _of_sequence(c, a.attention_chunk)
    yield from _of_batches(c)
    yield from _of_experts(c, a)


def of_ranks(c: Layout) -> Broken:
    """Yield (what does not divide, what to do) by the rules that hold for every model: GPUs, sequence and batch.

    Nothing where all divides. ``c`` is the job's layout.

    Raises:
        ZeroDivisionError: only after the first problem, where there are fewer GPUs than one replica takes
    """
    yield from _of_world(c)
    yield from _of_sequence(c)
    yield from _of_batches(c)


def divides_at_all(layout: Layout) -> bool:
    """Return whether GPUs, sequence, batch and experts' ranks of a layout divide, whatever the model; raises nothing.

    It is a quick look before a job with this layout is planned; planning may still refuse what it lets pass.
    """
    if next(of_ranks(layout), None) is not None:
        return False
    # The experts' rule of any model that has some, with the least ETP.
    return layout.gpus % (layout.pp * (layout.ep or 1) * (layout.etp or 1)) == 0


def _of_world(c: Layout) -> Broken:
    """Yield (what is wrong, what to do) where TP*PP*CP does not divide the number of GPUs; else nothing.

    ``c`` is the job's layout.
    """
    model_parallel = c.tp * c.pp * c.cp
    if c.gpus % model_parallel:
        message = f"{c.gpus} GPUs are not divisible by TP*PP*CP = {c.tp}*{c.pp}*{c.cp} = {model_parallel}"
        yield message, f"use a multiple of {model_parallel} GPUs, or other TP, PP, CP"


def _of_tensors(c: Layout, a: AnyShape) -> Broken:
    """Yield (what is wrong, what to do) for each size of the model that TP does not divide; nothing where it
    divides all.

    These are its heads, FFN, vocabulary and shared expert's FFN, as far as it has them, and its query groups, of
    which TP may instead be a multiple. ``c`` is the job's layout, ``a`` has the numbers of the model.
    """
    divided = {"attention heads": a.heads, "FFN size": a.ffn, "vocabulary": a.vocabulary}
    if a.moe is not None and a.moe.shared_ffn is not None:
        divided["shared expert's FFN size"] = a.moe.shared_ffn
    for what, count in divided.items():
        if count is not None and count % c.tp:
            yield f"TP={c.tp} does not divide the {what} of {count}", "choose a TP that divides it"
    if a.query_groups % c.tp and c.tp % a.query_groups:
        groups = f"the {a.query_groups} query groups"
        yield f"TP={c.tp} neither divides {groups} nor is a multiple of them", "choose a TP that does"


def _of_sequence(c: Layout, attention_chunk: int | None = None) -> Broken:
    """Yield (what is wrong, what to do) where a sequence cannot be divided among the ranks of TP and CP; else nothing.

    TP*CP must divide it where TP is above 1, and 2*CP where CP is. A sequence longer than ``attention_chunk``
    tokens (None: the model has no chunks) also needs CP=1, and must be a whole number of such chunks. ``c`` is the
    job's layout.
    """
    sequence = f"the sequence of {c.seq_len} tokens"
    if c.tp > 1 and c.seq_len % (c.tp * c.cp):
        yield f"{sequence} is not divisible by TP*CP = {c.tp * c.cp}", "choose other TP, CP"
    if c.cp > 1 and c.seq_len % (2 * c.cp):
        needs = f"needs a sequence length divisible by 2*CP = {2 * c.cp}; it is {c.seq_len}"
        yield f"CP={c.cp} {needs}", "choose another CP"
    if attention_chunk is None or c.seq_len <= attention_chunk:
        return
    if c.cp > 1:
        chunks = f"attention chunks of {attention_chunk} tokens: the sequence has {c.seq_len}"
        yield f"CP={c.cp} would cut the {chunks}", "set CP=1"
    if c.seq_len % attention_chunk:
        chunks = f"attention chunks of {attention_chunk} tokens"
        yield f"{sequence} is not a whole number of {chunks}", f"use at most {attention_chunk} tokens, or a multiple"


_TOKENS = {"mx": ("MXFP8", 32), "nvfp4": ("NVFP4", 16), "bf16": ("BF16", 1)}
"""Of what the tokens of a rank have to be a multiple in a precision, in other FP8 of 8: Transformer Engine 2.12 to
2.18, ``pytorch/csrc/quantizer.cpp`` (MXFP8, NVFP4) and ``assert_dim_for_fp8_exec`` in ``pytorch/utils.py``."""


def of_precision(c: Layout, precision: str) -> Broken:
    """Yield (what is wrong, what to do) where a rank's tokens are no multiple of what a precision needs; else nothing.

    That is 32 in MXFP8, 16 in NVFP4, 8 in other FP8, 1 in BF16; they are the tokens of one micro-batch, divided by
    TP and CP. ``precision`` is the FP8 scaling (``mx``, ``cs``, ...), or the dtype where it is not FP8; anything
    unknown counts as FP8. ``c`` is the job's layout.
    """
    word, unit = _TOKENS.get(precision, ("FP8", 8))
    shared = c.tp * c.cp
    if (c.seq_len * c.mbs) % (shared * unit):
        yield (
            f"a rank gets SEQ_LENGTH*MBS/(TP*CP) = {c.seq_len}*{c.mbs}/{shared} tokens, and {word} needs a multiple of "
            f"{unit}",
            f"use a multiple of {shared * unit} as SEQ_LENGTH, or other MBS, TP, CP",
        )


def pipeline_slots(layers: int, pp: int, vp: int | None) -> int | None:
    """Return the number of layer slots that the pipeline stages share: ``layers``, or two more.

    The first of these that PP*VP divides (None as ``vp`` counts as 1); None: it divides neither. The two more are
    embedding and loss, which Megatron's ``account_for_embedding_in_pipeline_split`` and
    ``account_for_loss_in_pipeline_split`` count as layers; so 126, 62 and 30 layers divide.
    """
    chunks = pp * (vp or 1)
    for slots in (layers, layers + 2):
        if slots % chunks == 0:
            return slots
    return None


def _of_batches(c: Layout) -> Broken:
    """Yield (what is wrong, what to do) where micro-batches do not fit interleaved stages, or not the global batch.

    VP above 1 needs PP above 1, and a number of micro-batches that PP divides; MBS*DP must divide GBS. ``c`` is the
    job's layout.

    Raises:
        ZeroDivisionError: there are fewer GPUs than one replica of the model takes
    """
    each = c.mbs * c.dp
    if c.vp is not None and c.vp > 1:
        if c.pp == 1:
            yield f"VP={c.vp} needs PP > 1", "set VP=NA, or a larger PP"
        # Where GBS does not divide at all, ``ga`` is rounded, and the rule below says so.
        if c.gbs % each == 0 and c.ga % c.pp:
            batches = f"the micro-batches of a step (GBS/(MBS*DP) = {c.ga})"
            yield f"with VP {batches} must be divisible by PP = {c.pp}", "choose another GBS, or set VP=NA"
    if c.gbs % each:
        message = f"GBS={c.gbs} is not divisible by MBS*DP = {c.mbs}*{c.dp} = {each}"
        yield message, f"use a multiple of {each} as GBS, or another MBS"


def _of_experts(c: Layout, a: AnyShape) -> Broken:
    """Yield (what is wrong, what to do) where EP and ETP do not divide the experts, their FFN size or the GPUs;
    else nothing.

    Where ``c.etp`` is None, TP counts as ETP. For a model without experts it is wrong that EP or ETP is above 1.
    ``c`` is the job's layout, ``a`` has the numbers of the model.
    """
    if a.moe is None:
        for name, value in (("EP", c.ep), ("ETP", c.etp)):
            if value is not None and value > 1:
                yield f"{name}={value}: this model has no experts", f"unset {name}"
        return
    ep, etp = c.ep or 1, c.etp or c.tp
    if a.moe.experts % ep:
        yield f"EP={ep} does not divide the {a.moe.experts} experts", "choose an EP that divides them"
    if a.moe.ffn % etp:
        yield f"ETP={etp} does not divide the experts' FFN size {a.moe.ffn}", "choose another ETP"
    if c.gpus % (product := etp * ep * c.pp):
        message = f"{c.gpus} GPUs are not divisible by ETP*EP*PP = {etp}*{ep}*{c.pp} = {product}"
        yield message, "choose other EP, ETP"


def of_memory_savers(c: Layout, a: AnyShape) -> Broken:
    """Yield (what is wrong, what to do) where recomputation, offload or FSDP does not go with the rest of the layout.

    Offload and FSDP each need a PP of 1, offload excludes recomputation and must leave a layer, and recomputation
    takes at most the layers of a stage. Nothing where all go together. ``c`` is the job's layout, ``a`` has the
    numbers of the model.
    """
    offload = f"OFFLOAD_LAYERS={c.offload_layers}"
    recompute = f"RECOMPUTE_LAYERS={c.recompute_layers}"
    if c.offload_layers and c.pp > 1:
        yield f"{offload} needs PP=1", "set OFFLOAD_LAYERS=0, or PP=1"
    if c.offload_layers >= a.layers:
        yield f"{offload} is not less than the {a.layers} layers", "choose a smaller number"
    if c.offload_layers and c.recompute_layers:
        yield "OFFLOAD_LAYERS and RECOMPUTE_LAYERS cannot be combined", "set one of them to 0"
    # Layers that do not divide are another rule's business.
    stage = (pipeline_slots(a.layers, c.pp, c.vp) or a.layers) // c.pp
    if c.recompute_layers > stage:
        yield f"{recompute} is more than the {stage} layers of a pipeline stage", f"choose at most {stage}"
    if c.fsdp and c.pp > 1:
        yield "FSDP needs PP=1", "set FSDP=false, or PP=1"


def _of_graphs(c: Layout, *, whole_iteration: bool) -> Broken:
    """Yield (what is wrong, what to do) for each setting that cannot be combined with CUDA graphs, if ``c.cuda_graph``.

    That is offload, FSDP and, unless ``whole_iteration``, recomputation. ``whole_iteration``: the graphs capture
    whole iterations, else single layers. Nothing where graphs are off. ``c`` is the job's layout.
    """
    if not c.cuda_graph:
        return
    if c.offload_layers:
        message = f"CUDA_GRAPH and OFFLOAD_LAYERS={c.offload_layers} cannot be combined"
        yield message, "set CUDA_GRAPH=false, or OFFLOAD_LAYERS=0"
    if c.recompute_layers and not whole_iteration:
        message = f"CUDA_GRAPH and RECOMPUTE_LAYERS={c.recompute_layers} cannot be combined"
        yield f"{message}: graphs cover single layers", "set CUDA_GRAPH=false, or RECOMPUTE_LAYERS=0"
    if c.fsdp:
        yield graphs_with_fsdp()


def graphs_with_fsdp() -> tuple[str, str]:
    """Return (what is wrong, what to do): that CUDA graphs of any kind and FSDP cannot be combined.

    By the sources at core_v0.16.0 to core_v0.19.0. 0.16 starts an all-gather in each optimizer step
    (distrib_optimizer.py:2609, megatron_fsdp.py:1117) that the captured forward waits for. 0.17 can leave it out
    (fsdp_all_gather_in_start_param_sync, pull request 3095), but drops param.grad, which a replay writes to. 0.18 can
    keep it (megatron_fsdp_cuda_graph_mode, 4663). Bridge 0.5 and 0.6 set neither, Megatron-LM itself both.
    """
    message = "CUDA_GRAPH and FSDP cannot be combined: no known Megatron-Bridge can capture Megatron-FSDP"
    return message, "set CUDA_GRAPH=false, or FSDP=false"


_FURTHEST = 256
"""Values that are tried on either side."""


def with_nearest(
    error: RequestError, layout: Layout, requested: Iterable[str], check: Callable[[Layout], None]
) -> RequestError:
    """Return ``error`` itself, with the nearest valid values added to its remedy: " (nearest: TP 4 or 8, GBS 512)".

    ``requested`` has the names of the columns (``tp``, ``seq_len``) that the user set, fields of ``Layout``.
    Suggested are values of each of them but for switches, or of the number of GPUs where it has none; each value is
    tried with all else of ``layout`` as it is. ``check`` is called with a layout, and raises a RequestError (or a
    ZeroDivisionError) if that is not valid; any other error of it comes out. Without a valid value nearby the
    remedy stays as it is.
    """
    # Switches have no nearest value.
    names = [name for name in requested if name not in ("fsdp", "cuda_graph")] or ["gpus"]
    valid = {name: " or ".join(map(str, _nearest_valid(layout, name, check))) for name in names}
    called = {name: "JOB_TOTAL_GPUS" if name == "gpus" else variable_of(name) for name in names}
    suggestions = [f"{called[name]} {found}" for name, found in valid.items() if found]
    if suggestions:
        error.remedy += f" (nearest: {', '.join(suggestions)})"
    return error


def _nearest_valid(layout: Layout, name: str, check: Callable[[Layout], None]) -> Iterator[int]:
    """Yield the nearest valid value of the column ``name`` below the layout's own, then the nearest above.

    ``name`` may be ``gpus``; ``check`` raises a RequestError for a layout that is not valid. A column of None
    counts as 1. Values are tried from 1 on (numbers of layers from 0); of GPUs, GBS and sequence length only
    multiples that may divide. Either is left out where none of the 256 values tried on that side is valid.
    """
    own: int = getattr(layout, name) or 1
    least = 0 if name in ("recompute_layers", "offload_layers") else 1
    # Only multiples can be valid, so that others need no trial.
    divides = {
        "gbs": layout.mbs * max(layout.dp, 1),
        "gpus": layout.tp * layout.pp * layout.cp,
        "seq_len": 2 * layout.cp * layout.tp,
    }
    unit = divides.get(name, 1)
    multiple = own - own % unit
    first_below = multiple if multiple < own else own - unit
    below = range(first_below, least - 1, -unit)
    above = range(multiple + unit, own + unit * _FURTHEST, unit)
    for side in (below, above):
        valid = (value for value in side[:_FURTHEST] if _is_valid(layout, name, value, check))
        yield from islice(valid, 1)


def _is_valid(layout: Layout, name: str, value: int, check: Callable[[Layout], None]) -> bool:
    """Return whether ``check`` accepts the layout with ``value`` in the column ``name``, or as the number of ``gpus``.

    A RequestError of ``check`` means no, and so does a division by zero where too few GPUs are left. With another
    number of GPUs the global batch grows or shrinks with it, if that divides. ``layout`` is not changed.
    """
    changed = replace(layout, **{name: value})
    if name == "gpus" and layout.gbs * value % layout.gpus == 0:  # each replica keeps its part of the batch
        changed = replace(changed, gbs=layout.gbs * value // layout.gpus)
    try:
        check(changed)
    # A value can leave fewer GPUs than one replica takes, and then DP is 0.
    except (RequestError, ZeroDivisionError):
        return False
    return True
