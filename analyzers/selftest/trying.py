"""One planted fault on many cases: what the check says of them, what the usual rules say, and what is there without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from day0.analyzers.cases.case import Case
from day0.analyzers.selftest.bench import Bench
from day0.analyzers.selftest.judged import Judged, judge_case, objections_of
from day0.analyzers.selftest.scoring import is_suspect, is_warned, strongest
from day0.devices.faults._fault import Fault

__all__ = ["FIRST_CASES", "Trial", "try_fault"]

FIRST_CASES = 16
"""On which every fault is tried."""
USUAL_CASES = 120
"""On which the usual rules are asked, each until it has objected; on more where the check needs more."""
CONFIRMED = 12
"""Suspect cases of one status that are repeated without the fault at most, until one of them passes there."""


@dataclass(kw_only=True)
class Trial:
    """What became of one fault so far."""

    fault: Fault
    bench: Bench
    against: dict[str, bool]
    """By usual rule, whether it objects to the fault and not without it."""
    judged: list[Judged] = field(default_factory=list)
    repeated: dict[str, Judged] = field(default_factory=dict)
    """By key the cases that were repeated without the fault."""
    found: Judged | None = None
    """The case that shows the fault best, and passes without it."""

    def confirm(self) -> None:
        """Repeat suspect cases without the fault, strongest evidence first, until one of them passes there."""
        # By status: cases that fall back to the CPU, fault or not, must not use up the tries of those that fail.
        tried = Counter(one.result.status for one in self.judged if one.case.key in self.repeated)
        for one in strongest(self.judged, warns=self.fault.warns):
            if one.case.key not in self.repeated:
                if tried[one.result.status] >= CONFIRMED:
                    continue
                tried[one.result.status] += 1
                self.repeated[one.case.key] = judge_case(one.case, self.bench, rules=())
            clean = self.repeated[one.case.key].result
            if is_suspect(one.result, clean.status) or (self.fault.warns and is_warned(one.result, clean)):
                self.found = one
                return

    def ask(self, objections: tuple[str, ...], case: Case) -> None:
        """Count the usual rules that object to a case, and not to the same one without the fault."""
        clean = objections_of(case, self.bench, "", objections) or ()
        self.against |= {rule: True for rule in objections if rule not in clean}


def try_fault(fault: Fault, cases: Sequence[Case], bench: Bench, rules: Sequence[str]) -> Trial:
    """Check cases with a fault until it is found, and ask the usual rules on the same ones, each until it has objected."""
    trial = Trial(fault=fault, bench=bench, against=dict.fromkeys(rules, False))
    for number, case in enumerate(cases):
        left = tuple(rule for rule, objects in trial.against.items() if not objects)
        is_new = number < FIRST_CASES or trial.found is None
        if not is_new and (number >= USUAL_CASES or not left):
            break
        if is_new:
            trial.judged.append(judge_case(case, bench, fault.name, rules=left))
            objections = trial.judged[-1].objections
        else:
            objections = objections_of(case, bench, fault.name, left)
        if objections:
            trial.ask(objections, case)
        is_hit = trial.found is None and bool(strongest(trial.judged[-1:], warns=fault.warns))
        if is_hit or number == FIRST_CASES - 1:
            trial.confirm()
    return trial
