"""Jobs that call a function of Megatron-Bridge: what of it goes into the plan, and what does not go with it.

Sources of the rules: megatron-core 0.19.0, ``TransformerConfig.__post_init__`` and
``transformer_block.get_num_layers_to_build``; Megatron-Bridge 0.6.0, ``training/config.py`` and
``training/comm_overlap.py``. ``tests/training/random_jobs.py`` puts random jobs to both. What only fails when the model
is built, or at its first step, names its source where it is checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from llmb_common.base.errors import RequestError
from llmb_common.base.gpus import GPUS
from llmb_common.planning.choose import Case
from llmb_common.planning.divisibility import (
    Layout,
    broken_rules,
    of_memory_savers,
    of_numbers,
    of_precision,
    of_ranks,
    refuse_first,
)
from llmb_common.planning.function_stages import check_stages, divides_stages, ends_of, other_stages, sharding_problems
from llmb_common.planning.job_plan import PlannedFunction
from llmb_common.planning.tensor_overlap import overlap_problems
from llmb_common.recipes.catalogue import FlopsPerToken, Function

_IMAGES = ("MockVLMSFTDatasetConfig", "EnergonDatasetConfig")
"""Data of which ranks may get none that counts."""

_DIFFUSION = ("WanDatasetConfig",)

_DEEPEP = ("b200", "b300")
"""Blackwell GPUs that DeepEP is for: those of HGX boards."""

HYBRID_DOMAIN = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"
"""Ranks of one expert group inside one NVLink domain, for the HybridEP dispatcher."""


def check_combinations(name: str | None, function: Function, layout: Layout) -> None:
    """Raise unless the function called ``name`` and the job's ``layout`` can be combined; the name begins the message.

    It covers what Megatron refuses, and what would fail on every rank later, of which some only for names that
    begin with ``gpt_oss``. ``name`` None, for a function without one, reads ``None`` in the message. Nothing is
    changed.

    Raises:
        RequestError: code ``does-not-divide``: the first thing that cannot be combined, with what to do
    """
    broken = chain(_refusals(function, layout), _late_failures(name or "", function, layout))
    refuse_first((f"{name}: {message}", remedy) for message, remedy in broken)


def _refusals(function: Function, c: Layout) -> Iterator[tuple[str, str]]:
    """Yield (what is wrong, what to do) for everything that Megatron would refuse of ``function`` in the job's
    layout ``c``.

    The first is a clause to follow the function's name and a colon. Nothing if Megatron takes it.
    """
    settings = function.settings
    if c.fsdp != function.columns.fsdp:
        yield from sharding_problems(function, c)
    if not divides_stages(function, c):
        ends = ends_of(function)
        counted = f"{function.architecture.layers + len(ends)} layers"
        counted += f" ({' and '.join(ends)} counted)" if ends else ""
        by = f"PP*VP = {c.pp}*{c.vp}" if (c.vp or 1) > 1 else f"PP = {c.pp}"
        yield f"{counted} are not divisible by {by}", "choose other PP, VP"
    if _overlaps_exchange(function):
        if (c.ep or 1) == 1:
            yield "its overlap of the experts' exchange needs EP > 1", "choose an EP of at least 2"
        if c.pp > 1 and (c.vp or 1) == 1:
            remedy = "choose a VP of at least 2, or set PP=1"
            yield f"its overlap of the experts' exchange needs VP > 1 where PP={c.pp}", remedy
    yield from _saver_refusals(function, c)
    if settings.get("add_bias_linear") and function.architecture.moe is not None and (c.etp or c.tp) > 1:
        yield f"its experts have biases, which ETP={c.etp or c.tp} cannot divide", "set ETP=1"
    if c.cp > 1 and settings.get("dataset") in _IMAGES and settings.get("average_in_collective"):
        yield f"CP={c.cp}: on images Megatron-Bridge wants gradients not averaged, and it averages them", "set CP=1"
    delta = function.layers.delta if function.layers is not None else None
    for heads in (delta[0], delta[2]) if delta is not None else ():
        if heads % (c.tp * c.cp):
            yield f"TP*CP = {c.tp}*{c.cp} does not divide its {heads} linear heads", "choose others"


def _overlaps_exchange(function: Function) -> bool:
    """Return whether a function computes while its experts exchange tokens."""
    return bool(function.settings.get("overlap_moe_expert_parallel_comm"))


def _saver_refusals(function: Function, c: Layout) -> Iterator[tuple[str, str]]:
    """Yield (what is wrong, what to do) where RECOMPUTE_LAYERS or OFFLOAD_LAYERS excludes something of ``function``.

    As ``_refusals`` does. ``c`` is the job's layout; a column that is as the function has it is not looked at.
    """
    own = function.columns
    settings = function.settings
    by_module = settings.get("recompute_granularity") == "selective" and c.recompute_layers == own.recompute_layers
    graphs = bool(c.cuda_graph) and not function.captures_iterations
    of_graphs = (graphs, "CUDA graphs of single modules", ", or CUDA_GRAPH=false")
    excluded = {
        "recompute_layers": (
            of_graphs,
            (_overlaps_exchange(function), "overlap of the experts' exchange", ""),
        ),
        "offload_layers": (
            (by_module, "recomputation of modules", ""),
            of_graphs,
            (bool(settings.get("moe_paged_stash")), "stash of the experts' activations", ""),
        ),
    }
    for column, others in excluded.items():
        layers = getattr(c, column)
        if not layers or layers == getattr(own, column):
            continue
        variable = column.upper()
        for is_there, what, also in others:
            if is_there:
                yield f"{variable}={layers} and its {what} cannot be combined", f"set {variable}=0{also}"


def _late_failures(name: str, function: Function, c: Layout) -> Iterator[tuple[str, str]]:
    """Yield (what fails, what to do) for what Megatron's validation lets pass and what then fails on every rank.

    Nothing if all goes well. ``name`` is the function's, ``c`` the job's layout. Mamba: megatron-core 0.16 to 0.19,
    ``ssm/mamba_mixer.py`` and ``ssm/mamba_context_parallel.py``. Dispatchers: core 0.19,
    ``MoEFlexTokenDispatcher``. GPT-OSS: Bridge 0.6's recipes of it exchange attention heads (``cp_comm_type`` a2a),
    which Transformer Engine 2.12 to 2.18 divides by CP (``context_parallel.py``, ``AttnFuncWithCPAndQKVOA2A``).
    """
    a = function.architecture
    layers = function.layers
    settings = function.settings
    if layers is not None and layers.mamba is not None:
        heads, _, groups, _ = layers.mamba
        if heads % (c.tp * c.cp):
            yield f"TP*CP = {c.tp}*{c.cp} does not divide its {heads} Mamba heads", "choose others"
        if groups % c.tp:
            yield f"TP={c.tp} does not divide its {groups} Mamba groups", "choose another TP"
    if name.startswith("gpt_oss") and c.cp > 1 and a.query_groups % (c.tp * c.cp):
        exchanged = f"its {a.query_groups} query groups, which ranks exchange"
        yield f"TP*CP = {c.tp}*{c.cp} does not divide {exchanged}", "choose others"
    backend = settings.get("moe_flex_dispatcher_backend")
    flex = a.moe is not None and settings.get("moe_token_dispatcher_type") == "flex"
    is_one_rank = c.tp * (c.ep or 1) == 1
    if flex and backend != "hybridep" and is_one_rank:
        yield f"its exchange of tokens ({backend}) needs TP*EP > 1", "choose a larger EP or TP"
    yield from _low_precision_failures(function, c)


class _DividedProduct(NamedTuple):
    """A matrix product of a model whose columns ranks share."""

    what: str
    """Such as ``experts``."""
    size: int
    """Its columns in all."""
    variable: str
    """The layout's column that divides it, such as ``TP``."""
    ranks: int
    """The value of that."""


def _low_precision_failures(function: Function, c: Layout) -> Iterator[tuple[str, str]]:
    """Yield (what fails, what to do) for products whose part on a rank is too odd for FP8 or NVFP4.

    As ``_late_failures`` does; nothing in BF16. ``c`` is the job's layout. Transformer Engine 2.12 to 2.18 takes
    multiples of 32 in MXFP8 (``pytorch/csrc/quantizer.cpp``), of 16 in other FP8 (``pytorch/utils.py``,
    ``assert_dim_for_fp8_exec``) and in NVFP4 (``quantizer.cpp``).
    """
    a = function.architecture
    layers = function.layers
    precision = str(function.settings.get("precision"))
    if layers is None or not ("fp8" in precision or "fp4" in precision):
        return
    if "mxfp8" in precision:
        word, unit = "MXFP8", 32
    else:
        word, unit = ("NVFP4" if "fp4" in precision else "FP8"), 16
    products: list[_DividedProduct] = []
    if any(kind.mlp == "dense" for kind in layers.kinds.values()):
        products.append(_DividedProduct("MLP", a.ffn or 0, "TP", c.tp))
    if a.moe is not None:
        products.append(_DividedProduct("experts", a.moe.ffn, "ETP", c.etp or c.tp))
        products.append(_DividedProduct("shared expert", a.moe.shared_ffn or 0, "TP", c.tp))
    for mixer, sizes in layers.scans.items():
        products += [_DividedProduct(f"{mixer} layers", size, "TP", c.tp) for size in sizes]
    for product in products:
        if product.ranks == 1 or product.size % product.ranks:
            continue  # that it does not divide is for others to say
        part = product.size // product.ranks
        if part % unit:
            divided = f"{product.variable}={product.ranks} leaves a rank {part} of the {product.size} columns"
            yield (
                f"{divided} of its {product.what}, and {word} needs a multiple of {unit}",
                f"choose a smaller {product.variable}, or DTYPE=bf16",
            )


def check_settings(
    name: str | None, function: Function, layout: Layout, requested: Mapping[str, Any], gpu_type: str
) -> None:
    """Raise unless Megatron takes the settings ``requested`` in the function ``name``, on GPUs of ``gpu_type``.

    ``requested`` is by section and field, ``model.recompute_modules``, with values as ``value_of`` reads them; behind
    the first dot is the function's own name of the setting. Settings that change nothing are not checked, and what
    the function's own settings conflict in is not held against the requested ones. ``layout`` is the job's; ``name``
    begins messages. ``gpu_type`` must be a GPU's, such as ``h100``, else there may be a KeyError. Nothing is changed.

    Raises:
        RequestError: code ``refused-by-megatron`` or ``does-not-divide``: Megatron would refuse them, or they would
            do nothing
    """
    changed = msgspec.structs.replace(
        function, settings=function.settings | {key.partition(".")[2]: value for key, value in requested.items()}
    )
    if changed.settings != function.settings:
        check_combinations(name, changed, layout)
        own = _conflicts(function, layout, {}, gpu_type)  # which NVIDIA answers for
        if found := [conflict for conflict in _conflicts(changed, layout, requested, gpu_type) if conflict not in own]:
            raise RequestError(f"{name}: {found[0]}", remedy="leave that out", code="refused-by-megatron")


def _conflicts(function: Function, c: Layout, requested: Mapping[str, Any], gpu_type: str) -> list[str]:
    """Return a clause for each conflict among a function's settings, or of them with the layout; empty: there are none.

    ``requested`` has the user's settings by section and field (``model.recompute_modules``), of which some do
    nothing without others; ``function`` must have them among its settings already. ``c`` is the job's layout,
    ``gpu_type`` must be a GPU's, else there is a KeyError. Backends of the flexible dispatcher: Bridge's
    ``training/flex_dispatcher_backend.py`` and core's ``MoEFlexTokenDispatcher``.
    """
    settings = function.settings
    moe = function.architecture.moe
    layers = function.layers
    dispatcher = settings.get("moe_token_dispatcher_type")
    backend = settings.get("moe_flex_dispatcher_backend")
    flex = dispatcher == "flex"
    overlap = _overlaps_exchange(function)
    graphed = str([settings.get(f"cuda_graph_{key}") for key in ("scope", "modules")]) if c.cuda_graph else ""
    modules = (settings.get("recompute_modules") or []) if settings.get("recompute_granularity") == "selective" else []
    lacks: set[str] = set()
    if not moe:
        lacks.update(["moe", "moe_act", "shared_experts"])
    if layers is not None and not layers.latent:
        lacks.add("mla_up_proj")
    if layers is not None and not layers.delta:
        lacks.add("gdn_norm_out")
    deepep = GPUS[gpu_type].generation == "hopper" or gpu_type in _DEEPEP
    rules = (
        (
            bool(requested.get("model.recompute_modules")) and not modules,
            "model.recompute_modules does nothing without model.recompute_granularity=selective",
        ),
        ("model.moe_flex_dispatcher_backend" in requested and not flex, f"the {dispatcher} dispatcher has no backends"),
        (not lacks.isdisjoint(modules), f"it has no {', '.join(sorted(lacks & {*modules}))} to recompute"),
        (bool(modules and c.recompute_layers), "modules are recomputed where RECOMPUTE_LAYERS=0"),
        ("moe" in modules and "moe_router" in graphed, "moe is not recomputed around a graph of its router"),
        ((overlap or flex) and not moe, "it has no experts"),
        (overlap and dispatcher not in ("alltoall", "flex"), f"the {dispatcher} dispatcher is not overlapped"),
        (overlap and "moe" in modules, "the experts' exchange is not overlapped where moe is recomputed"),
        (overlap and ("'moe'" in graphed or "'mlp'" in graphed), "the overlap does not go with graphs of moe or mlp"),
        (overlap and function.architecture.mtp_layers > 1, "the overlap takes one head for further tokens at most"),
        (flex and backend == "deepep" and not deepep, f"DeepEP is not for {gpu_type}"),
        (flex and backend == "hybridep" and HYBRID_DOMAIN not in function.env, "it lacks the variables of HybridEP"),
        (
            bool(requested.get("comm_overlap.tp_comm_overlap")) and c.tp == 1,
            "the overlap of TP's exchange needs TP > 1",
        ),
    )
    return [message for broken, message in rules if broken]


def planned_function(case: Case, sequence_length: int) -> PlannedFunction | None:
    """Return the plan's record of the function that a job calls, on sequences of ``sequence_length`` tokens.

    None where the job has no function: the training code builds the model from its architecture. Adds to ``case``
    the notices that are known of the function; none for a small copy, or without a function.

    Raises:
        RecipeError: the recipe's catalogue or its file of validations is damaged
    """
    function = case.function
    name = case.row.function
    catalogue = case.recipe.catalogue
    if function is None or name is None or catalogue is None:
        return None
    is_full_size = case.model.reduced is None
    # A small copy has other FLOPs, which no catalogue has.
    flops = catalogue.flops(name, sequence_length) if is_full_size else FlopsPerToken()
    if is_full_size:  # what is written of it
        written = (notice for notice in case.recipe.notices if notice.functions in name)
        case.note(*(f"{name}: {notice.says} ({notice.source})" for notice in written))
        if (assumed := catalogue.assumed.get(function.hugging_face or "")) is not None:
            case.note(f"numbers of {function.hugging_face} that were not read from its config.json: {assumed}")
        if (refused := _refusal_reason(case, function)) is not None:
            release = f"Megatron-Bridge {catalogue.release}"
            case.note(f"{name} is refused by the Megatron of the recipe's image ({release}): {refused}")
    return PlannedFunction(
        name=name,
        release=catalogue.release,
        catalogue=catalogue.sha256,
        columns=function.columns,
        sequence_length=function.sequence_length,
        flops_per_token=flops.of_bridge,
        own_flops_per_token=flops.own,
        experts=function.architecture.moe is not None,
        reduced=case.model.reduced,
        adapters=case.adapters,
    )


def check_columns(case: Case, layout: Layout) -> None:
    """Raise for the first problem if the model of ``case`` cannot be divided as ``layout`` has it, or columns
    exclude each other.

    Raises:
        RequestError: a number does not divide, a column cannot be changed, or Megatron refuses the function
        RecipeError: the recipe's file of validations is damaged
    """
    if case.function is None:
        rules = broken_rules(layout, case.shape, case.recipe.family)
        refuse_first(chain(rules, of_precision(layout, case.precision), overlap_problems(case, layout)))
    else:
        _check_function_layout(case, case.function, layout)


def _check_function_layout(case: Case, function: Function, layout: Layout) -> None:
    """Raise for the first problem if ``function``, that of ``case``, cannot run in ``layout``.

    Columns that the user changes are checked by all rules; the function's own, which NVIDIA chose, by arithmetic
    only. Of a small copy only GPUs, sequence and batch are looked at.

    Raises:
        RequestError: a number does not divide, a column cannot be changed, what the function needs is missing, or
            Megatron refuses it altogether (code ``refused-by-megatron``)
        RecipeError: the recipe's file of validations is damaged
    """
    given = case.request.columns
    if case.adapters and case.request.load_checkpoint is None:
        # Megatron-Bridge v0.6.0 ends with "PEFT requires a pretrained checkpoint path" (training/config.py:1483).
        raise RequestError(
            f"{case.row.function} trains adapters on a model, and no checkpoint of one is given",
            remedy=f"set {case.request.say('LOAD_CHECKPOINT_PATH')} to a Megatron checkpoint of {case.model.size}, "
            f"such as {case.request.say('ENABLE_CHECKPOINT')} saves",
            field="LOAD_CHECKPOINT_PATH",
        )
    if "seq_len" in given and function.settings.get("dataset") in (*_IMAGES, *_DIFFUSION):
        raise RequestError(
            f"SEQ_LENGTH={given['seq_len']}: {case.row.function} trains on images, whose tokens have a length of their "
            "own",
            remedy="leave SEQ_LENGTH out",
            field="SEQ_LENGTH",
        )
    if function.stages and case.model.reduced is None:
        check_stages(case.row.function, function, layout)
    if given.get("cuda_graph") and not function.columns.cuda_graph:
        raise RequestError(
            f"CUDA_GRAPH=true: {case.row.function} has no CUDA graphs, and there are several kinds of them",
            remedy="unset CUDA_GRAPH",
            field="CUDA_GRAPH",
        )
    if case.model.reduced is not None:
        refuse_first(of_ranks(layout))
        return  # the training code knows what a reduced copy divides into
    refuse_first(of_numbers(layout, case.shape))
    refused = _refusal_reason(case, function)
    # Another image may have a Megatron that takes the function.
    if refused is not None and case.request.image is None and not other_stages(function, layout, refused):
        release = case.recipe.catalogue.release if case.recipe.catalogue else ""
        raise RequestError(
            f"{case.row.function} is refused by Megatron itself (Megatron-Bridge {release}): {refused}",
            remedy=f"choose another {case.request.say('CONFIG_VARIANT')}, or set "
            f"{case.request.say('RUN_CONF_IMAGE')} to an image in which it is right",
            code="refused-by-megatron",
        )
    check_combinations(case.row.function, function, layout)
    refuse_first(chain(of_precision(layout, case.precision), overlap_problems(case, layout)))
    of_memory = ("recompute_layers", "offload_layers", "pp", "fsdp")
    if any(name in given and given[name] != getattr(function.columns, name) for name in of_memory):
        refuse_first(of_memory_savers(layout, case.shape))


def _refusal_reason(case: Case, function: Function) -> str | None:
    """Return why Megatron refuses the function of ``case`` whatever the job's layout, in its words; None: it does not.

    A refusal because numbers of the function's own scale do not divide does not count: those of the job are checked
    apart.

    Raises:
        RecipeError: the recipe's file of validations is damaged
    """
    refused = case.recipe.refusal(case.row.function)
    if refused is None:
        return None
    columns = msgspec.structs.asdict(function.columns)
    # Megatron was asked at the function's own scale.
    own = Layout(gpus=case.row.gpus_min, seq_len=function.sequence_length, **columns)
    divides = next(of_numbers(own, case.shape), None) is None
    return refused if divides and divides_stages(function, own) else None
