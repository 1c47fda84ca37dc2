"""DeepSeek-V3, V3.2 and V4, GLM-5 and others with the same names; V4 also under its own."""

from __future__ import annotations

from day0.converters.architectures._architecture import Architecture, rule

__all__ = ["ARCHITECTURE"]

_EXPERT = r"(?:gate_proj|up_proj|down_proj|w[123])\.weight"
_ATTENTION = r"(?:q_proj|q_[ab]_proj|kv_a_proj_with_mqa|kv_a_proj|kv_b_proj|kv_proj|o_proj|o_[ab]_proj)"
_V4 = r"(?:layers|mtp)\.\d+\."

ARCHITECTURE = Architecture(
    name="deepseek",
    summary="DeepSeek-V3 to V4, and families that share their names (GLM-5, Kimi K2)",
    model_types=(
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v4",
        "glm_moe_dsa",
        "glm4_moe",
        "kimi_k2",
    ),
    rules=(
        rule(rf"layers\.\d+\.mlp\.experts\.\d+\.{_EXPERT}", "expert", "one expert"),
        rule(r"layers\.\d+\.mlp\.experts\.(?:gate_up_proj|down_proj)", "expert", "experts of a layer"),
        rule(rf"layers\.\d+\.mlp\.(?:shared_experts\.)?{_EXPERT}", "linear", "dense or shared expert"),
        rule(r"layers\.\d+\.mlp\.gate\.(?:weight|e_score_correction_bias|tid2eid)", "keep", "router"),
        rule(rf"layers\.\d+\.self_attn\.{_ATTENTION}\.weight", "linear", "attention"),
        rule(rf"layers\.\d+\.self_attn\.{_ATTENTION}\.bias", "keep", "attention"),
        rule(
            r"layers\.\d+\.self_attn\.(?:indexer|compressor|indexer\.compressor)\.(?:wq_b|wk|wkv)\.weight",
            "linear",
            "indexer",
        ),
        rule(r"layers\.\d+\.self_attn\.(?:indexer|compressor)\..*", "keep", "indexer"),
        rule(r"layers\.\d+\.self_attn\.\w*(?:norm|sinks?)(?:\.weight|\.bias)?", "keep", "norm or sink"),
        rule(r"layers\.\d+\.\w+_layernorm\.weight", "keep", "norm"),
        rule(r"layers\.\d+\.(?:attn_hc|ffn_hc|hc_\w+|hyper_connection\w*)(?:\..*)?", "keep", "hyper connection"),
        rule(
            r"layers\.\d+\.(?:embed_tokens|enorm|hnorm|eh_proj|shared_head\.norm|shared_head\.head)\.weight",
            "keep",
            "MTP",
        ),
        rule(r"(?:embed_tokens|norm|lm_head)\.weight", "keep", "embedding, last norm, head"),
        rule(rf"{_V4}ffn\.experts\.\d+\.w[123]\.weight", "expert", "one expert"),
        rule(rf"{_V4}ffn\.shared_experts\.w[123]\.weight", "linear", "shared expert"),
        rule(rf"{_V4}ffn\.gate\.(?:weight|bias|tid2eid)", "keep", "router"),
        rule(rf"{_V4}attn\.(?:wq_[ab]|wkv|wo_[ab])\.weight", "linear", "attention"),
        rule(rf"{_V4}attn\.(?:indexer|compressor)\.(?:.*\.)?(?:wq_b|wkv|wgate)\.weight", "linear", "indexer"),
        rule(rf"{_V4}attn\..*", "keep", "attention"),
        rule(rf"{_V4}(?:attn_norm|ffn_norm|norm|enorm|hnorm)\.weight", "keep", "norm"),
        rule(rf"{_V4}(?:e_proj|h_proj)\.weight", "linear", "MTP"),
        rule(rf"{_V4}(?:hc_\w+|emb\.tok_emb\.weight|head\.weight)", "keep", "hyper connection, MTP"),
        rule(r"(?:embed|head)\.weight", "keep", "embedding, head"),
        rule(r"hc_head_\w+", "keep", "hyper connection"),
    ),
)
