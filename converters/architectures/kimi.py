"""Kimi K2.5, Kimi Linear, K3 and K3.1.

Three traps: `g_proj` is the output gate of KDA layers and of MLA layers, one name and one shape for two meanings;
the lists of layers in the config count from 1; `A_log` may be stored with zeros up to a multiple of 128 heads, which a
loader cuts off and which a converter therefore leaves where they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from day0.converters.architectures._architecture import PREFIX, Architecture, rule
from day0.errors import Day0Error

__all__ = ["ARCHITECTURE", "layer_kind"]

PAD = 128
_LAYER = re.compile(PREFIX + r"layers\.(\d+)\..*")
_MOE = r"(?:mlp|block_sparse_moe)"
_EXPERT = r"(?:gate_proj|up_proj|down_proj|w[123])\.weight"


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get("text_config")
    return found if isinstance(found, Mapping) else config


def layer_kind(layer: int, config: Mapping[str, Any]) -> str:
    """Return `kda` or `mla` for a layer counted from 0; empty where the config does not say."""
    lists = _text(config).get("linear_attn_config")
    if not isinstance(lists, Mapping):
        return ""
    for kind, key in (("kda", "kda_layers"), ("mla", "full_attn_layers")):
        found = lists.get(key)
        # The config counts from 1, the names of tensors from 0.
        if isinstance(found, list) and layer + 1 in found:
            return kind
    return ""


def meaning(name: str, config: Mapping[str, Any]) -> str:
    """Tell the two gates apart."""
    found = _LAYER.fullmatch(name)
    if found is None or not name.endswith("self_attn.g_proj.weight"):
        return ""
    kind = layer_kind(int(found[1]), config)
    return {"kda": "output gate of KDA", "mla": "output gate of MLA"}.get(kind, "output gate of an unknown layer kind")


def check(shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]) -> tuple[str, ...]:
    """Compare `A_log` with the number of heads, and every layer's tensors with its kind."""
    lists = _text(config).get("linear_attn_config")
    heads = lists.get("num_heads") if isinstance(lists, Mapping) else None
    padded = 0
    for name, shape in shapes.items():
        found = _LAYER.fullmatch(name)
        if found is None:
            continue
        layer = int(found[1])
        if name.endswith(".A_log"):
            padded += _padding(name, shape, heads)
            if layer_kind(layer, config) == "mla":
                what = f"{name} belongs to a KDA layer, and the config says that layer {layer + 1} (from 1) is MLA"
                raise Day0Error("config.json", what, hint="its lists count from 1; is it of this checkpoint?")
    return (f"A_log of {padded} layers is padded to a multiple of {PAD}; it is left as it is",) if padded else ()


def _padding(name: str, shape: tuple[int, ...], heads: Any) -> int:
    size = 1
    for one in shape:
        size *= one
    if type(heads) is not int or size == heads:
        return 0
    if size == -(-heads // PAD) * PAD:
        return 1
    what = f"{name} has {size} values, and the config says {heads} heads"
    raise Day0Error("config.json", what, hint=f"expected {heads}, or {-(-heads // PAD) * PAD} with padding")


ARCHITECTURE = Architecture(
    name="kimi",
    summary="Kimi K2.5, Kimi Linear, K3 and K3.1",
    model_types=("kimi_k25", "kimi_k3", "kimi_k31", "kimi_linear"),
    rules=(
        rule(rf"layers\.\d+\.{_MOE}\.experts\.\d+\.{_EXPERT}", "expert", "one expert"),
        rule(rf"layers\.\d+\.{_MOE}\.experts\.(?:gate_up_proj|down_proj)", "expert", "experts of a layer"),
        rule(rf"layers\.\d+\.{_MOE}\.(?:shared_experts\.)?{_EXPERT}", "linear", "dense or shared expert"),
        rule(rf"layers\.\d+\.{_MOE}\.routed_expert_(?:down|up)_proj\.weight", "linear", "way into the latent width"),
        rule(rf"layers\.\d+\.{_MOE}\.routed_expert_norm\.weight", "keep", "norm"),
        rule(rf"layers\.\d+\.{_MOE}\.gate\.(?:weight|e_score_correction_bias)", "keep", "router"),
        rule(
            r"layers\.\d+\.self_attn\.(?:[qkvogb]_proj|q_[ab]_proj|kv_a_proj_with_mqa|kv_b_proj|[fg]_[ab]_proj)\.weight",
            "linear",
            "attention",
        ),
        rule(r"layers\.\d+\.self_attn\.(?:A_log|dt_bias|[qkv]_conv1d\.weight|o_norm\.weight)", "keep", "KDA, float32"),
        rule(r"layers\.\d+\.self_attn\.indexer\.(?:wq_b|wk)\.weight", "linear", "indexer"),
        rule(r"layers\.\d+\.self_attn\.(?:indexer\..*|\w+_(?:layer)?norm\.weight|\w+_proj\.bias)", "keep", "attention"),
        rule(r"layers\.\d+\.\w+_layernorm\.weight", "keep", "norm"),
        rule(r"layers\.\d+\.(?:self_attention|mlp)_res_(?:norm|proj)(?:\.weight)?", "keep", "attention residual"),
        rule(r"output_attn_res_(?:norm|proj)(?:\.weight)?", "keep", "attention residual"),
        rule(r"(?:embed_tokens|norm|lm_head)\.weight", "keep", "embedding, last norm, head"),
        rule(r"(?:vision_tower|vision_model|mm_projector|multi_modal_projector)\..*", "keep", "vision"),
    ),
    split={"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)},
    meaning=meaning,
    check=check,
)
