"""day0::kda_recurrent with products instead of Einstein sums."""

from __future__ import annotations

import torch

from day0.implementation import Constraints, Implementation
from day0.reference_ops.kda_recurrent import validate

__all__ = ["IMPLEMENTATIONS"]


def by_rows(
    q_BSHK: torch.Tensor,
    k_BSHK: torch.Tensor,
    v_BSHV: torch.Tensor,
    g_BSHK: torch.Tensor,
    beta_BSH: torch.Tensor,
    state: torch.Tensor,
    state_layout: str = "kv",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Batch and heads as one dimension, one pair of small matrix products for each token, state in float32."""
    validate(q_BSHK, k_BSHK, v_BSHV, g_BSHK, beta_BSH, state, state_layout)
    batch, tokens, heads, keys = q_BSHK.shape
    values = v_BSHV.shape[-1]
    q_SNK, k_SNK = _rows(_unit(q_BSHK.float()) * keys**-0.5), _rows(_unit(k_BSHK.float()))
    v_SNV, decay_SNK = _rows(v_BSHV.float()), _rows(g_BSHK.float().exp())
    beta_SN1 = beta_BSH.float().permute(1, 0, 2).reshape(tokens, batch * heads, 1)
    state_BHKV = state if state_layout == "kv" else state.transpose(-1, -2)
    state_NKV = state_BHKV.float().reshape(batch * heads, keys, values).clone()
    out_SNV = torch.empty(tokens, batch * heads, values, dtype=torch.float32, device=q_BSHK.device)
    for token in range(tokens):
        state_NKV = state_NKV * decay_SNK[token][..., None]
        held_NV = torch.bmm(k_SNK[token][:, None], state_NKV)[:, 0]
        change_NV = beta_SN1[token] * (v_SNV[token] - held_NV)
        state_NKV = torch.baddbmm(state_NKV, k_SNK[token][..., None], change_NV[:, None])
        out_SNV[token] = torch.bmm(q_SNK[token][:, None], state_NKV)[:, 0]
    out_BSHV = out_SNV.reshape(tokens, batch, heads, values).permute(1, 0, 2, 3).contiguous()
    new_BHKV = state_NKV.reshape(batch, heads, keys, values).to(state.dtype)
    new = new_BHKV if state_layout == "kv" else new_BHKV.transpose(-1, -2).contiguous()
    return out_BSHV.to(q_BSHK.dtype), new


def _rows(x_BSHK: torch.Tensor) -> torch.Tensor:
    batch, tokens, heads, width = x_BSHK.shape
    return x_BSHK.permute(1, 0, 2, 3).reshape(tokens, batch * heads, width)


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().sum(dim=-1, keepdim=True) + 1e-6).sqrt()


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::kda_recurrent",
        contract=2,
        id="token_products",
        version="1.1",
        kind="decomposition",
        run=by_rows,
        why="one pair of small matrix products for each token, state in float32",
        constraints=Constraints(dtypes=frozenset({"float16", "bfloat16", "float32"})),
    ),
)
