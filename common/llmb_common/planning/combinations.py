"""What a function of Megatron-Bridge does not go with, where a user changes it: Megatron's own assertions.

Sources: megatron-core 0.19.0, ``TransformerConfig.__post_init__`` and ``transformer_block.get_num_layers_to_build``;
Megatron-Bridge 0.6.0, ``training/config.py`` and ``training/comm_overlap.py``. ``tests/training/random_jobs.py`` puts
random jobs to both.
"""

from __future__ import annotations

from llmb_common.errors import RequestError
from llmb_common.planning.divisibility import Layout
from llmb_common.recipes.catalogue import Function

_IMAGES = ("MockVLMSFTDatasetConfig", "EnergonDatasetConfig")
"""Data of which ranks may get none that counts."""


def check_combinations(name: str, function: Function, layout: Layout) -> None:
    """Check ``layout`` against what the function ``name`` has beside its columns.

    Raises:
        RequestError: Megatron would refuse it.
    """
    for refused, message, remedy in _rules(function, layout):
        if refused:
            raise RequestError(f"{name}: {message}", remedy=remedy, code="does-not-divide")


def _rules(function: Function, c: Layout) -> tuple[tuple[bool, str, str], ...]:
    settings, own = function.settings, function.columns
    said = str([settings.get(f"cuda_graph_{name}") for name in ("impl", "scope", "modules")])
    graphs = c.cuda_graph and "full_iteration" not in said
    overlap = bool(settings.get("overlap_moe_expert_parallel_comm"))
    recomputed = c.recompute_layers if c.recompute_layers != own.recompute_layers else 0
    offloaded = c.offload_layers if c.offload_layers != own.offload_layers else 0
    selective = settings.get("recompute_granularity") == "selective" and c.recompute_layers == own.recompute_layers
    return (
        (
            c.fsdp != own.fsdp,
            f"{'shards' if own.fsdp else 'does not shard'} its state, which decides more settings than one column",
            "unset FSDP, or choose a CONFIG_VARIANT with (or without) fsdp",
        ),
        *_stages(function, c),
        (
            bool(recomputed and graphs),
            f"RECOMPUTE_LAYERS={recomputed} and its CUDA graphs of single modules cannot be combined",
            "set RECOMPUTE_LAYERS=0, or CUDA_GRAPH=false",
        ),
        (
            bool(recomputed and overlap),
            f"RECOMPUTE_LAYERS={recomputed} and its overlap of the experts' exchange cannot be combined",
            "set RECOMPUTE_LAYERS=0",
        ),
        (
            overlap and (c.ep or 1) == 1,
            "its overlap of the experts' exchange needs EP > 1",
            "choose an EP of at least 2",
        ),
        (
            overlap and c.pp > 1 and (c.vp or 1) == 1,
            f"its overlap of the experts' exchange needs VP > 1 where PP={c.pp}",
            "choose a VP of at least 2, or set PP=1",
        ),
        (
            bool(offloaded and selective),
            f"OFFLOAD_LAYERS={offloaded} and its recomputation of modules cannot be combined",
            "set OFFLOAD_LAYERS=0",
        ),
        (
            bool(offloaded and graphs),
            f"OFFLOAD_LAYERS={offloaded} and its CUDA graphs of single modules cannot be combined",
            "set OFFLOAD_LAYERS=0, or CUDA_GRAPH=false",
        ),
        (
            bool(offloaded and settings.get("moe_paged_stash")),
            f"OFFLOAD_LAYERS={offloaded} and its stash of the experts' activations cannot be combined",
            "set OFFLOAD_LAYERS=0",
        ),
        (
            bool(settings.get("add_bias_linear") and function.architecture.moe is not None and (c.etp or c.tp) > 1),
            f"its experts have biases, which ETP={c.etp or c.tp} cannot divide",
            "set ETP=1",
        ),
        (
            c.cp > 1 and settings.get("dataset") in _IMAGES and bool(settings.get("average_in_collective")),
            f"CP={c.cp}: on images Megatron-Bridge wants gradients that are not averaged, and it averages them",
            "set CP=1",
        ),
        *_delta_heads(function, c),
    )


def _delta_heads(function: Function, c: Layout) -> tuple[tuple[bool, str, str], ...]:
    delta = function.layers.delta if function.layers is not None else None
    if delta is None:
        return ()
    return tuple(
        (heads % (c.tp * c.cp) != 0, f"TP*CP = {c.tp}*{c.cp} does not divide its {heads} linear heads", "choose others")
        for heads in (delta[0], delta[2])
    )


def divides_stages(function: Function, c: Layout) -> bool:
    """Whether the layers fill stages and chunks, or the function itself says which are where."""
    return function.stages or _slots(function) % (c.pp * (c.vp or 1)) == 0


def _slots(function: Function) -> int:
    return function.architecture.layers + len(_ends(function))


def _ends(function: Function) -> list[str]:
    """What takes the place of a layer."""
    return [end for end in ("embedding", "loss") if function.settings.get(f"account_for_{end}_in_pipeline_split")]


def _stages(function: Function, c: Layout) -> tuple[tuple[bool, str, str], ...]:
    ends = " and ".join(_ends(function))
    counted = f"{_slots(function)} layers" + (f" ({ends} counted)" if ends else "")
    by = f"PP*VP = {c.pp}*{c.vp}" if (c.vp or 1) > 1 else f"PP = {c.pp}"
    return ((not divides_stages(function, c), f"{counted} are not divisible by {by}", "choose other PP, VP"),)
