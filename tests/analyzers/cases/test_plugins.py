"""Every regime, form, way and refusal does what its file says: the contract that a new file has to keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch

from day0.analyzers.cases.case import Case, CaseInputs, Unfillable
from day0.analyzers.cases.fill import make_inputs
from day0.analyzers.cases.forms._form import load_forms
from day0.analyzers.cases.meta import refused_on_meta
from day0.analyzers.cases.plan import plan_signature
from day0.analyzers.cases.refusals._refusal import load_refusals
from day0.analyzers.cases.refusals.run import judge_error, judge_refusal
from day0.analyzers.cases.regimes._regime import load_regimes
from day0.analyzers.cases.valid import mismatch
from day0.analyzers.cases.ways._way import load_ways
from day0.playbook import CheckPlan, RegimeName
from day0.records import Signature
from day0.reference_ops._spec import Operator
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import describe, resolve, signature_id, tensor_values, tensors_in
from day0.reference_ops.torch_ops import register_operators

X, Y = torch.zeros(6, 4), torch.zeros(6, 4)
WHOLE = torch.zeros(5, dtype=torch.int64)

CALLS: dict[str, Signature] = {
    "unary": describe("aten::silu", (X,), {}),
    "binary": describe("aten::add.Tensor", (X, Y), {}),
    "product": describe("aten::mm", (X, torch.zeros(4, 5)), {}),
    "selection": describe("aten::topk", (X, 3), {}),
    "sort": describe("aten::sort", (X,), {}),
    "softmax": describe("aten::_softmax", (X, -1, False), {}),
    "half sum": describe("aten::sum.dim_IntList", (X.half(), [-1]), {}),
    "sum": describe("aten::sum.dim_IntList", (X, [-1]), {}),
    "copy": describe("aten::clone", (X,), {}),
    "flags": describe("aten::where.self", (X > 0, X, Y), {}),
    "look-up": describe("aten::embedding", (X, WHOLE), {}),
    "index": describe("aten::index_select", (X, 0, WHOLE), {}),
    "gather": describe("aten::gather", (X, 1, torch.zeros(6, 2, dtype=torch.int64)), {}),
    "whole": describe("aten::add.Tensor", (WHOLE, WHOLE.clone()), {}),
    "in place": describe("aten::add_.Tensor", (X, Y), {}),
    "rows": describe("day0::hadamard", (torch.zeros(2, 3, 5, 4),), {}),
    "ours": describe("day0::rms_norm", (X, torch.zeros(4), 1e-6, 0.0), {}),
}
ALL = CheckPlan(thorough=True)


def _contract(signature: Signature) -> Operator | None:
    return load_operators().get(signature.op.partition(".")[0])


def _cases(signature: Signature, plan: CheckPlan = ALL) -> list[Case]:
    register_operators()
    return list(plan_signature(signature, signature_id(signature), plan, devices=2))


@pytest.mark.parametrize("name", CALLS)
def test_every_case_has_a_name_of_its_own_that_a_file_may_have(name: str) -> None:
    keys = [case.key for case in _cases(CALLS[name])]
    assert len(keys) == len(set(keys))
    assert all(key.replace("-", "").replace(".", "").replace("_", "").isalnum() for key in keys)


@pytest.mark.parametrize("name", CALLS)
def test_inputs_are_the_call_that_the_signature_describes(name: str) -> None:
    made = 0
    for case in _cases(CALLS[name]):
        inputs = make_inputs(case, _contract(case.signature))
        if isinstance(inputs, Unfillable):
            assert inputs.reason
            continue
        made += 1
        assert not mismatch(case.signature, inputs.args, inputs.kwargs, ranges=False), case.key
    assert made


@pytest.mark.parametrize("name", CALLS)
def test_a_case_has_the_same_bits_whatever_came_before_it(name: str) -> None:
    cases = _cases(CALLS[name], CheckPlan())
    first = {case.key: make_inputs(case, _contract(case.signature)) for case in cases}
    before = torch.get_num_threads()
    torch.set_num_threads(1 if before > 1 else 2)
    try:
        for case in reversed(cases):
            one, two = first[case.key], make_inputs(case, _contract(case.signature))
            assert type(one) is type(two)
            if isinstance(one, CaseInputs) and isinstance(two, CaseInputs):
                pairs = zip(tensors_in((one.args, one.kwargs)), tensors_in((two.args, two.kwargs)), strict=True)
                assert all(_bits(a).equal(_bits(b)) for a, b in pairs), case.key
    finally:
        torch.set_num_threads(before)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)


def test_plain_cases_are_called_what_they_were_called_before() -> None:
    signature = CALLS["unary"]
    known = {case.key for case in _cases(signature, CheckPlan(derived=False, regimes=("ordinary", "wide")))}
    assert known == {f"{signature_id(signature)}-{regime}-0" for regime in ("ordinary", "wide")}


def test_the_plan_and_the_folder_know_the_same_regimes() -> None:
    assert set(get_args(RegimeName)) == set(load_regimes())


@pytest.mark.parametrize("load", [load_regimes, load_forms, load_ways, load_refusals])
def test_each_says_why_it_is_there(load: Callable[[], dict[str, Any]]) -> None:
    for name, one in load().items():
        assert one.name == name
        assert one.why, name


@pytest.mark.parametrize("name", load_regimes())
def test_each_regime_applies_to_something_and_not_to_everything(name: str) -> None:
    applies = [load_regimes()[name].applies(one, _contract(one)) for one in CALLS.values()]
    assert any(applies)
    assert name == "ordinary" or not all(applies)


@pytest.mark.parametrize("name", load_forms())
def test_each_form_derives_a_valid_call_from_something(name: str) -> None:
    register_operators()
    found = [
        derived
        for one in CALLS.values()
        for _, derived in load_forms()[name].derive(one, _contract(one))
        if not refused_on_meta(derived) and signature_id(derived) != signature_id(one)
    ]
    assert found


@pytest.mark.parametrize("name", load_ways())
def test_each_way_applies_to_something(name: str) -> None:
    assert any(load_ways()[name].applies(one, _contract(one)) for one in CALLS.values())


@pytest.mark.parametrize("name", [name for name, one in load_refusals().items() if one.expected is None])
def test_what_has_to_be_refused_is_refused_by_the_cpu(name: str) -> None:
    register_operators()
    found = 0
    for one in CALLS.values():
        for refused in load_refusals()[name].derive(one, _contract(one)):
            case = Case(signature_id="x", signature=refused, regime="ordinary", seed=0, refusal=name)
            inputs = make_inputs(case, _contract(refused))
            if isinstance(inputs, Unfillable):
                continue
            judgement = judge_refusal(case, inputs, torch.device("cpu"))
            assert not isinstance(judgement, Unfillable), (refused.op, judgement)
            assert judgement.passed
            found += 1
    assert found


@pytest.mark.parametrize("form", ["overlapping", "expanded"])
def test_indices_never_share_memory_with_each_other(form: str) -> None:
    signature = CALLS["gather"]
    for _, derived in load_forms()[form].derive(signature, None):
        assert derived.args[2] == signature.args[2]
        assert derived.args[0] != signature.args[0]


def test_samples_of_the_contract_come_in_the_dtypes_of_the_call_and_once_for_an_operator() -> None:
    signature = describe("day0::rms_norm", (X.bfloat16(), torch.zeros(4), 1e-6, 0.0), {})
    cases = [one for one in _cases(signature, CheckPlan()) if one.form.startswith("own_sample")]
    assert cases
    for case in cases:
        inputs = make_inputs(case, _contract(signature))
        assert isinstance(inputs, CaseInputs)
        assert [one.dtype for one in inputs.args[:2]] == [torch.bfloat16, torch.float32]
        assert not mismatch(case.signature, inputs.args, inputs.kwargs)
    again = plan_signature(signature, "x", CheckPlan(), once=False)
    assert not [one for one in again if one.form.startswith("own_sample")]


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("aten::sum.dim_IntList", (torch.zeros(4, 5, 8).half(), [-1])),
        ("aten::mean.dim", (torch.zeros(1, 9).half(), [1])),
        ("aten::mm", (torch.zeros(3, 8).half(), torch.zeros(8, 5).half())),
        ("aten::addmm", (torch.zeros(5).half(), torch.zeros(3, 8).half(), torch.zeros(8, 5).half())),
        ("aten::baddbmm", (torch.zeros(2, 3, 5).half(), torch.zeros(2, 3, 8).half(), torch.zeros(2, 8, 5).half())),
    ],
)
def test_sums_that_leave_float16_on_the_way_end_within_it(op: str, args: tuple[Any, ...]) -> None:
    signature = describe(op, args, {})
    assert load_regimes()["partial_overflow"].applies(signature, None)
    case = Case(signature_id="x", signature=signature, regime="partial_overflow", seed=0)
    inputs = make_inputs(case, None)
    assert isinstance(inputs, CaseInputs)
    wide = [one.double() if isinstance(one, torch.Tensor) else one for one in inputs.args]
    assert bool((resolve(op)(*wide).abs() < 100.0).all())
    factors = [one for one in wide if isinstance(one, torch.Tensor)]
    terms = factors[0] if len(factors) == 1 else factors[-2] * factors[-1].flatten()[0]
    assert float(terms.cumsum(-1).abs().max()) > torch.finfo(torch.float16).max


def test_sums_that_leave_float16_are_for_float16_alone() -> None:
    applies = load_regimes()["partial_overflow"].applies
    for dtype in (torch.bfloat16, torch.float32):
        assert not applies(describe("aten::sum.dim_IntList", (X.to(dtype), [-1]), {}), None)
    assert not applies(describe("aten::cumsum", (X.half(), -1), {}), None)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_grouped_product_keeps_its_groups_and_its_ranks(by_name: bool) -> None:
    ends = torch.zeros(8, dtype=torch.int32)
    tensors = (torch.zeros(16, 32).bfloat16(), torch.zeros(8, 32, 64).bfloat16())
    signature = describe(
        "aten::_grouped_mm", tensors if by_name else (*tensors, ends), {"offs": ends} if by_name else {}
    )
    derived = [one for name in ("sizes", "ranks") for one in load_forms()[name].derive(signature, _contract(signature))]
    assert any(name == "16to17" for name, _ in derived)
    for name, one in derived:
        shapes = [value.shape for value in tensor_values(one)]
        assert [len(shape) for shape in shapes] == [2, 3, 1], name
        assert shapes[2] != (0,), name


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("\"index_select_out_cuda_impl\" not implemented for 'Float'", True),
        ("Could not run 'aten::index_select' with arguments from the 'sim' backend.", False),
        ("", False),
    ],
)
def test_a_dtype_may_be_refused_as_not_implemented_and_nothing_else(text: str, passes: bool) -> None:
    refusals = load_refusals()
    error = NotImplementedError(text)
    assert judge_error(RuntimeError, error, refusals["other_dtype"]).passed is passes
    assert not judge_error(RuntimeError, error, refusals["index_out_of_range"]).passed
    assert not judge_error(RuntimeError, None, refusals["other_dtype"]).passed
