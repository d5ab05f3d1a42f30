"""The performance recipes of an installed Megatron-Bridge, as a catalogue from which jobs are planned without it.

A row is what calling a recipe gives, as plain values: all that planning, a job's environment and the tables of a README
need. ``columns`` are those that a user can override; ``settings`` are others, under the framework's names, left out
where they are not set.

``python -m llmb_train.catalogue OUT.json`` writes the catalogue of the engine it runs in: no GPU, no network;
``--validation`` writes the results of the validation, ``--fields`` the fields.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import logging
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from llmb_train import counts, layouts, lengths, perf_recipes
from llmb_train.engine import package_version
from llmb_train.errors import JobError, TrainError
from llmb_train.job import read_json
from llmb_train.named_settings import as_json_value, fields_text

SCHEMA = 1

_DESCRIPTION = """Write the catalogue of this Python's engine, what Megatron's own validation says of each function in
it, or every field of the framework's configuration (of a release without functions, too)."""

SETTINGS = (
    "sequence_parallel", "cuda_graph_impl", "cuda_graph_scope", "cuda_graph_modules", "recompute_granularity",
    "recompute_method", "recompute_num_layers", "recompute_modules", "cpu_offloading", "cpu_offloading_num_layers",
    "fine_grained_activation_offloading", "offload_modules", "moe_token_dispatcher_type",
    "moe_flex_dispatcher_backend", "moe_router_force_load_balancing", "moe_paged_stash",
    "pipeline_model_parallel_layout", "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "add_bias_linear",
)  # fmt: skip
"""Fields of the model provider that are kept as they are."""

_MIXERS = {
    "latent": ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"),
    "mamba": ("mamba_num_heads", "mamba_head_dim", "mamba_num_groups", "mamba_state_dim"),
    "delta": ("linear_num_key_heads", "linear_key_head_dim", "linear_num_value_heads", "linear_value_head_dim"),
}
"""The sizes of what takes the place of grouped-query attention, under the framework's names."""


def rows() -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return (the catalogue's rows of the installed Megatron-Bridge's performance recipes, why others have none).

    Each is a dict by the recipe's name, sorted. The first has the row of each recipe that could be called, as
    ``row`` makes it, with the added key ``hugging_face``, the Hugging Face name of its model (None: it asks for
    none). The second has, in one line, the reason why another one was left out: that its name cannot be read, or
    type and text of the error that calling it raised. Calls all functions, which takes a minute, and empties
    ``perf_recipes.asked`` before each; the engine's patches must be installed.

    Raises:
        EngineError: Megatron-Bridge is not installed; as WrongEngine, it has no performance recipes
        OSError: Megatron-Bridge's source cannot be read
    """
    found, missing = {}, perf_recipes.unread()
    for name in perf_recipes.names():
        # Calling the function adds the model that it asks for.
        perf_recipes.asked.clear()
        try:
            made = row(name, perf_recipes.find(name)())
        except Exception as error:  # noqa: BLE001  # NVIDIA's code, of any release: the others go on
            missing[name] = " ".join(f"{type(error).__name__}: {error}".split())
            continue
        found[name] = made | {"hugging_face": next(iter(perf_recipes.asked), None)}
    return found, dict(sorted(missing.items()))


def index(names: Iterable[str]) -> list[list[Any]]:
    """Return what each recipe's name says: a list [name, model, task, GPUs, GPU type, precision, variant] for each.

    In the order of ``names``, functions such as ``llama3_8b_pretrain_8gpu_h100_bf16_config``, which gives that
    name, ``llama3_8b``, ``pretrain``, 8, ``h100``, ``bf16`` and None. The number of GPUs is an int, the others are
    texts; the variant is None where the name has none. Names of another form are left out.
    """
    rows = []
    for name in names:
        found = perf_recipes.NAME.match(name)
        if found is not None:
            words: dict[str, Any] = found.groupdict()
            words["gpus"] = int(words["gpus"])
            rows.append([name, *words.values()])
    return rows


class Base(NamedTuple):
    """Another release's catalogue, beside which one is written that has only what differs; ``read_base`` makes it."""

    file: str
    """The name of its file, without a folder."""
    functions: dict[str, Any]
    """Its rows by function."""


def read_base(path: Path) -> Base:
    """Return the catalogue in the file ``path``, to write another one beside it.

    Raises:
        JobError: it cannot be read, or is no catalogue
    """
    content = read_json(path)
    functions = content.get("functions") if isinstance(content, dict) else None
    if not isinstance(functions, dict):
        raise JobError(f"{path} is no catalogue: it has no functions")
    return Base(path.name, functions)


def catalogue_text(
    found: dict[str, dict[str, Any]], missing: dict[str, str], date: str, base: Base | None = None
) -> str:
    """Return the JSON text of a catalogue of performance recipes, one line per function; equal for one engine and date.

    It is one object with the keys ``schema``, ``release``, ``core`` and ``date`` (see ``_json_head``), ``sha256``,
    ``assumed``, ``by_length`` and ``missing`` (only if there are any), ``base`` (only with one), ``index`` (what
    ``index`` returns) and ``functions`` (rows by name). ``found`` and ``missing`` are what ``rows`` returns;
    ``date`` (2026-11-22) goes into the text as it is. Its ``sha256`` is that of the lines of all functions: by it a
    job names the catalogue that it was planned with. ``base``: another release's catalogue, whose file's name goes
    into the text; functions whose row is equal there are left out of ``functions``, but not of the index; None:
    nothing is left out. The text ends with a line break.
    """
    found, by_length = _split_by_length(found)
    lines = {name: f"{json.dumps(name)}:{_json_line(row)}" for name, row in found.items()}
    selected_by = ",\n".join(map(_json_line, index(found)))
    models = {row["hugging_face"] for row in found.values()} & perf_recipes.PUBLISHED.keys()
    assumed = {name: perf_recipes.PUBLISHED[name].assumed for name in sorted(models)}
    head: dict[str, Any] = {
        "sha256": hashlib.sha256(",\n".join(lines.values()).encode()).hexdigest(),
        "assumed": {name: what for name, what in assumed.items() if what},
    }
    if by_length:
        head["by_length"] = by_length
    if missing:
        head["missing"] = missing
    if base is not None:
        head["base"] = base.file
        # Only after the hash, which is of all functions, whatever the base has.
        lines = {name: line for name, line in lines.items() if found[name] != base.functions.get(name)}
    body = ",\n".join(lines.values())
    return f'{_json_head(date, **head)},\n"index": [\n{selected_by}\n],\n"functions": {{\n{body}\n}}}}\n'


def _split_by_length(found: dict[str, dict[str, Any]]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return (the rows of ``found`` without ``by_length``, by model how FLOPs per token grow with sequence length).

    The first dict is by recipe, as ``found`` is, which is not changed. The second has, by the model in the recipes'
    names, sorted, what their ``by_length`` agree on, in the form of ``lengths.growth``. A model whose recipes
    contradict each other, or are not counted (``by_length`` is None or missing), is missing there; recipes whose
    names cannot be read do not count.
    """
    of_models: dict[str, list[Any]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for name, row in found.items():
        rows[name] = {key: value for key, value in row.items() if key != "by_length"}
        match = perf_recipes.NAME.match(name)
        if match is not None and row.get("by_length"):
            of_models.setdefault(match["model"], []).append(row["by_length"])
    merged = {model: _growth_of_model(each) for model, each in sorted(of_models.items())}
    return rows, {model: growth for model, growth in merged.items() if growth}


def _growth_of_model(each: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Merge what ``lengths.growth`` says of each function of one model into one such dict; None where they differ.

    ``each`` has a result for each function; an empty one adds nothing. The answer has every key that any of them
    has, and is empty where they have none. Of ``least``, the shortest length for which the formula holds, the
    largest is taken; another value that several functions have must be equal.
    """
    merged: dict[str, Any] = {}
    for one in each:
        for name, value in one.items():
            if name == "least":
                merged[name] = max(value, merged.get(name, 0))
            elif merged.setdefault(name, value) != value:
                return None
    return merged


def _json_head(date: str, **more: Any) -> str:
    """Return the beginning of a catalogue's JSON text: an object without the brace that closes it or a final comma.

    It has ``schema`` (the number of this format), ``release`` and ``core``, the installed versions of
    Megatron-Bridge and megatron-core (null: unknown), ``date``, and ``more``, keys with their JSON values, in this
    order, each on a line.
    """
    head = {
        "schema": SCHEMA,
        "release": package_version("megatron-bridge"),
        "core": package_version("megatron-core"),
        "date": date,
        **more,
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    return "{" + ",\n".join(lines)


def _json_line(value: Any) -> str:
    """Return ``value`` as compact JSON on one line with sorted keys, so that equal values give equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def row(name: str, config: Any) -> dict[str, Any]:
    """Return the catalogue's row, of JSON values, for the recipe ``name``, whose function returned ``config``.

    The keys are ``columns``, ``sequence_length``, ``architecture``, ``parameters`` (their number),
    ``flops_per_token`` (Megatron-Bridge's count) and ``own_flops_per_token`` (LLMB's), ``by_length``, ``layers``,
    ``stages`` (whether the recipe lays layers out by hand), ``settings``, ``env`` (texts by variable, sorted) and,
    only if there are any, ``layouts``. The functions of these names in this module, ``counts``, ``perf_recipes``
    and ``layouts`` say what the values are. Numbers that are not counted are None. Changes ``config``: fills in
    numbers that the framework would set later.

    Raises:
        Exception: a recipe of another form, in which something is missing that all have so far
    """
    _fill_in_defaults(config)
    ends = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
    by_hand = ("pipeline_model_parallel_layout", *ends, "hybrid_layer_pattern")
    placed = layouts.layouts(name, config.model)
    return {
        "columns": perf_recipes.columns(config),
        "sequence_length": config.model.seq_length,
        "architecture": architecture(config),
        "parameters": counts.parameters(config.model),
        "flops_per_token": bridge_flops_per_token(config),
        "own_flops_per_token": counts.flops_per_token(config),
        "by_length": _by_length(config),
        "layers": layers(config),
        "stages": any(getattr(config.model, field, None) for field in by_hand),
        **({"layouts": placed} if placed else {}),
        "settings": settings(config),
        "env": {name: perf_recipes.word(value) for name, value in sorted(config.env_vars.items())},
    }


def architecture(config: Any) -> dict[str, Any]:
    """Return the model dimensions of a recipe's ``config`` that divisibility depends on or that a reader looks for.

    The keys are ``layers``, ``hidden``, ``ffn``, ``heads``, ``query_groups`` (as many as heads without groups),
    ``vocabulary`` (None where it is not known), ``mtp_layers`` (0: none), ``moe`` and ``provider``, the name of the
    model provider's class. ``moe`` has ``experts``, ``top_k``, ``ffn`` and ``shared_ffn`` (None: no shared expert);
    it is None for a model without experts.
    """
    model = config.model
    moe = None
    if getattr(model, "num_moe_experts", None):
        moe = {
            "experts": model.num_moe_experts,
            "top_k": model.moe_router_topk,
            "ffn": model.moe_ffn_hidden_size,
            "shared_ffn": getattr(model, "moe_shared_expert_intermediate_size", None),
        }
    return {
        "layers": model.num_layers,
        "hidden": model.hidden_size,
        "ffn": model.ffn_hidden_size,
        "heads": model.num_attention_heads,
        "query_groups": getattr(model, "num_query_groups", None) or model.num_attention_heads,
        "vocabulary": getattr(model, "vocab_size", None),
        "mtp_layers": getattr(model, "mtp_num_layers", None) or 0,
        "moe": moe,
        "provider": type(model).__name__,
    }


def layers(config: Any) -> dict[str, Any] | None:
    """Return what a job's memory depends on beside ``architecture``: the model's layers, and sizes inside them.

    ``config`` is a recipe's, completed by ``_fill_in_defaults``. The keys are ``order`` and ``kinds``, as
    ``counts.layers`` returns them, ``head_dim``, ``gated`` (whether MLPs have a gate), ``expert_hidden`` (the latent
    size of experts), for each of ``latent``, ``mamba`` and ``delta`` a list of that mixer's sizes (5, 4 and 4 of
    them), in the order of ``_MIXERS`` (0 for one that is not set), and ``encoder``, the image encoder's number of
    weights; what a model does not have is left out. None where ``counts`` does not count the model's layers.

    Raises:
        KeyError: a hybrid's pattern has a letter that ``counts`` does not know
    """
    model, found = config.model, counts.layers(config.model)
    if found is None:
        return None
    sizes = {
        "head_dim": getattr(model, "kv_channels", None) or model.hidden_size // model.num_attention_heads,
        "gated": bool(model.gated_linear_unit),
        "expert_hidden": getattr(model, "moe_latent_size", None),
    }
    for name, fields in _MIXERS.items():
        if any(kind[0] == name for kind in found["kinds"].values()):
            sizes[name] = [getattr(model, field) or 0 for field in fields]
    encoder = {"encoder": counts.encoder(model)} if counts.encoder(model) else {}
    return found | {name: value for name, value in sizes.items() if value is not None} | encoder


def settings(config: Any) -> dict[str, Any]:
    """Return the settings, other than columns, in which recipes differ, of a recipe's ``config``, by name.

    They are the model's fields in ``SETTINGS`` and, of other sections, ``optimizer``, ``precision_aware``,
    ``moments`` (their dtype), ``fp32_gradients``, ``average_in_collective``, ``precision`` (a name, or what
    ``_precision`` returns), ``nccl_ub``, ``tp_comm_overlap``, ``overlap_moe_expert_parallel_comm``,
    ``early_gather``, ``peft`` and ``dataset`` (their classes' names) and ``dataset_seq_length``. They are JSON
    values; those that are off, zero, None, an empty list or dict, or the text ``none`` are left out.
    """
    model, mixed = config.model, config.mixed_precision
    found = {name: as_json_value(getattr(model, name, None)) for name in SETTINGS}
    found |= {
        "optimizer": config.optimizer.optimizer,
        "precision_aware": bool(config.optimizer.use_precision_aware_optimizer),
        "moments": as_json_value(config.optimizer.exp_avg_dtype),
        "fp32_gradients": bool(config.ddp.grad_reduce_in_fp32),
        "average_in_collective": bool(config.ddp.average_in_collective),
        "precision": mixed if isinstance(mixed, str) else _precision(mixed),
        "nccl_ub": bool(getattr(config.ddp, "nccl_ub", False)),
        "tp_comm_overlap": getattr(config.comm_overlap, "tp_comm_overlap", None),
        "overlap_moe_expert_parallel_comm": getattr(config.comm_overlap, "overlap_moe_expert_parallel_comm", None),
        "early_gather": bool(config.optimizer.overlap_param_gather_with_optimizer_step),
        "peft": type(config.peft).__name__ if config.peft is not None else None,
        "dataset": type(config.dataset).__name__,
        "dataset_seq_length": as_json_value(getattr(config.dataset, "seq_length", None)),
    }
    return {name: value for name, value in found.items() if value not in (None, False, [], {}, "none", 0)}


def bridge_flops_per_token(config: Any) -> float | None:
    """Return Megatron-Bridge's own count of FLOPs per token of a training step, at the config's sequence length.

    ``config`` is a recipe's, completed by ``_fill_in_defaults``. None where Bridge has no formula for the model.
    Imports Megatron-Bridge.
    """
    from megatron.bridge.training.utils.flop_utils import num_floating_point_operations

    try:
        return float(num_floating_point_operations(config, 1)) / float(config.model.seq_length)
    except (AttributeError, TypeError, ValueError, NotImplementedError):
        return None


def _by_length(config: Any) -> dict[str, Any] | None:
    """Return how Bridge's and LLMB's counts of FLOPs per token grow with sequence length, as ``lengths.growth`` does.

    The counts are called ``bridge`` and ``own``; one that does not count the model is left out. None where neither
    counts it, or a count does not follow the formula. The sequence length of ``config`` is changed meanwhile and
    set back.

    Raises:
        KeyError: a hybrid's pattern has a letter that ``counts`` does not know
    """
    ways = {"bridge": lambda: bridge_flops_per_token(config), "own": lambda: counts.flops_per_token(config)}
    return lengths.growth(config.model, ways)


def _fill_in_defaults(config: Any) -> None:
    """Fill in, in the model of ``config``, sizes that the framework would set before it builds the model.

    Counts of parameters and FLOPs need them. The vocabulary is set always, to ``perf_recipes.vocabulary`` (None where
    it is not known); the width of the MLP only where the model has that field and it is None; the layers of a hybrid's
    heads for further tokens only where its pattern does not have them yet. Returns nothing: ``config`` itself is
    changed.
    """
    model = config.model
    model.vocab_size = perf_recipes.vocabulary(config)
    if getattr(model, "ffn_hidden_size", 1) is None:
        model.ffn_hidden_size = 4 * model.hidden_size
    further = getattr(model, "mtp_hybrid_override_pattern", None)
    if further and "/" not in model.hybrid_layer_pattern:
        # A hybrid's multi-token prediction heads follow its layers; repeated ones are one head with shared weights.
        heads = max(1, model.mtp_num_layers or 0) if model.mtp_use_repeated_layer else model.mtp_num_layers or 0
        model.hybrid_layer_pattern = "/".join([model.hybrid_layer_pattern, *[further] * heads])


def _precision(mixed: Any) -> dict[str, Any]:
    """Return the FP8 and FP4 settings of a mixed-precision configuration that are on, by name; empty for plain bf16.

    ``mixed`` is Megatron-Bridge's object; None gives an empty dict. The names are ``fp8``, ``fp8_recipe``, ``fp4``,
    ``fp4_recipe`` and ``fp8_param_gather``; values are JSON values. A recipe is left out where its format is off.
    """
    names = ("fp8", "fp8_recipe", "fp4", "fp4_recipe", "fp8_param_gather")
    found = {name: as_json_value(getattr(mixed, name, None)) for name in names}
    return {
        name: value
        for name, value in found.items()
        if value not in (None, False) and not (name.endswith("_recipe") and not found[name[:3]])
    }


def main(arguments: list[str]) -> int:
    """Write the catalogue of this engine's performance recipes to a file, and return the exit status.

    ``arguments``, without the program's name: the file, whose folder must exist, and options. ``--date DATE`` is the
    date in it (else today's), ``--base FILE`` another release's catalogue. With ``--validation`` or ``--fields`` the
    file gets the results of validating the functions, or the fields of the configuration, instead, and ``--base`` is
    not used. An existing file is replaced. 0: written; else nothing is written, and the error is printed: 3 where
    this Python has no engine with performance recipes, with ``--validation`` also 2 where a function's job is
    refused. Functions that were left out, and why, are printed on stderr. Patches the process for training on a CPU.

    Raises:
        SystemExit: with status 2, the arguments are wrong, or the base is no catalogue; with 0 after ``--help``
        OSError: the file cannot be written
        Exception: with ``--validation``, what a recipe or Megatron raises but for refusals
    """
    parser = argparse.ArgumentParser(prog="python -m llmb_train.catalogue", description=_DESCRIPTION)
    parser.add_argument("file", type=Path)
    parser.add_argument("--validation", action="store_true", help="validate the functions instead of listing them")
    parser.add_argument("--fields", action="store_true", help="list the fields of the configuration instead")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="the date in it (default: today)")
    parser.add_argument("--base", type=Path, help="another release's catalogue beside it: write what differs only")
    options = parser.parse_args(arguments)
    if not options.file.parent.is_dir():  # calling all functions takes a minute
        parser.error(f"{options.file.parent} is not a directory")
    try:
        base = read_base(options.base) if options.base else None
    except JobError as error:
        parser.error(error.message)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    missing: dict[str, str] = {}
    try:
        if not options.fields:
            perf_recipes.names()  # an engine without them is reported before torch is imported
        from llmb_train import cpu

        cpu.install()  # some functions ask what GPU there is
        if options.fields:
            options.file.write_text(fields_text(), encoding="utf-8")
            return 0
        if options.validation:
            from llmb_train import validation

            found = {name: validation.validate(name) for name in perf_recipes.names()}
            lines = [f"{json.dumps(name)}: {json.dumps(result)}" for name, result in found.items()]
            body = ",\n".join(lines)
            written = f'{_json_head(options.date)},\n"functions": {{\n{body}\n}}}}\n'
        else:
            found, missing = rows()
            written = catalogue_text(found, missing, options.date, base)
    except TrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    options.file.write_text(written, encoding="utf-8")
    for name, why in missing.items():
        print(f"left out: {name}: {why}", file=sys.stderr)
    print(f"{len(found)} functions in {options.file}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
