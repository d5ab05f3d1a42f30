"""What Megatron makes of jobs and functions, on a machine without GPUs. For the engine's Python.

    ENGINE_PYTHON tests/training/questions.py QUESTION FILE > answers.jsonl     (PYTHONPATH=common)

Each line of FILE is asked about, in JSON, and each has its line of output. QUESTION is a function of this module:
``resolved``, ``launched``, ``refused`` and ``counted`` take the content of a job.json, the others functions by name.
One process for all lines: importing takes seconds, validating a millisecond. Nothing of Transformer Engine runs; only
its version is claimed, for the version gates of megatron-core.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import logging
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmb_train import cpu
from llmb_train.engine import Engine, package_version, release_of
from llmb_train.errors import TrainError
from llmb_train.job import FunctionJob, parse_job

GPU = Engine(device="cuda", transformer_engine=True)

CLAIMED_TRANSFORMER_ENGINE = {"0.3": "2.12.0", "0.6": "2.16.0"}
"""The versions in NVIDIA's containers for these releases of Megatron-Bridge; of 26.08 the one in 26.06, before it."""

SECTIONS = (
    *("model", "ddp", "dist", "optimizer", "mixed_precision", "comm_overlap", "train", "rng", "checkpoint"),
    *("rerun_state_machine", "scheduler", "profiling", "dataset", "tokenizer", "logger", "validation"),
)
FUSIONS = ("apply_rope_fusion", "moe_permute_fusion")
"""What core imports while it validates; taken from the configuration as built."""


# Jobs


def resolved(document: dict[str, Any]) -> dict[str, Any]:
    """``ok``, ``error`` (null or the message), ``data_parallel``, ``microbatches`` (gradient accumulation),
    ``contradictions`` between the job and what was resolved, and ``fields``: the settings under their names.

    Every refusal, Bridge's assertions too, becomes the ``error`` of its line.
    """
    from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator

    from llmb_train.config import build_config
    from llmb_train.evidence.resolved import different, settings_of

    try:
        job = parse_job(document)
        config, fusions = validated(build_config(job, GPU), job.world_size)
        config.to_yaml(os.devnull)  # as rank 0 does
        train, data_parallel = config.train, config.data_parallel_size
        # validate() does not look at the batch; core does, when training starts.
        calculator = ConstantNumMicroBatchesCalculator(
            train.global_batch_size, train.micro_batch_size, data_parallel, False, 0
        )
    except (TrainError, AssertionError, ValueError, TypeError) as error:
        return {"ok": False, "error": f"{type(error).__name__}: {error}".strip()}
    return {
        "ok": True,
        "error": None,
        "data_parallel": data_parallel,
        "microbatches": calculator.get(),
        "contradictions": different(settings_of(job, config)),
        "fields": resolved_fields(config) | fusions,
    }


def validated(config: Any, world_size: int) -> tuple[Any, dict[str, Any]]:
    """The configuration after Bridge's own update and ``ConfigContainer.validate()``, as ``pretrain`` does it; and the
    fused kernels that are switched off for that."""
    from megatron.bridge.training.config import runtime_config_update

    from llmb_train import validation

    os.environ["WORLD_SIZE"] = str(world_size)
    fusions = {f"model.{name}": getattr(config.model, name) for name in FUSIONS}
    validation.without_kernels(config)
    with validation.claimed(validation.NEEDS[:1]):
        runtime_config_update(config)
    return config, fusions


def resolved_fields(config: Any) -> dict[str, Any]:
    """The settings of a whole configuration under their names, with what its sections derive from their fields."""
    return {
        f"{section}.{name}": _plain(getattr(part, name, None))
        for section in SECTIONS
        if (part := getattr(config, section, None)) is not None
        for name in dict.fromkeys([*(field.name for field in dataclasses.fields(part)), *vars(part)])
    }


def _plain(value: Any) -> Any:
    """JSON form of a setting: enumerations by name, overlap presets by the name Bridge gives them."""
    from megatron.bridge.training import comm_overlap

    if value is None or isinstance(value, (bool, int, float, str)):
        return getattr(value, "value", value)
    if isinstance(value, comm_overlap.TransformerLayerTPOverlapCfg):
        return next(name for name, preset in vars(comm_overlap).items() if preset is value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return getattr(value, "name", None) or str(value)


def launched(document: dict[str, Any]) -> dict[str, Any]:
    """``fields``, as in ``resolved``, of the function that the job has as its ``run_id``, with the columns of the job
    as NVIDIA's launcher sets them (v0.6.0, ``scripts/performance/utils/overrides.py``)."""
    from llmb_train.perf_recipes import find

    job = parse_job(document)
    config = find(job.run_id)()
    set_columns(config, job)
    if job.precision.dtype == "bf16":  # run_script.py:148
        config.optimizer.use_precision_aware_optimizer = True
    config, fusions = validated(config, job.world_size)
    return {"fields": resolved_fields(config) | fusions}


def set_columns(config: Any, job: Any) -> None:
    """Where the function has other columns than the job: those of ``set_user_overrides`` and ``set_post_overrides``."""
    from megatron.bridge.utils.cuda_graph import set_full_iteration_cuda_graph

    model, plan, performance = config.model, job.parallelism, job.performance
    config.checkpoint.load = None  # as overrides.py:113; nothing is loaded unless asked for
    model.tensor_model_parallel_size, model.sequence_parallel = plan.tp, plan.tp > 1
    model.pipeline_model_parallel_size, model.context_parallel_size = plan.pp, plan.cp
    model.virtual_pipeline_model_parallel_size = plan.vp
    config.train.micro_batch_size, config.train.global_batch_size = job.batch.mbs, job.batch.gbs
    if plan.fsdp and not config.ddp.use_megatron_fsdp:  # _set_megatron_fsdp_overrides, overrides.py:94
        config.ddp.use_megatron_fsdp, config.ddp.data_parallel_sharding_strategy = True, "optim_grads_params"
        config.ddp.keep_fp8_transpose_cache = config.ddp.average_in_collective = False
        model.init_model_with_meta_device = True
    if performance.cuda_graph:
        set_full_iteration_cuda_graph(model)  # overrides.py:143
    else:
        model.cuda_graph_impl = "none"
    layers = performance.recompute_layers
    model.recompute_granularity, model.recompute_method = ("full", "block") if layers else (None, None)
    model.recompute_num_layers = layers or None
    model.cpu_offloading, model.cpu_offloading_weights = performance.offload_layers > 0, False
    model.cpu_offloading_num_layers = performance.offload_layers
    interleaved = job.data_parallel > 1 and plan.pp > 1 and (plan.vp or 1) > 1
    if interleaved and job.precision.fp8_recipe != "mx":
        # overrides.py:683. The functions of 0.6.0, which is in the container, have it too (perf_recipes/_common.py:90);
        # those of 0.6.2 do not.
        config.optimizer.overlap_param_gather_with_optimizer_step = True
        config.comm_overlap.overlap_param_gather_with_optimizer_step = True


def refused(document: dict[str, Any]) -> str | None:
    """Why Megatron does not train the job, whatever describes its model; null: it does. Beyond
    ``llmb_train.validation`` it is asked whether the interleaved schedule takes the micro-batches."""
    from llmb_train import perf_recipes, validation

    def make() -> Any:
        os.environ["WORLD_SIZE"] = str(job.world_size)
        if not isinstance(job, FunctionJob):
            from llmb_train.config import build_config

            return validation.without_kernels(build_config(job, GPU))
        from llmb_train.functions import build_config as build_function

        export(perf_recipes.find(job.function.name)())
        return validation.without_kernels(build_function(job, GPU))

    try:
        job = parse_job(document)
        return validation.answer(make, schedule)[1]
    except TrainError as error:
        return f"LLMB: {error}"


def export(config: Any) -> None:
    from llmb_train import perf_recipes

    os.environ.update({name: perf_recipes.word(value) for name, value in config.env_vars.items()})


def schedule(config: Any) -> None:
    """What core looks at when the interleaved schedule starts."""
    from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator

    model, train = config.model, config.train
    if model.virtual_pipeline_model_parallel_size is None:
        return
    batches = ConstantNumMicroBatchesCalculator(
        train.global_batch_size, train.micro_batch_size, config.data_parallel_size, False, 0
    ).get()
    # core 0.16.1 and 0.19.0, pipeline_parallel/schedules.py: forward_backward_pipelining_with_interleaving
    group, stages = model.microbatch_group_size_per_vp_stage or 0, model.pipeline_model_parallel_size
    if not stages <= group <= batches:
        raise ValueError(f"the group of {group} micro-batches is not within PP={stages} and M={batches}")
    if 0 < batches % group < stages:
        raise ValueError(f"{batches} micro-batches leave {batches % group} in groups of {group}")


WITHOUT_TRANSFORMER_ENGINE = {
    "fp8": None,
    "fp4": None,
    "cpu_offloading": False,
    "cuda_graph_impl": "none",
    "moe_grouped_gemm": False,
    "moe_shared_expert_overlap": False,
    "gradient_accumulation_fusion": False,
    "perform_initialization": False,
}
"""What the local layers cannot have, and what counting does not need; none of it changes a parameter."""


def counted(asked: dict[str, Any]) -> int:
    """Parameters of the real model that ``rank`` (0) of a GPU ``job`` holds, built on torch's ``meta`` device with its
    fake process groups. A job of one rank holds the whole model. Layers are megatron-core's local ones, whose
    parameters are those of Transformer Engine's."""
    import torch
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    from llmb_train.config import build_config, local_block
    from llmb_train.validation import fake_process_groups

    rank, job = asked.get("rank", 0), parse_job(asked["job"])
    os.environ["RANK"] = str(rank)
    model = validated(build_config(job, GPU), job.world_size)[0].model
    for name, value in WITHOUT_TRANSFORMER_ENGINE.items():
        setattr(model, name, value)
    model.transformer_layer_spec = local_block
    torch.cuda.current_device = lambda: cpu.DeviceName("meta")
    with fake_process_groups(model, rank, job.world_size), cpu.CudaRedirect("meta"):
        model_parallel_cuda_manual_seed(1234)
        model._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
        virtual = model.virtual_pipeline_model_parallel_size
        with torch.device("meta"):
            chunks = [model.provide(vp_stage=stage if virtual else None) for stage in range(virtual or 1)]
        return sum(parameter.numel() for chunk in chunks for parameter in chunk.parameters())


def flops(document: dict[str, Any]) -> list[float | None]:
    """For one token of one step of the job: as Megatron-Bridge counts for its log, and as LLMB does."""
    from llmb_train import counts, perf_recipes
    from llmb_train.catalogue import _fill_in_defaults, bridge_flops_per_token

    job = parse_job(document)
    if isinstance(job, FunctionJob):
        from llmb_train.functions import build_config as build_function

        own = perf_recipes.find(job.function.name)()
        export(own)
        config = build_function(job, GPU)
        config.tokenizer = own.tokenizer  # whose vocabulary is the model's
        _fill_in_defaults(config)
    else:
        from llmb_train.config import build_config

        config = build_config(job, GPU)
    return [bridge_flops_per_token(config), counts.flops_per_token(config)]


# Functions


def validated_function(name: str) -> dict[str, Any]:
    """``result`` and ``saving`` (of a job that saves) as in ``validation.validate``. Where a name ends in ``#``, also
    ``parameters`` without heads for further tokens, and ``published``: those of transformers' own class of the model,
    built without memory."""
    from llmb_train import validation

    function = name.rstrip("#")
    found = {"result": validation.validate(function), "saving": validation.validate(function, True)}
    return found | (_weights(function) if name.endswith("#") else {})


def _weights(name: str) -> dict[str, Any]:
    """By LLMB's arithmetic, and by transformers, which counts the biases of routers among the buffers."""
    import torch
    import transformers

    from llmb_train import counts, perf_recipes

    perf_recipes.asked.clear()
    model = perf_recipes.find(name)().model
    model.mtp_num_layers = None
    (published,) = set(perf_recipes.asked)
    kind = getattr(transformers, perf_recipes.PUBLISHED[published].architecture)
    with torch.device("meta"):
        other = kind(perf_recipes.load(published))
    weights = sum(parameter.numel() for parameter in other.parameters())
    biases = sum(buffer.numel() for key, buffer in other.named_buffers() if key.endswith("e_score_correction_bias"))
    return {"parameters": counts.parameters(model), "published": weights + biases}


def decided_by_the_launcher(asked: str) -> dict[str, Any]:
    """The fields that NVIDIA's launcher decides (``tests/data/launcher.json``) in the job of ``FUNCTION GPUS``."""
    from llmb_train import perf_recipes, validation
    from llmb_train.functions import build_config

    name, gpus = asked.split()
    own = perf_recipes.find(name)()
    export(own)
    config = build_config(replace(validation._job(name, own, False), world_size=int(gpus)), GPU)
    names = json.loads((Path(__file__).parents[1] / "data" / "launcher.json").read_text(encoding="utf-8"))["fields"]
    return {short: functools.reduce(_member, path.split("."), config) for short, path in names.items()}


def changed_by_columns(asked: dict[str, Any]) -> dict[str, Any]:
    """The settings in which the job of the function ``name`` with ``columns`` differs from the function itself, of the
    model, DDP and overlaps."""
    from llmb_train import perf_recipes, validation
    from llmb_train.functions import build_config

    columns, own = asked["columns"], perf_recipes.find(asked["name"])()
    before = resolved_fields(own)
    export(own)
    job = validation._job(asked["name"], own, False)
    graphs = columns.pop("cuda_graph", job.performance.cuda_graph)
    job = replace(
        job,
        parallelism=replace(job.parallelism, **columns),
        performance=replace(job.performance, cuda_graph=graphs),
    )
    after = resolved_fields(build_config(job, GPU))
    return {
        name: value
        for name, value in after.items()
        if name.startswith(("model.", "ddp.", "comm_overlap.")) and value != before.get(name)
    }


def _member(section: Any, name: str) -> Any:
    return getattr(section, name, None)


def model_fields(name: str) -> dict[str, Any]:
    """The fields of a function's model provider that are not the defaults of its class."""
    from llmb_train import perf_recipes

    model = perf_recipes.find(name)().model
    defaults = {field.name: field.default for field in dataclasses.fields(model)}
    found = {name: getattr(model, name, None) for name in defaults}
    return {name: _named(value) for name, value in found.items() if value is not None and value != defaults[name]}


def _named(value: Any) -> Any:
    """JSON's values, those of transformers' configurations by what differs from their classes."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        return [_named(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _named(item) for key, item in value.items()}
    if hasattr(value, "to_diff_dict"):
        return {key: _named(item) for key, item in value.to_diff_dict().items() if "version" not in key}
    return value if isinstance(value, (int, float, str, type(None))) else type(value).__name__


def unknown(model: str) -> list[str]:
    """What the numbers that LLMB ships in place of ``config.json`` name and transformers' classes do not."""
    import transformers

    from llmb_train.perf_recipes import PUBLISHED

    numbers = PUBLISHED[model].numbers
    empty = getattr(transformers, PUBLISHED[model].kind)()
    parts = [(getattr(empty, name), numbers[name]) for name in ("text_config", "vision_config") if name in numbers]
    names = [
        own.keys() - config.to_dict().keys() - config.attribute_map.keys() for config, own in [(empty, numbers), *parts]
    ]
    return sorted(set().union(*names))


def main(question: str, file: str) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("LOCAL_RANK", "0")
    cpu.install()
    import megatron.core.utils as core
    from packaging.version import Version

    release = release_of(package_version("megatron-bridge"))
    assert release is not None
    core._te_version = Version(CLAIMED_TRANSFORMER_ENGINE[release.bridge])
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        print(json.dumps({"answer": globals()[question](json.loads(line))}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
