"""What is right: the golden and the same-dtype result, both computed on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.cases.copies import copy_to, widened
from day0.analyzers.judging.aliasing import Shared, shared_memory
from day0.analyzers.judging.calls import first_float, several
from day0.analyzers.judging.kinds import adds_into_memory, rounds_once, short_name
from day0.analyzers.judging.narrowing import NarrowingWatch
from day0.analyzers.judging.results import results
from day0.analyzers.judging.scales import EPS_FLOAT32, moved_inputs, squared
from day0.analyzers.terms import adds_up
from day0.errors import USER_ERRORS, Day0Error
from day0.records import Signature
from day0.reference_ops._spec import Operator
from day0.reference_ops.signatures import dtype_name, resolve

__all__ = ["RUN_ERRORS", "Reference", "references"]

RUN_ERRORS: tuple[type[BaseException], ...] = (*USER_ERRORS, Day0Error)
"""What torch, a kernel or a contract raises for one call."""

DRAWS = 6
"""How often the inputs are moved to see what a golden rests on: fewer can be lucky in one element."""

Results = tuple[torch.Tensor, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """What is right, as computed on the CPU."""

    golden: Results
    golden_text: str
    same_dtype: Results | None
    rounded: Results | None = None
    """Computed in float32 and rounded once, where the CPU's own kernel may sum in a half type."""
    squares: Results | None = None
    """The operator on the squares of its inputs, for operators that add up."""
    shared: Shared | None = None
    """What shares memory with what; None where the same dtype does not run."""
    displaced: Callable[[], Results | None] | None = None
    """How far each result moves, root mean square, when the inputs move by one unit of the computing dtype."""


def references(signature: Signature, inputs: CaseInputs, contract: Operator | None) -> Reference:
    """Compute the golden in float64 and the same-dtype result, both on the CPU.

    A contract's own reference is the meaning of the operator; without one torch's CPU kernel is. Raises RuntimeError where
    neither runs.
    """
    operator = resolve(signature.op)
    compute: Callable[..., Any] = contract.reference if contract else operator
    copied = copy_to(inputs, torch.device("cpu"))
    same, refused = _try(compute, operator, copied)
    shared = shared_memory(same, several(copied)) if same is not None else None
    if first_float(inputs) is None and same is not None:
        return Reference(golden=same, golden_text="exact on cpu", same_dtype=same, shared=shared)
    watch = NarrowingWatch()
    # Torch's own kernels do not narrow what they were given.
    wide = widened(inputs)
    if contract:
        with watch:
            golden, refused_wide = _try(compute, operator, wide)
    else:
        golden, refused_wide = _try(compute, operator, wide)
    if golden is None and same is None and signature.op.startswith("aten::") and contract is not None:
        return references(signature, inputs, None)  # an overload that the contract does not cover, and torch does
    if golden is None:
        return _without_float64(operator, compute, inputs, same, refused_wide or refused, shared)
    del wide  # as large as all that follows
    narrowed = f", narrowed to {dtype_name(watch.narrowest)} inside" if watch.narrowest else ""
    return Reference(
        golden=golden,
        golden_text=f"float64 on cpu{narrowed}",
        same_dtype=same,
        rounded=_rounded(signature, inputs, contract, compute, operator, same),
        squares=_squares(signature, inputs, contract, operator),
        shared=shared,
        displaced=partial(_displaced, compute, operator, inputs, golden),
    )


def _without_float64(
    operator: Any,
    compute: Callable[..., Any],
    inputs: CaseInputs,
    same: Results | None,
    refused: str,
    shared: Shared | None,
) -> Reference:
    """Say what the next best golden is, and why it is no better."""
    if same is None:
        raise RuntimeError(f"neither float64 nor the traced dtype runs on the CPU: {refused}")
    text = f"same dtype on cpu, as float64 is refused: {refused}" if refused else "same dtype on cpu"
    return Reference(golden=same, golden_text=text, same_dtype=None, shared=shared)


def _rounded(
    signature: Signature,
    inputs: CaseInputs,
    contract: Operator | None,
    compute: Callable[..., Any],
    operator: Any,
    same: Results | None,
) -> Results | None:
    """Return the sums in float32, rounded once: no device is excused by a CPU that sums in a half type."""
    ours = contract is not None and not contract.name.startswith("aten::")
    first = first_float(inputs)
    if ours or same is None or first is None or first.dtype not in (torch.float16, torch.bfloat16):
        return None
    if not rounds_once(signature.op):
        return None
    wide, _ = _try(compute, operator, _cast(inputs, torch.float32))
    if wide is None or len(wide) != len(same):
        return None
    return tuple(one.to(other.dtype) for one, other in zip(wide, same, strict=True))


def _squares(signature: Signature, inputs: CaseInputs, contract: Operator | None, operator: Any) -> Results | None:
    if not adds_up(short_name(signature.op)) and not adds_into_memory(signature.op, inputs):
        return None
    compute = contract.reference if contract else operator
    return _try(compute, operator, squared(widened(inputs)))[0]


def _displaced(compute: Callable[..., Any], operator: Any, inputs: CaseInputs, golden: Results) -> Results | None:
    """Run the golden on inputs that were moved a little, several times."""
    first = first_float(inputs)
    if first is None:
        return None
    eps = EPS_FLOAT32 if first.dtype.itemsize < 8 else float(torch.finfo(torch.float64).eps)
    generator = torch.Generator().manual_seed(0)
    sums = [torch.zeros(one.shape, dtype=torch.float64) for one in golden]
    for _ in range(DRAWS):
        moved, _ = _try(compute, operator, moved_inputs(widened(inputs), generator, eps))
        if moved is None or any(one.shape != other.shape for one, other in zip(moved, golden, strict=True)):
            return None
        for total, one, other in zip(sums, moved, golden, strict=True):
            if not one.is_complex():
                total += (one.to(torch.float64) - other.to(torch.float64)).square()
    return tuple((total / DRAWS).sqrt() for total in sums)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, CaseInputs):
        return CaseInputs(args=_cast(value.args, dtype), kwargs=_cast(value.kwargs, dtype))
    if isinstance(value, torch.Tensor):
        return value.to(dtype, copy=True) if value.is_floating_point() else value.clone()
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(item, dtype) for item in value)
    return {name: _cast(item, dtype) for name, item in value.items()} if isinstance(value, dict) else value


def _try(compute: Callable[..., Any], operator: Any, inputs: CaseInputs) -> tuple[Results | None, str]:
    """Return the results, or None and the first line of why not."""
    try:
        with torch.no_grad():
            output = compute(*inputs.args, **inputs.kwargs)
    except RUN_ERRORS as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return None, lines[0][:120]
    return tuple(results(operator, output, inputs)), ""
