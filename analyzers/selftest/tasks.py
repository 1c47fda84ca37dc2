"""What one worker does: look what calls come to, check some without a fault, try one fault, or one right thing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack

import torch

from day0.analyzers.cases.case import Case
from day0.analyzers.checking.case import owner_of
from day0.analyzers.selftest.bench import Bench, lock_with, open_bench
from day0.analyzers.selftest.choosing import Planned, by_turns, cases_of, dtypes_of, plain_cases, spread_cases
from day0.analyzers.selftest.judged import Judged, judge_case, touched_by
from day0.analyzers.selftest.models import clean_model, planted_in_model, toy_mistake
from day0.analyzers.selftest.scoring import NOT_MEASURED, alarm_of, found_of, held_out
from day0.analyzers.selftest.trying import FIRST_CASES, try_fault
from day0.analyzers.selftest.usual.load import load_usual
from day0.devices.faults.load import load_faults
from day0.devices.open import device_count
from day0.devices.profile import DeviceProfile
from day0.implementation import Implementation
from day0.playbook import CheckPlan
from day0.records import Alarm, FaultScore, Found, Lock, RightScore, Signature
from day0.reference_ops.signatures import signature_id
from day0.registry.dispatch import activate
from day0.registry.resolve import judge

__all__ = ["Workshop"]

CASES = 600
"""On which a fault is tried until it is found."""
DIFFERENCE_CASES = 72
"""On which a difference that is no fault is tried for one seed; for the others on as many as a fault at first."""
CLEAN = 2
"""Cases of each call on the device without a fault."""
KERNEL_CALLS = 5
"""On which a bundled kernel is checked with all their cases for one seed; for the others three with the plain ones."""


class Workshop:
    """The calls, the device and the lock, opened once in each process that works."""

    def __init__(
        self,
        profile: DeviceProfile,
        signatures: Sequence[Signature],
        lock: Lock,
        implementations: Sequence[Implementation],
        *,
        usual: bool,
    ) -> None:
        self.profile, self.lock, self.implementations, self.usual = profile, lock, implementations, usual
        self.signatures = {signature_id(one): one for one in signatures}
        self._planned: Planned = {}
        self._stack = ExitStack()
        torch.set_num_threads(1)
        self.bench: Bench = self._stack.enter_context(open_bench(profile, lock, implementations))

    def close(self) -> None:
        """Take the lock back."""
        self._stack.close()

    def cases(self, ids: Iterable[str], seed: int = 0) -> list[Case]:
        """Return all cases of some calls for seed 0, and the plain ones for others."""
        calls = [(one, self.signatures[one]) for one in ids]
        if seed:
            return plain_cases(cases_of(calls, CheckPlan(seed=seed, derived=False), 1, {}))
        return cases_of(calls, CheckPlan(), device_count(self.bench.device), self._planned)

    def touches(self, ids: Sequence[str]) -> dict[str, frozenset[str]]:
        """Return by id of a call the operators that the device is asked for below it."""
        return {one: touched_by(self.signatures[one], self.bench) for one in ids}

    def clean(self, ids: Sequence[str]) -> RightScore:
        """Check calls on the device without a fault."""
        cases = [case for id_ in ids for case in spread_cases(self.cases([id_]), CLEAN)]
        judged = [judge_case(case, self.bench, rules=self._rules()) for case in cases]
        return _right("clean device", judged)

    def fault(self, name: str, ids: Sequence[str]) -> tuple[FaultScore, RightScore]:
        """Try one planted fault on calls that come to its operators; return too what was said without the fault."""
        fault = load_faults()[name]
        trial = try_fault(fault, spread_cases(self.cases(ids), CASES), self.bench, self._rules())
        clean = [*trial.repeated.values(), *(one for one in trial.judged if one.broken)]
        score = FaultScore(
            name=name,
            family=fault.family,
            source=fault.source,
            does=fault.does,
            operators=fault.operators,
            held_out=held_out(name),
            operator=found_of(trial.judged, trial.found, warns=fault.warns),
            model=NOT_MEASURED,
            usual=trial.against,
        )
        return score, _right("clean device", clean)

    def difference(self, name: str, ids: Sequence[str], seed: int) -> RightScore:
        """Try a difference that is no fault."""
        chosen = spread_cases(self.cases(ids, seed), DIFFERENCE_CASES if seed == 0 else FIRST_CASES)
        judged = [judge_case(case, self.bench, name, rules=self._rules()) for case in chosen]
        return _right(f"difference {name}", [one for one in judged if one.reached])

    def kernel(self, identity: str, seed: int) -> RightScore:
        """Check a bundled kernel on calls of its operator that it takes."""
        one = next(kernel for kernel in self.implementations if str(kernel.identity) == identity)
        takes = [call for call in self.signatures.values() if _is_for(one, call, self.profile)]
        lock = lock_with(one, takes, self.profile)
        calls = by_turns(takes, dtypes_of, KERNEL_CALLS if seed == 0 else 3)
        cases = self.cases([signature_id(call) for call in calls], seed)
        # Samples of the contract in other dtypes go elsewhere, and say nothing about this kernel.
        cases = [case for case in cases if owner_of(case, lock) is not None]
        with activate(lock, self.bench.device, self.implementations) as active:
            bench = Bench(device=self.bench.device, active=active, lock=lock)
            judged = [judge_case(case, bench, rules=self._rules()) for case in cases]
        subject = f"kernel {one.identity.operator} {one.identity.namespace}:{one.identity.id}"
        return _right(subject, judged)

    def model(self, name: str) -> Found:
        """Try one planted fault on the toy as a whole."""
        return planted_in_model(name, self.bench.device)

    def mistake(self, name: str) -> FaultScore:
        """Try one mistake in the toy's own code."""
        title = f"toy: {name}"
        return FaultScore(
            name=title,
            family="toy",
            source="models/toy/faults.py",
            does=name,
            operators=(),
            held_out=held_out(title),
            operator=NOT_MEASURED,
            model=toy_mistake(name, self.bench.device),
            usual={},
        )

    def right_model(self, seed: int) -> RightScore:
        """Check the toy as it is."""
        return clean_model(self.bench.device, seed)

    def _rules(self) -> tuple[str, ...]:
        return tuple(load_usual()) if self.usual else ()


def _is_for(one: Implementation, call: Signature, profile: DeviceProfile) -> bool:
    return one.operator in (call.op, call.op.partition(".")[0]) and judge(one, call, profile).accepted


def _right(subject: str, judged: Sequence[Judged]) -> RightScore:
    done = [one for one in judged if one.result.status != "skipped" or one.broken]
    alarms: list[Alarm] = [alarm for one in done if (alarm := alarm_of(one.result, broken=one.broken))]
    compared = [one.objections for one in done if one.objections is not None]
    return RightScore(
        subject=subject,
        judged=len(done),
        alarms=tuple(alarms),
        usual_judged=len(compared),
        usual={rule: sum(rule in one for one in compared) for rule in load_usual()},
    )
