"""The result of a case, from what is known before it runs and what a rule, or an ending, says."""

from __future__ import annotations

from dataclasses import dataclass

from day0.analyzers.cases.case import Case
from day0.analyzers.judging.judgement import Judgement
from day0.records import CaseResult, CaseStatus
from day0.reference_ops.signatures import shapes_text

__all__ = ["Outcome", "first_line"]


def first_line(error: BaseException) -> str:
    """Return an error's class and the first line of what it says."""
    try:
        lines = str(error).strip().splitlines() or [""]
    except Exception:  # noqa: BLE001 - an error class of a kernel, whose own code fails
        lines = [""]
    name = type(error).__name__
    return f"{name}: {lines[0][:200]}" if lines[0] else name


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The parts of a case result that are known before it runs."""

    case: Case
    implementation: str = "native"

    def skipped(self, reason: str) -> CaseResult:
        """Return a case that could not be judged."""
        return self._make("skipped", "none", reason)

    def crashed(self, reason: str) -> CaseResult:
        """Return a case that raised, or ended its process."""
        return self._make("crashed", "ran", reason)

    def hung(self, reason: str) -> CaseResult:
        """Return a case that did not end."""
        return self._make("hung", "ran", reason)

    def undelegated(self, reason: str) -> CaseResult:
        """Return a case that the locked implementation had no part in."""
        return self._make("undelegated", "ran", reason)

    def failed(self, rule: str, reason: str) -> CaseResult:
        """Return a case that breaks a rule which measures no error."""
        return self._make("fail", rule, reason)

    def judged(self, status: CaseStatus, judgement: Judgement, golden: str) -> CaseResult:
        """Return a case as the rules judged it."""
        return self._make(status, judgement.rule, judgement.reason).model_copy(
            update={
                "golden": golden,
                "error": judgement.error,
                "yardstick": judgement.yardstick,
                "limit": judgement.limit,
                "needed": getattr(judgement, "needed", None),
                "notes": tuple(getattr(judgement, "notes", ())),
                "worst_index": judgement.worst_index,
                "worst_got": judgement.worst_got,
                "worst_expected": judgement.worst_expected,
            }
        )

    def _make(self, status: CaseStatus, rule: str, reason: str) -> CaseResult:
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
