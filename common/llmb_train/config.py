"""``Job`` -> Megatron-Bridge's ``ConfigContainer``. Imports Megatron: call ``engine.install_patches`` first.

The model is always the generic ``GPTModelProvider`` with the recipe's numbers: every Megatron-Bridge release has it,
and it needs neither a Hugging Face configuration nor access to one. What a model has beyond its sizes (experts,
attention in chunks, layers without rotary embedding) the architecture says; no model needs code of its own.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.training import config as bridge
from megatron.core.activations import squared_relu
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch.nn.functional import silu

from llmb_train import refusals, settings, steps
from llmb_train.engine import Engine
from llmb_train.job import Job

_NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}


@dataclass
class Provider(GPTModelProvider):  # type: ignore[misc]
    """Megatron-Bridge's model provider for GPTs with chunked attention added, for which megatron-core has no field.

    It is made like Bridge's. The field alone changes nothing: ``transformer_engine_block`` and ``local_block``, one
    of which must be its ``transformer_layer_spec``, look at it.
    """

    attention_chunk_size: int | None = None
    """Tokens that attend to each other in layers with rotary embedding (Llama 4); None: the whole sequence."""


def transformer_engine_block(config: Any, vp_stage: int | None = None) -> Any:
    """Return the specification of this pipeline stage's layers, made of Transformer Engine's modules.

    ``config`` is the model's configuration; ``vp_stage`` the number of the virtual pipeline stage, from 0, None
    without interleaving. As the provider's ``transformer_layer_spec``, it is called on each rank when the model is
    built. Where ``attention_chunk_size`` of ``config`` is set and shorter than the sequence, layers with rotary
    embedding attend within chunks. The ranks' groups must exist.
    """
    return _layer_specification(config, vp_stage, use_transformer_engine=True)


def local_block(config: Any, vp_stage: int | None = None) -> Any:
    """Return the specification of this pipeline stage's layers, made of megatron-core's own modules.

    They have no FP8 and no fused attention. ``config`` is the model's configuration; ``vp_stage`` the number of the
    virtual pipeline stage, from 0, None without interleaving. Where ``attention_chunk_size`` of ``config`` is set
    and shorter than the sequence, layers with rotary embedding attend within chunks. The ranks' groups must exist.
    """
    return _layer_specification(config, vp_stage, use_transformer_engine=False)


def _layer_specification(config: Any, vp_stage: int | None, *, use_transformer_engine: bool) -> Any:
    """Return the specification of a pipeline stage's layers, with chunked attention where the model has that.

    It has if ``attention_chunk_size`` of ``config``, the model's, is set and shorter than the sequence; then layers
    with rotary embedding attend within chunks, and others to the whole sequence. ``vp_stage``: the number of the
    virtual pipeline stage, from 0, None without interleaving. ``use_transformer_engine``: its modules, else
    megatron-core's own. The ranks' groups must exist.
    """
    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine, normalization=config.normalization, vp_stage=vp_stage
    )
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk is None or chunk >= config.seq_length:
        return block
    offset = get_transformer_layer_offset(config, vp_stage=vp_stage)
    layers = []
    for number, shared in enumerate(block.layer_specs, start=offset):
        layer = copy.deepcopy(shared)  # core puts one object at every place of the list
        if not (config.no_rope_freq and config.no_rope_freq[number]):
            submodules = layer.submodules.self_attention.submodules
            submodules.core_attention = chunked(submodules.core_attention)
        layers.append(layer)
    block.layer_specs = layers
    return block


@cache
def chunked(attention: type) -> type:
    """Return a subclass of ``attention`` in which tokens attend within their own chunk of the sequence only.

    ``attention`` is a class of core attention, of megatron-core or Transformer Engine. The same class for the same
    ``attention``. A chunk has ``attention_chunk_size`` tokens, by the model's own ``config``. The sequence length
    has to be a multiple of that: otherwise torch raises a RuntimeError when the attention is computed.
    """

    class ChunkedAttention(attention):  # type: ignore[misc]
        """An attention module in which tokens attend only to their own chunk of ``attention_chunk_size`` tokens.

        It is created like the outer function's ``attention``, from which it is derived. ``forward`` takes what that
        takes, but a mask only of one chunk, returns the output [sequence, batch, hidden], and raises RuntimeError
        where the sequence is no multiple of a chunk.
        """

        def forward(self, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
            """Return the output [sequence, batch, hidden] of attention in which each token attends to its own chunk.

            ``query``, ``key`` and ``value`` are [sequence, batch, heads, head dim]; a mask, where there is one, has
            to be that of one chunk, not of the sequence. It and other arguments are passed on unchanged to the
            attention that this is derived from.

            Raises:
                RuntimeError: the sequence length is no multiple of the chunk size
            """
            sequence, batch = query.shape[:2]
            size = self.config.attention_chunk_size
            # A chunk becomes an entry of the batch: [size, chunks * batch, heads, head dim].
            query, key, value = (
                tensor.unflatten(0, (-1, size)).transpose(0, 1).flatten(1, 2) for tensor in (query, key, value)
            )
            context = super().forward(query, key, value, attention_mask, *args, **kwargs)
            return context.view(size, sequence // size, batch, -1).transpose(0, 1).reshape(sequence, batch, -1)

    return ChunkedAttention


def architecture_fields(job: Job, engine: Engine) -> dict[str, Any]:
    """Return the fields of the model provider that the job's architecture decides, by Megatron's names.

    They are keyword arguments of ``Provider``, those of experts included. Linear layers get no bias, and there is
    no dropout. ``engine`` decides by whose modules the layers are made, and whether the weights are made on the
    host (on a CPU).
    """
    a, every = job.architecture, job.architecture.no_rope_interval
    return {
        "transformer_layer_spec": transformer_engine_block if engine.transformer_engine else local_block,
        "num_layers": a.layers,
        "hidden_size": a.hidden,
        "ffn_hidden_size": a.ffn,
        "num_attention_heads": a.heads,
        "num_query_groups": a.query_groups,
        "kv_channels": a.head_dim,
        "seq_length": job.sequence_length,
        # Set here, the size is taken as it is; left to the tokenizer, Bridge would pad it to a multiple of 128 * TP.
        "vocab_size": a.vocabulary,
        "activation_func": silu if a.activation == "silu" else squared_relu,
        "gated_linear_unit": a.gated,
        "normalization": _NORMS[a.norm],
        "layernorm_epsilon": a.norm_epsilon,
        "layernorm_zero_centered_gamma": a.zero_centered_gamma,
        "position_embedding_type": "rope",
        "rotary_base": a.rope_base,
        "rotary_percent": a.rotary_percent,
        "rotary_interleaved": a.rope_interleaved,
        "rope_scaling": a.rope_scaling is not None,
        "rope_scaling_factor": a.rope_scaling if a.rope_scaling is not None else 1.0,
        # 1 for layers without rotary embedding.
        "no_rope_freq": [int(number % every == 0) for number in range(1, a.layers + 1)] if every is not None else None,
        "share_embeddings_and_output_weights": a.tied_embeddings,
        "init_method_std": a.init_std,
        "add_bias_linear": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "attention_chunk_size": a.attention_chunk,
        # None leaves the choice of the attention kernel to Transformer Engine (Bridge 0.3.1).
        "attention_backend": None,
        # Weights made on the host do not depend on the layout; on GPUs the layers fill themselves in, which is faster.
        "use_cpu_initialization": engine.device == "cpu",
        **_expert_fields(job, engine),
    }


def _expert_fields(job: Job, engine: Engine) -> dict[str, Any]:
    """Return the fields of the model provider on experts and routing, by name; empty for a model without experts.

    The job's routing (``performance.moe_routing``) ``drop`` is what the published runs did: each expert takes its
    capacity and no more, padded to it. ``balanced``, or anything else, is dropless with the router forced to spread
    tokens evenly, as newer benchmarks do; step times of the two do not compare. With Transformer Engine in
    ``engine`` there is one GEMM over all local experts and a fused permutation; on a GPU a shared expert runs beside
    the others. Where every second layer is MoE, the number of layers must be even, which is not checked.
    """
    moe = job.architecture.moe
    if moe is None:
        return {}
    drop = job.performance.moe_routing == "drop"
    return {
        "num_moe_experts": moe.experts,
        "moe_router_topk": moe.top_k,
        "moe_ffn_hidden_size": moe.ffn,
        "moe_shared_expert_intermediate_size": moe.shared_ffn,
        "moe_layer_freq": [0, 1] * (job.architecture.layers // 2) if moe.every == 2 else 1,
        "moe_router_score_function": moe.router,
        "moe_router_pre_softmax": moe.pre_softmax,
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": moe.aux_loss,
        "moe_apply_probs_on_input": moe.probabilities_on_input,
        "moe_token_dispatcher_type": "alltoall",
        "moe_expert_capacity_factor": moe.capacity_factor if drop else None,
        "moe_pad_expert_input_to_capacity": drop,
        "moe_router_force_load_balancing": not drop,
        # One GEMM over all local experts, and a fused permutation: Transformer Engine's.
        "moe_grouped_gemm": engine.transformer_engine,
        "moe_permute_fusion": engine.transformer_engine,
        # On its own CUDA stream.
        "moe_shared_expert_overlap": moe.shared_ffn is not None and engine.device == "cuda",
    }


def build_config(job: Job, engine: Engine) -> Any:
    """Return the complete Megatron-Bridge configuration for ``job``, which describes the architecture of its model.

    It is a ``ConfigContainer``. Nothing is trained or written; the checkpoint to load is looked at. The patches
    that ``engine`` needs must be installed.

    Raises:
        JobError: the job asks for something this engine would ignore, or for settings that cannot be combined, or
            the checkpoint to load is missing, or of the step at which the run ends or a later one
        NothingLeft: the job goes on from a checkpoint of its last step
        OSError: the index of the checkpoint to load, or Megatron's source, cannot be read
        KeyError: there is no such combination of dtype and FP8 recipe
    """
    refusals.check(job, engine)
    start = steps.loaded(job)
    return bridge.ConfigContainer(
        model=Provider(**settings.model_fields(job, engine), **architecture_fields(job, engine)),
        train=_training_config(job, steps.last_step(job, start)),
        optimizer=settings.optimizer_config(job, engine),
        scheduler=_scheduler_config(),
        ddp=settings.ddp_config(job, engine),
        dataset=steps.synthetic_data(
            job, job.sequence_length, num_workers=job.data_workers, pin_memory=engine.device == "cuda"
        ),
        # The smallest tokenizer that needs no download: its size plus an end-of-document token is the vocabulary.
        tokenizer=bridge.TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=job.architecture.vocabulary - 1),
        logger=bridge.LoggerConfig(log_interval=1, log_throughput=True, tensorboard_dir=steps.trace_folder(job)),
        checkpoint=bridge.CheckpointConfig(**steps.checkpoint_fields(job, start)),
        rng=bridge.RNGConfig(seed=job.seed, te_rng_tracker=job.performance.cuda_graph),
        dist=bridge.DistributedInitConfig(
            distributed_backend="nccl" if engine.device == "cuda" else "gloo",
            distributed_timeout_minutes=steps.timeout_minutes(job),
        ),
        # NaN losses show in the log of every step; checking for them costs a synchronization (Bridge 0.3.1), and a
        # graph of a whole iteration cannot.
        rerun_state_machine=bridge.RerunStateMachineConfig(check_for_nan_in_loss=False),
        profiling=steps.profiling_config(job),
        mixed_precision=settings.mixed_precision(job, engine),
        comm_overlap=settings.comm_overlap(job, engine),
    )


def _training_config(job: Job, last: int) -> Any:
    """Return the section on training of Megatron-Bridge's configuration.

    It is a ``TrainingConfig``. Batch sizes are those of ``job``, as is whether a checkpoint is saved on SIGTERM and
    at the end. ``last`` is the step at which the run ends, counted from the start of training, at least 1. There is
    no evaluation, and garbage is collected on all ranks in the same steps, every 100.
    """
    return bridge.TrainingConfig(
        micro_batch_size=job.batch.mbs,
        global_batch_size=job.batch.gbs,
        eval_iters=0,
        eval_interval=last,  # Bridge divides by it even where there is nothing to evaluate
        # Collect garbage on all ranks in the same step, or each step waits for another rank (Bridge 0.3.1).
        manual_gc=True,
        manual_gc_interval=100,
        manual_gc_eval=100,
        **steps.training_fields(job, last),
    )


def _scheduler_config() -> Any:
    """Return the learning rate's section of Megatron-Bridge's configuration: cosine decay, 2 warm-up steps.

    It is a ``SchedulerConfig``. A resumed run goes on with the schedule of its checkpoint.
    """
    return bridge.SchedulerConfig(
        lr_decay_style="cosine",
        lr_warmup_iters=2,
        start_weight_decay=0.1,
        end_weight_decay=0.1,
        weight_decay_incr_style="constant",
        # A resumed run goes on with the schedule it was saved with, also if it ends at another step.
        use_checkpoint_opt_param_scheduler=True,
    )
