"""Built arguments are held against their signature, and integers are valid by the schema."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from day0.analyzers.cases.case import Case, CaseInputs
from day0.analyzers.cases.fill import make_inputs
from day0.analyzers.cases.valid import mismatch
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import describe, signature_id

X = torch.zeros(4, 6)
BASE = torch.zeros(20)


@pytest.mark.parametrize(
    ("args", "built", "reason"),
    [
        ((X,), (torch.zeros(6, 4),), "argument 0: shape is (6, 4), expected (4, 6)"),
        ((X,), (torch.zeros(4, 6, dtype=torch.float16),), "argument 0: dtype is float16, expected float32"),
        ((X,), (torch.zeros(6, 4).t(),), "argument 0: strides is (1, 4), expected (6, 1)"),
        ((BASE[2:6],), (torch.zeros(4),), "argument 0: offset is (0,), expected (2,)"),
        ((BASE[:4], BASE[4:8]), (torch.zeros(4), torch.zeros(8)[4:]), "shares memory where the traced call did not"),
        ((torch.tensor([1, 5]),), (torch.tensor([1, 9]),), "its integers lie within (1, 9), expected (1, 5)"),
        (([X, X],), ([X],), "argument 0: 1 items, expected 2"),
        ((X, 2), (X, 3), "argument 1"),
        ((X,), (X, 3), "2 arguments were built for 1"),
    ],
)
def test_another_call_is_seen(args: tuple[Any, ...], built: tuple[Any, ...], reason: str) -> None:
    signature = describe("aten::relu", args, {})
    assert not mismatch(signature, args, {})
    assert reason in mismatch(signature, built, {})


LONG = torch.int64

INDICES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "gather": ("aten::gather", (X, 1, torch.zeros(4, 3, dtype=LONG)), {}),
    "index_select": ("aten::index_select", (X, 0, torch.zeros(9, dtype=LONG)), {}),
    "embedding": ("aten::embedding", (X, torch.zeros(2, 5, dtype=LONG)), {}),
    "take": ("aten::take", (X, torch.zeros(7, dtype=LONG)), {}),
    "index_copy": ("aten::index_copy", (X, 0, torch.zeros(3, dtype=LONG), torch.ones(3, 6)), {}),
    "index_add": ("aten::index_add", (X, 0, torch.zeros(3, dtype=LONG), torch.ones(3, 6)), {}),
    "scatter_add": ("aten::scatter_add", (X, 1, torch.zeros(4, 2, dtype=LONG), torch.ones(4, 2)), {}),
    "scatter_add of whole numbers": (
        "aten::scatter_add",
        (torch.zeros(4, 6, dtype=torch.int32), 1, torch.zeros(4, 2, dtype=LONG), torch.ones(4, 2, dtype=torch.int32)),
        {},
    ),
    "grouped products": (
        "aten::_grouped_mm",
        (torch.zeros(9, 16), torch.zeros(3, 16, 16)),
        {"offs": torch.zeros(3, dtype=torch.int32)},
    ),
}


@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("seed", range(5))
def test_indices_are_valid_without_a_traced_range(name: str, seed: int) -> None:
    op, args, kwargs = INDICES[name]
    on_meta = tuple(one.to("meta") if isinstance(one, torch.Tensor) else one for one in args)
    signature = describe(op, on_meta, {key: value.to("meta") for key, value in kwargs.items()})
    case = Case(signature_id=signature_id(signature), signature=signature, regime="ordinary", seed=seed)
    inputs = make_inputs(case, load_operators().get(op))
    assert isinstance(inputs, CaseInputs)
    contract = load_operators().get(op)
    compute = contract.reference if contract else getattr(torch.ops.aten, op.removeprefix("aten::"))
    compute(*inputs.args, **inputs.kwargs)  # an index out of range raises here
    if "offs" in kwargs:
        ends = inputs.kwargs["offs"].tolist()
        assert ends == sorted(ends)
        assert ends[-1] == 9


def test_places_that_are_written_are_named_once() -> None:
    op, args, _ = INDICES["index_copy"]
    signature = describe(op, args, {})
    for seed in range(20):
        case = Case(signature_id="x", signature=signature, regime="ordinary", seed=seed)
        inputs = make_inputs(case, None)
        assert isinstance(inputs, CaseInputs)
        assert len(set(inputs.args[2].tolist())) == 3
