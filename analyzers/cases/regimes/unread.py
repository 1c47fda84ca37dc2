"""NaN in every row that the result does not depend on, by the reference itself; in what a beta of 0 leaves out too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.cases.copies import copy_to
from day0.analyzers.cases.kinds import mutated, narrow_floats, says_values
from day0.analyzers.cases.regimes._regime import Regime
from day0.analyzers.judging.reference import RUN_ERRORS
from day0.records import ScalarValue, Signature
from day0.reference_ops._spec import Operator
from day0.reference_ops.load import contract_of
from day0.reference_ops.signatures import resolve, tensor_values, tensors_in
from day0.registry.dispatch import suspended

__all__ = ["REGIME"]

MOST = 16
"""Blocks of rows of one argument that are tried on their own: twice as many runs of the reference at most."""


def _applies(signature: Signature, contract: Operator | None) -> bool:
    """Where whole numbers or flags say what is read, or a factor is 0, something may stay unread."""
    dtypes = [value.dtype for value in tensor_values(signature)]
    chooses = any("int" in dtype or dtype == "bool" for dtype in dtypes) or _has_no_weight(signature)
    return chooses and any("float" in one for one in dtypes) and says_values(signature) and not narrow_floats(signature)


def _has_no_weight(signature: Signature) -> bool:
    """Say whether what is added to a product has the weight 0: torch documents that it is not read then."""
    names = [one.name for one in resolve(signature.op)._schema.arguments]
    beta = (dict(zip(names, signature.args, strict=False)) | signature.kwargs).get("beta")
    return isinstance(beta, ScalarValue) and beta.type in ("int", "float") and float(beta.value) == 0.0


def _arrange(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> str:
    """Try each floating argument: rows that can be NaN without any change of the result become NaN."""
    before = _results(signature, args, kwargs)
    if before is None or mutated(signature):
        return "its reference cannot say which rows it reads"
    found = False
    for tensor in tensors_in((args, kwargs)):
        if tensor.is_floating_point() and tensor.dim() >= 1 and tensor.is_contiguous():
            rows = tensor.flatten(0, -2) if tensor.dim() > 1 else tensor.unsqueeze(0)
            found |= _poison(rows, max(1, len(rows) // MOST), lambda: _same(_results(signature, args, kwargs), before))
    return "" if found else "its result depends on every row"


def _poison(rows: torch.Tensor, least: int, unchanged: Callable[[], bool]) -> bool:
    """Write NaN into the rows that are not read: by halves, down to blocks of `least` rows."""
    if not len(rows):
        return False
    kept = rows.clone()
    rows.fill_(float("nan"))
    if unchanged():
        return True
    rows.copy_(kept)
    if len(rows) <= least:
        return False
    middle = len(rows) // 2
    one, two = _poison(rows[:middle], least, unchanged), _poison(rows[middle:], least, unchanged)
    return one or two


def _results(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor] | None:
    contract = contract_of(signature.op)
    compute = contract.reference if contract is not None else resolve(signature.op)
    copied = copy_to(CaseInputs(args=args, kwargs=kwargs), torch.device("cpu"))
    try:
        with torch.no_grad(), suspended():
            return list(tensors_in(compute(*copied.args, **copied.kwargs)))
    except RUN_ERRORS:
        return None


def _same(some: list[torch.Tensor] | None, others: list[torch.Tensor]) -> bool:
    return some is not None and all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


REGIME = Regime(
    name="unread",
    why="rows that were not chosen, or have the weight 0, are multiplied by zero, so that what stands there leaks",
    applies=_applies,
    arrange=_arrange,
    last=True,
)
