from __future__ import annotations

import pytest
import torch

from day0.analyzers.cases.case import Case, CaseInputs, Unfillable
from day0.analyzers.cases.copies import copy_to, widened
from day0.analyzers.cases.fill import make_inputs
from day0.records import Signature
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import describe, materialise, signature_id


def _case(op: str, *args: object, regime: str = "ordinary", seed: int = 0) -> Case:
    signature = describe(op, args, {})
    return Case(signature_id=signature_id(signature), signature=signature, regime=regime, seed=seed)


def _made(case: Case) -> CaseInputs:
    inputs = make_inputs(case, load_operators().get(case.signature.op.partition(".")[0]))
    assert isinstance(inputs, CaseInputs)
    return inputs


def test_the_same_case_has_the_same_bits_and_another_seed_has_others() -> None:
    x = torch.zeros(4, 6)
    first, second = _made(_case("aten::relu", x)), _made(_case("aten::relu", x))
    assert torch.equal(first.args[0], second.args[0])
    assert not torch.equal(first.args[0], _made(_case("aten::relu", x, seed=1)).args[0])
    assert not torch.equal(first.args[0], _made(_case("aten::relu", x, regime="wide")).args[0])


@pytest.mark.parametrize(
    "view",
    [
        torch.zeros(6, 4).t(),
        torch.zeros(8, 4)[2:, 1:],
        torch.zeros(1, 4).expand(5, 4),
        torch.zeros(24).as_strided((4, 3), (1, 1), 2),
        torch.zeros(3, 0, 2),
        torch.zeros(()),
    ],
)
def test_layout_survives(view: torch.Tensor) -> None:
    inputs = _made(_case("aten::relu", view))
    moved = copy_to(inputs, torch.device("cpu"))
    for tensor in (inputs.args[0], moved.args[0]):
        assert (tensor.shape, tensor.stride()) == (view.shape, view.stride())
        if view.numel():
            assert tensor.storage_offset() == view.storage_offset()
    assert torch.equal(inputs.args[0], moved.args[0])


def test_arguments_that_share_storage_share_it_again() -> None:
    base = torch.zeros(10)
    inputs = _made(_case("aten::add.Tensor", base[:4], base[4:8]))
    moved = copy_to(inputs, torch.device("cpu"))
    for one in (inputs, moved):
        assert one.args[0].untyped_storage().data_ptr() == one.args[1].untyped_storage().data_ptr()
    apart = _made(_case("aten::add.Tensor", torch.zeros(4), torch.zeros(4)))
    assert apart.args[0].untyped_storage().data_ptr() != apart.args[1].untyped_storage().data_ptr()


def test_indices_are_valid_by_construction() -> None:
    inputs = _made(_case("aten::embedding", torch.zeros(7, 3), torch.zeros(50, dtype=torch.int64)))
    indices = inputs.args[1]
    assert int(indices.min()) >= 0
    assert int(indices.max()) == 6


def test_an_integer_input_nobody_knows_is_not_made_up() -> None:
    made = make_inputs(_case("aten::bincount", torch.zeros(5, dtype=torch.int64)), None)
    # describe() saw zeros on the CPU, so the range is known there; without one it is not
    assert isinstance(made, CaseInputs)
    bare = Signature.model_validate_json(
        describe("aten::bincount", (torch.zeros(5, dtype=torch.int64, device="meta"),), {}).model_dump_json()
    )
    made = make_inputs(Case(signature_id="x", signature=bare, regime="ordinary", seed=0), None)
    assert isinstance(made, Unfillable)
    assert "nobody knows valid values for its int64 input" in made.reason


def test_goldens_are_float64_and_integers_stay() -> None:
    inputs = CaseInputs(args=(torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.int32)), kwargs={})
    wide = widened(CaseInputs(args=(*inputs.args, torch.float32, torch.int8), kwargs={"dtype": torch.float16}))
    assert [wide.args[0].dtype, wide.args[1].dtype] == [torch.float64, torch.int32]
    assert wide.args[2:] == (torch.float64, torch.int8)
    assert wide.kwargs["dtype"] == torch.float64


def test_a_signature_is_named_by_the_call_and_not_by_the_values() -> None:
    low, high = torch.zeros(3, dtype=torch.int64), torch.full((3,), 9, dtype=torch.int64)
    assert signature_id(describe("aten::neg", (low,), {})) == signature_id(describe("aten::neg", (high,), {}))
    assert signature_id(describe("aten::neg", (low,), {})) != signature_id(describe("aten::neg", (low[:2],), {}))


@pytest.mark.parametrize("value", [True, 1, 1.0, float("inf"), None, "sum", torch.float16, torch.strided, [1, [2.5]]])
def test_scalars_come_back_as_they_were(value: object) -> None:
    signature = describe("aten::relu", (value,), {})
    args, _ = materialise(Signature.model_validate_json(signature.model_dump_json()), "cpu")
    assert args[0] == value
    assert type(args[0]) is type(value)
