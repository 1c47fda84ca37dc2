"""The lightning indexer of the toy model: which tokens a query may read.

Shape suffixes: B batch, S new tokens, T tokens, D hidden, H index heads, K index dimension, C low-rank query,
R rotated dimensions, P pools, X = K or 2 K: what is kept for each token.
"""

from __future__ import annotations

import torch
from torch import nn

from day0.models.toy.calls import Calls
from day0.models.toy.config import ToyConfig
from day0.models.toy.layers import wide_dtype

__all__ = ["Indexer", "angles"]


def angles(first: int, count: int, width: int, theta: float, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines [1, S, R / 2] of the positions from `first` on, in wide."""
    wide = wide_dtype(like)
    position_S = torch.arange(first, first + count, dtype=wide, device=like.device)
    steps_R = torch.arange(0, width, 2, dtype=wide, device=like.device)
    angle_SR = position_S[:, None] * torch.pow(theta, -steps_R / width)
    return angle_SR.cos()[None], angle_SR.sin()[None]


class Indexer(nn.Module):
    """Index heads over one key per token; rope, Hadamard transform and pools by attribute."""

    def __init__(self, config: ToyConfig, calls: Calls) -> None:
        super().__init__()
        self.config, self.calls = config, calls
        hidden, heads, dim = config.hidden_size, config.index_heads, config.index_head_dim
        self.wq_b = nn.Linear(config.q_lora_rank, heads * dim, bias=False)
        self.wk = nn.Linear(hidden, dim, bias=False)
        # A LayerNorm with bias, not an RMS norm.
        self.k_norm = nn.LayerNorm(dim, eps=config.index_key_eps)
        self.weights_proj = nn.Linear(hidden, heads, bias=False)
        if config.index_pool:
            self.pool_gate_proj = nn.Linear(hidden, dim, bias=False)
            self.pool_positions = nn.Parameter(torch.empty(config.index_pool, dim))

    def keys(self, x_BSD: torch.Tensor, first: int) -> torch.Tensor:
        """Return what the cache keeps for each token: its key, and behind it the gate of its pool."""
        key_BSK = self._placed(self.k_norm(self.wk(x_BSD))[:, :, None], first)[:, :, 0]
        return torch.cat((key_BSK, self.pool_gate_proj(x_BSD)), dim=-1) if self.config.index_pool else key_BSK

    def logits(self, x_BSD: torch.Tensor, low_BSC: torch.Tensor, key_BTX: torch.Tensor) -> torch.Tensor:
        """Return index logits [B, S, T], or [B, S, P] for pools; -inf where a query may not look yet."""
        config = self.config
        first = key_BTX.shape[1] - x_BSD.shape[1]
        q_BSHK = self._placed(self.wq_b(low_BSC).unflatten(-1, (config.index_heads, -1)), first)
        # In wide: rounding the weights changes the choice.
        wide = wide_dtype(x_BSD)
        weight_BSH = x_BSD.to(wide) @ self.weights_proj.weight.to(wide).t()
        if not config.index_pool:
            logits_BST: torch.Tensor = self.calls.lightning_indexer(q_BSHK, key_BTX, weight_BSH, first)
            return logits_BST
        key_BTK, gate_BTK = key_BTX.chunk(2, dim=-1)
        none_B = torch.zeros(x_BSD.shape[0], dtype=torch.int32, device=x_BSD.device)
        pool_BPK = self.calls.pool_index_keys(key_BTK, gate_BTK, self.pool_positions, none_B, config.index_pool)
        logits_BSP = self.calls.lightning_indexer(q_BSHK, pool_BPK, weight_BSH, key_BTX.shape[1])
        hidden_SP = ~self._complete(x_BSD, pool_BPK.shape[1], first)
        return torch.where(hidden_SP, float("-inf"), logits_BSP)

    def _complete(self, x_BSD: torch.Tensor, pools: int, first: int) -> torch.Tensor:
        """Return [S, P]: True where the last token of a pool is visible to a query."""
        last_P = torch.arange(1, pools + 1, device=x_BSD.device) * self.config.index_pool - 1
        position_S1 = torch.arange(x_BSD.shape[1], device=x_BSD.device)[:, None] + first
        complete_SP: torch.Tensor = last_P <= position_S1
        return complete_SP

    def forward(self, x_BSD: torch.Tensor, low_BSC: torch.Tensor, key_BTX: torch.Tensor) -> torch.Tensor:
        """Return chosen tokens [B, S, topk or a little more] int32, -1 where there are fewer."""
        config, tokens = self.config, key_BTX.shape[1]
        logits = self.logits(x_BSD, low_BSC, key_BTX)
        if not config.index_pool:
            chosen: torch.Tensor = self.calls.topk_tokens(logits, config.index_topk)[0]
            return chosen
        pools = self.calls.topk_tokens(logits, config.index_topk // config.index_pool)[0]
        none_B = torch.zeros(x_BSD.shape[0], dtype=torch.int32, device=x_BSD.device)
        first = tokens - x_BSD.shape[1]
        expanded: torch.Tensor = self.calls.expand_pools(pools, none_B, config.index_pool, first, tokens)[0]
        return expanded

    def _placed(self, x_BSHK: torch.Tensor, first: int) -> torch.Tensor:
        """Rotate and transform queries and keys alike: on one side alone it spoils every score."""
        config = self.config
        if config.index_rope != "none":
            cos, sin = angles(first, x_BSHK.shape[1], config.index_rope_dim, config.rope_theta, x_BSHK)
            x_BSHK = self.calls.rope(x_BSHK, cos, sin, config.index_rope, 0)
        if config.index_hadamard:
            x_BSHK = self.calls.hadamard(x_BSHK)
        return x_BSHK
