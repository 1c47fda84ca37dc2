"""Make a call that has to be refused, on the CPU and on the device."""

from __future__ import annotations

import re
import warnings
from typing import Any

import torch

from day0.analyzers.cases.case import Case, CaseInputs, Unfillable
from day0.analyzers.cases.copies import copy_to
from day0.analyzers.cases.errors import MAKE_ERRORS
from day0.analyzers.cases.refusals._refusal import Refusal, load_refusals
from day0.analyzers.judging.judgement import Judgement
from day0.reference_ops.signatures import resolve, tensors_in
from day0.registry.call_guard import RefusedCall
from day0.registry.dispatch import suspended

__all__ = ["judge_error", "judge_refusal"]

NO_DTYPE = re.compile(r"^\S+ not implemented for '\w+'")
"""What torch's kernels say of a dtype that they do not take, after their own name in quotes."""


def judge_refusal(case: Case, inputs: CaseInputs, device: torch.device) -> Judgement | Unfillable:
    """Say whether the device refuses what the CPU refuses, and not as if it had no kernel.

    Unfillable where the CPU takes the call, where an implementation of the lock is not made for it, and on CUDA where
    the answer would end the process.
    """
    refusal, operator = load_refusals()[case.refusal], resolve(case.signature.op)
    if refusal.ends_cuda and device.type in ("cuda", "xpu"):
        return Unfillable(reason="this device reports it by an assertion that ends the process")
    expected: type[BaseException] | None = refusal.expected
    if expected is None:
        with suspended():
            error = _raised(operator, copy_to(inputs, torch.device("cpu")))
        if error is None:
            return Unfillable(reason="the CPU does not refuse the call")
        expected = type(error)
    elif device.type == "cpu":
        return Unfillable(reason="it takes two kinds of devices")
    try:
        placed = _placed(case, refusal, inputs, device)
    except MAKE_ERRORS as error:
        return Unfillable(reason=f"the device does not hold its arguments: {type(error).__name__}: {error}"[:200])
    got = _raised(operator, placed)
    if isinstance(got, RefusedCall):
        return Unfillable(reason=f"the locked implementation is not made for it: {got.what}")
    return judge_error(expected, got, refusal)


def judge_error(expected: type[BaseException], got: BaseException | None, refusal: Refusal) -> Judgement:
    """Backends differ in which error they raise; but no kernel and no memory are other answers than a refusal."""
    if got is None:
        return Judgement(
            passed=False, rule="refusal", reason=f"the call returned, and {expected.__name__} was expected"
        )
    if refusal.lacks_dtype and isinstance(got, NotImplementedError) and NO_DTYPE.search(str(got)):
        return Judgement(passed=True, rule="refusal")
    other = (NotImplementedError, MemoryError, torch.OutOfMemoryError)
    if isinstance(got, other) and not issubclass(expected, type(got)):
        first = (str(got).strip().splitlines() or [""])[0][:160]
        reason = f"it raised {type(got).__name__} in place of {expected.__name__}: {first}"
        return Judgement(passed=False, rule="refusal", reason=reason)
    return Judgement(passed=True, rule="refusal")


def _raised(operator: Any, inputs: CaseInputs) -> BaseException | None:
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some calls are deprecated before they are refused
            output = operator(*inputs.args, **inputs.kwargs)
            for tensor in tensors_in(output):
                tensor.cpu()  # devices that run behind the host report here
    except MAKE_ERRORS as error:
        return error
    return None


def _placed(case: Case, refusal: Refusal, inputs: CaseInputs, device: torch.device) -> CaseInputs:
    moved = copy_to(inputs, device)
    stays = refusal.leaves_on_cpu(case.signature)
    if stays is None:
        return moved
    at = list(tensors_in((inputs.args, inputs.kwargs)))[stays]
    args = tuple(mine if mine is at else theirs for mine, theirs in zip(inputs.args, moved.args, strict=True))
    return CaseInputs(args=args, kwargs=moved.kwargs)
