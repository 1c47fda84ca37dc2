"""Names that most causal models of transformers share: Llama, Qwen, Mistral, Mixtral and what follows them."""

from __future__ import annotations

from day0.converters.architectures._architecture import Architecture, rule

__all__ = ["ARCHITECTURE"]

ARCHITECTURE = Architecture(
    name="common",
    summary="names that Llama, Qwen, Mistral, Mixtral and many others share",
    model_types=(
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "olmoe",
        "minimax_m2",
        "gemma2",
        "phi3",
    ),
    rules=(
        rule(
            r"layers\.\d+\.(?:mlp|block_sparse_moe)\.experts\.\d+\.(?:\w+_proj|w[123])\.weight", "expert", "one expert"
        ),
        rule(
            r"layers\.\d+\.(?:mlp|block_sparse_moe)\.experts\.(?:gate_up_proj|down_proj)",
            "expert",
            "experts of a layer",
        ),
        rule(r"layers\.\d+\.mlp\.(?:shared_expert\.)?\w+_proj\.weight", "linear", "MLP"),
        rule(r"layers\.\d+\.(?:mlp|block_sparse_moe)\.(?:gate|shared_expert_gate)\.(?:weight|bias)", "keep", "router"),
        rule(r"layers\.\d+\.(?:mlp|block_sparse_moe)\.(?:gate\.)?e_score_correction_bias", "keep", "router"),
        rule(r"layers\.\d+\.self_attn\.\w+_proj\.weight", "linear", "attention"),
        rule(r"layers\.\d+\.self_attn\.(?:\w+_proj\.bias|\w+_norm\.weight|rotary_emb\.inv_freq)", "keep", "attention"),
        rule(r"layers\.\d+\.mlp\.\w+_proj\.bias", "keep", "MLP"),
        rule(r"layers\.\d+\.\w+_layernorm\.weight", "keep", "norm"),
        rule(r"(?:embed_tokens|norm|lm_head)\.weight", "keep", "embedding, last norm, head"),
    ),
)
