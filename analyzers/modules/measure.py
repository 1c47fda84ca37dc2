"""How far one module's result is from the golden, beside what its dtype costs: see docs/decisions/0014.

Shape suffixes: R rows (all dimensions but the last), D the last dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

__all__ = ["RATIO", "ROW_RATIO", "Measure", "floor_of", "measure", "new_non_finite"]

RATIO = 3.0
"""Largest error over the error of the same dtype on the CPU, as for operators and in the canary's gates."""
ROW_RATIO = 5.0
"""The same for the worst row, whose error is one draw and not the mean of many."""
FLOOR_ULPS = 16.0
"""Units in the last place of the dtype that is computed in: the yardstick of a small module can be 0 by luck."""
MAX_YARDSTICK = 0.5
"""A yardstick further from float64 than that measures nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """What was found about the results of one call. Errors are relative L2 errors against the golden."""

    status: Literal["pass", "fail", "not_comparable"]
    rule: str = ""
    reason: str = ""
    error: float = 0.0
    yardstick: float = 0.0
    limit: float = 0.0


def floor_of(dtype: torch.dtype) -> float:
    """Return the relative error that always passes: one rounding of a half type, and some units of float32 or wider."""
    half = torch.finfo(dtype).bits < 32
    computing = torch.finfo(torch.float32 if half else dtype)
    return (torch.finfo(dtype).eps if half else 0.0) + FLOOR_ULPS * float(computing.eps)


def measure(
    got: Sequence[torch.Tensor], same: Sequence[torch.Tensor], golden: Sequence[torch.Tensor], *, lost: bool = False
) -> Measure:
    """Hold the results of a call on the device against those in float64; `same` are those of the same dtype on the CPU.

    All tensors are on the CPU. `lost` says that choices were made which could not be followed: then a difference in
    values says nothing. Returns the first failure, else the result nearest to its limit.
    """
    if len(same) != len(golden) or any(one.shape != two.shape for one, two in zip(same, golden, strict=False)):
        return Measure(status="not_comparable", rule="shapes", reason="float64 and the dtype itself take other paths")
    if len(got) != len(golden):
        return _unlike(f"{len(got)} results, expected {len(golden)}", lost=lost)
    worst = Measure(status="pass")
    for number, (mine, base, right) in enumerate(zip(got, same, golden, strict=True)):
        found = _one(mine, base, right, lost=lost)
        if found.status == "fail":
            return found if len(got) == 1 else _placed(found, number)
        if found.status == "not_comparable" or _share(found) > _share(worst):
            worst = found
        if found.status == "not_comparable":
            break
    return worst


def new_non_finite(got: Sequence[torch.Tensor], golden: Sequence[torch.Tensor]) -> int:
    """Return how many elements are NaN or infinite that are not so in the golden; results of other shapes are left out."""
    pairs = zip(got, golden, strict=False)
    return sum(
        int((~torch.isfinite(mine) & torch.isfinite(right)).sum())
        for mine, right in pairs
        if mine.shape == right.shape and mine.is_floating_point() and right.is_floating_point()
    )


def _one(got: torch.Tensor, same: torch.Tensor, golden: torch.Tensor, *, lost: bool) -> Measure:
    if got.shape != same.shape:
        return _unlike(f"shape {list(got.shape)}, expected {list(same.shape)}", lost=lost)
    if got.dtype != same.dtype:
        return Measure(status="fail", rule="dtype", reason=f"dtype {got.dtype}, expected {same.dtype}")
    if not got.is_floating_point() or got.element_size() == 1:
        return _whole(got, same, golden, lost=lost)
    if not got.numel():
        return Measure(status="pass")
    places = _places(got, same, golden)
    if places is not None:
        return places
    return _floats(got, same, golden.to(torch.float64), lost=lost)


def _whole(got: torch.Tensor, same: torch.Tensor, golden: torch.Tensor, *, lost: bool) -> Measure:
    """Integers and codes: equal, or the same ones in another order along the last dimension."""
    got, same, golden = (one.to(torch.float64) if one.is_floating_point() else one for one in (got, same, golden))
    if _equal_as_sets(got, golden):
        return Measure(status="pass")
    if lost or not _equal_as_sets(same, golden):
        return Measure(
            status="not_comparable", rule="integers", reason="whole numbers that the dtype itself gets otherwise"
        )
    wrong = int((got != golden).sum())
    return Measure(status="fail", rule="integers", reason=f"{wrong} of {got.numel()} whole numbers differ")


def _equal_as_sets(got: torch.Tensor, golden: torch.Tensor) -> bool:
    golden = golden.to(got.dtype)
    if torch.equal(got, golden):
        return True
    return bool(got.dim()) and torch.equal(got.sort(dim=-1).values, golden.sort(dim=-1).values)


def _places(got: torch.Tensor, same: torch.Tensor, golden: torch.Tensor) -> Measure | None:
    """NaN and infinities stand where the golden has them, or where the dtype itself cannot do better."""
    wrong = (~torch.isfinite(got) & torch.isfinite(golden)) & torch.isfinite(same)
    missing = (torch.isfinite(got) & ~torch.isfinite(golden)) & ~torch.isfinite(same)
    count = int(wrong.sum() + missing.sum())
    if not count:
        return None
    kind = "NaN or infinite" if bool(wrong.any()) else "finite where the golden is not"
    return Measure(status="fail", rule="non_finite", reason=f"{count} of {got.numel()} elements are {kind}")


def _floats(got: torch.Tensor, same: torch.Tensor, golden: torch.Tensor, *, lost: bool) -> Measure:
    finite = torch.isfinite(golden) & torch.isfinite(got) & torch.isfinite(same)
    gold, mine, base = (
        torch.where(finite, one.to(torch.float64), 0.0).reshape(-1, one.shape[-1] if one.dim() else 1)
        for one in (golden, got, same)
    )
    error, error_R = _errors(mine, gold)
    yardstick, yardstick_R = _errors(base, gold)
    floor = floor_of(got.dtype)
    limit, limit_R = max(RATIO * yardstick, floor), max(ROW_RATIO * yardstick_R, 2.0 * floor)
    found = Measure(status="pass", rule="relative_l2", error=error, yardstick=yardstick, limit=limit)
    if not error <= limit:
        found = Measure(
            status="fail",
            rule="relative_l2",
            reason=f"relative error {error:.3g} is above {limit:.3g}; the dtype itself costs {yardstick:.3g}",
            error=error,
            yardstick=yardstick,
            limit=limit,
        )
    elif not error_R <= limit_R:
        found = Measure(
            status="fail",
            rule="worst_row",
            reason=f"the worst row is {error_R:.3g} off, above {limit_R:.3g}; the dtype's own worst is {yardstick_R:.3g}",
            error=error_R,
            yardstick=yardstick_R,
            limit=limit_R,
        )
    if found.status == "fail" and lost:
        reason = "another choice was made before that could not be followed"
        return Measure(status="not_comparable", rule="choice", reason=reason, error=error, yardstick=yardstick)
    if found.status == "fail" and not yardstick <= MAX_YARDSTICK and error < 2.0:
        reason = f"the golden cannot judge: the dtype's own result on the CPU is {yardstick:.3g} off"
        return Measure(status="not_comparable", rule="yardstick", reason=reason, error=error, yardstick=yardstick)
    return found


def _errors(got_RD: torch.Tensor, golden_RD: torch.Tensor) -> tuple[float, float]:
    """Return the relative L2 error of all, and that of the worst row against its own norm or the usual one of a row."""
    off_R = torch.linalg.vector_norm(got_RD - golden_RD, dim=-1)
    size_R = torch.linalg.vector_norm(golden_RD, dim=-1)
    usual = float(torch.linalg.vector_norm(size_R)) / max(1, size_R.numel()) ** 0.5
    off = float(torch.linalg.vector_norm(off_R))
    if usual == 0.0:
        return (0.0, 0.0) if off == 0.0 else (float("inf"), float("inf"))
    return off / (usual * size_R.numel() ** 0.5), float((off_R / size_R.clamp(min=usual)).max())


def _unlike(reason: str, *, lost: bool) -> Measure:
    if lost:
        return Measure(status="not_comparable", rule="choice", reason=f"{reason}; another choice was made before")
    return Measure(status="fail", rule="shape", reason=reason)


def _placed(found: Measure, number: int) -> Measure:
    return Measure(
        status=found.status,
        rule=found.rule,
        reason=f"result {number}: {found.reason}",
        error=found.error,
        yardstick=found.yardstick,
        limit=found.limit,
    )


def _share(found: Measure) -> float:
    return found.error / found.limit if found.limit else 0.0
