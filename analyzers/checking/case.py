"""One case: run on the device, then judged against a golden in higher precision."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from day0.analyzers.cases.case import Case, CaseInputs, Unfillable
from day0.analyzers.cases.fill import make_inputs
from day0.analyzers.cases.refusals.run import judge_refusal
from day0.analyzers.cases.ways.run import device_for, is_not_there, judge_way, other_overload
from day0.analyzers.checking.board import SILENT, Teller
from day0.analyzers.checking.limits import Limits
from day0.analyzers.checking.memory import SECOND, guarded
from day0.analyzers.checking.outcome import Outcome, first_line
from day0.analyzers.checking.run import Run, draws_random, run_on_device, same_bits, seed_generators
from day0.analyzers.checking.watch import Watch
from day0.analyzers.judging.compare import compare_results
from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.kinds import without_values
from day0.analyzers.judging.reference import RUN_ERRORS, Reference, references
from day0.analyzers.judging.results import side_effects
from day0.devices.leaves import leaf_dtypes
from day0.records import CaseResult, Lock, LockEntry, Signature
from day0.reference_ops._spec import Operator
from day0.reference_ops.load import contract_of
from day0.reference_ops.signatures import resolve, tensor_values
from day0.registry.call_guard import RefusedCall
from day0.registry.dispatch import ActiveLock, suspended
from day0.registry.results import WrongResult

__all__ = ["Bench", "check_case", "judge_case", "may_guard", "owner_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """What cases are run with."""

    device: torch.device
    active: ActiveLock | None
    lock: Lock
    limits: Limits = field(default_factory=Limits)
    teller: Teller = SILENT


def check_case(
    case: Case, device: torch.device, active: ActiveLock | None, lock: Lock, *, max_bytes: int
) -> CaseResult:
    """Run one case in this process and judge it: that it ran on the device, its layout, its values."""
    return judge_case(case, Bench(device=device, active=active, lock=lock, limits=Limits(max_bytes=max_bytes)))


def judge_case(case: Case, bench: Bench, inputs: CaseInputs | None = None) -> CaseResult:
    """Run one case on a bench and judge it, with its own inputs unless others are given."""
    owner = owner_of(case, bench.lock)
    outcome = Outcome(case=case, implementation=str(owner.identity) if owner else "native")
    began = time.perf_counter()
    result = _checked(case, bench, outcome, owner, inputs)
    bench.teller.phase("idle", 0.0)
    return result.model_copy(update={"seconds": round(time.perf_counter() - began, 6)})


def _checked(
    case: Case, bench: Bench, outcome: Outcome, owner: LockEntry | None, inputs: CaseInputs | None
) -> CaseResult:
    size, most = _bytes(case.signature), bench.limits.max_bytes
    if size > most:
        return outcome.skipped(f"its tensors take {size / 2**20:,.0f} MiB, more than the {most >> 20} MiB allowed")
    if any(case.signature_id in gap.signatures for gap in bench.lock.gaps):
        return outcome.skipped("nothing implements it on this device: the lock lists it as a gap")
    contract = contract_of(case.signature.op)
    if locked := other_overload(case, bench.lock):
        return outcome.skipped(f"the lock replaces {locked}, which is another overload")
    bench.teller.operator(case.signature.op)
    bench.teller.phase("inputs", bench.limits.reference(size))
    made = make_inputs(case, contract) if inputs is None else inputs
    if isinstance(made, Unfillable):
        return outcome.skipped(made.reason)
    target = device_for(case, bench.device)
    if isinstance(target, Unfillable):
        return outcome.skipped(target.reason)
    bench = replace(bench, device=target)
    if case.refusal:
        with _device_phase(bench, bench.limits.device(size, 0.0, kernel=owner is not None, first=True)):
            refused = judge_refusal(case, made, target)
        return _refused(case, outcome, refused)
    operator = resolve(case.signature.op)
    made = guarded(made) if may_guard(operator) else made
    bench.teller.phase("reference", bench.limits.reference(size))
    began = time.perf_counter()
    try:
        seed_generators(case, bench.device)
        with suspended():
            reference = references(case.signature, made, contract)
    except RUN_ERRORS as error:
        return outcome.skipped(f"there is no golden for it on the CPU: {first_line(error)}")
    took = time.perf_counter() - began
    size += sum(one.numel() * one.element_size() for one in reference.same_dtype or reference.golden)
    if size > most:
        return outcome.skipped(f"its tensors and results take {size / 2**20:,.0f} MiB, more than {most >> 20} MiB")
    call = _Call(
        case=case, bench=bench, inputs=made, reference=reference, contract=contract, owner=owner, size=size, took=took
    )
    return _run_and_judge(call, outcome)


@contextmanager
def _device_phase(bench: Bench, seconds: float) -> Iterator[None]:
    """Say that the device is at work, for calls that are made elsewhere."""
    bench.teller.phase("device", seconds)
    try:
        yield
    finally:
        bench.teller.phase("judge", bench.limits.judge(0, seconds))


def _refused(case: Case, outcome: Outcome, judgement: Judgement | Unfillable) -> CaseResult:
    if isinstance(judgement, Unfillable):
        return outcome.skipped(judgement.reason)
    return outcome.judged("pass" if judgement.passed else "fail", judgement, "refused on cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """A case with all that it takes to run it, as often as needed."""

    case: Case
    bench: Bench
    inputs: CaseInputs
    reference: Reference
    contract: Operator | None
    owner: LockEntry | None
    size: int
    took: float
    """Seconds that the reference needed."""

    @property
    def operator(self) -> Any:
        """The overload that is called."""
        return resolve(self.case.signature.op)

    def calls(self) -> int:
        """Return how often the locked implementation has run so far."""
        # The entry itself: a composite below it may have called another one of the lock.
        return self.bench.active.calls_of(self.owner) if self.bench.active and self.owner else 0

    def seconds(self) -> float:
        """Return how long one call may take."""
        kernel = self.owner is not None
        return self.bench.limits.device(self.size, self.took, kernel=kernel, first=kernel and self.calls() == 0)

    def run(self, watch: Watch) -> Run:
        """Run it once on the device."""
        bench = self.bench
        bench.teller.operator(self.case.signature.op)
        bench.teller.phase("device", self.seconds())
        expected = self.reference.same_dtype or self.reference.golden
        run = run_on_device(self.case, self.operator, self.inputs, bench.device, expected, watch)
        bench.teller.phase("judge", bench.limits.judge(self.size, self.took))
        return run

    def watch(self) -> Watch:
        """Return eyes for one run."""
        return Watch(device=self.bench.device, teller=self.bench.teller)


def _run_and_judge(call: _Call, outcome: Outcome) -> CaseResult:
    before = call.calls()
    try:
        run = call.run(call.watch())
    except RUN_ERRORS as error:  # the arguments did not get onto the device
        return _ended(call, outcome, error)
    if run.error is not None:
        return _noting(_ended(call, outcome, run.error), run.changed, "it changed ")
    if call.owner is not None and _is_own(call) and call.calls() == before:
        return outcome.undelegated("the locked implementation never ran for this call")
    return _judged(call, outcome, run)


def _judged(call: _Call, outcome: Outcome, run: Run) -> CaseResult:
    """Judge in the order of the design: what was written where, then the results, then what else was changed."""
    golden = call.reference.golden_text
    if run.beside:
        return outcome.judged("fail", Judgement(passed=False, rule="outside", reason=run.beside), golden)
    try:
        with suspended():  # the judge must not compute with what it judges
            judgement = _values(call, run)
    except RUN_ERRORS as error:
        return outcome.judged("fail", Judgement(passed=False, rule="layout", reason=first_line(error)), golden)
    if not judgement.passed:
        result = outcome.judged("fail", _or_unwritten(call, run, judgement), golden)
        return _noting(_noting(result, run.changed, "it changed "), (run.away,) if run.away else (), "")
    if run.changed:
        reason = f"the call changed {', '.join(run.changed)}; it was put back"
        return outcome.judged("fail", Judgement(passed=False, rule="state", reason=reason), golden)
    if run.away:
        return outcome.judged("fell_back", Judgement(passed=True, rule="ran", reason=run.away), golden)
    try:
        with _device_phase(call.bench, call.seconds()):
            more = judge_way(call.case, call.inputs, call.reference, call.contract, call.bench.device, run.got)
    except RUN_ERRORS as error:
        return _ended(call, outcome, error)
    if more is not None and not more.passed:
        return outcome.judged("fail", more, golden)
    return _noting(_passed(outcome, run, judgement, golden), more.notes if more is not None else (), "")


def _passed(outcome: Outcome, run: Run, judgement: Judgement, golden: str) -> CaseResult:
    result = outcome.judged("pass", judgement, golden)
    if outcome.implementation.partition(" ")[2].startswith("base:cpu_fallback"):
        return result.model_copy(update={"status": "fell_back", "reason": "ran on the CPU"})
    if run.fallbacks and outcome.implementation == "native":
        # The inventory took it for native: where it knows of a fallback, the lock has an entry.
        reason = "the device itself sent it to the CPU"
        return result.model_copy(update={"status": "fell_back", "rule": "ran", "reason": reason})
    return result


def _values(call: _Call, run: Run) -> Judgement:
    signature, device = call.case.signature, call.bench.device
    judgement = compare_results(signature, call.inputs, run.got, call.reference, call.contract, device, moved=run.moved)
    if judgement.passed:
        judgement = side_effects(call.operator, call.inputs, list(run.storages)) or judgement
    return judgement


def _or_unwritten(call: _Call, run: Run, judgement: Judgement) -> Judgement:
    """Say so where the results depend on memory that was never written: twice the same, and other with other poison."""
    if without_values(call.case.signature.op) or draws_random(call.operator):
        return judgement
    try:
        again, other = call.run(call.watch()), call.run(Watch(device=call.bench.device, poison=SECOND))
    except RUN_ERRORS:
        return judgement
    if not same_bits(run, again) or other.error is not None or same_bits(run, other):
        return judgement
    reason = f"its result depends on memory that it never wrote; by {judgement.rule}: {judgement.reason}"
    return Judgement(
        passed=False,
        rule="uninitialised",
        reason=reason,
        worst_index=judgement.worst_index,
        worst_got=judgement.worst_got,
        worst_expected=judgement.worst_expected,
    )


def _ended(call: _Call, outcome: Outcome, error: BaseException) -> CaseResult:
    """Return the result of a call that raised."""
    if isinstance(error, KeyboardInterrupt) and call.bench.teller is SILENT:
        raise error
    if isinstance(error, WrongResult):
        return outcome.failed("layout", error.what)
    if _is_out_of_memory(error):
        return _out_of_memory(call, outcome, error)
    if call.case.form != "traced" and isinstance(error, RefusedCall):
        return outcome.skipped(f"the locked implementation is not made for it: {error.what}")
    if is_not_there(call.case, error):
        return outcome.skipped(f"the model does not call it, and the device does not have it: {first_line(error)}")
    return outcome.crashed(first_line(error))


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def _out_of_memory(call: _Call, outcome: Outcome, error: BaseException) -> CaseResult:
    """Tell a case that is too large for the device from a kernel that asks for more than the case needs."""
    outputs = sum(one.numel() * one.element_size() for one in call.reference.golden)
    needed, total = call.size + outputs, _device_bytes(call.bench.device)
    if total is not None and needed > total:
        return outcome.skipped(f"its tensors take {needed >> 20:,} MiB, and the device has {total >> 20:,} MiB")
    # Not the whole message: what else is allocated differs from run to run.
    asked = re.search(r"tried to allocate [0-9.]+ \w+", str(error), re.IGNORECASE)
    text = f": it {asked[0].lower()}" if asked else ""
    return outcome.crashed(f"out of memory, though its tensors take only {needed / 2**20:,.1f} MiB{text}")


def _device_bytes(device: torch.device) -> int | None:
    ask = getattr(getattr(torch, device.type, None), "mem_get_info", None)
    return int(ask()[1]) if ask is not None else None


def _noting(result: CaseResult, texts: tuple[str, ...], word: str) -> CaseResult:
    return result.model_copy(update={"notes": (*result.notes, *(f"{word}{text}" for text in texts))})


_UNGUARDED = ("resize", "set_", "as_strided")


def may_guard(operator: Any) -> bool:
    """Say whether memory behind the arguments changes nothing: some operators speak of the storage itself."""
    name = operator._schema.name.partition("::")[2]
    return not operator.is_view and not name.startswith(_UNGUARDED)


def owner_of(case: Case, lock: Lock) -> LockEntry | None:
    """Return the entry of the lock that this call goes to: by signature, else by operator and dtypes, as routers do."""
    dtypes = leaf_dtypes(case.signature)
    mine = (entry for entry in lock.entries if case.signature_id in entry.signatures)
    found = next((entry for entry in mine if case.form == "traced" or entry.dtypes == dtypes), None)
    if found is not None:
        return found
    alike = (entry for entry in lock.entries if entry.operator == case.signature.op and entry.dtypes == dtypes)
    return next(alike, None)


def _is_own(call: _Call) -> bool:
    """Say whether the lock names the very call; one of the same dtypes may be none of its own."""
    return call.owner is not None and call.case.signature_id in call.owner.signatures


def _bytes(signature: Signature) -> int:
    total = 0
    for value in tensor_values(signature):
        count = 1
        for size in value.shape:
            count *= size
        total += count * getattr(torch, value.dtype).itemsize
    return total
