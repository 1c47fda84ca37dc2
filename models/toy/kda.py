"""Kimi Delta Attention of the toy model.

Shape suffixes: B batch, S new tokens, D hidden, H heads, K key, V value, C channels, W = kernel - 1 kept tokens.
"""

from __future__ import annotations

import torch
from torch import nn

from day0.models.toy.cache import KdaCache
from day0.models.toy.calls import Calls
from day0.models.toy.config import ToyConfig
from day0.models.toy.layers import RmsNorm, wide_dtype

__all__ = ["KdaAttention"]


class KdaAttention(nn.Module):
    """Gated delta rule with one decay for every key channel, behind short convolutions.

    One token runs through the recurrent operator, more through the chunked one.
    """

    def __init__(self, config: ToyConfig, calls: Calls) -> None:
        super().__init__()
        self.config, self.calls = config, calls
        hidden, heads = config.hidden_size, config.kda_heads
        keys, values = heads * config.kda_key_dim, heads * config.kda_value_dim
        self.q_proj, self.k_proj = nn.Linear(hidden, keys, bias=False), nn.Linear(hidden, keys, bias=False)
        self.v_proj = nn.Linear(hidden, values, bias=False)
        kernel = config.conv_kernel
        self.q_conv, self.k_conv = (nn.Parameter(torch.empty(keys, kernel)) for _ in range(2))
        self.v_conv = nn.Parameter(torch.empty(values, kernel))
        self.f_a_proj = nn.Linear(hidden, config.kda_gate_rank, bias=False)
        self.f_b_proj = nn.Linear(config.kda_gate_rank, keys, bias=False)
        self.A_log, self.dt_bias = nn.Parameter(torch.empty(heads)), nn.Parameter(torch.empty(keys))
        self.b_proj = nn.Linear(hidden, heads, bias=False)
        self.g_proj = nn.Linear(hidden, values, bias=False)
        self.o_norm = RmsNorm(config.kda_value_dim, config.rms_norm_eps)
        self.o_proj = nn.Linear(values, hidden, bias=False)

    def forward(self, x_BSD: torch.Tensor, cache: KdaCache | None) -> tuple[torch.Tensor, KdaCache]:
        """Return the output [B, S, D] and the new cache."""
        config, calls = self.config, self.calls
        kept = cache.conv_BWC if cache is not None else (None, None, None)
        q_BSC, q_kept = calls.short_conv(self.q_proj(x_BSD), self.q_conv, kept[0], False)
        k_BSC, k_kept = calls.short_conv(self.k_proj(x_BSD), self.k_conv, kept[1], False)
        v_BSC, v_kept = calls.short_conv(self.v_proj(x_BSD), self.v_conv, kept[2], False)
        state_BHKV = cache.state_BHKV if cache is not None else self._first_state(x_BSD)
        beta_BSH = torch.sigmoid(self.b_proj(x_BSD).to(wide_dtype(x_BSD)))
        # By width, not by the number of heads: on several ranks each has some of them.
        keys, values = (-1, config.kda_key_dim), (-1, config.kda_value_dim)
        q_BSHK, k_BSHK = (nn.functional.silu(x_BSC).unflatten(-1, keys) for x_BSC in (q_BSC, k_BSC))
        v_BSHV = nn.functional.silu(v_BSC).unflatten(-1, values)
        parts = (q_BSHK, k_BSHK, v_BSHV, self.log_decay(x_BSD), beta_BSH, state_BHKV)
        if x_BSD.shape[1] == 1:
            out_BSHV, state_BHKV = calls.kda_recurrent(*parts, config.kda_state_layout)
        else:
            out_BSHV, state_BHKV = calls.kda_chunked(*parts, 16, config.kda_state_layout)
        gate_BSHV = torch.sigmoid(self.g_proj(x_BSD)).unflatten(-1, values)
        out_BSD = self.o_proj((self.o_norm(out_BSHV) * gate_BSHV).flatten(-2))
        return out_BSD, KdaCache(conv_BWC=(q_kept, k_kept, v_kept), state_BHKV=state_BHKV)

    def log_decay(self, x_BSD: torch.Tensor) -> torch.Tensor:
        """Return g [B, S, H, K], at most 0, in wide."""
        raw_BSHK = self.f_b_proj(self.f_a_proj(x_BSD)).unflatten(-1, (-1, self.config.kda_key_dim))
        dt_bias_HK = self.dt_bias.unflatten(0, (-1, self.config.kda_key_dim))
        bound = self.config.kda_gate_lower_bound or None
        g_BSHK: torch.Tensor = self.calls.kda_gate(raw_BSHK, self.A_log, dt_bias_HK, bound)
        return g_BSHK

    def _first_state(self, x_BSD: torch.Tensor) -> torch.Tensor:
        config = self.config
        sizes = (config.kda_key_dim, config.kda_value_dim)
        sizes = sizes if config.kda_state_layout == "kv" else sizes[::-1]
        return x_BSD.new_zeros((x_BSD.shape[0], len(self.A_log), *sizes), dtype=wide_dtype(x_BSD))
