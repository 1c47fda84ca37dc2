"""Call an operator the way a case says."""

from __future__ import annotations

from typing import Any

import torch

from day0.analyzers.cases.case import Case, CaseInputs, Unfillable
from day0.analyzers.cases.ways._way import Called, load_ways

__all__ = ["device_for", "run_way"]


def device_for(case: Case, device: torch.device) -> torch.device | Unfillable:
    """Return the device that the arguments of a case go to, or why there is none."""
    index = load_ways()[case.way].device_index
    if not index:
        return device
    module = getattr(torch, device.type, None)
    count = module.device_count() if module is not None and hasattr(module, "device_count") else 1
    if index >= count or device.type == "cpu":
        return Unfillable(reason=f"there is one {device.type} device only")
    return torch.device(device.type, index)


def run_way(case: Case, operator: Any, moved: CaseInputs, inputs: CaseInputs) -> Called:
    """Call the operator with arguments on the device; `inputs` are the same on the CPU. Raises what the kernel does."""
    return load_ways()[case.way].run(operator, moved, inputs)
