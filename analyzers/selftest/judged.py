"""One case on the bench, with or without a planted fault: what the check says, and what the usual rules say of the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from day0.analyzers.cases.case import Case, CaseInputs, Unfillable
from day0.analyzers.cases.copies import copy_to
from day0.analyzers.cases.fill import make_inputs
from day0.analyzers.cases.ways.run import device_for
from day0.analyzers.checking.case import check_case
from day0.analyzers.judging.draws import draws
from day0.analyzers.judging.reference import RUN_ERRORS
from day0.analyzers.judging.results import results
from day0.analyzers.selftest.bench import Bench
from day0.analyzers.selftest.usual.load import load_usual
from day0.devices.faults.load import planted
from day0.devices.sim.device import counters
from day0.devices.sim.planting import Planting
from day0.records import CaseResult, Signature
from day0.reference_ops.load import contract_of
from day0.reference_ops.signatures import resolve, shapes_text, signature_id
from day0.registry.dispatch import suspended

__all__ = ["Judged", "judge_case", "objections_of", "touched_by"]

MOST_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What was said of one case."""

    case: Case
    result: CaseResult
    reached: bool
    """Whether the planted fault stood in any call below it."""
    objections: tuple[str, ...] | None
    """Usual rules that object; None where they were not asked, or have nothing to compare."""
    broken: str = ""
    """What the check itself raised, which it never should."""


def judge_case(case: Case, bench: Bench, fault: str = "", *, rules: tuple[str, ...] = ()) -> Judged:
    """Check one case; then, with the fault planted anew, hand what comes out to some of the usual rules."""
    with _planted(fault) as plantings:
        try:
            result, broken = check_case(case, bench.device, bench.active, bench.lock, max_bytes=MOST_BYTES), ""
        except RUN_ERRORS as error:
            broken = f"the check itself raised {type(error).__name__}: {error}"[:300]
            result = _nothing(case, broken)
    reached = any(one.reached for one in plantings)
    asked = rules and (reached or not fault) and result.status != "skipped"
    objections = objections_of(case, bench, fault, rules) if asked else None
    return Judged(case=case, result=result, reached=reached, objections=objections, broken=broken)


def _nothing(case: Case, reason: str) -> CaseResult:
    return CaseResult(
        case=case.key,
        signature=case.signature_id,
        op=case.signature.op,
        shapes=shapes_text(case.signature),
        implementation="",
        regime=case.regime,
        seed=case.seed,
        status="skipped",
        rule="none",
        reason=reason,
    )


def objections_of(case: Case, bench: Bench, fault: str, rules: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return which of some usual rules object to what comes out; None where there is nothing to compare."""
    with _planted(fault):
        return _objections(case, bench, rules)


@contextmanager
def _planted(fault: str) -> Iterator[tuple[Planting, ...]]:
    with planted(*([fault] if fault else ())) as plantings:
        yield plantings


def _objections(case: Case, bench: Bench, rules: tuple[str, ...]) -> tuple[str, ...] | None:
    """Compare the results on the device with those of the same dtype on the CPU by each usual rule.

    Where the device raises, all of them object; where the CPU does, there is nothing to compare with.
    """
    contract = contract_of(case.signature.op)
    inputs, device = make_inputs(case, contract), device_for(case, bench.device)
    if isinstance(inputs, Unfillable) or isinstance(device, Unfillable) or draws(case.signature.op, inputs):
        return None
    with suspended():
        expected = _results(case, inputs, torch.device("cpu"))
    if expected is None:
        return None
    got = _results(case, inputs, device)
    if got is None or len(got) != len(expected):
        return rules
    pairs = list(zip(got, expected, strict=True))
    return tuple(name for name in rules if not all(load_usual()[name](one, two) for one, two in pairs))


def _results(case: Case, inputs: CaseInputs, device: torch.device) -> tuple[torch.Tensor, ...] | None:
    operator = resolve(case.signature.op)
    if torch.Tag.nondeterministic_seeded in operator.tags:
        torch.manual_seed(case.seed)
    try:
        moved = copy_to(inputs, device)
        with torch.no_grad():
            output = operator(*moved.args, **moved.kwargs)
        # Within: an error of the device may come as late as here.
        return tuple(one.detach().cpu() for one in results(operator, output, moved))
    except RUN_ERRORS:
        return None


def touched_by(signature: Signature, bench: Bench) -> frozenset[str]:
    """Return the operators that the device is asked for by one call, its own among them."""
    case = Case(signature_id=signature_id(signature), signature=signature, regime="ordinary", seed=0)
    inputs = make_inputs(case, contract_of(signature.op))
    if isinstance(inputs, Unfillable):
        return frozenset()
    before = counters().calls.copy()
    _results(case, inputs, bench.device)
    return frozenset(counters().calls - before)
