"""Count every weight of a model as it is built on meta: to which part it belongs, and how cards can share it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from day0.models.spec import decoder_layers
from day0.reference_ops.signatures import dtype_name

__all__ = ["KINDS", "ModelShape", "Weight", "active_parameters", "count_weights", "is_experts_path", "shape_of"]

Kind = Literal["experts", "shared", "dense", "attention", "indexer", "router", "embedding", "norm", "vision", "other"]

KINDS: dict[str, str] = {
    "experts": "routed experts",
    "shared": "shared experts",
    "dense": "dense feed-forward",
    "attention": "attention",
    "indexer": "indexers",
    "router": "routers",
    "embedding": "embedding and head",
    "norm": "norms",
    "vision": "vision",
    "other": "other weights",
}

Cut = Literal["", "out", "in", "vocab", "experts"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Weight:
    """One tensor of the model."""

    name: str
    kind: Kind
    layer: int | None
    """Number of the decoder layer from 0; None outside of them."""
    shape: tuple[int, ...]
    """Of the values: two for each byte of four-bit codes."""
    dtype: str
    native: str = ""
    """Format in which the model itself holds it, where that is none of torch's dtypes."""
    parameter: bool = True
    cut: Cut = ""
    """How tensor parallelism divides it: by rows of its result, by rows of its input, by words, by experts, or not."""
    units: int = 1
    """Into how many equal parts it can be divided: heads, rows, words, experts."""
    tied: bool = False
    """A head that is the embedding itself."""
    address: int = 0

    @property
    def values(self) -> int:
        """How many values it has."""
        return int(torch.Size(self.shape).numel())


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """What of a model's sizes the layouts need."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    latent_rank: int
    experts: int
    experts_per_token: int
    expert_width: int
    """Width of what goes into a routed expert."""
    window: int
    other_heads: tuple[int, ...] = ()
    """Numbers of heads of linear attention."""


_COLUMNS = re.compile(
    r"\.(q_proj|k_proj|v_proj|qkv_proj|q_b_proj|kv_b_proj|g_proj|g_b_proj|f_b_proj|b_proj|query_key_value|c_attn|c_fc"
    r"|gate_proj|up_proj|gate_up_proj|w1|w3|k_b|v_b|q_conv|k_conv|v_conv|conv1d|A_log|dt_bias|sinks|fc1"
    r"|in_proj_\w+)(\.weight|\.bias)?$"
)
_ROWS = re.compile(r"\.(o_proj|out_proj|down_proj|w2|dense|c_proj|fc2)\.weight$")
_VISION = re.compile(r"(^|\.)(vision\w*|visual\w*|image\w*|audio\w*|multi_modal\w*|mm_\w*)(\.|$)")
_EXPERTS = re.compile(r"(^|\.)experts(\.|$)")
_ATTENTION = re.compile(r"(attn|attention|mixer|mamba|linear_attn)")
_FEED_FORWARD = re.compile(r"(^|\.)(mlp|feed_forward|ffn|block_sparse_moe|moe)(\.|$)")


def is_experts_path(path: str) -> bool:
    """Say whether a module is the routed experts of a layer."""
    return path.endswith(".experts")


def count_weights(model: nn.Module) -> tuple[Weight, ...]:
    """Return every parameter and persistent buffer once. Packed codes count as the values they stand for."""
    layers = {path: number for number, path in enumerate(decoder_layers(model))}
    modules = dict(model.named_modules())
    heads, key_heads = _heads(model), _kv_heads(model)
    parameters = {id(value) for value in model.parameters()}
    seen: dict[int, Weight] = {}
    for name, value in _tensors(model):
        if name.endswith(".scales") and f"{name[:-7]}.codes" in dict(modules_state(modules, name)):
            continue
        packed = name.endswith(".codes") and value.dtype == torch.uint8
        shape = (*value.shape[:-1], value.shape[-1] * 2) if packed else tuple(value.shape)
        if id(value) in seen:
            seen[id(value)] = replace(seen[id(value)], tied=True)
            continue
        owner = modules.get(name.rpartition(".")[0])
        weight = Weight(
            name=name,
            kind=_kind(name, owner, shape),
            layer=_layer(name, layers),
            shape=shape,
            dtype=dtype_name(value.dtype),
            native="mxfp4" if packed else "",
            parameter=packed or id(value) in parameters,
            address=int(value.untyped_storage()._cdata),
        )
        seen[id(value)] = _with_cut(weight, modules, heads, key_heads)
    return tuple(seen.values())


def modules_state(modules: dict[str, nn.Module], name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the buffers that stand beside a buffer, by their full names."""
    path = name.rpartition(".")[0]
    owner = modules.get(path)
    for own, value in owner.named_buffers(recurse=False) if owner is not None else ():
        yield f"{path}.{own}", value


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and persistent buffers by name; a tied one comes twice, as the same object."""
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for name, value in module._parameters.items():
            if value is not None:
                yield prefix + name, value
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield prefix + name, buffer


def _layer(name: str, layers: dict[str, int]) -> int | None:
    parts = name.split(".")
    for end in range(1, len(parts)):
        number = layers.get(".".join(parts[:end]))
        if number is not None:
            return number
    return None


def _kind(name: str, owner: nn.Module | None, shape: tuple[int, ...]) -> Kind:
    if _VISION.search(name):
        return "vision"
    if isinstance(owner, nn.Embedding) or re.search(r"(^|\.)(lm_head|embed_out)\.", name):
        return "embedding"
    if "shared_expert" in name:
        return "shared"
    if _EXPERTS.search(name):
        return "experts"
    if len(shape) == 1 and ("norm" in name.lower() or "norm" in type(owner).__name__.lower()):
        return "norm"
    if "indexer" in name:
        return "indexer"
    if _ATTENTION.search(name) and "_res" not in name:
        return "attention"
    if _FEED_FORWARD.search(name):
        routes = re.search(r"\.(gate|router)(\.|$)", name) is not None
        return "router" if routes else "dense"
    return "other"


def _with_cut(weight: Weight, modules: dict[str, nn.Module], heads: int, key_heads: int) -> Weight:
    """Say how the weight is divided: the names are those that models use; what has no known name stays whole."""
    if weight.kind == "embedding":
        return replace(weight, cut="vocab", units=weight.shape[0]) if len(weight.shape) > 1 else weight
    if weight.kind == "experts":
        return _cut_experts(weight, modules)
    columns, rows = _COLUMNS.search(weight.name), _ROWS.search(weight.name)
    if weight.kind not in ("attention", "dense", "shared") or not (columns or rows):
        return weight
    if weight.kind == "attention":
        units = _heads_of(weight, modules, heads, key_heads)
        return replace(weight, cut="out" if columns else "in", units=units) if units > 1 else weight
    return replace(weight, cut="out" if columns else "in", units=weight.shape[0] if columns else weight.shape[-1])


def _cut_experts(weight: Weight, modules: dict[str, nn.Module]) -> Weight:
    numbered = re.search(r"^(.*\.experts)\.\d+\.", weight.name)
    count = len(list(modules[numbered[1]].children())) if numbered else weight.shape[0]
    return replace(weight, cut="experts", units=count)


def _heads_of(weight: Weight, modules: dict[str, nn.Module], heads: int, key_heads: int) -> int:
    """Return the heads of the attention that a weight stands in; linear attention has its own, one decay for each."""
    path = weight.name
    while "." in path:
        path = path.rpartition(".")[0]
        decay = getattr(modules.get(path), "A_log", None)
        if isinstance(decay, torch.Tensor):
            return decay.numel()
        if _ATTENTION.search(path.rpartition(".")[2]):
            forget = getattr(modules.get(path), "forget_gate", None)
            decay = getattr(forget, "A_log", None)
            if isinstance(decay, torch.Tensor):
                return decay.numel()
    if re.search(r"\.(k_proj|v_proj)\.", weight.name) and key_heads:
        return key_heads
    return heads


def shape_of(model: nn.Module, weights: tuple[Weight, ...]) -> ModelShape:
    """Return the sizes; 0 for what the model does not have."""
    experts = [one for one in weights if one.kind == "experts"]
    down = next((one for one in experts if re.search(r"(down_proj|w2)", one.name) and len(one.shape) > 1), None)
    config = _config(model)
    hidden = _field(config, "hidden_size", "d_model", "n_embd")
    width = min(down.shape[-2:], key=lambda size: (size != hidden, -size)) if down else 0
    return ModelShape(
        hidden=hidden,
        layers=len(decoder_layers(model)),
        heads=_heads(model),
        kv_heads=_kv_heads(model),
        latent_rank=_field(config, "kv_lora_rank"),
        experts=experts[0].units if experts else 0,
        experts_per_token=_field(config, "num_experts_per_tok", "experts_per_token", "top_k_experts"),
        expert_width=_field(config, "latent_size") or width,
        window=_field(config, "sliding_window"),
        other_heads=tuple(
            sorted({one.units for one in weights if one.kind == "attention" and one.name.endswith("A_log")} - {0, 1})
        ),
    )


def active_parameters(weights: tuple[Weight, ...], shape: ModelShape) -> int:
    """Return the parameters that one token meets: of routed experts its own, and of the embedding none but its row."""
    total = 0
    for one in weights:
        if not one.parameter:
            continue
        if one.kind == "experts" and shape.experts_per_token:
            total += one.values * shape.experts_per_token // one.units
        elif one.kind != "embedding" or one.tied or "lm_head" in one.name or "embed_out" in one.name:
            total += one.values
    return total


def _config(model: nn.Module) -> Any:
    config = getattr(model, "config", None)
    return getattr(config, "get_text_config", lambda: config)()


def _field(config: Any, *names: str) -> int:
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def _heads(model: nn.Module) -> int:
    return _field(_config(model), "num_attention_heads", "mla_heads", "n_head", "num_heads")


def _kv_heads(model: nn.Module) -> int:
    return _field(_config(model), "num_key_value_heads") or _heads(model)
