"""Is the static verdict what the device did? The comparison, which neither side of it makes."""

from __future__ import annotations

from day0.devices.observe import Observed, without_plumbing
from day0.devices.verdict import Classified

__all__ = ["disagreement"]


def disagreement(said: Classified, seen: Observed) -> str:
    """Say how a verdict and what happened differ, or return an empty text.

    For a composite the predicted operators must be those that ran. `unknown` agrees with nothing.
    """
    if not seen.as_torch:
        return "the simulated device took another kind of kernel than torch's dispatch table names"
    predicted = {_base(one) for one in without_plumbing({leaf.op for leaf in said.leaves})}
    ran = {_base(one) for one in seen.below}
    if {said.verdict, seen.verdict} == {"native", "decomposes"} and not predicted and not ran:
        return ""  # only views, allocation and copies: no kernel that could be the device's own or not
    if said.verdict != seen.verdict:
        return f"said {said.verdict}, seen {seen.verdict}"
    if not said.verdict.startswith("decomposes") or predicted == ran:
        return ""
    return f"said {said.verdict} to {sorted(predicted)}, ran {sorted(ran)}"


def _base(op: str) -> str:
    base = op.partition(".")[0].rstrip("_")
    # Each backend has names of its own for the convolutions of its library.
    return "a convolution" if "conv" in base else base
