"""Pipeline stages and FSDP of jobs that call a function: what NVIDIA's launcher can change, and Megatron takes.

``llmb_train.layouts`` says how the launcher finds the layers of each stage; a catalogue has what it finds.
"""

from __future__ import annotations

from llmb_common.base.errors import RequestError
from llmb_common.planning.divisibility import Broken, Layout, graphs_with_fsdp
from llmb_common.recipes.catalogue import Function


def divides_stages(function: Function, c: Layout) -> bool:
    """Return whether PP*VP of the layout ``c`` divides the layers of ``function``, those ends included that count
    as layers.

    None as VP counts as 1. True, too, where the function itself assigns its layers to stages, whatever PP and VP.
    """
    layers = function.architecture.layers + len(ends_of(function))
    chunks = c.pp * (c.vp or 1)
    return function.stages or layers % chunks == 0


def ends_of(function: Function) -> list[str]:
    """Return which ends of a function's model count as layers when these are divided among pipeline stages.

    They are ``embedding`` and ``loss``, in this order, or only one of them; empty: neither counts.
    """
    return [end for end in ("embedding", "loss") if function.settings.get(f"account_for_{end}_in_pipeline_split")]


def sharding_problems(function: Function, c: Layout) -> Broken:
    """Yield (what is wrong, what to do) where NVIDIA's launcher cannot switch FSDP of a function as ``c`` has it.

    The first is a clause to follow the function's name and a colon. Call it only where ``c.fsdp`` is not the
    function's own: that is not checked. Turning FSDP off is never possible; turning it on is not with CUDA graphs
    or an optimizer other than adam (each is one pair), else nothing is yielded. (The launcher's option only turns
    FSDP on: Megatron-Bridge 0.6.0, ``scripts/performance/utils/overrides.py:94-114``.)
    """
    if not c.fsdp:
        remedy = "unset FSDP, or choose a CONFIG_VARIANT without fsdp"
        yield "shards its state, which decides more settings than one column", remedy
        return
    if c.cuda_graph:
        yield graphs_with_fsdp()
    optimizer = str(function.settings.get("optimizer"))
    if optimizer != "adam":
        yield f"its optimizer ({optimizer}) has a whole matrix on a rank, and FSDP does not", "unset FSDP"


def check_stages(name: str | None, function: Function, layout: Layout) -> None:
    """Raise if the function ``name``, which assigns its layers to stages itself, has no layout for PP and VP of
    ``layout``.

    Its own PP and VP always pass; None as VP means 1. That it assigns its layers itself (``function.stages``) is
    not checked. ``name`` is only for the message, where None would read ``None``.

    Raises:
        RequestError: code ``no-layout``: it has none; the remedy names the pairs of PP and VP that it has, or says to
            unset both
    """
    own = function.columns
    # VP of None and of 1 mean the same.
    is_own = (layout.pp, layout.vp or 1) == (own.pp, own.vp or 1)
    if is_own or function.chunks(layout.pp, layout.vp):
        return
    changed = "PP" if layout.pp != own.pp else "VP"
    pairs = ", ".join(map(str, function.layouts))
    raise RequestError(
        f"PP={layout.pp} VP={layout.vp or 'NA'}: {name} assigns its layers to stages itself"
        + (", and Megatron-Bridge has no layout of it for these" if pairs else ""),
        remedy=f"it has layouts for {pairs}" if pairs else "unset PP and VP",
        code="no-layout",
        field=changed,
    )


def other_stages(function: Function, layout: Layout, refused: str) -> bool:
    """Return whether a refusal by Megatron means the function's own layout of stages only, and the job has another
    one.

    ``refused`` is Megatron's message on the function at its own PP and VP. True only if ``layout``, the job's, has
    another PP or VP, and Megatron-Bridge has a layout of the function for these.
    """
    own = function.columns
    changed = (layout.pp, layout.vp or 1) != (own.pp, own.vp or 1)
    return "pipeline_model_parallel_layout" in refused and changed and bool(function.chunks(layout.pp, layout.vp))
