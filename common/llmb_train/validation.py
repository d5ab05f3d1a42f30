"""What Megatron says of each function's configuration, as a job trains it at the function's own number of GPUs.

The checks, in the order in which a starting job meets them: Bridge's ``runtime_config_update``, which ends with
``ConfigContainer.validate``; core's calculator of micro-batches; core's process groups; the layers of each pipeline
stage. Nothing is trained, so a machine without a GPU and without the container's packages will do. If Megatron misses
such a package, a stand-in takes its place, the package is noted, and the check runs again, which shows what else is
wrong.
"""

from __future__ import annotations

import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

from llmb_train import perf_recipes
from llmb_train.engine import Engine, minor, package_version
from llmb_train.functions import build_config
from llmb_train.job import Checkpoint, Columns, Function, FunctionJob, Performance, Precision, Steps

CLAIMED_TRANSFORMER_ENGINE = "2.14"
"""Of which core asks the version only. What it would import while it validates is switched off: ``_IMPORTED``."""

_IMPORTED = ("apply_rope_fusion", "moe_permute_fusion")
_GPU = Engine(device="cuda", transformer_engine=True)


class FusedAdam:
    """The parameters of Transformer Engine's optimizer, for which core looks before it uses a precision-aware one."""

    def __init__(
        self, master_weight_dtype: Any, exp_avg_dtype: Any, exp_avg_sq_dtype: Any, use_decoupled_grad: bool
    ) -> None:
        raise NotImplementedError("only its parameters are here")


@dataclass(frozen=True)
class Need:
    """What a machine without the container lacks. ``complaint``: how Megatron says so; ``modules``: where it looks."""

    title: str
    complaint: tuple[str, ...]
    modules: dict[str, dict[str, Any]]


NEEDS = (
    Need(
        "Transformer Engine's FusedAdam",
        ("requires FusedAdam from TransformerEngine",),
        {
            "transformer_engine": {},
            "transformer_engine.pytorch": {},
            "transformer_engine.pytorch.optimizers": {"FusedAdam": FusedAdam},
        },
    ),
    Need(
        "Transformer Engine or Apex, for fused accumulation of gradients",
        ("when gradient accumulation fusion is not used", "requires gradient_accumulation_fusion to be enabled"),
        {"fused_weight_gradient_mlp_cuda": {}},
    ),
    Need(
        "flash_mla and cudnn-frontend, for sparse attention",
        ("requires fused DSA kernels",),
        {"flash_mla": {"flash_mla_sparse_fwd": None}, "cudnn": {"DSA": None}},
    ),
)


def validate(name: str, saving: bool = False) -> dict[str, Any]:
    """What Megatron says of the configuration of the function ``name``, as a job trains it: ``needs`` and
    ``refused``.

    ``needs``: packages that validation asked for, and what the user has to give; ``refused``: why Megatron does not
    train it all the same, or None. ``saving``: of a job that saves checkpoints. Call ``llmb_train.cpu.install`` first.
    """
    missed, refused = answer(lambda: _configuration(name, saving))
    needs = [need.title for need in missed]
    if "_peft_" in name:
        needs.append("a checkpoint of the model, for adapters")  # validation asks for a folder only
    return {"needs": needs, "refused": refused}


def answer(make: Callable[[], Any], also: Callable[[Any], None] = lambda config: None) -> tuple[list[Need], str | None]:
    """What Megatron missed on this machine, and why it refuses the configuration that ``make`` gives.

    None: it trains it. ``make`` sets WORLD_SIZE; ``also`` asks further questions, among the job's process groups. What
    is missed gets a stand-in, and ``make`` is called again.
    """
    missed: list[Need] = []
    while True:
        refused = _ask(make, missed, also)
        missing = [need for need in NEEDS if any(words in (refused or "") for words in need.complaint)]
        if not missing or missing[0] in missed:
            return missed, refused
        missed.append(missing[0])


def _ask(make: Callable[[], Any], found: list[Need], also: Callable[[Any], None]) -> str | None:
    """The first thing that Megatron refuses in what ``make`` configures, in one line; None: nothing.

    ``found``: what has stand-ins meanwhile. ``also`` is called with the configuration. Variables are the same
    afterwards.
    """
    from megatron.bridge.training.config import runtime_config_update
    from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator

    with _as_in_the_container(), claimed(found):
        try:
            config = make()
            runtime_config_update(config)
            train = config.train
            ConstantNumMicroBatchesCalculator(
                train.global_batch_size, train.micro_batch_size, config.data_parallel_size, False, 0
            )
            with fake_process_groups(config.model, 0, int(os.environ["WORLD_SIZE"])):
                _build_stages(config.model)
                also(config)
        except (AssertionError, ValueError, TypeError, RuntimeError, NotImplementedError) as error:
            return _one_line(str(error)) or type(error).__name__
    return None


def _build_stages(model: Any) -> None:
    """Have core say which layers it builds in each pipeline stage.

    Hybrids, which divide theirs in their pattern, pass. What core refuses is raised as it is.
    """
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    if getattr(model, "hybrid_layer_pattern", None) or not model.num_layers:
        return
    chunks = model.virtual_pipeline_model_parallel_size
    for rank in range(model.pipeline_model_parallel_size):
        for chunk in range(chunks or 1):
            get_num_layers_to_build(model, chunk if chunks else None, rank)


def _one_line(message: str) -> str:
    """The message in one line, with the members of a set sorted: Python prints them in a different order each time."""
    line = " ".join(message.split())
    return re.sub(r"\{([^{}:]*)\}", lambda members: "{" + ", ".join(sorted(members[1].split(", "))) + "}", line)


def _configuration(name: str, saving: bool) -> Any:
    """The configuration of the function ``name`` as a job at its own number of GPUs has it.

    ``saving``: of a job that saves checkpoints.

    Sets the variables that the function wants, and WORLD_SIZE, in this process.
    """
    first = perf_recipes.find(name)()
    word = perf_recipes.NAME.match(name)
    assert word is not None  # perf_recipes.names has no other
    os.environ.update({key: perf_recipes.word(value) for key, value in first.env_vars.items()}, WORLD_SIZE=word["gpus"])
    return without_kernels(build_config(_job(name, first, saving), _GPU))


def without_kernels(config: Any) -> Any:
    """``config`` itself, with the kernels switched off that core imports while it validates."""
    for field in _IMPORTED:
        if hasattr(config.model, field):
            setattr(config.model, field, False)
    return config


def _job(name: str, config: Any, saving: bool) -> FunctionJob:
    """The job that trains the function ``name`` at its own number of GPUs, with or without ``saving`` checkpoints."""
    word = perf_recipes.NAME.match(name)
    assert word is not None
    own = Columns(**perf_recipes.columns(config), sequence_length=config.model.seq_length)
    precision: Any = word["precision"]
    save = "/nonexistent" if saving else None
    load = "/" if word["task"] == "peft" else None
    return FunctionJob(
        schema=1,
        run_id="validation",
        experiment_name=name,
        output_dir="/nonexistent",
        engine=minor(package_version("megatron-bridge") or ""),
        device="cuda",
        gpu_type=word["gpu"],
        gpu_generation=None,
        family=word["model"],
        model_size=word["model"],
        sequence_length=own.sequence_length,
        precision=Precision("fp8", precision[3:]) if precision.startswith("fp8") else Precision(precision, None),
        world_size=int(word["gpus"]),
        parallelism=own,
        batch=own,
        performance=Performance(own.cuda_graph, own.recompute_layers, own.offload_layers, None, None),
        steps=Steps(train=50, exit_after=None),
        profile=None,
        checkpoint=Checkpoint(save, None, load),
        data_workers=8,
        seed=1234,
        megatron={},
        function=Function(name, release="", catalogue="", columns=own, reduced=None),
    )


@contextmanager
def _as_in_the_container() -> Iterator[None]:
    """A context in which this process looks like a job's first rank in the container, for Megatron's checks.

    At its end all environment variables are what they were.
    """
    import megatron.core.utils as core
    from packaging.version import Version

    before, version = dict(os.environ), core._te_version
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0"}
    core._te_version = Version(CLAIMED_TRANSFORMER_ENGINE)
    try:
        yield
    finally:
        core._te_version = version
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def claimed(needs: Sequence[Need]) -> Iterator[None]:
    """A context in which the modules of ``needs`` can be imported, as stand-ins; what was there before comes back."""
    names = chain.from_iterable(need.modules for need in needs)
    modules = {name: types.ModuleType(name) for name in names}
    for need in needs:
        for name, content in need.modules.items():
            vars(modules[name]).update(content)
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


@contextmanager
def fake_process_groups(model: Any, rank: int, world_size: int) -> Iterator[None]:
    """A context in which core has the process groups of ``rank`` for the layout of ``model``, a provider.

    They are over torch's fake backend: no other process is needed.

    Raises:
        RuntimeError: ``world_size`` does not divide into them.
    """
    import torch.distributed as dist
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=model.tensor_model_parallel_size,
            pipeline_model_parallel_size=model.pipeline_model_parallel_size,
            virtual_pipeline_model_parallel_size=model.virtual_pipeline_model_parallel_size,
            context_parallel_size=model.context_parallel_size,
            expert_model_parallel_size=model.expert_model_parallel_size,
            expert_tensor_parallel_size=model.expert_tensor_parallel_size,
            create_gloo_process_groups=False,
        )
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
