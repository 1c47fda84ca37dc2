"""What one worker does: check a part of the calls without a fault, one fault, or one right thing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from day0.analyzers.cases.case import Case
from day0.analyzers.cases.plan import plan_cases
from day0.analyzers.selftest.bench import Bench, lock_with, open_bench
from day0.analyzers.selftest.judged import judge_case, touched_by
from day0.analyzers.selftest.scoring import NOT_MEASURED, alarm_of, found_of, held_out, objecting
from day0.analyzers.selftest.subjects import trace_of
from day0.analyzers.selftest.usual.load import load_usual
from day0.devices.faults.load import load_faults
from day0.devices.profile import DeviceProfile
from day0.implementation import Implementation
from day0.playbook import CheckPlan
from day0.records import Alarm, FaultScore, Lock, RightScore, Signature
from day0.reference_ops.signatures import signature_id
from day0.registry.dispatch import activate
from day0.registry.resolve import judge

__all__ = ["Clean", "Workshop", "calls_for"]

EACH_FAULT = 36
"""Calls on which one fault is tried; those of the faulty operators themselves come first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Clean:
    """What is known of calls on the device without a fault."""

    statuses: dict[str, str]
    """By key of a case."""
    objections: dict[str, tuple[str, ...]]
    """By key of a case: usual rules that object though nothing is wrong."""
    alarms: tuple[Alarm, ...]

    def of(self, keys: Iterable[str]) -> Clean:
        """Return what concerns some cases."""
        kept = set(keys)
        return Clean(
            statuses={key: one for key, one in self.statuses.items() if key in kept},
            objections={key: one for key, one in self.objections.items() if key in kept},
            alarms=(),
        )


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
        self._stack = ExitStack()
        torch.set_num_threads(1)
        self.bench: Bench = self._stack.enter_context(open_bench(profile, lock, implementations))

    def close(self) -> None:
        """Take the lock back."""
        self._stack.close()

    def cases(self, ids: Iterable[str], seed: int = 0) -> list[Case]:
        """Return the cases of some calls."""
        return list(plan_cases(trace_of(self.signatures[one] for one in ids), CheckPlan(seed=seed)))

    def clean(self, ids: Sequence[str]) -> Clean:
        """Check calls without a fault."""
        statuses, objections, alarms = {}, {}, []
        for case in self.cases(ids):
            one = judge_case(case, self.bench, usual=self.usual)
            statuses[case.key] = one.result.status
            if one.objections is not None:
                objections[case.key] = one.objections
            alarm = alarm_of(one.result)
            alarms += [alarm] if alarm else []
        return Clean(
            statuses=statuses,
            objections=objections,
            alarms=tuple(alarms),
        )

    def touches(self, ids: Sequence[str]) -> dict[str, frozenset[str]]:
        """Return by id of a call the operators that the device is asked for below it."""
        return {one: touched_by(self.signatures[one], self.bench) for one in ids}

    def fault(self, name: str, ids: Sequence[str], clean: Clean) -> FaultScore:
        """Try one planted fault on calls that come to its operators."""
        fault = load_faults()[name]
        judged = [judge_case(case, self.bench, name, usual=self.usual) for case in self.cases(ids)]
        rules = tuple(load_usual()) if self.usual else ()
        return FaultScore(
            name=name,
            family=fault.family,
            source=fault.source,
            does=fault.does,
            operators=fault.operators,
            held_out=held_out(name),
            operator=found_of(judged, clean.statuses),
            model=NOT_MEASURED,
            usual=objecting(judged, clean.objections, rules),
        )

    def difference(self, name: str, ids: Sequence[str], seed: int) -> RightScore:
        """Try a difference that is no fault, on calls that pass without it."""
        judged = [judge_case(case, self.bench, name, usual=self.usual) for case in self.cases(ids, seed)]
        reached = [one for one in judged if one.reached and one.result.status != "skipped"]
        alarms = [alarm for one in reached if (alarm := alarm_of(one.result))]
        return _right(f"difference {name}", len(reached), alarms, [one.objections for one in reached])

    def kernel(self, identity: str, seed: int) -> RightScore:
        """Check a bundled kernel on the calls of its operator that it takes."""
        one = next(kernel for kernel in self.implementations if str(kernel.identity) == identity)
        calls = [call for call in self.signatures.values() if _is_for(one, call, self.profile)]
        lock = lock_with(one, calls, self.profile)
        with activate(lock, self.bench.device, self.implementations) as active:
            bench = Bench(device=self.bench.device, active=active, lock=lock)
            ids = [signature_id(call) for call in calls]
            judged = [judge_case(case, bench, usual=self.usual) for case in self.cases(ids, seed)]
        done = [it for it in judged if it.result.status != "skipped"]
        alarms = [alarm for it in done if (alarm := alarm_of(it.result))]
        subject = f"kernel {one.identity.operator} {one.identity.namespace}:{one.identity.id}"
        return _right(subject, len(done), alarms, [it.objections for it in done])


def _is_for(one: Implementation, call: Signature, profile: DeviceProfile) -> bool:
    return one.operator in (call.op, call.op.partition(".")[0]) and judge(one, call, profile).accepted


def _right(
    subject: str, judged: int, alarms: Sequence[Alarm], objections: Sequence[tuple[str, ...] | None]
) -> RightScore:
    compared = [one for one in objections if one is not None]
    return RightScore(
        subject=subject,
        judged=judged,
        alarms=tuple(alarms),
        usual_judged=len(compared),
        usual={rule: sum(rule in one for one in compared) for rule in load_usual()},
    )


def calls_for(
    operators: Iterable[str], touches: Mapping[str, frozenset[str]], signatures: Mapping[str, Signature]
) -> list[str]:
    """Return ids of calls that come to some operators, those of the operators themselves first."""
    wanted = set(operators)
    hits = [one for one, seen in touches.items() if any({op, op.partition(".")[0]} & wanted for op in seen)]
    own = [one for one in hits if {signatures[one].op, signatures[one].op.partition(".")[0]} & wanted]
    rest = [one for one in hits if one not in set(own)]
    return (_even(own, EACH_FAULT) + _even(rest, EACH_FAULT))[:EACH_FAULT]


def _even(many: list[str], most: int) -> list[str]:
    step = max(1.0, len(many) / most)
    return [many[int(number * step)] for number in range(min(most, len(many)))]
