"""Megatron without Transformer Engine: patches for what megatron-core then lacks; ``stubs`` has the import stand-ins.

Needed on a CPU, and on a GPU outside NVIDIA's containers. ``engine.RELEASES`` names the releases that the patches were
tried with; with another the log says so. Each looks for what it makes up for.
"""

from __future__ import annotations

import importlib.util
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from llmb_train import stubs

_HELPERS = "megatron.core.datasets.helpers_cpp"


def install() -> None:
    """Install stand-ins for Transformer Engine, then import and patch megatron-core, in the whole process.

    Call once, before Megatron-Bridge is imported: a second call would wrap the patched functions again. Some
    warnings are silenced.

    Raises:
        ImportError: megatron-core is missing, or, on a Python before 3.12, typing_extensions
    """
    # Two dozen lines on every rank that repeat one line of the log's header.
    warnings.filterwarnings("ignore", message=".*(Apex is|Transformer Engine and Apex are) not installed")
    warnings.filterwarnings("ignore", message="The legacy GroupedMLP will be deprecated")
    stubs.install()
    patch_norm()
    _patch_attention()
    _patch_experts()
    _patch_optimizer()
    _patch_datasets()


class ZeroCenteredLayerNorm(torch.nn.LayerNorm):  # type: ignore[misc]
    """A LayerNorm module whose weight is stored minus one, as Nemotron-4 has it; made like ``torch.nn.LayerNorm``.

    The module must have a weight and a bias. ``forward`` returns ``hidden``, normalized over its last dimensions
    with weight + 1 and bias, in the same shape; torch raises RuntimeError where it has other last dimensions than
    the module. ``reset_parameters`` sets weight and bias to zero in place.
    """

    def reset_parameters(self) -> None:
        """Set the norm's weight and bias to zero in place: the weight is stored minus one, so that it is one."""
        torch.nn.init.zeros_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return ``hidden``, normalized over its last dimensions with weight + 1 and bias, in the same shape.

        The last dimensions are those of the ``normalized_shape`` that the module was made with; where ``hidden`` has
        others, torch raises RuntimeError.
        """
        return torch.nn.functional.layer_norm(hidden, self.normalized_shape, self.weight + 1, self.bias, self.eps)


class ZeroCenteredRMSNorm(torch.nn.RMSNorm):  # type: ignore[misc]
    """An RMSNorm module whose weight is stored minus one; made like ``torch.nn.RMSNorm``, with a weight.

    ``forward`` returns ``hidden``, normalized over its last dimensions with weight + 1, in the same shape; torch
    raises RuntimeError where it has other last dimensions than the module. ``reset_parameters`` sets the weight to
    zero in place.
    """

    def reset_parameters(self) -> None:
        """Set the norm's weight to zero in place: it is stored minus one, so that it is one."""
        torch.nn.init.zeros_(self.weight)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return ``hidden`` normalized over its last dimensions by RMSNorm with weight + 1, in the same shape.

        The last dimensions are those of the ``normalized_shape`` that the module was made with; where ``hidden`` has
        others, torch raises RuntimeError.
        """
        return torch.nn.functional.rms_norm(hidden, self.normalized_shape, self.weight + 1, self.eps)


_NORMS = {
    ("LayerNorm", False): torch.nn.LayerNorm,
    ("LayerNorm", True): ZeroCenteredLayerNorm,
    ("RMSNorm", False): torch.nn.RMSNorm,
    ("RMSNorm", True): ZeroCenteredRMSNorm,
}


def patch_norm() -> None:
    """Let megatron-core's norm of torch work with sequence parallelism and zero-centered gamma, in this process.

    Replaces the constructor of ``WrappedTorchNorm``, which refuses both and persistent kernels. The first needs the
    parameters marked, so that core sums their gradients over the tensor-parallel ranks; a zero-centered gamma is
    stored as gamma - 1; the third is a matter of speed.
    """
    from megatron.core.transformer import torch_norm

    def build(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **unused: Any) -> torch.nn.Module:
        """Return one of torch's norms in place of Transformer Engine's, for ``hidden_size`` elements.

        The arguments are those of ``WrappedTorchNorm``, of which others than these are not used. ``eps`` is added
        to the variance. ``config`` says which norm (``LayerNorm`` or ``RMSNorm``), and whether its weight is
        zero-centered. Its parameters are marked for sequence parallelism as ``config`` has it.

        Raises:
            KeyError: ``config`` wants another norm
        """
        norm = _NORMS[config.normalization, bool(config.layernorm_zero_centered_gamma)]
        module = norm(normalized_shape=hidden_size, eps=eps)
        for parameter in module.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return module

    torch_norm.WrappedTorchNorm.__new__ = staticmethod(build)


def positions(rank: int, ranks: int, length: int) -> torch.Tensor:
    """Return where in the full sequence the ``length`` tokens of a context-parallel rank are: int64 [length].

    Positions count from 0. ``rank`` (from 0) of ``ranks`` holds a piece from the front and its mirror image from
    the back, half of the tokens each: ``length`` must be even. The tensor is on torch's default device.
    """
    half = length // 2
    first = torch.arange(rank * half, (rank + 1) * half)
    mirrored = 2 * ranks - 1 - rank
    return torch.cat([first, torch.arange(mirrored * half, (mirrored + 1) * half)])


def _patch_attention() -> None:
    """Let core's local attention run with context parallelism, and with values of another width than the keys.

    In this process; call it once: a second call would wrap the functions again. With CP, rank r of n holds the
    sequence chunks r and 2n-1-r of 2n, so that every rank has the same causal work. Keys and values are gathered
    from all ranks (gradients are reduce-scattered back) and the mask is built from the true positions. That moves
    more data than Transformer Engine's ring, and gives the same result.

    Multi-head latent attention (core 0.19) says how wide keys and values are. The arithmetic needs the width of its
    output only.
    """
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    core_init, core_forward = DotProductAttention.__init__, DotProductAttention.forward

    def init(
        self: Any, config: Any, *args: Any, k_channels: int | None = None, v_channels: int | None = None, **kwargs: Any
    ) -> None:
        """Initialize core's attention as if there were no context parallelism, which core refuses.

        ``v_channels`` sets the width of each head's output; None: as core has it. ``k_channels`` is not used. Other
        arguments go to core's constructor. ``config`` is unchanged in the end.
        """
        # Core asserts that there is no CP, and uses the number for nothing else here.
        size, config.context_parallel_size = config.context_parallel_size, 1
        try:
            core_init(self, config, *args, **kwargs)
        finally:
            config.context_parallel_size = size
        if v_channels is not None:
            self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition

    def forward(self: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
        """Return core's attention over the whole sequence, for the tokens of this context-parallel rank.

        ``query``, ``key`` and ``value`` are [tokens of this rank, batch, heads, head dim], the result [tokens of this
        rank, batch, elements of all heads]. True in ``attention_mask`` hides; with several ranks it is replaced by the
        causal one, limited to the layer's window, and keys and values of the other ranks are gathered: each rank must
        call this, with an even number of tokens. Other arguments go to core's function. The ranks' groups must exist.
        """
        ranks = parallel_state.get_context_parallel_world_size()
        softmax = self.scale_mask_softmax
        window = softmax.window_size
        if ranks > 1:
            group = parallel_state.get_context_parallel_group()
            rank = parallel_state.get_context_parallel_rank()
            length = query.size(0)
            key = gather_from_sequence_parallel_region(key.contiguous(), True, group)
            value = gather_from_sequence_parallel_region(value.contiguous(), True, group)
            of_keys = torch.cat([positions(other, ranks, length) for other in range(ranks)])
            distance = positions(rank, ranks, length)[:, None] - of_keys[None, :]
            hidden = distance < 0
            if window is not None:
                hidden |= distance > window[0]
            attention_mask = hidden[None, None].to(query.device)
            softmax.window_size = None  # core would measure it within this rank's piece of the sequence
        try:
            return core_forward(self, query, key, value, attention_mask, *args, **kwargs)
        finally:
            softmax.window_size = window

    DotProductAttention.__init__ = init
    DotProductAttention.forward = forward


def _patch_experts() -> None:
    """Patch megatron-core's experts: their router in 0.16, their biases (GPT-OSS) in 0.19.

    In this process; call it once. The router tests ``te_general_gemm is not None``, but defines the name only where
    Transformer Engine can be imported: a ``NameError`` in the first forward pass.

    Core adds the bias in place to what the tensor-parallel reductions return. In a group of one they return their input
    itself, a view which autograd does not let anybody change: they return a copy.

    With sequence parallelism core marks the bias of an expert like that of any other layer, and so sums its gradient
    over the tensor-parallel ranks once more than it should: the norm of all gradients was 6.288 for 5.616 with TP=2.
    """
    from megatron.core.tensor_parallel import mappings
    from megatron.core.tensor_parallel.layers import RowParallelLinear
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
    for name in ("_reduce", "_reduce_scatter_along_first_dim"):
        setattr(mappings, name, _copy_for_one_rank(getattr(mappings, name)))
    core_init = RowParallelLinear.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        """Initialize core's linear layer; mark an expert's bias as not reduced over sequence-parallel ranks.

        The arguments are those of core's ``RowParallelLinear``.
        """
        core_init(self, *args, **kwargs)
        if self.bias is not None and not getattr(self.bias, "allreduce", True):  # an expert's
            self.bias.sequence_parallel = False

    RowParallelLinear.__init__ = init


def _copy_for_one_rank(core: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function like core's reduction ``core``, but that returns a copy of its input for a group of one rank.

    ``core`` is called with (input, group, ...), and its result returned, for a larger group.
    """

    def reduce(input_: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a copy of ``input_`` if ``group`` has one rank, else what core's reduction returns for them.

        Other arguments go to core's reduction.
        """
        return input_.clone() if group.size() == 1 else core(input_, group, *args, **kwargs)

    return reduce


def _patch_optimizer() -> None:
    """Let ``DistributedOptimizer`` save and resume torch's AdamW (core 0.16 and 0.19 alike).

    In this process; call it once. On GPUs the optimizer is Transformer Engine's or Apex's, which counts steps for
    each parameter group. torch counts them in a tensor for each parameter, which core gets wrong in three places,
    each mended below. (A fourth, in Megatron-FSDP, hangs: a rank whose shard of a parameter is empty has no state
    for it. ``refusals`` refuses to save there.)
    """
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    core_state_dict = DistributedOptimizer.state_dict
    core_set_states = DistributedOptimizer._set_main_param_and_optimizer_states
    core_load_state_dict = DistributedOptimizer.load_state_dict

    def state_dict(self: Any) -> Any:
        """Return what core's ``DistributedOptimizer.state_dict`` does; AdamW first gets zeros where it has no state."""
        # Core asks a fresh optimizer for its state when it plans a load, and asserts that every step is the same;
        # AdamW has no state before its first step.
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                state = self.optimizer.state[parameter]
                state.setdefault("step", torch.tensor(0.0))
                for moment in ("exp_avg", "exp_avg_sq"):
                    if moment not in state:
                        state[moment] = torch.zeros_like(parameter.data)
        return core_state_dict(self)

    def set_states(self: Any, model_param: Any, tensors: dict[str, Any]) -> Any:
        """Set a parameter and its optimizer state from a checkpoint's ``tensors``; AdamW's own step is kept.

        ``model_param`` is the model's own tensor of that parameter. ``tensors`` is by name of state, and has no
        step; it is not changed. Returns what core's method does.
        """
        # The checkpoint's tensors have no step (core keeps it by group), AdamW's state does, and core copies by key.
        own = self._get_main_param_and_optimizer_states(model_param)
        if "step" in own and "step" not in tensors:
            tensors = {**tensors, "step": own["step"].clone()}
        return core_set_states(self, model_param, tensors)

    def load_state_dict(self: Any, state: Any) -> Any:
        """Load the optimizer's ``state`` by core's method, and give each parameter a step tensor of its own.

        Core gives all the same one. Returns what core's method does.
        """
        result = core_load_state_dict(self, state)
        # Core gives all parameters one step tensor, and AdamW would advance it once for each of them.
        for parameter_state in self.optimizer.state.values():
            if "step" in parameter_state:
                parameter_state["step"] = parameter_state["step"].clone()
        return result

    DistributedOptimizer.state_dict = state_dict
    DistributedOptimizer._set_main_param_and_optimizer_states = set_states
    DistributedOptimizer.load_state_dict = load_state_dict


def _patch_datasets() -> None:
    """Make megatron-core use its compiled dataset helpers if they are there, else numpy's, and never compile any.

    In this process. Core runs ``make`` for them, and ends the process when that fails: a wheel has no Makefile, and
    of a source tree's a machine may lack the compiler or pybind11. Wheels have them compiled, that of core 0.19 for
    Python 3.12 only. Where they are not, numpy computes the sample index, which is all that synthetic data needs.
    """
    from megatron.core.datasets import utils

    if importlib.util.find_spec(_HELPERS) is None:
        helpers: Any = types.ModuleType(_HELPERS)
        helpers.build_sample_idx_int32 = helpers.build_sample_idx_int64 = sample_index
        sys.modules[_HELPERS] = helpers
    utils.compile_helpers = lambda: None


def sample_index(
    sizes: Any, documents: Any, length: int, epochs: int, tokens: int, drop_last: bool = True, extra: int = 1
) -> Any:
    """Return where each sample of ``length`` tokens begins: [samples + 1, 2] of index in ``documents`` and offset.

    The offset is in tokens, within that document; the last row is where the last sample ends. ``sizes``: tokens of
    each document, by its number; ``documents``: their numbers in the order in which ``epochs`` times ``tokens``
    tokens are read (both numpy arrays of ints; the result has the dtype of ``documents``). ``extra``: tokens that a
    sample shares with the next one; ``drop_last``: an incomplete last sample is left out. As core's
    ``build_sample_idx``.
    """
    import numpy  # type: ignore[import-not-found, unused-ignore]

    total = epochs * tokens - extra
    samples = total // length if drop_last else -(-total // length)
    ends = numpy.cumsum(sizes[documents].astype(numpy.int64))
    multiples = numpy.arange(samples + 1, dtype=numpy.int64) * length
    starts = numpy.minimum(multiples, ends[-1] - 1)
    document = numpy.searchsorted(ends, starts, side="right")
    offset = starts - (ends[document] - sizes[documents[document]])
    return numpy.stack([document, offset], axis=1).astype(documents.dtype)


def patch_mtp() -> None:
    """Make Megatron-Bridge, which is imported, build multi-token prediction from the model's own kind of layers.

    Replaces functions of Bridge, and of core where it has them, in this process, whatever their release. Bridge 0.6 and
    later builds the block of Transformer Engine's layers, whatever the model's own layers are made of. Core 0.20 asks
    of each layer whether it is one of inference, by types that are none without Transformer Engine: here it is told
    that none is.

    Raises:
        ImportError: Megatron-Bridge is not installed
    """
    from megatron.bridge.models import gpt_provider
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec
    from megatron.core.transformer import multi_token_prediction

    def block(config: Any, vp_stage: int | None = None) -> Any:
        """Return the specification of the multi-token prediction block, made of core's local layers.

        ``config`` is the model's; ``vp_stage`` the number of the virtual pipeline stage, None without interleaving.
        None where the model predicts no further tokens.
        """
        if not getattr(config, "mtp_num_layers", None):
            return None
        spec = config.transformer_layer_spec(config, vp_stage=vp_stage)
        return get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False, vp_stage=vp_stage)

    gpt_provider.mtp_block_spec = block
    if hasattr(multi_token_prediction, "is_inference_column_parallel_linear"):
        multi_token_prediction.is_inference_column_parallel_linear = lambda module: False
