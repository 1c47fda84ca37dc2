"""Stage 4: every traced signature on the device, against a golden in higher precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from day0.analyzers import judge
from day0.analyzers.cases import (
    Case,
    CaseInputs,
    StoragePair,
    Unfillable,
    copy_to,
    copy_with_storages,
    magnitudes,
    make_inputs,
    widened,
)
from day0.analyzers.compare import Reference, compare_results, is_move, short_name, without_values
from day0.analyzers.judge import Judgement
from day0.analyzers.terms import adds_up
from day0.errors import USER_ERRORS, Day0Error
from day0.playbook import CheckPlan
from day0.records import CaseResult, Lock, LockEntry, Signature, Trace
from day0.reference_ops._spec import Operator
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import resolve, shapes_text, tensor_values, tensors_in
from day0.registry.dispatch import ActiveLock, suspended
from day0.registry.results import WrongResult

__all__ = ["RUN_ERRORS", "check_case", "plan_cases", "references", "results", "side_effects"]

RUN_ERRORS: tuple[type[BaseException], ...] = (*USER_ERRORS, Day0Error)
"""What torch, a kernel or a contract raises for one call."""


def plan_cases(trace: Trace, plan: CheckPlan) -> Iterator[Case]:
    """Yield the cases of a trace in a fixed order: each signature under each regime that says something about it."""
    for entry in sorted(trace.entries, key=lambda one: (one.signature.op, one.id)):
        for regime in plan.regimes:
            if regime == "ordinary" or _regime_applies(entry.signature, regime):
                yield Case(signature_id=entry.id, signature=entry.signature, regime=regime, seed=plan.seed)


_TIED = frozenset(
    [
        "topk",
        "sort",
        "argsort",
        "max",
        "min",
        "argmax",
        "argmin",
        "eq",
        "ne",
        "ge",
        "gt",
        "le",
        "lt",
        "sign",
        "round",
        "floor",
        "ceil",
        "maximum",
        "minimum",
        "relu",
    ]
)
"""Operators for which equal values, and zeros, are a case of their own."""


def _regime_applies(signature: Signature, regime: str) -> bool:
    if not any("float" in value.dtype for value in tensor_values(signature)):
        return False
    if without_values(signature.op) or resolve(signature.op).is_view:
        return False
    if regime == "ties":
        return signature.op.startswith("day0::") or short_name(signature.op) in _TIED
    return not is_move(signature.op)


def check_case(
    case: Case, device: torch.device, active: ActiveLock | None, lock: Lock, *, max_bytes: int
) -> CaseResult:
    """Run one case and judge it: that it ran on the device, its layout, its values."""
    contract = load_operators().get(case.signature.op.partition(".")[0])
    owner = next((entry for entry in lock.entries if case.signature_id in entry.signatures), None)
    implementation = str(owner.identity) if owner else "native"
    result = _Result(case=case, implementation=implementation)
    size = _bytes(case.signature)
    if size > max_bytes:
        return result.skipped(f"its tensors take {size / 2**20:,.0f} MiB, more than the {max_bytes >> 20} MiB allowed")
    if any(case.signature_id in gap.signatures for gap in lock.gaps):
        return result.skipped("nothing implements it on this device: the lock lists it as a gap")
    inputs = make_inputs(case, contract)
    if isinstance(inputs, Unfillable):
        return result.skipped(inputs.reason)
    try:
        with suspended():
            reference = references(case.signature, inputs, contract)
    except RUN_ERRORS as error:
        return result.skipped(f"there is no golden for it on the CPU: {_first_line(error)}")
    return _run_and_judge(result, inputs, reference, contract, device, active, owner)


def _run_and_judge(
    result: _Result,
    inputs: CaseInputs,
    reference: Reference,
    contract: Operator | None,
    device: torch.device,
    active: ActiveLock | None,
    owner: LockEntry | None,
) -> CaseResult:
    operator = resolve(result.case.signature.op)
    before = active.calls_of(owner) if active and owner else 0
    try:
        moved, storages = copy_with_storages(inputs, device)
        with torch.no_grad():
            output = operator(*moved.args, **moved.kwargs)
        got = tuple(results(operator, output, moved))
        with suspended():  # the judge must not compute with what it judges
            judgement = compare_results(result.case.signature, inputs, got, reference, contract, device)
            if judgement.passed:
                judgement = side_effects(operator, inputs, storages) or judgement
    except WrongResult as error:
        return result.judged("fail", Judgement(passed=False, rule="layout", reason=error.what), reference.golden_text)
    except RUN_ERRORS as error:
        return result.crashed(_first_line(error))
    # The entry itself: a composite below it may have called another one of the lock.
    if owner and not (active and active.calls_of(owner) > before):
        return result.undelegated("the locked implementation never ran for this call")
    if judgement.passed and result.implementation.partition(" ")[2].startswith("base:cpu_fallback"):
        return result.judged("fell_back", judgement, reference.golden_text)
    return result.judged("pass" if judgement.passed else "fail", judgement, reference.golden_text)


def side_effects(operator: Any, inputs: CaseInputs, storages: list[StoragePair]) -> Judgement | None:
    """Look at the whole memory behind the arguments: nothing may change but what the schema says is written."""
    written = list(_written(operator, inputs))
    for pair in storages:
        after = pair.moved.cpu()
        changed = judge.differs(after, pair.original)
        for tensor in written:
            if tensor.untyped_storage()._cdata == pair.original.untyped_storage()._cdata:
                changed.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(False)
        if bool(changed.any()):
            place = int(changed.to(torch.uint8).argmax())
            return Judgement(
                passed=False,
                rule="side_effect",
                reason=f"{int(changed.sum())} elements behind an argument were changed that nobody asked to be written",
                worst_index=(place,),
                worst_got=str(after[place].item()),
                worst_expected=str(pair.original[place].item()),
            )
    return None


def references(signature: Signature, inputs: CaseInputs, contract: Operator | None) -> Reference:
    """Compute the golden in float64 and the same-dtype result, both on the CPU.

    A contract's own reference is the meaning of the operator; without one torch's CPU kernel is.
    """
    operator = resolve(signature.op)
    compute: Callable[..., Any] = contract.reference if contract else operator
    same_dtype = _try(compute, operator, copy_to(inputs, torch.device("cpu")))
    has_floats = any(
        tensor.is_floating_point() or tensor.is_complex() for tensor in tensors_in((inputs.args, inputs.kwargs))
    )
    if not has_floats and same_dtype is not None:
        return Reference(golden=same_dtype, golden_text="exact on cpu", same_dtype=same_dtype)
    golden = _try(compute, operator, widened(inputs))
    if golden is not None:
        condition = _condition(signature, inputs, compute, operator, golden)
        return Reference(golden=golden, golden_text="float64 on cpu", same_dtype=same_dtype, condition=condition)
    if same_dtype is None:
        raise RuntimeError(f"neither float64 nor the traced dtype runs on the CPU for {signature.op}")
    return Reference(golden=same_dtype, golden_text="same dtype on cpu", same_dtype=None)


def _condition(
    signature: Signature,
    inputs: CaseInputs,
    compute: Callable[..., Any],
    operator: Any,
    golden: tuple[torch.Tensor, ...],
) -> float:
    """Return the norm of the result for the magnitudes of the inputs over the norm of the result, at least 1."""
    if not adds_up(short_name(signature.op)):
        return 1.0
    sizes = _try(compute, operator, magnitudes(widened(inputs)))
    own = float(torch.linalg.vector_norm(golden[0])) if golden[0].is_floating_point() else 0.0
    if sizes is None or own == 0.0:
        return 1.0
    ratio = float(torch.linalg.vector_norm(sizes[0])) / own
    return ratio if 1.0 < ratio < float("inf") else 1.0


def _try(compute: Callable[..., Any], operator: Any, inputs: CaseInputs) -> tuple[torch.Tensor, ...] | None:
    try:
        with torch.no_grad():
            output = compute(*inputs.args, **inputs.kwargs)
    except RUN_ERRORS:
        return None
    return tuple(results(operator, output, inputs))


def results(operator: Any, output: Any, inputs: CaseInputs) -> Iterator[torch.Tensor]:
    """Yield the returned tensors, then the arguments that were written to."""
    yield from tensors_in(output)
    yield from _written(operator, inputs)


def _written(operator: Any, inputs: CaseInputs) -> Iterator[torch.Tensor]:
    """Yield the arguments that the schema says are written to."""
    for position, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = inputs.kwargs.get(argument.name)
            if value is None and position < len(inputs.args):
                value = inputs.args[position]
            yield from tensors_in(value)


def _bytes(signature: Signature) -> int:
    total = 0
    for value in tensor_values(signature):
        count = 1
        for size in value.shape:
            count *= size
        total += count * getattr(torch, value.dtype).itemsize
    return total


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{type(error).__name__}: {lines[0][:200]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Result:
    """The parts of a case result that are known before it runs."""

    case: Case
    implementation: str

    def skipped(self, reason: str) -> CaseResult:
        return self._make("skipped", "none", reason)

    def crashed(self, reason: str) -> CaseResult:
        return self._make("crashed", "ran", reason)

    def undelegated(self, reason: str) -> CaseResult:
        return self._make("undelegated", "ran", reason)

    def judged(self, status: str, judgement: Judgement, golden: str) -> CaseResult:
        reason = judgement.reason or ("ran on the CPU" if status == "fell_back" else "")
        return self._make(status, judgement.rule, reason).model_copy(
            update={
                "golden": golden,
                "error": judgement.error,
                "yardstick": judgement.yardstick,
                "limit": judgement.limit,
                "worst_index": judgement.worst_index,
                "worst_got": judgement.worst_got,
                "worst_expected": judgement.worst_expected,
            }
        )

    def _make(self, status: Any, rule: str, reason: str) -> CaseResult:
        return CaseResult(
            case=self.case.key,
            signature=self.case.signature_id,
            op=self.case.signature.op,
            shapes=shapes_text(self.case.signature),
            implementation=self.implementation,
            regime=self.case.regime,
            seed=self.case.seed,
            status=status,
            rule=rule,
            reason=reason,
        )
