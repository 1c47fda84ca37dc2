"""Attention of the toy model: Kimi Delta Attention, and gated MLA with a lightning indexer.

Shape suffixes: B batch, S new tokens, T tokens with those of the cache, D hidden, H heads, K key, V value,
L latent, R shared dimensions, C channels, W = kernel - 1 kept tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from day0.models.toy_config import ToyConfig
from day0.models.toy_layers import RmsNorm, wide_dtype

__all__ = ["KdaAttention", "KdaCache", "MlaAttention", "MlaCache"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KdaCache:
    """What a KDA layer keeps: the last inputs of its convolutions, and the state. Its size does not grow."""

    conv_BWC: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    state_BHKV: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class MlaCache:
    """What an MLA layer keeps for every token: its latent row, and its key for the indexer."""

    kv_BTC: torch.Tensor
    index_key_BTK: torch.Tensor


class ShortConv(nn.Module):
    """Causal convolution over few tokens, each channel on its own, then SiLU."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, kernel))

    def forward(self, x_BSC: torch.Tensor, kept_BWC: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output [B, S, C] and the last W inputs; before the first token stand zeros."""
        kernel, tokens = self.weight.shape[1], x_BSC.shape[1]
        if kept_BWC is None:
            kept_BWC = x_BSC.new_zeros(x_BSC.shape[0], kernel - 1, x_BSC.shape[2])
        all_BTC = torch.cat((kept_BWC, x_BSC), dim=1)
        wide = wide_dtype(x_BSC)
        sum_BSC = torch.zeros_like(x_BSC, dtype=wide)
        for tap in range(kernel):
            sum_BSC = sum_BSC + all_BTC[:, tap : tap + tokens].to(wide) * self.weight[:, tap].to(wide)
        return nn.functional.silu(sum_BSC).to(x_BSC.dtype), all_BTC[:, tokens:]


class KdaAttention(nn.Module):
    """Gated delta rule with one decay for every key channel; the gate is bounded, which is not a clamp."""

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.config = config
        hidden, heads = config.hidden_size, config.kda_heads
        keys, values = heads * config.kda_key_dim, heads * config.kda_value_dim
        self.q_proj, self.k_proj = nn.Linear(hidden, keys, bias=False), nn.Linear(hidden, keys, bias=False)
        self.v_proj = nn.Linear(hidden, values, bias=False)
        self.q_conv, self.k_conv = ShortConv(keys, config.conv_kernel), ShortConv(keys, config.conv_kernel)
        self.v_conv = ShortConv(values, config.conv_kernel)
        self.f_a_proj = nn.Linear(hidden, config.kda_gate_rank, bias=False)
        self.f_b_proj = nn.Linear(config.kda_gate_rank, keys, bias=False)
        self.A_log, self.dt_bias = nn.Parameter(torch.empty(heads)), nn.Parameter(torch.empty(keys))
        self.b_proj = nn.Linear(hidden, heads, bias=False)
        self.g_proj = nn.Linear(hidden, values, bias=False)
        self.o_norm = RmsNorm(config.kda_value_dim, config.rms_norm_eps)
        self.o_proj = nn.Linear(values, hidden, bias=False)

    def forward(self, x_BSD: torch.Tensor, cache: KdaCache | None) -> tuple[torch.Tensor, KdaCache]:
        """Return the output [B, S, D] and the new cache."""
        kept = cache.conv_BWC if cache is not None else (None, None, None)
        q_BSC, q_kept = self.q_conv(self.q_proj(x_BSD), kept[0])
        k_BSC, k_kept = self.k_conv(self.k_proj(x_BSD), kept[1])
        v_BSC, v_kept = self.v_conv(self.v_proj(x_BSD), kept[2])
        state_BHKV = cache.state_BHKV if cache is not None else self._first_state(x_BSD)
        beta_BSH = torch.sigmoid(self.b_proj(x_BSD).to(wide_dtype(x_BSD)))
        heads = (self.config.kda_heads, -1)
        q_BSHK, k_BSHK, v_BSHV = (x_BSC.unflatten(-1, heads) for x_BSC in (q_BSC, k_BSC, v_BSC))
        out_BSHV, state_BHKV = torch.ops.day0.kda_recurrent(
            q_BSHK, k_BSHK, v_BSHV, self._log_decay(x_BSD), beta_BSH, state_BHKV
        )
        gate_BSHV = torch.sigmoid(self.g_proj(x_BSD)).unflatten(-1, heads)
        out_BSD = self.o_proj((self.o_norm(out_BSHV) * gate_BSHV).flatten(-2))
        return out_BSD, KdaCache(conv_BWC=(q_kept, k_kept, v_kept), state_BHKV=state_BHKV)

    def _log_decay(self, x_BSD: torch.Tensor) -> torch.Tensor:
        """Return g [B, S, H, K] between the lower bound and 0, in wide."""
        wide, heads = wide_dtype(x_BSD), (self.config.kda_heads, -1)
        raw_BSHK = (self.f_b_proj(self.f_a_proj(x_BSD)).to(wide) + self.dt_bias.to(wide)).unflatten(-1, heads)
        rate_H1 = self.A_log.to(wide).exp()[:, None]
        g_BSHK: torch.Tensor = self.config.kda_gate_lower_bound * torch.sigmoid(rate_H1 * raw_BSHK)
        return g_BSHK

    def _first_state(self, x_BSD: torch.Tensor) -> torch.Tensor:
        config = self.config
        shape = (x_BSD.shape[0], config.kda_heads, config.kda_key_dim, config.kda_value_dim)
        return x_BSD.new_zeros(shape, dtype=wide_dtype(x_BSD))


class Indexer(nn.Module):
    """Chooses the tokens that attention reads: index heads over one key per token, no rope, no Hadamard."""

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.config = config
        hidden, heads, dim = config.hidden_size, config.index_heads, config.index_head_dim
        self.wq_b = nn.Linear(config.q_lora_rank, heads * dim, bias=False)
        self.wk = nn.Linear(hidden, dim, bias=False)
        # A LayerNorm with bias, not an RMS norm, and with the model's eps.
        self.k_norm = nn.LayerNorm(dim, eps=config.rms_norm_eps)
        self.weights_proj = nn.Linear(hidden, heads, bias=False)

    def forward(
        self, x_BSD: torch.Tensor, q_low_BSC: torch.Tensor, kept_BTK: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return chosen tokens [B, S, topk] int32, -1 where there are fewer, and all keys [B, T, K]."""
        key_BTK = self.k_norm(self.wk(x_BSD))
        if kept_BTK is not None:
            key_BTK = torch.cat((kept_BTK, key_BTK), dim=1)
        q_BSHK = self.wq_b(q_low_BSC).unflatten(-1, (self.config.index_heads, -1))
        # In wide: rounding the weights changes the choice.
        wide = wide_dtype(x_BSD)
        weight_BSH = x_BSD.to(wide) @ self.weights_proj.weight.to(wide).t()
        first_position = key_BTK.shape[1] - x_BSD.shape[1]
        logits_BST = torch.ops.day0.lightning_indexer(q_BSHK, key_BTK, weight_BSH, first_position)
        return torch.ops.day0.topk_tokens(logits_BST, self.config.index_topk), key_BTK


class MlaAttention(nn.Module):
    """Gated multi-head latent attention without positions, in absorbed form, over the tokens the indexer chose."""

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.config = config
        hidden, heads, latent = config.hidden_size, config.mla_heads, config.kv_lora_rank
        nope, values = config.nope_head_dim, config.v_head_dim
        self.q_a_proj = nn.Linear(hidden, config.q_lora_rank, bias=False)
        self.q_a_norm = RmsNorm(config.q_lora_rank, config.lora_norm_eps)
        self.q_b_proj = nn.Linear(config.q_lora_rank, heads * (nope + config.shared_head_dim), bias=False)
        self.kv_a_proj = nn.Linear(hidden, latent + config.shared_head_dim, bias=False)
        self.kv_a_norm = RmsNorm(latent, config.lora_norm_eps)
        self.k_b = nn.Parameter(torch.empty(heads, nope, latent))
        self.v_b = nn.Parameter(torch.empty(heads, latent, values))
        self.g_proj = nn.Linear(hidden, heads * values, bias=False)
        self.o_proj = nn.Linear(heads * values, hidden, bias=False)
        self.indexer = Indexer(config)

    def forward(self, x_BSD: torch.Tensor, cache: MlaCache | None) -> tuple[torch.Tensor, MlaCache]:
        """Return the output [B, S, D] and the new cache."""
        config = self.config
        q_low_BSC = self.q_a_norm(self.q_a_proj(x_BSD))
        kv_BTC = self._rows(x_BSD)
        if cache is not None:
            kv_BTC = torch.cat((cache.kv_BTC, kv_BTC), dim=1)
        kept_BTK = cache.index_key_BTK if cache is not None else None
        chosen_BSK, index_key_BTK = self.indexer(x_BSD, q_low_BSC, kept_BTK)
        scale = (config.nope_head_dim + config.shared_head_dim) ** -0.5
        out_BSHL = torch.ops.day0.sparse_mla(self._query(q_low_BSC), kv_BTC, chosen_BSK, config.kv_lora_rank, scale)
        out_BSHV = torch.einsum("bshl,hlv->bshv", out_BSHL, self.v_b)
        out_BSC = out_BSHV.flatten(-2) * torch.sigmoid(self.g_proj(x_BSD))
        return self.o_proj(out_BSC), MlaCache(kv_BTC=kv_BTC, index_key_BTK=index_key_BTK)

    def _rows(self, x_BSD: torch.Tensor) -> torch.Tensor:
        latent_BSL, shared_BSR = self.kv_a_proj(x_BSD).split(
            (self.config.kv_lora_rank, self.config.shared_head_dim), dim=-1
        )
        return torch.cat((self.kv_a_norm(latent_BSL), shared_BSR), dim=-1)

    def _query(self, q_low_BSC: torch.Tensor) -> torch.Tensor:
        """Return [B, S, H, L + R]: the key's up-projection is absorbed into the query."""
        config = self.config
        q_BSHC = self.q_b_proj(q_low_BSC).unflatten(-1, (config.mla_heads, -1))
        nope_BSHC, shared_BSHR = q_BSHC.split((config.nope_head_dim, config.shared_head_dim), dim=-1)
        latent_BSHL = torch.einsum("bshn,hnl->bshl", nope_BSHC, self.k_b)
        return torch.cat((latent_BSHL, shared_BSHR), dim=-1)
