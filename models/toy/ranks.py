"""The toy on several ranks: its own plan, in the words of transformers' plans, and how a rank's part is cut out.

Attention is divided by heads, feed-forward networks by columns and rows, tables of words by words; experts go whole to
ranks. Norms, routers, indexers, low-rank projections, residuals and the vision branch are whole on every rank.

Shape suffixes: B batch, S tokens, D hidden, N tokens, L latent, K chosen experts, V words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from day0.errors import Day0Error
from day0.models.toy.layers import Experts
from day0.models.toy.model import ToyModel

__all__ = ["EXPERTS", "TENSORS", "cut_toy", "heads_of_toy", "plan_of_toy"]

TENSORS: dict[str, str] = {
    "embed_tokens.weight": "embedding_rowwise",
    "lm_head.weight": "colwise_gather_output",
    "layers.*.self_attn.(q|k|v|b|g|f_b|q_b)_proj.weight": "colwise",
    "layers.*.self_attn.(q|k|v)_conv": "colwise",
    "layers.*.self_attn.(A_log|dt_bias|k_b|v_b)": "heads",
    "layers.*.self_attn.o_proj.weight": "rowwise",
    "layers.*.mlp.w[13].weight": "colwise",
    "layers.*.mlp.w2.weight": "rowwise",
    "layers.*.mlp.shared_experts.w[13].weight": "colwise",
    "layers.*.mlp.shared_experts.w2.weight": "rowwise",
}
"""Names of parameters, `*` for the number of a layer, and how they are cut."""
EXPERTS: dict[str, str] = {"layers.*.mlp.experts.w[123].(codes|scales)": "grouped_gemm"}
"""Buffers of packed experts: whole experts to each rank."""


def plan_of_toy(model: ToyModel) -> tuple[dict[str, str], dict[str, str]]:
    """Return the plans for tensors and for experts by concrete names."""
    tensors = {name: style for name, _ in model.named_parameters() if (style := _style(name, TENSORS))}
    experts = {name: style for name, _ in model.named_buffers() if (style := _style(name, EXPERTS))}
    return tensors, experts


def _style(name: str, rules: dict[str, str]) -> str:
    return next((style for rule, style in rules.items() if re.fullmatch(rule.replace(".*.", r"\.\d+\."), name)), "")


def heads_of_toy(model: ToyModel) -> dict[str, int]:
    """Return the numbers of heads that ranks divide, by field."""
    config = model.config
    linear = {"kda_heads": config.kda_heads} if len(config.mla_layers) < config.num_hidden_layers else {}
    return {**linear, **({"mla_heads": config.mla_heads} if config.mla_layers else {})}


def cut_toy(model: ToyModel, rank: int, ranks: int) -> None:
    """Leave of the model what this rank holds, and let it talk to the others through the default process group.

    Sizes divide by the number of ranks. Raises Day0Error for a model with an expert cache, which holds all experts.
    """
    if model.config.expert_slots:
        what = f"expert_slots is {model.config.expert_slots}, and an expert cache is made for all experts"
        raise Day0Error("toy config: expert_slots", what, hint="leave expert_slots out on several ranks")
    tensors, experts = plan_of_toy(model)
    words = model.embed_tokens.num_embeddings
    for name, style in (*tensors.items(), *experts.items()):
        _cut(model, name, style, rank, ranks)
    _embed_words(model.embed_tokens, rank * words // ranks, words // ranks)
    model.lm_head.register_forward_hook(lambda _, __, part_BSV: _gathered(part_BSV, ranks))
    for name, style in tensors.items():
        if style == "rowwise":
            model.get_submodule(name.removesuffix(".weight")).register_forward_hook(lambda _, __, out: _summed(out))
    for module in model.modules():
        if isinstance(module, Experts):
            module.register_forward_pre_hook(_own_experts(rank, module.w1.codes.shape[0]))
            module.register_forward_hook(lambda _, __, out: _summed(out))


def _cut(model: nn.Module, name: str, style: str, rank: int, ranks: int) -> None:
    path, _, own = name.rpartition(".")
    module = model.get_submodule(path)
    whole: torch.Tensor = getattr(module, own)
    # A copy: a view would keep the whole of it in memory.
    part = whole.detach().chunk(ranks, dim=-1 if style == "rowwise" else 0)[rank].clone()
    setattr(module, own, nn.Parameter(part, requires_grad=False) if isinstance(whole, nn.Parameter) else part)


def _summed(part: torch.Tensor) -> torch.Tensor:
    whole = part.contiguous()
    dist.all_reduce(whole)
    return whole


def _gathered(part_BSV: torch.Tensor, ranks: int) -> torch.Tensor:
    parts = [torch.empty_like(part_BSV) for _ in range(ranks)]
    dist.all_gather(parts, part_BSV.contiguous())
    return torch.cat(parts, dim=-1)


def _embed_words(table: nn.Embedding, first: int, count: int) -> None:
    """Let a table of some words answer for them, with zeros for all others, and sum over the ranks."""

    def forward(ids_BS: torch.Tensor) -> torch.Tensor:
        own_BS = ids_BS - first
        known_BS = (own_BS >= 0) & (own_BS < count)
        x_BSD = nn.functional.embedding(own_BS.clamp(0, count - 1), table.weight)
        return _summed(torch.where(known_BS[..., None], x_BSD, 0.0).to(x_BSD.dtype))

    table.forward = forward  # type: ignore[method-assign, assignment]  # hooks see one module


def _own_experts(rank: int, count: int) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]:
    """Return what renumbers chosen experts to this rank's own, -1 for those of other ranks."""

    def choose(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        x_NL, weight_NK, chosen_NK = given
        own_NK = chosen_NK - rank * count
        return x_NL, weight_NK, torch.where((own_NK >= 0) & (own_NK < count), own_NK, -1)

    return choose
