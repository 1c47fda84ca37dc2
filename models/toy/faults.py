"""Eight porting mistakes, each as one changed operator of the toy: what a trained model makes of them.

Shape suffixes: B batch, S queries, H heads, K key, V value, D dimension, N rows, L latent, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from day0.models.toy.calls import Calls, dispatched

__all__ = ["FAULTS", "faulty"]

Change = Callable[[Calls], dict[str, Callable[..., Any]]]


class _Changed:
    """The operators, some of them replaced."""

    def __init__(self, calls: Calls, changes: dict[str, Callable[..., Any]]) -> None:
        self._calls, self._changes = calls, changes

    def __getattr__(self, name: str) -> Any:
        return self._changes.get(name) or getattr(self._calls, name)


def faulty(name: str, calls: Calls | None = None) -> Calls:
    """Return the operators with one mistake; build a model with them."""
    calls = calls if calls is not None else dispatched()
    return _Changed(calls, FAULTS[name](calls))


def _wrong_rope_pairing(calls: Calls) -> dict[str, Callable[..., Any]]:
    def rope_2d(x_NHD: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
        """Pair each dimension with the one half the width away instead of with its neighbour."""
        width = x_NHD.shape[-1]
        order_D = torch.arange(width).reshape(2, -1).t().reshape(-1).to(x_NHD.device)
        turned: torch.Tensor = calls.rope_2d(x_NHD[..., order_D].contiguous(), positions, theta)
        return turned[..., torch.argsort(order_D)]

    return {"rope_2d": rope_2d}


def _one_sided_hadamard(calls: Calls) -> dict[str, Callable[..., Any]]:
    def hadamard(x_BSHD: torch.Tensor) -> torch.Tensor:
        """Transform keys, which have one head, and leave queries as they are."""
        transformed: torch.Tensor = calls.hadamard(x_BSHD) if x_BSHD.shape[2] == 1 else x_BSHD.clone()
        return transformed

    return {"hadamard": hadamard}


def _transposed_state(calls: Calls) -> dict[str, Callable[..., Any]]:
    def turned(result: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the state in the order [V, K] into memory that is read as [K, V]."""
        out_BSHV, state_BHKV = result
        return out_BSHV, state_BHKV.transpose(-1, -2).contiguous().view(state_BHKV.shape)

    return {
        "kda_chunked": lambda *args: turned(calls.kda_chunked(*args)),
        "kda_recurrent": lambda *args: turned(calls.kda_recurrent(*args)),
    }


def _swapped_nibbles(calls: Calls) -> dict[str, Callable[..., Any]]:
    def mxfp4_decode(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Take the high nibble for the first value."""
        weight: torch.Tensor = calls.mxfp4_decode((codes >> 4) | (codes << 4), scales, dtype)
        return weight

    return {"mxfp4_decode": mxfp4_decode}


def _mask_off_by_one(calls: Calls) -> dict[str, Callable[..., Any]]:
    def lightning_indexer(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor, first: int) -> torch.Tensor:
        """Hide each token from itself; the very first still sees itself."""
        logits_BST: torch.Tensor = calls.lightning_indexer(q, k, w, first)
        position_S1 = torch.arange(q.shape[1], device=q.device)[:, None] + first
        itself_ST = torch.arange(k.shape[1], device=q.device) == position_S1
        return logits_BST.masked_fill(itself_ST & (position_S1 > 0), float("-inf"))

    return {"lightning_indexer": lightning_indexer}


def _stale_block(calls: Calls) -> dict[str, Callable[..., Any]]:
    def paged_kv_write(pages: torch.Tensor, rows_NC: torch.Tensor, slots_N: torch.Tensor, latent: int) -> None:
        """Leave what every fourth page held before."""
        stale_N = torch.div(slots_N, pages.shape[1], rounding_mode="floor") % 4 == 1
        calls.paged_kv_write(pages, rows_NC, torch.where(stale_N, -1, slots_N), latent)

    return {"paged_kv_write": paged_kv_write}


def _weight_early(calls: Calls) -> dict[str, Callable[..., Any]]:
    def fused_experts(*args: Any) -> torch.Tensor:
        """Weigh what goes into an expert instead of what comes out."""
        out_NL: torch.Tensor = calls.fused_experts(*args[:7], True, *args[8:])
        return out_NL

    return {"fused_experts": fused_experts}


def _missing_bank(calls: Calls) -> dict[str, Callable[..., Any]]:
    def attention_residual(
        bank: list[torch.Tensor], prefix: torch.Tensor, norm: torch.Tensor, proj: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Forget the snapshots of earlier blocks, as a pipeline stage that does not get them."""
        mixed: torch.Tensor = calls.attention_residual([], prefix, norm, proj, eps)
        return mixed

    return {"attention_residual": attention_residual}


FAULTS: dict[str, Change] = {
    "wrong rope pairing": _wrong_rope_pairing,
    "one-sided Hadamard": _one_sided_hadamard,
    "transposed KDA state": _transposed_state,
    "swapped nibbles": _swapped_nibbles,
    "off-by-one causal mask": _mask_off_by_one,
    "stale cache block": _stale_block,
    "weight applied early": _weight_early,
    "missing attention-residual bank": _missing_bank,
}
