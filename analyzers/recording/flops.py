"""Floating-point operations of the products that torch's own counter leaves out. A multiplication and an addition are two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

__all__ = ["torch_flops"]


def torch_flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Count as torch counts, or by a formula of ours for what it does not; 0 for operators without products."""
    ours = _FORMULAS.get(func.name().partition(".")[0])
    if ours is not None:
        return ours(*args, **kwargs)
    count = flop_registry.get(func._overloadpacket)
    return int(count(*args, **kwargs, out_val=result)) if count else 0


def _grouped(a: torch.Tensor, b: torch.Tensor, *_: Any, **__: Any) -> int:
    """Rows of a group meet the matrix of their group, so each row is multiplied once.

    Shapes: rows [T, K] by experts [E, K, N]; experts [E, M, K] by columns [K, N]; batches [E, M, K] by [E, K, N];
    and [M, T] by [T, N], where the groups divide the inner dimension.
    """
    return 2 * a.numel() * int(b.shape[-1])


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> int:
    """[B, H, S, D] by [B, H, T, D], then by [B, H, T, V]; a causal mask saves nothing here, as in torch's count."""
    batch, heads, queries, width = query.shape
    return 2 * int(batch) * int(heads) * int(queries) * int(key.shape[-2]) * (int(width) + int(value.shape[-1]))


def _matrix_vector(matrix: torch.Tensor, *_: Any, **__: Any) -> int:
    return 2 * matrix.numel()


def _added_matrix_vector(_: Any, matrix: torch.Tensor, *__: Any, **___: Any) -> int:
    return 2 * matrix.numel()


def _matrices(a: torch.Tensor, b: torch.Tensor, *_: Any, **__: Any) -> int:
    return 2 * a.numel() * int(b.shape[-1])


def _added_batch(_: Any, a: torch.Tensor, b: torch.Tensor, *__: Any, **___: Any) -> int:
    return 2 * a.numel() * int(b.shape[-1])


_FORMULAS: dict[str, Callable[..., int]] = {
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm_v2": _grouped,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_fused_attention_overrideable": _attention,
    "aten::mv": _matrix_vector,
    "aten::dot": _matrix_vector,
    "aten::vdot": _matrix_vector,
    "aten::addmv": _added_matrix_vector,
    "aten::addbmm": _added_batch,
    "aten::_int_mm": _matrices,
}
