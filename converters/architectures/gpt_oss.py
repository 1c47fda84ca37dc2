"""gpt-oss, under the names of transformers and under its own.

Rows of gate and up alternate. transformers keeps plain experts as [E, in, out], and four-bit ones as [E, out, in]:
square matrices hide a mistake there, so it is a fact of the family and not of the shapes.
"""

from __future__ import annotations

from day0.converters.architectures._architecture import Architecture, rule

__all__ = ["ARCHITECTURE"]

ARCHITECTURE = Architecture(
    name="gpt-oss",
    summary="gpt-oss: experts of a layer in one tensor, with biases",
    model_types=("gpt_oss",),
    rules=(
        rule(r"layers\.\d+\.mlp\.experts\.(?:gate_up_proj|down_proj)", "expert", "experts of a layer"),
        rule(r"layers\.\d+\.mlp\.experts\.(?:gate_up_proj|down_proj)_bias", "keep", "biases of the experts"),
        rule(r"layers\.\d+\.mlp\.router\.(?:weight|bias)", "keep", "router"),
        rule(r"layers\.\d+\.self_attn\.[qkvo]_proj\.weight", "linear", "attention"),
        rule(r"layers\.\d+\.self_attn\.(?:[qkvo]_proj\.bias|sinks)", "keep", "attention"),
        rule(r"layers\.\d+\.\w+_layernorm\.weight", "keep", "norm"),
        rule(r"(?:embed_tokens|norm|lm_head)\.weight", "keep", "embedding, last norm, head"),
        rule(r"block\.\d+\.mlp\.mlp[12]_weight", "expert", "experts of a layer"),
        rule(r"block\.\d+\.mlp\.(?:mlp[12]_bias|norm\.scale|gate\.weight|gate\.bias)", "keep", "router, norm, biases"),
        rule(r"block\.\d+\.attn\.(?:qkv|out)\.weight", "linear", "attention"),
        rule(r"block\.\d+\.attn\.(?:qkv\.bias|out\.bias|norm\.scale|sinks)", "keep", "attention"),
        rule(r"(?:embedding\.weight|unembedding\.weight|norm\.scale)", "keep", "embedding, last norm, head"),
    ),
    transposed=True,
    gate_up="interleaved",
    split={"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)},
)
