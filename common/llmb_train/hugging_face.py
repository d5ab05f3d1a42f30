"""The numbers of ``config.json`` of every model that a performance recipe of Megatron-Bridge 0.6 asks Hugging Face for.

Public facts, as transformers' configuration classes name them. What is left out is the default of the class in
transformers 5.12, which is then that model's own. ``source`` says where the numbers were read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Published:
    """One model: the class of transformers that reads its file, the architecture the file names, and the numbers."""

    kind: str
    architecture: str
    source: str
    numbers: dict[str, Any]
    model_type: str | None = None
    """Where the file names another type than ``kind`` does."""
    assumed: str = ""
    """Which numbers nobody read from the file or from what its vendor says of it, and what they were taken from; the
    plan of a job says so."""


def _llama(hidden: int, ffn: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    base = {
        "vocab_size": 128256,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    return base | more


def _qwen3_moe(hidden: int, ffn: int, layers: int, heads: int, expert_ffn: int, **more: Any) -> dict[str, Any]:
    base = {
        "vocab_size": 151936,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "moe_intermediate_size": expert_ffn,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "max_position_embeddings": 40960,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
        "decoder_sparse_step": 1,
        "router_aux_loss_coef": 0.001,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    return base | more


def _qwen3_vl(hidden: int, ffn: int, layers: int, heads: int, expert_ffn: int) -> dict[str, Any]:
    rope = {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"}
    text = _qwen3_moe(hidden, ffn, layers, heads, expert_ffn, rope_theta=5e6, max_position_embeddings=262144)
    return {
        "text_config": text | {"rope_scaling": rope},
        "vision_config": {"out_hidden_size": hidden},
        "tie_word_embeddings": False,
    }


def _qwen35(hidden: int, layers: int, heads: int, experts: int, top_k: int, ffn: int, values: int) -> dict[str, Any]:
    rope = {
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "rope_type": "default",
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
    }
    text = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "num_experts": experts,
        "num_experts_per_tok": top_k,
        "moe_intermediate_size": ffn,
        "shared_expert_intermediate_size": ffn,
        "linear_num_value_heads": values,
        "mtp_num_hidden_layers": 1,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": False,
        "rope_parameters": rope,
    }
    return {"text_config": text, "vision_config": {"out_hidden_size": hidden}, "tie_word_embeddings": False}


def _nemotron(hidden: int, heads: int, mamba: int, ffn: int, latent: int, pattern: str) -> dict[str, Any]:
    return {
        "vocab_size": 131072,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "mamba_num_heads": mamba,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": 128,
        "n_routed_experts": 512,
        "num_experts_per_tok": 22,
        "moe_intermediate_size": ffn,
        "moe_shared_expert_intermediate_size": 2 * ffn,
        "moe_latent_size": latent,
        "routed_scaling_factor": 5.0,
        "norm_topk_prob": True,
        "n_group": 1,
        "topk_group": 1,
        "max_position_embeddings": 262144,
        "num_nextn_predict_layers": 1,
        "mtp_hybrid_override_pattern": "*E",
        "hybrid_override_pattern": pattern,
    }


_YARN = {"type": "yarn", "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 1.0}
_DEEPSEEK = {
    "first_k_dense_replace": 3,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 163840,
    "rope_theta": 10000.0,
    "rope_scaling": _YARN | {"factor": 40, "beta_fast": 32, "beta_slow": 1},
    "aux_loss_alpha": 0.001,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "moe_layer_freq": 1,
    "torch_dtype": "bfloat16",
}
_KIMI = _DEEPSEEK | {
    "vocab_size": 163840,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 384,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.827,
    "num_nextn_predict_layers": 0,
    "rope_theta": 50000.0,
    "max_position_embeddings": 131072,
    "rope_scaling": _YARN | {"factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0},
}
_LLAMA31_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
_V4 = {"first_k_dense_replace": 0, "num_hash_layers": 3}
_V4_FLASH = _V4 | {"compress_ratios": [0, 0, *[4, 128] * 20, 4, 0]}
_V4_PRO = _V4 | {
    "compress_ratios": [128, 128, *[4, 128] * 29, 4, 0],
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "n_routed_experts": 384,
    "moe_intermediate_size": 3072,
    "q_lora_rank": 1536,
    "o_groups": 16,
    "index_topk": 1024,
    "routed_scaling_factor": 2.5,
}
_GLM = {"num_nextn_predict_layers": 1, "indexer_rope_interleave": True}
_GLM52 = _GLM | {
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
    "max_position_embeddings": 1048576,
    "rope_parameters": {"rope_theta": 8000000.0, "rope_type": "default"},
}
_GPT_OSS_20B = {"num_hidden_layers": 24, "num_local_experts": 32}
_QWEN3_NEXT = {"intermediate_size": 5120, "rope_theta": 1e7, "max_position_embeddings": 262144}

_SUPER_LAYERS = "MEMEMEM*" + 2 * "EMEMEMEM*" + 4 * "EMEMEMEMEM*" + "EMEMEMEM*" + "EMEMEMEME"
_ULTRA_LAYERS = 3 * "ME" + 4 * ("M*E" + 2 * "ME" + "M*E" + 3 * "ME" + "M*E" + 3 * "ME") + "ME"
"""M: Mamba-2, E: experts, *: attention."""

_OWN = "as the vendor publishes them; checked by parameter count and, where NVIDIA printed results, by FLOPs"
"""The repositories' own files were not read."""

_COPIES = "copies of its config.json in several public repositories, all the same (November 2026)"

_CLASS = "defaults of the class in transformers 5.12, which names this model as theirs"

PUBLISHED: dict[str, Published] = {
    "meta-llama/Meta-Llama-3-8B": Published("LlamaConfig", "LlamaForCausalLM", _OWN, _llama(4096, 14336, 32, 32)),
    "meta-llama/Meta-Llama-3-70B": Published("LlamaConfig", "LlamaForCausalLM", _OWN, _llama(8192, 28672, 80, 64)),
    "meta-llama/Meta-Llama-3.1-405B": Published(
        "LlamaConfig",
        "LlamaForCausalLM",
        _OWN,
        _llama(16384, 53248, 126, 128, max_position_embeddings=131072, rope_scaling=_LLAMA31_ROPE),
    ),
    "deepseek-ai/DeepSeek-V3": Published("DeepseekV3Config", "DeepseekV3ForCausalLM", _OWN, _DEEPSEEK),
    "deepseek-ai/DeepSeek-V4-Flash": Published(
        "DeepseekV4Config",
        "DeepseekV4ForCausalLM",
        f"{_COPIES}: attention to a window only in layers 0 and 1, then groups of 4 and of 128 tokens in turn",
        _V4_FLASH,
    ),
    "deepseek-ai/DeepSeek-V4-Pro": Published(
        "DeepseekV4Config",
        "DeepseekV4ForCausalLM",
        f"{_COPIES}: groups of 128 tokens in layers 0 and 1, then of 4 and of 128 in turn",
        _V4_PRO,
    ),
    "moonshotai/Kimi-K2-Instruct": Published("DeepseekV3Config", "KimiK2ForCausalLM", _OWN, _KIMI, "kimi_k2"),
    "openai/gpt-oss-20b": Published("GptOssConfig", "GptOssForCausalLM", _OWN, _GPT_OSS_20B),
    "openai/gpt-oss-120b": Published("GptOssConfig", "GptOssForCausalLM", _CLASS, {}, assumed=f"all: {_CLASS}"),
    "Qwen/Qwen3-30B-A3B": Published("Qwen3MoeConfig", "Qwen3MoeForCausalLM", _OWN, _qwen3_moe(2048, 6144, 48, 32, 768)),
    "Qwen/Qwen3-235B-A22B": Published(
        "Qwen3MoeConfig", "Qwen3MoeForCausalLM", _OWN, _qwen3_moe(4096, 12288, 94, 64, 1536)
    ),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": Published("Qwen3NextConfig", "Qwen3NextForCausalLM", _OWN, _QWEN3_NEXT),
    "Qwen/Qwen3-VL-30B-A3B-Instruct": Published(
        "Qwen3VLMoeConfig", "Qwen3VLMoeForConditionalGeneration", _OWN, _qwen3_vl(2048, 6144, 48, 32, 768)
    ),
    "Qwen/Qwen3-VL-235B-A22B-Instruct": Published(
        "Qwen3VLMoeConfig", "Qwen3VLMoeForConditionalGeneration", _OWN, _qwen3_vl(4096, 12288, 94, 64, 1536)
    ),
    "Qwen/Qwen3.5-35B-A3B": Published(
        "Qwen3_5MoeConfig",
        "Qwen3_5MoeForConditionalGeneration",
        "model card: 40 layers, hidden 2048, 256 experts of 512, 8 active, heads 16/2 of 256, 32 value heads",
        _qwen35(2048, 40, 16, 256, 8, 512, 32),
    ),
    "Qwen/Qwen3.5-122B-A10B": Published(
        "Qwen3_5MoeConfig",
        "Qwen3_5MoeForConditionalGeneration",
        "model card, as repeated by users' notes: 48 layers, hidden 3072, 256 experts of 1024, 8 active, heads 32/2 of "
        "256, 64 value heads",
        _qwen35(3072, 48, 32, 256, 8, 1024, 64),
        assumed="all: users' notes of the model card",
    ),
    "Qwen/Qwen3.5-397B-A17B": Published(
        "Qwen3_5MoeConfig",
        "Qwen3_5MoeForConditionalGeneration",
        "card of mlx-community/Qwen3.5-397B-A17B-4bit: 60 layers, hidden 4096, 512 experts of 1024, 10 active, heads "
        "32/2 of 256, 64 value heads",
        _qwen35(4096, 60, 32, 512, 10, 1024, 64),
        assumed="all: the card of a quantized copy",
    ),
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": Published(
        "NemotronHConfig",
        "NemotronHForCausalLM",
        "docs/nemotron/super3/pretrain.md of NVIDIA-NeMo/Nemotron; the layers: glennklockwood.com/garden/Nemotron-3",
        _nemotron(4096, 32, 128, 2688, 1024, _SUPER_LAYERS),
        assumed="the order of layers: glennklockwood.com/garden/Nemotron-3",
    ),
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": Published(
        "NemotronHConfig",
        "NemotronHForCausalLM",
        "table 1 and figure 2 of the technical report (arXiv 2606.15007), as in NVIDIA-NeMo/Nemotron, "
        "skills/nemotron-ultra/paper/architecture.md and docs/assets/ultra3/figure-2.png",
        _nemotron(8192, 64, 256, 5120, 2048, _ULTRA_LAYERS),
    ),
    "zai-org/GLM-5.1": Published(
        "GlmMoeDsaConfig",
        "GlmMoeDsaForCausalLM",
        "defaults of the class in transformers 5.12, which are GLM-5's; the same architecture, says "
        "Megatron-Bridge's documentation (0.6.0, models/glm/glm5)",
        _GLM,
        assumed="all: GLM-5's, which are the defaults of the class in transformers 5.12",
    ),
    "zai-org/GLM-5.2": Published(
        "GlmMoeDsaConfig",
        "GlmMoeDsaForCausalLM",
        f"{_COPIES}: as GLM-5.1, but 57 of 78 layers take the tokens that an index before them chose",
        _GLM52,
    ),
}

VOCABULARIES = {
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 131072,
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16": 131072,
}
"""Entries of the tokenizers from which a recipe takes its vocabulary: the one tokenizer of the Nemotron 3 family."""
