"""One case: run on the device, then judged against a golden in higher precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from day0.analyzers.cases.case import Case, CaseInputs, Unfillable
from day0.analyzers.cases.copies import copy_with_storages
from day0.analyzers.cases.fill import make_inputs
from day0.analyzers.judging.compare import compare_results
from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.reference import RUN_ERRORS, Reference, references
from day0.analyzers.judging.results import results, side_effects
from day0.records import CaseResult, Lock, LockEntry, Signature
from day0.reference_ops._spec import Operator
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import resolve, shapes_text, tensor_values
from day0.registry.dispatch import ActiveLock, suspended
from day0.registry.results import WrongResult

__all__ = ["check_case"]


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
            judgement = compare_results(result.case.signature, inputs, got, reference, contract, device, moved=moved)
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
