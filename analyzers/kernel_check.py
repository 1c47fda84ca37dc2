"""Is one implementation right? Its operator's sample calls on one device, judged as stage 4 judges traced ones.

No trace, no lock and no run folder: this is what a test of a kernel asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from day0.analyzers.cases.case import Case, CaseInputs, Unfillable
from day0.analyzers.cases.copies import copy_with_storages
from day0.analyzers.cases.fill import make_inputs
from day0.analyzers.checking.case import may_guard
from day0.analyzers.checking.memory import FIRST, guarded, poisoned
from day0.analyzers.checking.run import draws_random
from day0.analyzers.checking.state import put_back, snapshot
from day0.analyzers.checking.watch import Watch, watched, watching
from day0.analyzers.judging.compare import compare_results
from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.reference import RUN_ERRORS, references
from day0.analyzers.judging.results import results, side_effects
from day0.devices.open import open_torch_device
from day0.devices.probe_suite import suite
from day0.devices.profile import DeviceProfile, load_profile
from day0.errors import Day0Error
from day0.implementation import Implementation
from day0.records import Signature
from day0.reference_ops._spec import Operator
from day0.reference_ops.load import contract_of
from day0.reference_ops.signatures import describe, resolve, shapes_text, signature_id, tensors_in
from day0.reference_ops.torch_ops import register_operators
from day0.registry.resolve import judge

__all__ = ["Call", "CallCheck", "calls_of", "check_kernel"]

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of one call, on the CPU."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What models compute in; the samples of a contract are tried in each that it takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallCheck:
    """What became of one call."""

    shapes: str
    status: Literal["pass", "fail", "crashed", "skipped"]
    """`skipped`: the implementation says that it does not take this call."""
    reason: str = ""
    error: float | None = None
    limit: float | None = None


def check_kernel(
    one: Implementation, device: str = "cpu", *, calls: Sequence[Call] | None = None
) -> tuple[CallCheck, ...]:
    """Run an implementation on sample calls of its operator, or on `calls`, and judge each against the meaning.

    `device` is the name of a device profile, or the path of one. Raises Day0Error for an operator of which nobody
    knows a call, and for an implementation that takes none of them: that would be no check.
    """
    register_operators()
    profile = load_profile(device)
    place = open_torch_device(profile)
    done = tuple(_check(one, op, inputs, profile, place) for op, inputs in _inputs(one.operator, calls))
    if all(check.status == "skipped" for check in done):
        raise Day0Error(
            str(one.identity),
            f"it takes none of the {len(done)} calls of {one.operator} on {profile.name}, so nothing was checked",
            facts=tuple(dict.fromkeys(f"{check.shapes}: {check.reason}" for check in done))[:3],
            hint="widen its devices or constraints, or give calls that it takes",
        )
    return done


def calls_of(operator: str) -> tuple[Call, ...]:
    """Return sample calls: those of the contract in each dtype that models compute in, else ordinary ones.

    Empty where nobody knows one.
    """
    return tuple((inputs.args, inputs.kwargs) for _, inputs in _known(operator))


def _inputs(operator: str, calls: Sequence[Call] | None) -> list[tuple[str, CaseInputs]]:
    if calls is not None:
        found = [(_overload(operator, args, kwargs), CaseInputs(args=args, kwargs=kwargs)) for args, kwargs in calls]
    else:
        found = list(_known(operator))
    if not found:
        raise Day0Error(
            operator, "nobody knows a call of it to check with", hint="give some: check_kernel(..., calls=)"
        )
    return found


def _known(operator: str) -> Iterator[tuple[str, CaseInputs]]:
    contract = contract_of(operator)
    if contract is not None:
        yield from _samples(contract, operator)
        return
    for signature in suite():
        if operator in (signature.op, signature.op.partition(".")[0]):
            case = Case(signature_id=signature_id(signature), signature=signature, regime="ordinary", seed=0)
            inputs = make_inputs(case, None)
            if not isinstance(inputs, Unfillable):
                yield signature.op, inputs


def _samples(contract: Operator, operator: str) -> Iterator[tuple[str, CaseInputs]]:
    for sample in contract.samples(torch.Generator().manual_seed(0)):
        first = next((one.dtype for one in tensors_in((sample.args, sample.kwargs)) if one.is_floating_point()), None)
        casts = DTYPES if first in DTYPES else (first,)
        for dtype in casts:
            args, kwargs = (_cast(part, first, dtype) for part in (sample.args, sample.kwargs))
            try:
                op = _overload(operator, args, kwargs)
                contract.reference(*_copied(args), **_copied(kwargs))
            except RUN_ERRORS:
                continue  # the contract does not take this dtype
            yield op, CaseInputs(args=args, kwargs=kwargs)


def _cast(value: Any, old: torch.dtype | None, new: torch.dtype | None) -> Any:
    """Cast the tensors of one dtype; parameters of another one, which models keep in float32, stay."""
    if isinstance(value, torch.Tensor):
        return value.to(new) if new is not None and value.dtype == old else value
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(item, old, new) for item in value)
    return {name: _cast(item, old, new) for name, item in value.items()} if isinstance(value, dict) else value


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item) for item in value)
    return {name: _copied(item) for name, item in value.items()} if isinstance(value, dict) else value


def _overload(operator: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the operator with the overload that torch would take for these arguments."""
    if "." in operator:
        return operator
    overload = torch._C._jit_resolve_packet(operator, *args, **kwargs)
    return operator if overload == "default" else f"{operator}.{overload}"


def _check(one: Implementation, op: str, inputs: CaseInputs, profile: DeviceProfile, device: torch.device) -> CallCheck:
    signature = describe(op, inputs.args, inputs.kwargs)
    shapes = shapes_text(signature)
    decision = judge(one, signature, profile)
    if not decision.accepted:
        return CallCheck(shapes=shapes, status="skipped", reason=decision.reason)
    contract = contract_of(op)
    try:
        return _run(one, signature, inputs, contract, device)
    except Exception as error:  # noqa: BLE001 - compilers of kernels raise classes of their own, and we import none
        first = (str(error).strip().splitlines() or [""])[0][:300]
        return CallCheck(shapes=shapes, status="crashed", reason=f"{type(error).__name__}: {first}")


def _run(
    one: Implementation, signature: Signature, inputs: CaseInputs, contract: Operator | None, device: torch.device
) -> CallCheck:
    operator = resolve(signature.op)
    inputs = guarded(inputs) if may_guard(operator) else inputs
    expected = references(signature, inputs, contract)
    moved, storages = copy_with_storages(inputs, device)
    before, watch = snapshot(device), Watch(device=device)
    try:
        with poisoned(FIRST), watching(watch), torch.no_grad():
            got = tuple(results(operator, watched([one])[0].run(*moved.args, **moved.kwargs), moved))
    finally:
        changed = put_back(before, device, draws=draws_random(operator))
    verdict = compare_results(signature, inputs, got, expected, contract, device, moved=moved)
    if verdict.passed:
        verdict = side_effects(operator, inputs, storages) or verdict
    if verdict.passed and (guard := _guard(one, watch, got, changed)):
        verdict = Judgement(passed=False, rule="ran", reason=guard)
    return CallCheck(
        shapes=shapes_text(signature),
        status="pass" if verdict.passed else "fail",
        reason=verdict.reason,
        error=verdict.error,
        limit=verdict.limit,
    )


def _guard(one: Implementation, watch: Watch, got: tuple[torch.Tensor, ...], changed: tuple[str, ...]) -> str:
    """Say what a call did beside a right result, or return an empty text."""
    if changed:
        return f"the call changed {', '.join(changed)}"
    return watch.written_beside() or ("" if one.kind == "cpu_fallback" else watch.went_to_cpu(got))
