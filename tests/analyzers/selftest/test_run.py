"""The selftest finds what is planted, says what it misses, and is not fooled by a device that is wrong by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from day0.analyzers.checking.case import check_case
from day0.analyzers.selftest import judged
from day0.analyzers.selftest.bench import lock_for, open_bench
from day0.analyzers.selftest.choosing import calls_for, cases_of, plain_cases, spread_cases
from day0.analyzers.selftest.defects import defect_of
from day0.analyzers.selftest.judged import judge_case
from day0.analyzers.selftest.ordinary import ordinary_calls
from day0.analyzers.selftest.run import run_selftest
from day0.analyzers.selftest.selection import select_faults
from day0.analyzers.selftest.subjects import collect_subjects
from day0.analyzers.selftest.table import alarm_rows, detection_rows, how_rows, percent
from day0.analyzers.selftest.tasks import Workshop
from day0.analyzers.selftest.usual.load import load_usual
from day0.analyzers.selftest.variants import variant_for
from day0.devices.faults.load import load_faults
from day0.devices.profile import load_profile
from day0.errors import Day0Error
from day0.playbook import CheckPlan
from day0.records import CaseResult, FaultScore, Signature
from day0.reference_ops.signatures import describe, resolve, signature_id, tensor_values
from day0.reference_ops.torch_ops import register_operators
from day0.registry.collect import collect

PROFILE = load_profile("null")
X = torch.ones(4, 8)
CALLS = (
    describe("aten::silu", (X,), {}),
    describe("aten::silu", (X.to(torch.bfloat16),), {}),
    describe("aten::_softmax", (X, -1, False), {}),
    describe("aten::mm", (X, X.t()), {}),
    describe("aten::cumsum", (X, -1), {}),
    describe("aten::topk", (X, 3), {}),
    describe("aten::sort.stable", (X,), {"stable": True}),
)


@pytest.fixture(scope="module")
def workshop() -> Iterator[Workshop]:
    register_operators()
    made = Workshop(PROFILE, CALLS, lock_for(CALLS, PROFILE, collect(())), collect(()), usual=True)
    yield made
    made.close()


def _score(workshop: Workshop, name: str) -> FaultScore:
    touches = workshop.touches(list(workshop.signatures))
    chosen = calls_for(load_faults()[name].operators, touches, workshop.signatures, 16)
    score, clean = workshop.fault(name, chosen)
    assert clean.alarms == (), "what is right without the fault is not reported"
    return score


def test_planted_faults_are_found_by_the_rules_that_are_for_them(workshop: Workshop) -> None:
    nan = _score(workshop, "all_nan")
    assert (nan.operator.how, nan.operator.rule) == ("values", "non_finite")
    assert all(nan.usual.values())
    strided = _score(workshop, "matmul_strides_ignored")
    assert strided.operator.how == "values"
    scaled = _score(workshop, "half_as_much_again")
    assert scaled.operator.is_found
    assert not scaled.usual["cosine 0.99"], "1.5 times as much has cosine 1"


def test_a_fault_whose_operators_nobody_calls_is_missed_and_says_so(workshop: Workshop) -> None:
    score = _score(workshop, "std_missing")
    assert score.operator.how == "missed"
    assert "no call that the check is tried on" in score.operator.reason


def test_a_difference_that_is_none_gives_no_alarm(workshop: Workshop) -> None:
    ids = calls_for(("aten::topk",), workshop.touches(list(workshop.signatures)), workshop.signatures, 16)
    assert ids
    right = workshop.difference("topk_ties_other_way", ids, 0)
    assert right.judged >= 1
    assert right.alarms == ()


def test_a_wrong_kernel_of_ours_would_be_an_alarm(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    right = check_case
    kernel = next(str(one.identity) for one in collect(()) if one.operator == "aten::topk")
    assert workshop.kernel(kernel, 0).alarms == ()
    monkeypatch.setattr(judged, "check_case", lambda *args, **named: _failed(right(*args, **named)))
    alarms = workshop.kernel(kernel, 0).alarms
    assert alarms
    assert alarms[0].reason == "planted"


def test_a_raise_counts_for_every_usual_rule() -> None:
    register_operators()
    call = describe("aten::cumprod", (X, -1), {})
    workshop = Workshop(PROFILE, (call,), lock_for((call,), PROFILE, ()), (), usual=True)
    try:
        score, _ = workshop.fault("cumprod_missing", [signature_id(call)])
    finally:
        workshop.close()
    assert score.operator.how == "raised"
    assert "Could not run 'aten::cumprod'" in score.operator.reason
    assert all(score.usual.values())


def test_the_usual_rules_see_what_the_check_sees() -> None:
    register_operators()
    call, rules = CALLS[0], tuple(load_usual())
    case = cases_of([(signature_id(call), call)], CheckPlan(), 1)[0]
    with open_bench(PROFILE, lock_for((call,), PROFILE, ()), ()) as bench:
        clean = judge_case(case, bench, rules=rules)
        assert (clean.result.status, clean.objections, clean.reached) == ("pass", (), False)
        faulty = judge_case(case, bench, "all_nan", rules=rules)
        assert (faulty.result.status, faulty.objections, faulty.reached) == ("fail", rules, True)
        assert judge_case(case, bench, "all_nan", rules=rules[:1]).objections == rules[:1]
        assert judge_case(case, bench, "all_nan").objections is None


def test_a_hit_that_is_there_without_the_fault_is_an_alarm_and_no_find(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = check_case
    monkeypatch.setattr(judged, "check_case", lambda *args, **named: _failed(right(*args, **named)))
    ids = calls_for(("aten::mm",), workshop.touches(list(workshop.signatures)), workshop.signatures, 4)
    score, clean = workshop.fault("half_as_much_again", ids)
    assert score.operator.how == "missed"
    assert "is reported without the fault too" in score.operator.reason
    assert clean.alarms


def _failed(result: CaseResult) -> CaseResult:
    return result.model_copy(update={"status": "fail", "reason": "planted"})


def test_cases_are_spread_over_kinds_and_calls() -> None:
    calls = [(signature_id(one), one) for one in CALLS[:3]]
    cases = cases_of(calls, CheckPlan(), 1)
    assert len(plain_cases(cases)) < len(cases)
    few = spread_cases(cases, 30)
    assert len(few) == 30
    assert len({one.signature_id for one in few}) == 3
    assert [one.regime for one in few[:3]] == ["ordinary"] * 3
    assert len({(one.regime, one.form, one.way, one.refusal) for one in few}) == 28
    assert {one.key for one in spread_cases(cases, 10**6)} == {one.key for one in cases}
    assert spread_cases([], 5) == []


def test_every_operator_of_a_fault_gets_calls() -> None:
    ids = {signature_id(one): one for one in CALLS}
    touches = {id_: frozenset({one.op}) for id_, one in ids.items()}
    found = calls_for(("aten::silu", "aten::mm", "aten::_softmax"), touches, ids, 3)
    assert {ids[one].op for one in found} == {"aten::silu", "aten::mm", "aten::_softmax"}
    assert calls_for(("aten::erf",), touches, ids, 3) == []


def test_names_and_families_are_chosen_and_others_refused() -> None:
    assert {one.name for one in select_faults(["all_nan", "random"])} >= {"all_nan", "dropout_other_stream"}
    assert len(select_faults([])) == len(load_faults())
    with pytest.raises(Day0Error, match="no planted fault or family") as caught:
        select_faults(["al_nan"])
    assert "all_nan" in caught.value.hint
    with pytest.raises(Day0Error, match="faults are planted on the simulated device"):
        run_selftest(load_profile("cpu"))


@pytest.fixture(scope="module")
def subjects() -> tuple[Signature, ...]:
    register_operators()
    return collect_subjects(PROFILE)


def test_the_calls_come_from_all_four_origins(subjects: tuple[Signature, ...]) -> None:
    found = subjects
    operators = {one.op for one in found}
    assert {"day0::paged_kv_write", "aten::erfinv", "aten::sinh", "aten::scatter_.src"} <= operators
    assert len(found) == len({signature_id(one) for one in found})
    for call in ordinary_calls():
        resolve(call.op)


def test_every_operator_of_a_planted_fault_is_called_by_something(subjects: tuple[Signature, ...]) -> None:
    known = {name for one in subjects for name in (one.op, one.op.partition(".")[0])}
    lacking = {
        fault.name
        for fault in load_faults().values()
        if not known & {name for op in fault.operators for name in (op, op.partition(".")[0])}
    }
    # It stands below convolution, which is called.
    assert lacking <= {"fallback_without_cpu_kernel"}


def test_a_fault_that_needs_a_dtype_is_tried_on_the_device_with_it() -> None:
    profile = load_profile("sim")
    assert "float64" not in profile.dtypes
    calls = (describe("aten::add.Tensor", (X, X.clone()), {}), CALLS[0])
    wider, cast = variant_for(load_faults()["float64_computed_in_float32"], profile, calls)
    assert "float64" in wider.dtypes
    assert [[one.dtype for one in tensor_values(call)] for call in cast] == [["float64"] * 2]
    found = run_selftest(profile, seeds=1, only=["float64_computed_in_float32"], signatures=calls)
    assert found.faults[0].is_found
    assert "float64" in found.faults[0].operator.first
    assert [alarm for one in found.right for alarm in one.alarms] == []


def test_what_torch_itself_gets_wrong_is_reported_and_is_no_right_call() -> None:
    register_operators()
    profile = load_profile("sim")
    call = describe("aten::native_layer_norm", (X.to(torch.bfloat16), [8], X[0].clone(), X[0].clone(), 1e-5), {})
    with open_bench(profile, lock_for((call,), profile, ()), ()) as bench:
        case = cases_of([(signature_id(call), call)], CheckPlan(), 1)[0]
        found = judge_case(case, bench).result
    assert (found.status, found.rule) == ("fail", "layout"), "torch is mended: analyzers/selftest/defects.py can go"
    assert "dtype of the weights" in defect_of(call, profile)
    assert not defect_of(call, load_profile("null"))
    assert not defect_of(describe("aten::native_layer_norm", (X, [8], X[0].clone(), None, 1e-5), {}), profile)


def test_a_small_selftest_as_a_whole() -> None:
    steps: list[tuple[int, int]] = []
    calls = (*CALLS, describe("aten::argmax", (X, -1), {}))
    only = ["all_nan", "argmax_last_of_equals"]
    found = run_selftest(
        PROFILE, seeds=1, only=only, signatures=calls, progress=lambda _, done, total: steps.append((done, total))
    )
    assert [one.name for one in found.faults] == ["all_nan"]
    assert found.faults[0].is_found
    assert {one.subject for one in found.right} >= {"clean device", "difference argmax_last_of_equals"}
    assert [alarm for one in found.right for alarm in one.alarms] == []
    assert all(done <= total for done, total in steps)
    rows = detection_rows(found)
    assert rows[0][:2] == ("family", "faults")
    assert rows[-1][0] == "all"
    assert rows[-1][2].startswith("1/1 = 100.0 %")
    assert all(len(row) == len(rows[0]) for row in rows)
    assert alarm_rows(found)[-1][2] == "0"
    assert how_rows(found) == [("wrong results at ordinary values", "1")]
    assert percent(0, 0) == "-"
