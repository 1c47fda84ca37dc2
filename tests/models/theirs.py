"""Models of transformers, made small, and their weights under the names of the toy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from day0.converters.workspace import PackedExperts
from day0.models.toy.layers import MoeFeedForward
from day0.models.toy.model import ToyConfig, ToyModel
from day0.reference_ops.agreement._widened import Widened
from tests.models.toys import toy

__all__ = ["FloatExperts", "attention_weights", "filled", "load", "renamed"]

RENAMED = {
    "q_a_layernorm": "q_a_norm",
    "kv_a_layernorm": "kv_a_norm",
    "kv_a_proj_with_mqa": "kv_a_proj",
    "gate_proj": "w1",
    "up_proj": "w3",
    "down_proj": "w2",
    "forget_gate": "",
    "attn_hc": "self_attention_res",
    "ffn_hc": "mlp_res",
    "fn": "weight",
    "index_kpool_compress_ape": "pool_positions",
    "index_kpool_compress_gate": "pool_gate_proj.weight",
}
"""Parts of names, theirs and the toy's."""


class FloatExperts:
    """A workspace that gives weights nobody has packed."""

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        self.weights = weights

    def expert_weights(self, packed: PackedExperts, dtype: torch.dtype) -> torch.Tensor:
        """Return the weights of that name."""
        return self.weights[packed.name].to(dtype)


def filled(module: Any, seed: int) -> Any:
    """Fill parameters and the biases of routers with random numbers, in float64; call it inside of Widened."""
    generator = torch.Generator().manual_seed(seed)
    module = module.to(torch.float64).eval().requires_grad_(False)
    for name, part in module.state_dict().items():
        values = torch.randn(part.shape, generator=generator, dtype=torch.float64)
        matrix = part.dim() > 1 and "A_log" not in name
        part.copy_(1.5 * values * part.shape[-1] ** -0.5 if matrix else 0.2 * values + float("norm.weight" in name))
    return module


def renamed(name: str) -> str:
    """Return the toy's name for one of theirs."""
    parts = [RENAMED.get(part, part) for part in name.removeprefix("model.").split(".")]
    return ".".join(part for part in parts if part)


def attention_weights(theirs: Mapping[str, torch.Tensor], config: ToyConfig) -> dict[str, torch.Tensor]:
    """Return all but the experts, under the toy's names.

    By head, kv_b is split in two, and the stacked convolution in three; the low-rank output gate is multiplied out.
    """
    mine: dict[str, torch.Tensor] = {}
    for name, value in theirs.items():
        where = renamed(name).rpartition(".")[0].rpartition(".")[0]
        where = f"{where}." if where else ""
        if name.endswith("kv_b_proj.weight"):
            heads = value.unflatten(0, (config.mla_heads, -1))
            key_HNL, value_HVL = heads.split((config.nope_head_dim, config.v_head_dim), dim=1)
            mine |= {f"{where}k_b": key_HNL, f"{where}v_b": value_HVL.transpose(1, 2)}
        elif name.endswith("conv1d.weight"):
            parts = zip("qkv", value[:, 0].chunk(3), strict=True)
            mine |= {f"{where}{part}_conv": weight_CW for part, weight_CW in parts}
        elif name.endswith("g_a_proj.weight"):
            mine[f"{where}g_proj.weight"] = theirs[name.replace("g_a_proj", "g_b_proj")] @ value
        elif name.endswith("A_log"):
            mine[renamed(name)] = value.flatten()
        elif ".experts." not in name and "g_b_proj" not in name:
            mine[renamed(name)] = value
    return mine


def expert_weights(theirs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the experts' weights under the names by which a workspace is asked for them."""
    mine: dict[str, torch.Tensor] = {}
    for name, value in theirs.items():
        where = renamed(name).rpartition(".")[0]
        if name.endswith("experts.gate_up_proj"):
            mine[f"{where}.w1"], mine[f"{where}.w3"] = value.chunk(2, dim=1)
        elif name.endswith("experts.down_proj"):
            mine[f"{where}.w2"] = value
    return mine


def load(theirs: Mapping[str, torch.Tensor], config: ToyConfig) -> ToyModel:
    """Return a toy with their weights, every one of them and no other."""
    model = toy(config)
    plain, experts = attention_weights(theirs, config), expert_weights(theirs)
    packed = {name for name in model.state_dict() if name.endswith((".codes", ".scales"))}
    assert set(plain) | packed == set(model.state_dict()), set(plain) ^ (set(model.state_dict()) - packed)
    assert set(experts) == {name.rpartition(".")[0] for name in packed}
    model.load_state_dict(plain, strict=False)
    for part in model.modules():
        if isinstance(part, MoeFeedForward):
            part.experts.workspace = FloatExperts(experts)
    return model


def call(model: Any, ids_BS: torch.Tensor, cache: Any = None) -> Any:
    """Call a model of transformers in float64."""
    with torch.no_grad(), Widened():
        return model(input_ids=ids_BS, cache=cache, use_cache=True)
