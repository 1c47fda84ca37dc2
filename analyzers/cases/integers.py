"""Integer arguments that are valid by construction: by the operator's schema, by the traced range, or any at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from day0.analyzers.cases.copies import storage_row
from day0.analyzers.judging.kinds import short_name
from day0.records import Signature, TensorValue
from day0.reference_ops._write import write
from day0.reference_ops.signatures import resolve

__all__ = ["fill_range", "fill_rules", "is_arithmetic", "limits_of", "plant_large", "rules_of"]

Named = dict[str, Any]
Rule = Callable[[Named, torch.Tensor, torch.Generator], torch.Tensor]
"""Values for one integer argument, given all arguments by name."""


def _along(table: str) -> Rule:
    """Positions along `dim` of another argument, in any order, repeated where there are more than places."""

    def rule(given: Named, index: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        size = _size(given[table], given.get("dim"))
        return torch.randint(0, max(size, 1), index.shape, generator=generator)

    return rule


def _places(table: str) -> Rule:
    """Positions along `dim`, each once: who wins a place that is named twice is not specified."""

    def rule(given: Named, index: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        dim = (given.get("dim") or 0) % max(1, index.dim())
        size = max(_size(given[table], given.get("dim")), index.shape[dim] if index.dim() else 1)
        shape = [size if d == dim else n for d, n in enumerate(index.shape)] or [size]
        order = torch.rand(shape, generator=generator).argsort(dim=dim)
        return order.narrow(dim, 0, index.shape[dim]) if index.dim() else order[0]

    return rule


def _rows(given: Named, index: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, max(given["weight"].shape[0], 1), index.shape, generator=generator)


def _elements(given: Named, index: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, max(given["self"].numel(), 1), index.shape, generator=generator)


def _ends(given: Named, offs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Ends of groups that rise to the number of rows; an empty group happens."""
    rows = given["self"].shape[0]
    ends = torch.randint(0, rows + 1, offs.shape, generator=generator).sort().values
    ends[-1:] = rows
    return ends


def _small_counts(given: Named, counts: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 4, counts.shape, generator=generator)


_RULES: dict[str, dict[str, Rule]] = {
    "embedding": {"indices": _rows},
    "gather": {"index": _along("self")},
    "index_select": {"index": _along("self")},
    "take": {"index": _elements},
    "index_add": {"index": _along("self")},
    "index_fill": {"index": _along("self")},
    "index_copy": {"index": _places("self")},
    "scatter": {"index": _places("self")},
    "scatter_add": {"index": _along("self")},
    "scatter_reduce": {"index": _along("self")},
    "_grouped_mm": {"offs": _ends},
    "repeat_interleave": {"repeats": _small_counts},
}
"""By operator without namespace, overload and `_`, and by name of the argument."""


def _size(table: torch.Tensor, dim: int | None) -> int:
    return table.shape[dim or 0] if table.dim() else 1


def rules_of(signature: Signature) -> dict[str, Rule]:
    """Return the rules of an operator of torch by name of the argument; none for all others."""
    return _RULES.get(short_name(signature.op), {}) if signature.op.startswith("aten::") else {}


def fill_rules(
    signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator
) -> set[int]:
    """Write what the schema's rules say, and return the ids of the tensors that were written."""
    schema = resolve(signature.op)._schema.arguments
    given: Named = dict(zip((one.name for one in schema), args, strict=False)) | kwargs
    written: set[int] = set()
    for name, rule in rules_of(signature).items():
        tensor = given.get(name)
        if isinstance(tensor, torch.Tensor) and _is_whole(tensor):
            write(tensor, rule(given, tensor, generator).to(tensor.dtype))
            written.add(id(tensor))
    return written


def _is_whole(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool


_ARITHMETIC = frozenset(
    [
        "_local_scalar_dense",
        "_softmax",
        "_to_copy",
        "_unique2",
        "_unsafe_view",
        "abs",
        "add",
        "addcdiv",
        "addcmul",
        "alias",
        "all",
        "amax",
        "amin",
        "any",
        "argmax",
        "argmin",
        "argsort",
        "as_strided",
        "bitwise_and",
        "bitwise_not",
        "bitwise_or",
        "bitwise_xor",
        "cat",
        "clamp",
        "clamp_max",
        "clamp_min",
        "clone",
        "constant_pad_nd",
        "copy",
        "cumsum",
        "cumprod",
        "cummax",
        "cummin",
        "detach",
        "diff",
        "div",
        "dot",
        "empty_like",
        "eq",
        "expand",
        "fill",
        "flip",
        "floor_divide",
        "full_like",
        "ge",
        "gt",
        "histc",
        "isin",
        "item",
        "kthvalue",
        "le",
        "logical_and",
        "logical_not",
        "logical_or",
        "logical_xor",
        "lt",
        "masked_fill",
        "masked_select",
        "max",
        "maximum",
        "mean",
        "min",
        "minimum",
        "mm",
        "bmm",
        "mv",
        "addmm",
        "baddbmm",
        "mul",
        "ne",
        "neg",
        "new_empty",
        "new_full",
        "new_ones",
        "new_zeros",
        "nonzero",
        "ones_like",
        "permute",
        "prod",
        "relu",
        "remainder",
        "repeat",
        "reshape",
        "roll",
        "rsub",
        "scalar_tensor",
        "select",
        "sign",
        "slice",
        "sort",
        "split",
        "split_with_sizes",
        "square",
        "squeeze",
        "stack",
        "sub",
        "sum",
        "t",
        "topk",
        "transpose",
        "tril",
        "triu",
        "unbind",
        "unique",
        "unique_consecutive",
        "unsqueeze",
        "view",
        "where",
        "zero",
        "zeros_like",
    ]
)
"""Operators for which any small integer is valid: they compute with values and do not look anything up by them."""

_DIVIDES = frozenset({"floor_divide", "div", "remainder"})


def is_arithmetic(signature: Signature) -> bool:
    """Say whether any small integer is valid for the operator."""
    return signature.op.startswith("aten::") and short_name(signature.op) in _ARITHMETIC


def limits_of(signature: Signature, value: TensorValue) -> tuple[int, int] | None:
    """Return the smallest and largest valid number of an integer argument; None where nobody knows."""
    if value.range is not None:
        return value.range
    # Where rules say what its places are, all else that is whole is copied or added up.
    if not is_arithmetic(signature) and not rules_of(signature):
        return None
    # Ids and counts are small; signs matter to comparisons, sums and divisions.
    low = 1 if short_name(signature.op) in _DIVIDES else 0 if value.dtype.startswith("uint") else -100
    return (low, 100)


def fill_range(tensor: torch.Tensor, limits: tuple[int, int], generator: torch.Generator) -> None:
    """Draw integers from a range, for all the memory behind an argument."""
    base = storage_row(tensor)
    base.copy_(torch.randint(limits[0], limits[1] + 1, base.shape, generator=generator))


def plant_large(signature: Signature, tensor: torch.Tensor) -> None:
    """Put in two numbers that float32 cannot tell apart: integers must not travel as floats."""
    base = storage_row(tensor)
    if tensor.dtype in (torch.int32, torch.int64) and short_name(signature.op) not in _DIVIDES and base.numel() > 2:
        base[:2] = torch.tensor([2**24 + 1, 2**24 + 2])
