"""The calls of PyTorch's own operator samples (OpInfo), as the dispatcher sees them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from day0.analyzers.cases.case import Case, CaseInputs, Unfillable
from day0.analyzers.cases.copies import copy_to
from day0.analyzers.cases.errors import MAKE_ERRORS
from day0.analyzers.cases.forms._form import Form
from day0.analyzers.judging.kinds import short_name
from day0.devices.opinfo import operator_samples, samples_of
from day0.records import Signature
from day0.reference_ops._spec import Operator
from day0.reference_ops.signatures import describe, dtype_of, tensor_values

__all__ = ["FORM"]

MOST = 12
"""Samples of one operator and dtype."""


class _Calls(TorchDispatchMode):
    """Keeps the arguments of the calls of one overload, as they were before the call."""

    def __init__(self, op: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        self.op, self.found = op, list[CaseInputs]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() == self.op:
            self.found.append(copy_to(CaseInputs(args=tuple(args), kwargs=dict(kwargs or {})), torch.device("cpu")))
        return func(*args, **(kwargs or {}))


@lru_cache(maxsize=256)
def _calls(op: str, dtype: torch.dtype) -> tuple[CaseInputs, ...]:
    """Return the calls of one overload that the samples of its operator make in one dtype."""
    calls = _Calls(op)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # operators say what they think of their samples
        for info in operator_samples():
            if short_name(op).lstrip("_") not in (info.aten_name, info.name, info.name.rpartition(".")[2]):
                continue
            if dtype in info.supported_dtypes("cpu"):
                for sample in islice(samples_of(info, dtype), MOST):
                    _run(calls, info.op, sample)
    return tuple(calls.found)


def _run(calls: _Calls, op: Any, sample: Any) -> None:
    try:
        with calls, torch.no_grad():
            op(sample.input, *sample.args, **sample.kwargs)
    except MAKE_ERRORS:
        return  # torch's own samples do not all run everywhere


def _dtype(signature: Signature) -> torch.dtype | None:
    return next((dtype_of(value.dtype) for value in tensor_values(signature)), None)


def _derive(signature: Signature, contract: Operator | None) -> Iterator[tuple[str, Signature]]:
    dtype = _dtype(signature)
    if dtype is None or not signature.op.startswith("aten::"):
        return
    for number, call in enumerate(_calls(signature.op, dtype)):
        yield f"{str(dtype).removeprefix('torch.')}.{number}", describe(signature.op, call.args, call.kwargs)


def _inputs(case: Case, contract: Operator | None) -> CaseInputs | Unfillable:
    _, dtype, number = case.form.split(".")
    calls = _calls(case.signature.op, dtype_of(dtype))
    if int(number) >= len(calls):
        return Unfillable(reason="this torch has other samples of the operator")
    return copy_to(calls[int(number)], torch.device("cpu"))


FORM = Form(
    name="opinfo",
    why="what other people thought of: empty, broadcast and odd arguments, and every keyword",
    derive=_derive,
    inputs=_inputs,
    thorough=True,
)
