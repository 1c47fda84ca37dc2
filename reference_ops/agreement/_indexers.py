"""Run the indexers of transformers with random weights and see what they project, score and choose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from day0.reference_ops.agreement._modules import automodel

__all__ = [
    "POOL",
    "ROPE",
    "TOPK",
    "Seen",
    "differing",
    "glm5_next",
    "nemo",
    "per_token",
    "projected",
    "random_module",
]

HIDDEN, LOW, HEADS, DIM, ROPE, TOPK, POOL = 96, 48, 16, 32, 12, 6, 4
FIXED: dict[str, Any] = {"hidden_size": HIDDEN, "q_lora_rank": LOW, "index_n_heads": HEADS, "index_head_dim": DIM}


@dataclass(kw_only=True, slots=True)
class Seen:
    """What one forward pass showed, all of it in float64."""

    made: dict[str, torch.Tensor] = field(default_factory=dict)
    """Results of the submodules by name."""
    scores: list[torch.Tensor] = field(default_factory=list)
    """What was given to top-k."""
    cos_ASP: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    sin_ASP: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    chosen: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    first_position: int = 0
    old_k_BTD: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    """Keys of the tokens before, as the model keeps them."""


class Wide(TorchFunctionMode):
    """Keep float64 where a model asks for less, and note what top-k gets: its arithmetic shows without rounding."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.float or (func is torch.Tensor.to and args[1:] == (torch.bfloat16,)):
            return args[0]
        if func is torch.Tensor.topk:
            self.seen.scores.append(args[0])
        return func(*args, **(kwargs or {}))


def random_module(module: Any, seed: int) -> Any:
    """Return the module in float64 with random weights, biases and norms too."""
    generator = torch.Generator().manual_seed(seed)
    module = module.to(torch.float64).eval()
    for parameter in module.parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data.copy_(values * (parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1.0))
    return module


def watch(module: torch.nn.Module, call: Callable[[], Any], seen: Seen) -> Seen:
    """Run and note the results of the submodules, the scores and the choice."""

    def keep(name: str) -> Callable[..., None]:
        return lambda _module, _inputs, output: seen.made.update({name: output.detach()})

    handles = [child.register_forward_hook(keep(name)) for name, child in module.named_children()]
    try:
        with torch.no_grad(), Wide(seen):
            seen.chosen = call()
    finally:
        for handle in handles:
            handle.remove()
    return seen


def projected(seen: Seen) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries [B, S, H, D] and keys [B, S, D] before any rope, and weights [B, S, H]."""
    return seen.made["wq_b"].unflatten(-1, (HEADS, DIM)), seen.made["k_norm"], seen.made["weights_proj"]


def inputs(tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return hidden states, low-rank queries, both [2, S, ...], and angles [2, S, R / 2], all different."""
    generator = torch.Generator().manual_seed(seed)
    x_BSD, low_BSC, angle_BSP = (
        torch.randn(2, tokens, width, generator=generator, dtype=torch.float64) for width in (HIDDEN, LOW, ROPE // 2)
    )
    return x_BSD, low_BSC, 3.0 * angle_BSP


def per_token(module: ModuleType, prefix: str, before: int) -> Seen:
    """Run the indexer of a model that scores tokens: 17 tokens after `before` others, whose keys are in a cache."""
    config = getattr(module, f"{prefix}Config")(**FIXED, qk_rope_head_dim=ROPE, index_topk=TOPK)
    indexer = random_module(getattr(module, f"{prefix}Indexer")(config, 0), 3)
    x_BSD, low_BSC, angle_BSP = inputs(17, 4)
    old_k_BTD = torch.randn(2, before, DIM, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    seen = Seen(first_position=before, old_k_BTD=old_k_BTD, cos_ASP=angle_BSP.cos(), sin_ASP=angle_BSP.sin())
    cache = SimpleNamespace(update_indexer=lambda k_BSD, _layer: torch.cat((old_k_BTD, k_BSD), dim=1))
    twice = tuple(torch.cat((one, one), dim=-1) for one in (seen.cos_ASP, seen.sin_ASP))
    mask_BST = torch.ones(2, 17, before + 17, dtype=torch.bool).tril(before)
    return watch(indexer, lambda: indexer(x_BSD, low_BSC, twice, mask_BST, None, cache=cache), seen)


def glm5_next(padding: tuple[int, int], before: int, tokens: int) -> tuple[Any, Seen]:
    """Run the indexer of GLM-5.3-Flash over pools, behind `before` tokens in a cache; return it and what was seen.

    `padding` is on the left, for each of two rows, and counted in `before` and `tokens`.
    """
    from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig
    from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextIndexer

    config = Glm5NextTextConfig(**FIXED, index_topk=3 * POOL, index_kpool=POOL)
    indexer = random_module(Glm5NextTextIndexer(config, 0), 6)
    x_BSD, low_BSC, _ = inputs(tokens, 7)
    generator = torch.Generator().manual_seed(8)
    old_BTD = torch.randn(2, before, 2 * DIM, generator=generator, dtype=torch.float64)
    valid_BT = torch.arange(before + tokens) >= torch.tensor(padding)[:, None]
    seen = Seen(first_position=before, old_k_BTD=old_BTD[..., :DIM])
    gate_BSD = torch.nn.functional.linear(x_BSD, indexer.index_kpool_compress_gate).detach()
    seen.made["gate"] = torch.cat((old_BTD[..., DIM:], gate_BSD), dim=1)
    packed_BTD = torch.cat((old_BTD, valid_BT[:, :before, None].to(torch.float64)), dim=-1)
    layer = SimpleNamespace(keys=torch.empty(before + tokens, 1), get_seq_length=lambda: before + tokens)
    cache = SimpleNamespace(
        layers=[layer], update_indexer=lambda new_BSD, _layer: torch.cat((packed_BTD, new_BSD), dim=1)
    )
    return indexer, watch(indexer, lambda: indexer(x_BSD, low_BSC, valid_BT[:, before:], cache), seen)


def nemo() -> Seen:
    """Run the indexer of NeMo AutoModel, which transforms queries and keys by Hadamard."""
    layers = automodel("deepseek_v32.layers")
    common = automodel("common")
    names = {**FIXED, "qk_rope_head_dim": ROPE, "index_topk": TOPK, "torch_dtype": torch.float64}
    backend = common.BackendConfig(attn="sdpa", linear="torch", rms_norm="torch")
    indexer = random_module(layers.DeepseekV32Indexer(SimpleNamespace(**names), backend), 3)
    x_BSD, low_BSC, angle_BSP = inputs(17, 4)
    seen = Seen(cos_ASP=angle_BSP.cos(), sin_ASP=angle_BSP.sin(), old_k_BTD=x_BSD.new_empty(2, 0, DIM))
    hidden_ST = torch.ones(17, 17, dtype=torch.bool).triu(1)
    mask_B1ST = torch.zeros(2, 1, 17, 17, dtype=torch.float64).masked_fill(hidden_ST, float("-inf"))
    turn_BSP = torch.polar(torch.ones_like(angle_BSP), angle_BSP)
    return watch(indexer, lambda: indexer(x_BSD, low_BSC, turn_BSP, mask_B1ST), seen)


def differing(mine_BSK: torch.Tensor, theirs_BSK: torch.Tensor) -> float:
    """Return how many of their picks, -1 apart, are not ours or the other way round: a fraction, order not counted."""
    missed = total = 0
    for mine, theirs in zip(mine_BSK.flatten(0, 1).tolist(), theirs_BSK.flatten(0, 1).tolist(), strict=True):
        left, right = {one for one in mine if one >= 0}, {one for one in theirs if one >= 0}
        missed, total = missed + len(left ^ right), total + len(left | right)
    return missed / max(1, total)
