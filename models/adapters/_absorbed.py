"""Attention of transformers' queries over cached latents by our operators: queries absorbed, results expanded.

Shape suffixes: B batch, S queries, H heads, T keys, K chosen tokens, L latent, R rotated values, C = L + R row width,
N values of a key that are not rotated, V values, X = N + V, P pages, G rows of a page.
"""

from __future__ import annotations

from typing import Any

import torch

from day0.errors import Day0Error

__all__ = ["PAGE", "attend"]

PAGE = 64
"""Rows of a page in decode: what kernels for paged caches are made for."""


def attend(
    seen: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    *,
    scaling: float,
    dropout: float = 0.0,
    indices: torch.Tensor | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return [B, S, H, V] in the place of their attention function; `key` is the latent, `value` the rotated part.

    Raises Day0Error for dropout, and where attention weights are asked for of code that would give them.
    """
    module = seen.module
    _allowed(module, dropout, kwargs)
    absorbed_HNL, back_HLV = _projections(module)
    q_BHSN, q_BHSR = query.split((module.qk_nope_head_dim, query.shape[-1] - module.qk_nope_head_dim), dim=-1)
    latent_BHSL = torch.matmul(q_BHSN, absorbed_HNL)
    q_BSHC = torch.cat((latent_BHSL.transpose(1, 2), q_BHSR.transpose(1, 2)), dim=-1)
    chosen_BSK = attention_mask if indices is None else _visible(indices, attention_mask)
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    sink_H = None if s_aux is None else s_aux.to(wide)
    run = _decode if query.shape[2] == 1 else _prefill
    out_BSHL = run(q_BSHC, key[:, 0], value[:, 0], chosen_BSK.to(torch.int32), float(scaling), sink_H)
    out_BHSV = torch.matmul(out_BSHL.transpose(1, 2), back_HLV)
    return out_BHSV.transpose(1, 2), None


def _allowed(module: Any, dropout: float, kwargs: dict[str, Any]) -> None:
    asked = kwargs.get("output_attentions") or getattr(module.config, "output_attentions", False)
    what = "drops weights at random" if dropout else ""
    if asked and module.config._attn_implementation == "eager":
        what = "is asked for its weights"
    if what:
        raise Day0Error(
            type(module).__name__,
            f"it {what}, and the operators that it is adapted to do not",
            hint="call the model in eval mode without output_attentions, or adapt it without dsa",
        )


def _projections(module: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is absorbed into queries [H, N, L], and what makes values of latents [H, L, V]."""
    sizes = (module.qk_nope_head_dim, module.v_head_dim)
    weight: Any = module.kv_b_proj.weight
    # Where ranks share a model, each has the rows of its own heads.
    weight = weight.to_local() if hasattr(weight, "to_local") else weight
    weight_HXL = weight.unflatten(0, (-1, sum(sizes)))
    up_HNL, down_HVL = weight_HXL.split(sizes, dim=1)
    return up_HNL, down_HVL.transpose(1, 2)


def _visible(indices_BSK: torch.Tensor, mask_B1ST: torch.Tensor) -> torch.Tensor:
    """Return a choice with -1 for tokens that the mask hides: where few are visible, theirs holds hidden ones too."""
    shape_BST = (*indices_BSK.shape[:2], mask_B1ST.shape[-1])
    seen_BSK = mask_B1ST[:, 0].expand(shape_BST).gather(-1, indices_BSK.long())
    # Masks that are added hold 0 for what is visible.
    return torch.where(seen_BSK if seen_BSK.dtype == torch.bool else seen_BSK >= 0, indices_BSK, -1)


def _prefill(
    q_BSHC: torch.Tensor,
    latent_BTL: torch.Tensor,
    rope_BTR: torch.Tensor,
    chosen_BSK: torch.Tensor,
    scale: float,
    sink_H: torch.Tensor | None,
) -> torch.Tensor:
    rows_BTC = torch.cat((latent_BTL, rope_BTR), dim=-1)
    out_BSHL: torch.Tensor = torch.ops.day0.sparse_mla_prefill(
        q_BSHC, rows_BTC, chosen_BSK, latent_BTL.shape[-1], scale, None, sink_H
    )[0]
    return out_BSHL


def _decode(
    q_B1HC: torch.Tensor,
    latent_BTL: torch.Tensor,
    rope_BTR: torch.Tensor,
    chosen_B1K: torch.Tensor,
    scale: float,
    sink_H: torch.Tensor | None,
) -> torch.Tensor:
    """Each sequence has pages of its own, one after the other; rows that fill the last one are never chosen."""
    batch, keys, latent = latent_BTL.shape
    pages = -(-keys // PAGE)
    rows_BTC = latent_BTL.new_zeros((batch, pages * PAGE, q_B1HC.shape[-1]))
    rows_BTC[:, :keys, :latent] = latent_BTL
    rows_BTC[:, :keys, latent:] = rope_BTR
    first_B11 = pages * PAGE * torch.arange(batch, device=chosen_B1K.device, dtype=torch.int32)[:, None, None]
    slots_B1K = torch.where(chosen_B1K >= 0, chosen_B1K + first_B11, -1)
    pages_PGC = rows_BTC.view(batch * pages, PAGE, -1)
    out_B1HL: torch.Tensor = torch.ops.day0.sparse_mla_decode(
        q_B1HC, pages_PGC, slots_B1K, latent, scale, "plain", None, sink_H
    )[0]
    return out_B1HL
