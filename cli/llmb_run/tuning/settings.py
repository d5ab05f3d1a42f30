"""Settings that have no column: how experts exchange tokens, what is recomputed, what overlaps; and their values.

Those that go together are one value, ``flex;model.moe_flex_dispatcher_backend=deepep``: further ones after a semicolon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmb_common.planning.request.values import is_setting, settings_in
from llmb_common.planning.settings import own_settings
from llmb_common.recipes.catalogue import Function
from llmb_common.recipes.columns import Columns
from llmb_common.recipes.rows import Row
from llmb_run.starting.command_line import setting_text
from llmb_run.starting.requests import PlannedJob

DISPATCHER, _BACKEND = "model.moe_token_dispatcher_type", "model.moe_flex_dispatcher_backend"
RECOMPUTED, _MODULES = "model.recompute_granularity", "model.recompute_modules"
EXPERTS, _DELAYED = "comm_overlap.overlap_moe_expert_parallel_comm", "comm_overlap.delay_wgrad_compute"
TENSORS = "comm_overlap.tp_comm_overlap"


def found_settings(base: PlannedJob, rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the framework's settings that are worth searching in a tuning, by name, each with its values as text.

    Values are common ones, the base's, and those of the documented ``rows``, in this order, each once. A value may
    set further settings behind a semicolon, as ``one_by_one`` takes it. The settings of experts are there only
    where the model has experts, recomputation only where the base recomputes no whole layers. Empty for a job
    without a catalogue's function, and on a CPU. Whether values go together, planning finds out.

    Raises:
        RecipeError: the recipe's catalogue cannot be read, or lacks the function
    """
    function = _catalogue_function(base)
    if function is None or base.plan.device == "cpu":
        return {}
    experts = function.architecture.moe is not None
    module = "moe_act" if experts else "mlp"
    if function.layers and function.layers.latent:
        module = "mla_up_proj"
    found = {TENSORS: ["true", "false"]}
    # Where whole layers are recomputed, there are no modules to choose.
    if not base.plan.recompute_layers:
        found[RECOMPUTED] = ["none", f"selective;{_MODULES}=[{module}]"]
    if experts:
        found[DISPATCHER] = ["alltoall", *(f"flex;{_BACKEND}={backend}" for backend in ("deepep", "hybridep"))]
        found[EXPERTS] = ["true", f"false;{_DELAYED}=false"]
    for values in (base_values(base), *(row_values(base, row) for row in rows)):
        for name in found.keys() & values.keys():
            found[name].append(values[name])
    return {name: list(dict.fromkeys(values)) for name, values in found.items()}


def base_values(base: PlannedJob) -> dict[str, str]:
    """Return the base's own value of each setting that a tuning searches, by the setting's name, as text.

    They have the form of ``found_settings``, and are there for each setting that suits the model, also where that
    leaves it out. Empty for a job without a catalogue's function.

    Raises:
        RecipeError: the recipe's catalogue cannot be read, or lacks the function
    """
    function = _catalogue_function(base)
    return _searched_values(function, base.plan, base.plan.megatron) if function else {}


def row_values(base: PlannedJob, row: Row) -> dict[str, str]:
    """Return a documented row's own value of each setting that a tuning searches, by the setting's name, as text.

    They have the form of ``found_settings``, and are there for each setting that suits the model, also where that
    leaves it out. Empty for a row without a function, and where the recipe has no catalogue. ``base`` is the
    tuning's, whose recipe has the row; its own values do not matter.

    Raises:
        RecipeError: the recipe's catalogue cannot be read, or lacks the function
    """
    function = _catalogue_function(base, row)
    return _searched_values(function, function.columns, {}) if function else {}


def fixed_columns(base: PlannedJob) -> tuple[str, ...]:
    """Return the names of the columns of which the base's function leaves no choice.

    They are ``pp`` and ``vp`` where it places its layers itself, and ``cuda_graph`` where it has no CUDA graphs, in
    this order. Empty: none of these; also without a function, and on a CPU.

    Raises:
        RecipeError: the recipe's catalogue cannot be read, or lacks the function
    """
    function = _catalogue_function(base)
    if function is None or base.plan.device == "cpu":
        return ()
    fixed: list[str] = []
    if function.stages:
        fixed += ["pp", "vp"]
    if not function.columns.cuda_graph:
        fixed.append("cuda_graph")
    return tuple(fixed)


def _catalogue_function(base: PlannedJob, row: Row | None = None) -> Function | None:
    """Return the catalogue's function that a job of ``row``, or without a row the base, calls; None: it calls none.

    Raises:
        RecipeError: the recipe's catalogue cannot be read, or lacks the function
    """
    catalogue, own = base.recipe.catalogue, base.plan.function
    name = own.name if own is not None else None
    if row is not None:
        name = row.function
    return catalogue.function(name) if catalogue is not None and name is not None else None


def _searched_values(function: Function, columns: Columns[int], settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of the settings that a tuning searches, as text, for a function with the layout ``columns``.

    They are in the form of ``found_settings``, by name, one for each setting that suits the model: those of experts
    only where it has experts. ``settings`` are changes of the function's own.
    """
    known = own_settings(function, columns) | dict(settings)
    backend = setting_text(known.get(_BACKEND))
    modules = setting_text(known.get(_MODULES))
    found = {
        TENSORS: "true" if known[TENSORS] else "false",
        RECOMPUTED: f"selective;{_MODULES}={modules}" if known.get(RECOMPUTED) == "selective" else "none",
    }
    if function.architecture.moe is not None:
        flex = known[DISPATCHER] == "flex"
        found[DISPATCHER] = f"flex;{_BACKEND}={backend}" if flex else setting_text(known[DISPATCHER])
        found[EXPERTS] = "true" if known[EXPERTS] else f"false;{_DELAYED}=false"
    return found


def one_by_one(changes: Mapping[str, str]) -> dict[str, str]:
    """Return ``changes`` with one setting in each: a value that sets several becomes several entries.

    Such a value is joined by semicolons. ``selective;NAME=VALUE`` sets the entry's own setting and the setting
    NAME. Where two entries set one, the later counts. An entry whose name is not a setting's (a column's, say)
    stays as it is.

    Raises:
        RequestError: a part of such a value is not ``NAME=VALUE``, or one value sets the same setting twice
    """
    found: dict[str, str] = {}
    for name, value in changes.items():
        if is_setting(name):
            found |= settings_in(f"{name}={value}", name)
        else:
            found[name] = value
    return found
