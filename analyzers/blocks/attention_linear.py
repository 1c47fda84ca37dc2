"""Fusion: attention goes straight into its output projection."""

from __future__ import annotations

import torch

from day0.analyzers.blocks._block import Block, Call

__all__ = ["BLOCK"]


def _both(weight_HST: torch.Tensor, v_HTD: torch.Tensor, out_DE: torch.Tensor) -> torch.Tensor:
    heads_HSD = torch.bmm(torch.softmax(weight_HST, dim=-1), v_HTD)
    return heads_HSD.transpose(0, 1).reshape(heads_HSD.shape[1], -1) @ out_DE


def _sample() -> Call:
    return Call(_both, torch.ones(2, 3, 5), torch.ones(2, 5, 4), torch.ones(8, 6))


def _near_miss() -> Call:
    """A gate stands between attention and projection."""

    def gated(weight_HST: torch.Tensor, v_HTD: torch.Tensor, out_DE: torch.Tensor) -> torch.Tensor:
        heads_HSD = torch.bmm(torch.softmax(weight_HST, dim=-1), v_HTD).sigmoid()
        return heads_HSD.transpose(0, 1).reshape(heads_HSD.shape[1], -1) @ out_DE

    return Call(gated, *_sample().inputs)


BLOCK = Block(
    title="attention, then linear",
    kind="fusion",
    operators=(),
    why="the heads' results go into the projection without a transposed copy",
    paths=(
        "_softmax|_safe_softmax bmm mm|addmm!",
        "_scaled_dot_product_flash_attention|scaled_dot_product_attention mm|addmm!",
        "day0::sparse_mla_prefill|day0::sparse_mla_decode mm|addmm!",
    ),
    scope="any",
    sample=_sample,
    near_miss=_near_miss,
)
