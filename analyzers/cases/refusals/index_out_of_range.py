"""An index one past the end of what it points into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.analyzers.cases.refusals._refusal import Refusal
from day0.analyzers.judging.kinds import short_name
from day0.records import Signature
from day0.reference_ops._spec import Operator
from day0.reference_ops._write import write
from day0.reference_ops.signatures import resolve, tensor_values

__all__ = ["REFUSAL"]

_INDICES = {
    "embedding": "indices",
    "gather": "index",
    "index_select": "index",
    "index_copy": "index",
    "index_add": "index",
    "index_fill": "index",
    "scatter": "index",
    "scatter_add": "index",
    "take": "index",
    "index": "indices",
    "index_put": "indices",
}
"""By operator of torch without overload and `_`, the argument that points into another."""


def _derive(signature: Signature, contract: Operator | None) -> Iterator[Signature]:
    first = next(tensor_values(signature), None)
    points = (
        first is not None and first.shape and signature.op.startswith("aten::") and short_name(signature.op) in _INDICES
    )
    if points and all(0 not in value.shape for value in tensor_values(signature)):
        yield signature


def _spoil(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    names = [one.name for one in resolve(signature.op)._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    index = given[_INDICES[short_name(signature.op)]]
    table: Any = given.get("weight", given.get("self"))
    if isinstance(index, (list, tuple)):
        whole = [(n, one) for n, one in enumerate(index) if one is not None and one.dtype != torch.bool]
        if not whole:  # flags cannot point outside
            return
        place, index = whole[0]
        size = table.shape[place]
    else:
        size = table.numel() if short_name(signature.op) == "take" else table.shape[_dim(given) if table.dim() else 0]
    worst = index.reshape(-1) if index.is_contiguous() else index
    last = worst[-1:] if worst.dim() else worst
    write(last, torch.full(last.shape, size, dtype=index.dtype))


def _dim(given: dict[str, Any]) -> int:
    dim = given.get("dim", 0)
    return dim if isinstance(dim, int) else 0


REFUSAL = Refusal(
    name="index_out_of_range",
    why="a clamped index reads the last row, a free one memory of somebody else",
    derive=_derive,
    spoil=_spoil,
    ends_cuda=True,
)
