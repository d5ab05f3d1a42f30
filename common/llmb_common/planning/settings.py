"""Settings of the framework by name: those that a release has, what each takes, and those that a plan has already.

``fields/0.6.json`` lists every field of a release's configuration; ``python -m llmb_train.catalogue FILE --fields``
writes it in an engine. The ranks check them once more, against the classes that are there.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from llmb_common.base.engines import ENGINES
from llmb_common.base.errors import RequestError, did_you_mean
from llmb_common.planning.choose import Case
from llmb_common.planning.divisibility import Layout
from llmb_common.planning.functions import check_settings
from llmb_common.recipes.catalogue import Function
from llmb_common.recipes.columns import Columns

COLUMNS_OF = {
    "model.tensor_model_parallel_size": "tp",
    "model.sequence_parallel": "tp",
    "model.pipeline_model_parallel_size": "pp",
    "model.virtual_pipeline_model_parallel_size": "vp",
    "model.context_parallel_size": "cp",
    "model.expert_model_parallel_size": "ep",
    "model.expert_tensor_parallel_size": "etp",
    "train.micro_batch_size": "mbs",
    "train.global_batch_size": "gbs",
    "ddp.use_megatron_fsdp": "fsdp",
    "model.recompute_num_layers": "recompute_layers",
    "model.cpu_offloading": "offload_layers",
    "model.cpu_offloading_num_layers": "offload_layers",
}
"""The fields that a column sets."""

_PLANNED = {
    r"train\.(train_iters|train_samples|exit_interval|exit_duration_in_mins)": "use --max-steps (MAX_STEPS)",
    r"(model|mixed_precision)\.(fp16|bf16|fp8|fp4|fp8_recipe|fp4_recipe|params_dtype)": "use --dtype and FP8_RECIPE",
    r"(dataset|model)\.seq(_|uence_)length": "use --set seq_length=VALUE (SEQ_LENGTH)",
    r"rng\.seed|dataset\.random_seed": "runs are comparable only with the same one",
    r"model\.(num_layers|hidden_size|ffn_hidden_size|num_attention_heads|num_query_groups|num_moe_experts|vocab_size"
    r"|moe_ffn_hidden_size|moe_router_topk)": "choose another size (-s, MODEL_SIZE)",
    r"checkpoint\..*": "use ENABLE_CHECKPOINT, CHECKPOINT_INTERVAL, CHECKPOINT_DIR and LOAD_CHECKPOINT_PATH",
    r"profiling\..*": "use -p (ENABLE_PROFILE) and PROFILE_START_STEP, PROFILE_STOP_STEP and PROFILE_RANKS",
    r"logger\.(log_interval|log_throughput|save_config_filepath|tensorboard_dir)": "LLMB reads its output",
    r"tokenizer\..*": "training is on synthetic tokens",
}
"""What else a plan decides, as regular expressions, and what to do instead."""

_OF_FUNCTION = {
    "model.": (
        "moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_paged_stash",
        "fine_grained_activation_offloading", "offload_modules",
    ),
    "comm_overlap.": ("overlap_moe_expert_parallel_comm", "tp_comm_overlap"),
}  # fmt: skip
"""The fields that a catalogue keeps under their names, and that no column changes, by section."""

_NOTHING: tuple[Any, ...] = (None, False, 0, "none", [], {})
"""What a catalogue leaves out."""

_WORDS = {"true": True, "false": False, "none": None, "null": None}


def planned_settings(case: Case, engine: str, layout: Layout) -> dict[str, Any]:
    """Return the requested settings of the framework by ``section.field``, with values as JSON has them.

    They are in the order of the request. Those that the job's function has anyway are left out, which is noted in
    ``case``; a release whose settings are not known is noted, too, and then names and values are not checked.
    ``engine`` is the minor release to run in, ``layout`` the job's.

    Raises:
        RequestError: the release has no such setting (code ``unknown-setting``), it takes no such value
            (``megatron``), the plan decides it, or it does not go with the rest of the job
            (``refused-by-megatron``, ``does-not-divide``)
    """
    origin = case.request.say("MEGATRON_SETTINGS")
    found, requested = {}, case.request.megatron
    if requested and not fields_of_release(engine):
        case.note(f"the settings of Megatron-Bridge {engine} are not known: the ranks check {', '.join(requested)}")
    for name, text in requested.items():
        _refuse_planned(name, origin)
        kinds = _kinds_of_setting(name, engine, origin, strict=case.request.checks_engine)
        found[name] = value_of(text, kinds, f"{origin}: {name}")
    _refuse_contradictions(found, layout, origin)
    # A small copy has settings of its own, which no catalogue keeps.
    if case.function is None or case.on_cpu or case.model.reduced is not None:
        return found
    own = own_settings(case.function, layout)
    anyway = [name for name, value in found.items() if name in own and _mean_the_same(value, own[name])]
    for name in anyway:
        case.note(f"{name}={requested[name]} is already the setting of {case.row.function}")
    found = {name: value for name, value in found.items() if name not in anyway}
    check_settings(case.row.function, case.function, layout, found, case.gpu_type)
    return found


def own_settings(function: Function, layout: Columns[int]) -> dict[str, Any]:
    """Return what a function sets of the framework's settings that its catalogue keeps, by ``section.field``.

    A value of None: the function leaves the setting out. Recomputation is among them only where ``layout`` has the
    function's own; with TP 1 the overlap of TP's communication is False whatever the function says. It holds on
    GPUs: a CPU trains a copy that has other settings. What a catalogue does not keep, only the engine knows.
    """
    known: dict[str, Any] = {}
    for section, names in _OF_FUNCTION.items():
        known |= {f"{section}{name}": function.settings.get(name) for name in names}
    if layout.recompute_layers == function.columns.recompute_layers:
        known |= {
            f"model.{name}": function.settings.get(name) for name in ("recompute_granularity", "recompute_modules")
        }
    if layout.tp == 1:  # Megatron-Bridge switches it off (0.6.0, training/comm_overlap.py:442-451)
        known["comm_overlap.tp_comm_overlap"] = False
    return known


def _mean_the_same(one: Any, other: Any) -> bool:
    """Return whether two values of a setting mean the same: lists in any order, and all ways to write nothing.

    Nothing is None, False, 0, ``none``, and an empty list or mapping.
    """
    if isinstance(one, list):
        one = sorted(one, key=str)
    if isinstance(other, list):
        other = sorted(other, key=str)
    return one == other or (one in _NOTHING and other in _NOTHING)


@lru_cache
def fields_of_release(engine: str) -> Mapping[str, Mapping[str, str]]:
    """Return the framework's settings in a minor release (``0.6``) by section, each field with what it takes.

    That is a text of types and words in double quotes, separated by bars: ``int|none``,
    ``"selective"|"full"|none``. Empty: the release is not known, or is no minor release. Each file is read once and
    then kept; the answer must not be changed.
    """
    if engine not in ENGINES:
        return {}
    text = (Path(__file__).parent / "fields" / f"{engine}.json").read_text(encoding="utf-8")
    sections: dict[str, dict[str, str]] = json.loads(text)["sections"]
    return sections


def _refuse_planned(name: str, origin: str) -> None:
    """Raise if a plan itself sets the framework's setting ``name``, ``section.field``; return None otherwise.

    ``origin``, the variable or option that the setting came with, begins the message.

    Raises:
        RequestError: it does; the remedy says what to set instead, or to leave it out
    """
    if column := COLUMNS_OF.get(name):
        raise RequestError(f"{origin}: LLMB sets {name}", remedy=f"use --set {column}=VALUE ({column.upper()})")
    for pattern, instead in _PLANNED.items():
        if re.fullmatch(pattern, name):
            raise RequestError(f"{origin}: LLMB sets {name}", remedy=f"{instead}, or leave it out")


def _refuse_contradictions(found: Mapping[str, Any], layout: Layout, origin: str) -> None:
    """Raise if one of the settings ``found``, by ``section.field``, contradicts the layout's recomputation or CUDA
    graphs; return None otherwise.

    Full recomputation is always refused, as the layout's column says how many layers. ``found`` has values as
    ``value_of`` reads them. ``origin``, the variable or option that they came with, begins the message.

    Raises:
        RequestError: one does
    """
    if found.get("model.recompute_granularity") == "full":
        remedy = "use --set recompute_layers=VALUE (RECOMPUTE_LAYERS)"
        raise RequestError(f"{origin}: model.recompute_granularity=full is planned", remedy=remedy)
    implementation = found.get("model.cuda_graph_impl", "any")
    if implementation != "any" and (implementation not in (None, "none")) != layout.cuda_graph:
        own = str(layout.cuda_graph).lower()
        other = str(not layout.cuda_graph).lower()
        raise RequestError(
            f"{origin}: model.cuda_graph_impl={implementation} does not go with CUDA_GRAPH={own}",
            remedy=f"use --set cuda_graph={other} (CUDA_GRAPH), or leave it out",
        )


def _kinds_of_setting(name: str, engine: str, origin: str, *, strict: bool) -> list[str]:
    """Return what the framework's setting ``name`` (``section.field``) takes: types (``int``, ``none``) and words
    in double quotes.

    It is asked of the minor release ``engine``. Empty: the release is not known, or it has no such setting and
    ``strict`` is off. ``origin``, the variable or option that the setting came with, begins the message.

    Raises:
        RequestError: code ``unknown-setting``: the release has no such setting, and ``strict`` is on
    """
    sections = fields_of_release(engine)
    section, _, field = name.partition(".")
    if not sections or field in sections.get(section, {}):
        return sections[section][field].split("|") if sections else []
    if not strict:
        return []
    known: list[str] = []
    for other, fields in sections.items():
        known += [f"{other}.{one}" for one in fields]
    here = [f"{other}.{field}" for other, fields in sections.items() if field in fields]
    near = f" (did you mean {here[0]!r}?)" if here else did_you_mean(name, known, cutoff=0.7)
    raise RequestError(
        f"{origin}: Megatron-Bridge {engine} has no setting {name}{near}",
        remedy=f"sections: {', '.join(sections)}; LLMB_ENGINE_CHECK=off leaves the check to the ranks",
        code="unknown-setting",
    )


def value_of(text: str, kinds: list[str], origin: str) -> Any:
    """Return the value that ``text`` stands for: the first reading that one of ``kinds`` allows.

    Readings are true, false, none and null in any case of letters, then a whole number, a number, a list in
    brackets (``[a, b]``; quotes are optional, and every comma divides, also inside quotes or inner brackets), JSON's
    ``{...}``, and last the text itself. ``kinds`` are types (``int``, ``float``, ``bool``, ``str``, ``list``, ``dict``,
    ``dtype``, ``none``) and words in double quotes, in any order; empty: the first reading counts. A whole number
    becomes a float where ``float`` is among the kinds and ``int`` is not. ``origin``, the variable or option with the
    setting's name, begins the message.

    Raises:
        RequestError: code ``megatron``: no kind allows it
    """
    for value in _possible_values(text):
        if not kinds or _is_of_kind(value, kinds):
            # ``1`` for a field of floats: in JSON it would otherwise stay a whole number.
            only_float = "float" in kinds and "int" not in kinds and f'"{value}"' not in kinds
            return float(value) if type(value) is int and only_float else value
    words = [kind.strip('"') for kind in kinds if kind.startswith('"')]
    what = {"bool": "true or false", "int": "a whole number", "float": "a number", "list": "[...]", "dict": "{...}"}
    takes = [*words, *(what.get(kind, kind) for kind in kinds if not kind.startswith('"'))]
    raise RequestError(
        f"{origin}={text} is not a valid value{did_you_mean(text, words)}",
        remedy=f"one of {', '.join(takes)}" if len(takes) > 1 else takes[0],
        code="megatron",
    )


_MOST_NESTED = 20
"""Lists within each other; whatever has more is a text."""


def _possible_values(text: str) -> Iterator[Any]:
    """Yield the values that ``text`` may stand for, the narrowest type first and the text itself last.

    Before it come true, false, none and null (None) in any case of letters, a whole number of up to 18 digits, a
    finite number, a list in brackets and a mapping in JSON, as far as it can be read so. Every comma of a list divides,
    also inside quotes or inner brackets; each part is the first reading of what is between.
    """
    if text.lower() in _WORDS:
        yield _WORDS[text.lower()]
    # So many digits fit in 64 bits.
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        yield int(text)
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(text)):
            yield number
    is_list = text.startswith("[") and text.endswith("]")
    is_too_nested = text.startswith("[" * _MOST_NESTED)
    if is_list and not is_too_nested:
        parts = [part.strip() for part in text[1:-1].split(",")]
        yield [next(_possible_values(part.strip("\"'"))) for part in parts if part]
    if text[:1] == "{":
        with contextlib.suppress(ValueError):
            yield json.loads(text)
    yield text


def _is_of_kind(value: Any, kinds: list[str]) -> bool:
    """Return whether ``value`` is of one of the types, or is one of the words, in ``kinds``, what a setting takes.

    Words are in double quotes. Types are exact, so that True is no int; but an int counts as a float, too, and a
    text such as ``bfloat16`` as a ``dtype``.
    """
    if isinstance(value, str):
        a_dtype = "dtype" in kinds and re.fullmatch(r"(torch\.)?(bfloat|float|u?int)[0-9a-z_]+", value)
        return "str" in kinds or f'"{value}"' in kinds or bool(a_dtype)
    # By the exact type, as True is an int to ``isinstance``.
    names = {type(None): "none", bool: "bool", int: "int", float: "float", list: "list", dict: "dict"}
    is_whole_float = type(value) is int and "float" in kinds
    return names[type(value)] in kinds or is_whole_float or f'"{value}"' in kinds
