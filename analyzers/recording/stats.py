"""What the values of float tensors were."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from day0.records import FloatStats

__all__ = ["add_stats", "float_stats"]


def float_stats(tensor: torch.Tensor) -> FloatStats | None:
    """Measure a float tensor; None for other dtypes, for no elements and where there are no values, as on meta."""
    if not tensor.is_floating_point() or tensor.numel() == 0 or tensor.device.type == "meta":
        return None
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return None
    # float8 has neither comparisons nor minima.
    values = tensor.detach().float() if tensor.element_size() == 1 else tensor.detach()
    low, high = (float(value) for value in torch.aminmax(values))
    if math.isfinite(low) and math.isfinite(high):
        return FloatStats(min=low, max=high, absmax=max(abs(low), abs(high)))
    finite = values[torch.isfinite(values)]
    nonfinite = values.numel() - finite.numel()
    if finite.numel() == 0:
        return FloatStats(min=None, max=None, absmax=None, nonfinite=nonfinite)
    low, high = (float(value) for value in torch.aminmax(finite))
    return FloatStats(min=low, max=high, absmax=max(abs(low), abs(high)), nonfinite=nonfinite)


def add_stats(known: dict[str, FloatStats], named: Iterable[tuple[str, Any]]) -> None:
    """Let the statistics by name cover the tensors of one more call."""
    for name, value in named:
        if isinstance(value, torch.Tensor):
            new = float_stats(value)
            if new is not None:
                known[name] = _both(known[name], new) if name in known else new
        elif isinstance(value, (list, tuple)):
            add_stats(known, ((f"{name}[{number}]", item) for number, item in enumerate(value)))


def _both(one: FloatStats, other: FloatStats) -> FloatStats:
    return FloatStats(
        min=_pick(min, one.min, other.min),
        max=_pick(max, one.max, other.max),
        absmax=_pick(max, one.absmax, other.absmax),
        nonfinite=one.nonfinite + other.nonfinite,
    )


def _pick(choose: Any, one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return float(choose(one, other))
