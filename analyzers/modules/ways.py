"""Two ways to the same logits on the device, which have to agree as far as they agree on the CPU.

Prefill against decode, and a row alone against the row in a batch. A kernel may take other paths for other sizes and
round otherwise; only what rounding does not explain is a failure.

Shape suffixes: B batch, S tokens, V vocabulary.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from day0.analyzers.modules.measure import RATIO, floor_of, measure
from day0.analyzers.modules.passes import Call, Pass
from day0.models.driver import StepOutput, step
from day0.records.modules import WaysResult

__all__ = ["Way", "batched", "compare_ways", "takes_mask"]

PADDING = 3
"""Tokens of padding behind a row."""
CONSISTENT = 1e-6
"""Ways that differ by more than that in float64 are no two ways to the same logits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """Logits [N, V] by one way on the three places, on the CPU; N are all rows and positions."""

    name: str
    golden: torch.Tensor
    same: torch.Tensor
    device: torch.Tensor
    lost: bool = False
    """Whether the device made choices that could not be followed."""


def takes_mask(model: nn.Module) -> bool:
    """Say whether a model takes a mask for padding."""
    return "attention_mask" in inspect.signature(model.forward).parameters


def batched(ids_BS: torch.Tensor, *, padded: bool = False) -> Pass:
    """Return one prefill of several rows; with `padded` each has tokens behind it that a mask hides."""
    inputs: dict[str, Any] = {}
    if padded:
        rows, tokens = ids_BS.shape
        mask_BS = torch.ones(rows, tokens + PADDING, dtype=torch.int64)
        mask_BS[:, tokens:] = 0
        ids_BS = torch.cat((ids_BS, ids_BS[:, :1].expand(rows, PADDING)), dim=1)
        inputs["attention_mask"] = mask_BS

    def run(model: nn.Module, device: torch.device, _: Any) -> StepOutput:
        moved = {name: value.to(device) for name, value in inputs.items()}
        return step(model, ids_BS.contiguous().to(device), inputs=moved)

    return (Call(name="prefill", run=run),)


def compare_ways(name: str, one: Way, other: Way) -> WaysResult:
    """Hold two ways against each other and against the golden.

    It fails where one of them is further from the golden than its dtype explains, or where they have different best
    tokens further apart than that; a larger difference than the CPU's own is a warning.
    """
    golden = one.golden.to(torch.float64)
    size = float(torch.linalg.vector_norm(golden)) or 1.0
    apart = float(torch.linalg.vector_norm(other.golden.to(torch.float64) - golden)) / size
    if not apart <= CONSISTENT:
        reason = f"in float64 too the model itself gives other logits this way, by {apart:.3g}"
        return WaysResult(name=name, positions=golden.shape[0], status="skipped", reason=reason)
    difference, yardstick = (
        float(torch.linalg.vector_norm((left - right).to(torch.float64))) / size
        for left, right in ((_wide(one.device), _wide(other.device)), (_wide(one.same), _wide(other.same)))
    )
    limit = max(RATIO * yardstick, floor_of(one.same.dtype))
    flips, unexplained = _flips(one, other)
    status, reason = _verdict(one, other, difference, limit, flips, unexplained)
    return WaysResult(
        name=name,
        positions=golden.shape[0],
        status=status,
        reason=reason,
        difference=difference,
        yardstick=yardstick,
        limit=limit,
        flips=flips,
        unexplained_flips=unexplained,
    )


def _verdict(one: Way, other: Way, difference: float, limit: float, flips: int, unexplained: int) -> Any:
    if one.lost or other.lost:
        return "skipped", "choices were made by other operators than in the golden, so the two ways may differ"
    for way in (one, other):
        found = measure([way.device], [way.same], [way.golden])
        if found.status == "fail":
            return "fail", f"{way.name}: {found.reason}"
    if unexplained:
        return "fail", f"another best token at {unexplained} positions, further apart than rounding explains"
    if not difference <= limit:
        return "warning", f"the two ways are {difference:.3g} apart, and on the CPU no more than {limit:.3g} would be"
    if flips:
        return "warning", f"another best token at {flips} positions, all of them near ties"
    return "pass", ""


def _flips(one: Way, other: Way) -> tuple[int, int]:
    """Return at how many positions the best token differs, and at how many rounding does not explain it."""
    gold_SV = one.golden.to(torch.float64)
    left_S1, right_S1 = (_wide(way.device).argmax(dim=-1, keepdim=True) for way in (one, other))
    gap_S = (gold_SV.gather(-1, left_S1) - gold_SV.gather(-1, right_S1)).abs()[:, 0]
    off_S = torch.maximum(*((_wide(way.same) - gold_SV).abs().amax(dim=-1) for way in (one, other)))
    allowed_S = 2.0 * (RATIO * off_S + floor_of(one.same.dtype) * gold_SV.abs().amax(dim=-1))
    differs_S = (left_S1 != right_S1)[:, 0]
    return int(differs_S.sum()), int((differs_S & ~(gap_S <= allowed_S)).sum())


def _wide(logits: torch.Tensor) -> torch.Tensor:
    return logits.to(torch.float64)
