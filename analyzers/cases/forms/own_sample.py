"""The calls that the operator's contract itself gives as samples: small, odd, corner and traced ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from day0.analyzers.cases.case import Case, CaseInputs, Unfillable
from day0.analyzers.cases.forms._form import Form
from day0.records import Signature
from day0.reference_ops._spec import Operator, Sample
from day0.reference_ops.signatures import describe

__all__ = ["FORM"]


def _samples(contract: Operator) -> list[Sample]:
    return list(contract.samples(torch.Generator().manual_seed(0)))


def _derive(signature: Signature, contract: Operator | None) -> Iterator[tuple[str, Signature]]:
    if contract is None or not signature.op.startswith("day0::"):
        return
    for number, sample in enumerate(_samples(contract)):
        yield str(number), describe(signature.op, sample.args, sample.kwargs)


def _inputs(case: Case, contract: Operator | None) -> CaseInputs | Unfillable:
    if contract is None:
        return Unfillable(reason="it has no contract, so no samples of its own")
    sample = _samples(contract)[int(case.form.partition(".")[2])]
    return CaseInputs(args=sample.args, kwargs=sample.kwargs)


FORM = Form(
    name="own_sample",
    why="what its author knows to be hard: missing pages, empty groups, layouts of other models",
    derive=_derive,
    inputs=_inputs,
    thorough=True,
)
