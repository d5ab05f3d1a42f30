"""Jobs that call a function of Megatron-Bridge: what of it goes into the plan, and which columns may be changed."""

from __future__ import annotations

import msgspec

from llmb_common.errors import RequestError
from llmb_common.planning.case import Case
from llmb_common.planning.combinations import HYBRID_DOMAIN, check_combinations, divides_stages
from llmb_common.planning.divisibility import Layout, check_layout, check_memory_savers, check_numbers
from llmb_common.planning.job_plan import PlannedFunction
from llmb_common.platform.gpus import GPUS

_SAVERS = ("recompute_layers", "offload_layers", "pp")


def planned_function(case: Case) -> PlannedFunction | None:
    """The function that the job calls; None where the training code builds the model from its architecture."""
    if case.function is None:
        return None
    assert case.row.function is not None
    assert case.recipe.catalogue is not None  # checked when the recipe was loaded
    case.note(*_function_notices(case, case.row.function))
    return PlannedFunction(
        name=case.row.function,
        release=case.recipe.catalogue.release,
        catalogue=case.recipe.catalogue.sha256,
        columns=case.function.columns,
        sequence_length=case.function.sequence_length,
        flops_per_token=case.function.flops_per_token if case.model.reduced is None else None,
        own_flops_per_token=case.function.own_flops_per_token if case.model.reduced is None else None,
        experts=case.function.architecture.moe is not None,
        reduced=case.model.reduced,
        adapters=case.adapters,
    )


def family_of(case: Case) -> str:
    """The recipe's, or the model whose function is called: ``deepseek_v3``."""
    if case.row.function is None or case.recipe.catalogue is None:
        return case.recipe.family
    return case.recipe.catalogue.entry(case.row.function).model


def check_columns(case: Case, layout: Layout) -> None:
    """Check ``layout`` by the rules of what builds the model.

    Raises:
        RequestError: a number does not divide, or a column cannot be changed.
    """
    if case.function is None:
        check_layout(layout, case.shape, case.model.sequence_length, case.recipe.family)
    else:
        _check_function_layout(case, layout)


def _check_function_layout(case: Case, layout: Layout) -> None:
    """What the user changes; the function's own columns are NVIDIA's, and checked by arithmetic only."""
    function, asked = case.function, case.request.columns
    assert function is not None
    if case.adapters and case.request.load_checkpoint is None:
        # Megatron-Bridge v0.6.0 ends with "PEFT requires a pretrained checkpoint path" (training/config.py:1483).
        raise RequestError(
            f"{case.row.function} trains adapters for a model, and there is none to load",
            remedy=f"set {case.request.say('LOAD_CHECKPOINT_PATH')} to a Megatron checkpoint of {case.model.size}, "
            f"such as {case.request.say('ENABLE_CHECKPOINT')} saves",
            field="LOAD_CHECKPOINT_PATH",
        )
    if function.stages and case.model.reduced is None:
        for name in ("pp", "vp"):
            if name in asked and asked[name] != getattr(function.columns, name):
                raise RequestError(
                    f"{name.upper()}={asked[name]}: {case.row.function} assigns its layers to stages itself",
                    remedy=f"unset {name.upper()}",
                    field=name.upper(),
                )
    if asked.get("cuda_graph") and not function.columns.cuda_graph:
        raise RequestError(
            f"CUDA_GRAPH=true: {case.row.function} has no CUDA graphs, and there are several kinds of them",
            remedy="unset CUDA_GRAPH",
            field="CUDA_GRAPH",
        )
    if case.model.reduced is not None:
        return  # the training code knows what a reduced copy divides into
    check_numbers(layout, case.shape, case.model.sequence_length)
    refused = _refused(case)
    if refused is not None and case.request.image is None:
        raise RequestError(
            f"{case.row.function} is refused by Megatron itself ({_engine(case)}): {refused}",
            remedy=f"choose another {case.request.say('CONFIG_VARIANT')}, or set "
            f"{case.request.say('RUN_CONF_IMAGE')} to an image in which it is right",
            code="refused-by-megatron",
        )
    assert case.row.function is not None
    check_combinations(case.row.function, function, layout)
    if any(name in asked and asked[name] != getattr(function.columns, name) for name in _SAVERS):
        check_memory_savers(layout, case.shape)


def _function_notices(case: Case, name: str) -> list[str]:
    """What is written of the function that the job calls."""
    if case.model.reduced is not None:
        return []
    found = [f"{name}: {notice.says} ({notice.source})" for notice in case.recipe.notices if notice.functions in name]
    assert case.function is not None
    assert case.recipe.catalogue is not None
    if (assumed := case.recipe.catalogue.assumed(case.function.hugging_face)) is not None:
        found.append(f"numbers of {case.function.hugging_face} that were not read from its config.json: {assumed}")
    if (refused := _refused(case)) is not None:
        found.append(f"{name} is refused by the Megatron of the recipe's image ({_engine(case)}): {refused}")
    return found


def _refused(case: Case) -> str | None:
    """Why Megatron refuses the function, apart from numbers of its own scale that do not divide: those of the job have
    been checked."""
    assert case.row.function is not None
    assert case.function is not None
    refused = case.recipe.refusal(case.row.function)
    if refused is None:
        return None
    own = Layout(gpus=case.row.gpus_min, **msgspec.structs.asdict(case.function.columns))
    try:
        check_numbers(own, case.shape, case.function.sequence_length)
    except RequestError:
        return None
    return refused if divides_stages(case.function, own) else None


def _engine(case: Case) -> str:
    assert case.recipe.catalogue is not None
    return f"Megatron-Bridge {case.recipe.catalogue.release}"


def function_environment(case: Case, layout: Layout) -> dict[str, str]:
    """The variables that the function wants set before torch is imported.

    The HybridEP dispatcher's follow EP, as in NVIDIA's runner (Megatron-Bridge 0.6.0,
    ``scripts/performance/utils/utils.py``: ``apply_target_topology_environment``).
    """
    assert case.function is not None
    values = dict(case.function.env)
    if HYBRID_DOMAIN in values and layout.ep != case.function.columns.ep:
        gpu = GPUS[case.gpu_type]
        ranks, domain = layout.ep or 1, gpu.per_node * gpu.nvlink_nodes
        if gpu.nvlink_nodes > 1 and ranks > domain:
            raise RequestError(
                f"EP={ranks}: {case.row.function} exchanges tokens by NVLink, which joins {domain} GPUs",
                remedy=f"choose an EP of at most {domain}",
                field="EP",
            )
        values[HYBRID_DOMAIN] = str(min(ranks, domain))
    return values
