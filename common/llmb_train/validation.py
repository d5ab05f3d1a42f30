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
    """A stand-in with the parameters of Transformer Engine's FusedAdam, for which core looks.

    It does so before it uses a precision-aware optimizer. Making an object of the class raises NotImplementedError.
    """

    def __init__(
        self, master_weight_dtype: Any, exp_avg_dtype: Any, exp_avg_sq_dtype: Any, use_decoupled_grad: bool
    ) -> None:
        raise NotImplementedError("only its parameters are here")


@dataclass(frozen=True)
class Need:
    """A package that Megatron's checks may miss on a machine without the container, and the stand-ins for it.

    ``NEEDS`` lists those that LLMB knows. Case matters in ``complaint``.
    """

    title: str
    """The package's name for people."""
    complaint: tuple[str, ...]
    """Parts of Megatron's messages, one of which shows that it is missed."""
    modules: dict[str, dict[str, Any]]
    """The modules in which Megatron looks for it, by dotted name, each with the content of its stand-in by name."""


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
    """Return what Megatron says of the configuration of the performance recipe ``name``: ``needs`` and ``refused``.

    ``needs`` is a list of texts: the titles of packages that the checks asked for, in that order, and what the user
    has to give; ``refused``: why Megatron does not train it even with those, in one line, or None if it does.
    ``saving``: for a job that saves checkpoints. Call ``llmb_train.cpu.install`` first.

    Raises:
        TrainError: the recipe does not exist here, or its job is refused before Megatron is asked
        Exception: what the recipe or Megatron raise, as ``answer`` says
    """
    missed, refused = answer(lambda: _configuration(name, saving))
    needs = [need.title for need in missed]
    if "_peft_" in name:
        needs.append("a checkpoint of the model, for adapters")  # validation asks for a folder only
    return {"needs": needs, "refused": refused}


def answer(make: Callable[[], Any], also: Callable[[Any], None] = lambda config: None) -> tuple[list[Need], str | None]:
    """Return (what Megatron's checks miss on this machine, why it refuses the configuration that ``make`` gives).

    The former are in the order in which they were missed, each once; the latter is one line, None: it would train
    it. ``make`` is called without arguments, must set WORLD_SIZE and returns a configuration; ``also`` is called
    with that within the job's process groups, and may raise further refusals. What is missed gets a stand-in, and
    both are called again. Environment variables are as before in the end. ``llmb_train.cpu.install`` must have been
    called. Nothing is trained.

    Raises:
        Exception: what ``make``, ``also`` or Megatron raise, but for assertions, type, value and runtime errors,
            which are refusals
    """
    missed: list[Need] = []
    while True:
        refused = _ask(make, missed, also)
        missing = [need for need in NEEDS if any(words in (refused or "") for words in need.complaint)]
        # What has a stand-in already and is still missed is a refusal like any other.
        if not missing or missing[0] in missed:
            return missed, refused
        missed.append(missing[0])


def _ask(make: Callable[[], Any], found: list[Need], also: Callable[[Any], None]) -> str | None:
    """Return, in one line, what Megatron first refuses in the configuration that ``make`` gives; None: nothing.

    ``make`` and ``also`` are as of ``answer``. ``found``: what gets stand-ins meanwhile. Environment variables are
    restored afterwards.

    Raises:
        Exception: whatever is raised, but for assertions, type, value and runtime errors, which count as refusals
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
    """Raise whatever core raises where it cannot divide the layers of ``model`` among its pipeline stages.

    ``model`` is a provider. Passes hybrids, which divide theirs in their pattern. Core's process groups must exist.

    Raises:
        AssertionError: core refuses the layout; also other exceptions of core
    """
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    if getattr(model, "hybrid_layer_pattern", None) or not model.num_layers:
        return
    chunks = model.virtual_pipeline_model_parallel_size
    for rank in range(model.pipeline_model_parallel_size):
        for chunk in range(chunks or 1):
            get_num_layers_to_build(model, chunk if chunks else None, rank)


def _one_line(message: str) -> str:
    """Return an error's ``message`` in one line, with the members of printed sets sorted, so that it is stable.

    Python prints them in a different order each time.
    """
    line = " ".join(message.split())

    def in_order(printed: re.Match[str]) -> str:
        """Return the printed set with its members sorted."""
        members = sorted(printed[1].split(", "))
        return "{" + ", ".join(members) + "}"

    return re.sub(r"\{([^{}:]*)\}", in_order, line)


def _configuration(name: str, saving: bool) -> Any:
    """Return the configuration of the performance recipe ``name`` as a job on its own number of GPUs trains it.

    ``saving``: for a job that saves checkpoints. Kernels that core would import while it validates are switched off
    in the configuration. Sets the environment variables that the recipe wants, and WORLD_SIZE, in this process.

    Raises:
        TrainError: the recipe does not exist here, or its job is refused
        Exception: what the recipe or Megatron raises
    """
    first = perf_recipes.find(name)()
    word = perf_recipes.NAME.match(name)
    assert word is not None  # perf_recipes.names has no other
    variables = {key: perf_recipes.word(value) for key, value in first.env_vars.items()}
    os.environ.update(variables, WORLD_SIZE=word["gpus"])
    return without_kernels(build_config(_job(name, first, saving), _GPU))


def without_kernels(config: Any) -> Any:
    """Switch off, in ``config``, the kernels that core would import while it validates; return ``config`` itself."""
    for field in _IMPORTED:
        if hasattr(config.model, field):
            setattr(config.model, field, False)
    return config


def _job(name: str, config: Any, saving: bool) -> FunctionJob:
    """Return a job that trains the performance recipe ``name`` as shipped, on its own number of GPUs.

    ``config``: what the recipe's function gives; it is not changed. ``saving``: the job saves checkpoints. ``name``
    must have the form that ``perf_recipes.names`` lists. Folders in the job do not exist, but for adapters, whose
    model is loaded from ``/``.
    """
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
    """Make this process look like a job's first rank in the container, to Megatron, until the context ends.

    That is by RANK, LOCAL_RANK and the version of Transformer Engine that core believes in. Then that is undone and
    all environment variables are as before, also those that others changed, and after an error. Yields None.
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
    """Make the modules of ``needs`` importable, as stand-ins, until the context ends, in this process.

    They take the place of modules of the same names, which are back afterwards, also after an error. Yields None.
    """
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
    """Give core the process groups of ``rank``, for the parallelism of the provider ``model``, within the context.

    ``rank`` counts from 0, of ``world_size``. The groups are over torch's fake backend: no other process is needed.
    This process must not have any yet, and has none afterwards, also after an error. Yields None.

    Raises:
        RuntimeError: ``world_size`` cannot be divided into these groups
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
