"""Numbers of a few hundred: exponentials overflow unless the largest is taken off first."""

from __future__ import annotations

from day0.analyzers.cases.kinds import is_computed
from day0.analyzers.cases.regimes._regime import Regime, nothing
from day0.analyzers.judging.kinds import short_name
from day0.records import Signature
from day0.reference_ops._spec import Operator

__all__ = ["REGIME"]


def _applies(signature: Signature, contract: Operator | None) -> bool:
    return is_computed(signature) and short_name(signature.op) not in ("prod", "cumprod", "pow")


REGIME = Regime(
    name="large",
    why="softmax and gates that overflow where the right result is finite",
    applies=_applies,
    values=lambda base, generator: nothing(base, generator) * 150.0,
)
