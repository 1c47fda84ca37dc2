"""Call an operator the way a case says, and judge what the calls after the first one gave."""

from __future__ import annotations

from dataclasses import replace

import torch

from day0.analyzers.cases.case import Case, CaseInputs, Unfillable
from day0.analyzers.cases.ways._way import load_ways
from day0.analyzers.judging.compare import compare_results
from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.reference import Reference, references
from day0.devices.open import device_count, device_index
from day0.records import WARNING, Lock
from day0.reference_ops._spec import Operator
from day0.reference_ops.signatures import resolve
from day0.registry.dispatch import suspended

__all__ = ["device_for", "is_not_there", "judge_way", "other_overload"]


def device_for(case: Case, device: torch.device) -> torch.device | Unfillable:
    """Return the device that the arguments of a case go to, or why there is none."""
    index = load_ways()[case.way].device_index
    if not index:
        return device
    count = device_count(device)
    if index >= count:
        return Unfillable(reason=f"there is one {device.type} device only")
    # Counted from the worker's own: each must see a device that is not its current one.
    return torch.device(device.type, (device_index(device) + index) % count)


def judge_way(
    case: Case,
    inputs: CaseInputs,
    reference: Reference,
    contract: Operator | None,
    device: torch.device,
    first: tuple[torch.Tensor, ...],
) -> Judgement | None:
    """Make the calls after the first one, which gave `first`, and judge them; None where there are none.

    The notes of one that passes are warnings. Raises what a kernel does.
    """
    more = load_ways()[case.way].again(resolve(case.signature.op), inputs, device, first)
    if more.differs is not None or more.second is None:
        return more.differs
    with suspended():
        if more.inputs is not None:
            inputs, reference = more.inputs, references(case.signature, more.inputs, contract)
        found = compare_results(case.signature, inputs, more.second, reference, contract, torch.device("cpu"))
    return replace(found, notes=tuple(f"{WARNING}{one}" for one in more.varies)) if found.passed else found


def other_overload(case: Case, lock: Lock) -> str:
    """Return the operator of the lock that the traced call goes to, where a derived call is another overload of it."""
    if case.form == "traced":
        return ""
    found = (entry.operator for entry in lock.entries if case.signature_id in entry.signatures)
    owner = next(found, case.signature.op)
    return owner if owner != case.signature.op else ""


_OTHER_CALLS = ("inplace", "out", "copied", "half", "own_sample", "own_traced")
"""Forms that are other overloads or dtypes, which a device need not have as long as no model asks for them."""


def is_not_there(case: Case, error: BaseException) -> bool:
    """Say whether a derived call failed because the device has no such kernel, or does not hold such tensors."""
    derived = case.form.partition(".")[0] in _OTHER_CALLS
    missing = isinstance(error, NotImplementedError) or "does not hold" in str(error)
    return derived and missing
