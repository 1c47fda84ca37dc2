"""Results of operators on meta, made again from their layout.

A meta tensor is its layout. An operator that gave fresh tensors once gives the same layouts to every call with the same
signature, so the second time they are simply made: torch's meta kernels, most of them in Python, are the dearest part
of tracing sixty equal layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Recipe", "recipe_of"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Size, stride and dtype of each result, and the kind of sequence they come in."""

    layouts: tuple[tuple[torch.Size, tuple[int, ...], torch.dtype], ...]
    sequence: type[tuple[Any, ...] | list[Any]] | None

    def make(self) -> Any:
        """Return new results."""
        made = [torch.empty_strided(size, stride, dtype=dtype, device="meta") for size, stride, dtype in self.layouts]
        return made[0] if self.sequence is None else self.sequence(made)


def recipe_of(func: Any, result: Any, output_aliases: tuple[tuple[str, ...], ...]) -> Recipe | None:
    """Return how to make the results of a call again; None where they are not fresh meta tensors and nothing else."""
    schema = func._schema
    if output_aliases or any(one.alias_info is not None for one in (*schema.arguments, *schema.returns)):
        return None
    sequence = type(result) if isinstance(result, (tuple, list)) else None
    results = list(result) if sequence else [result]
    if sequence not in (None, tuple, list) or not results or not all(_is_plain(one) for one in results):
        return None
    storages = {one.untyped_storage()._cdata for one in results}
    if len(storages) < len(results):
        return None
    return Recipe(layouts=tuple((one.size(), one.stride(), one.dtype) for one in results), sequence=sequence)


def _is_plain(value: Any) -> bool:
    return (
        type(value) is torch.Tensor
        and value.is_meta
        and value.layout is torch.strided
        and value.storage_offset() == 0
        and not value.is_conj()
        and not value.is_neg()
        and not value.requires_grad
        and all(type(size) is int for size in value.size())
    )
