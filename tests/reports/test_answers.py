from __future__ import annotations

from dataclasses import replace

from day0.reports.answers import answers
from day0.reports.bundle import Bundle
from day0.reports.judged import how_right, operator_errors, warned_operators
from day0.reports.performance import how_fast, points, speeds
from day0.reports.summarise import summarise
from tests.reports.beside_runs import with_all


def short(bundle: Bundle) -> list[str]:
    return [one.short for one in answers(summarise(bundle))]


def test_a_good_run_answers_all_four(beside: Bundle) -> None:
    runs, right, fast, after = answers(summarise(beside))
    assert (runs.short, runs.tone) == ("Yes", "good")
    # The last operator's error is 0.0027, and its dtype itself costs 0.0019.
    assert right.short == "1.4 ×"
    assert right.more.endswith("0.0027 against 0.0019, limit 0.0057, aten::add.Tensor (ordinary)")
    assert fast.short == "2 ms"
    assert fast.more == "a token of decode in generate, simulated; its operators reach 25.0 % of the roofline"
    assert after.short.startswith("Write a kernel for aten::histc")


def test_a_trace_alone_answers_what_to_run(incomplete: Bundle) -> None:
    assert short(replace(incomplete, inventory=None)) == ["Not known yet"] * 3 + ["Run inventory"]


def test_a_wrong_kernel_is_not_right(failing: Bundle) -> None:
    runs, right, *_ = answers(summarise(failing))
    assert (runs.short, runs.tone, right.tone) == ("No", "bad", "bad")
    assert right.short == "21 ×"
    assert "2 cases fail; but in the canary's one_layer worst_error is 0.3" in right.more


def test_an_error_that_is_no_number_is_the_worst(good: Bundle) -> None:
    assert good.numerics is not None
    broken = good.numerics.cases[0].model_copy(update={"error": float("nan"), "status": "fail"})
    run = replace(good, numerics=good.numerics.model_copy(update={"cases": (*good.numerics.cases[1:], broken)}))
    assert answers(summarise(run))[1].short == "not finite"
    assert operator_errors(run)[0].op == broken.op


def test_exact_operators_need_no_yardstick(good: Bundle) -> None:
    assert good.numerics is not None
    exact = tuple(
        case.model_copy(update={"error": 0.0, "yardstick": 0.0, "limit": 0.0}) for case in good.numerics.cases
    )
    run = replace(good, numerics=good.numerics.model_copy(update={"cases": exact}))
    assert how_right(run) is None
    assert answers(summarise(run))[1].short == "Exact"


def test_warnings_of_failed_cases_are_not_told_twice(good: Bundle, failing: Bundle) -> None:
    found = warned_operators(with_all(good))
    assert (found[0].op, found[0].cases, found[0].texts) == ("aten::_softmax", 1, ("other bits in more rows x",))
    assert len(found) == 8
    assert {one.op for one in warned_operators(with_all(failing))}.isdisjoint({"aten::topk", "aten::bmm"})


def test_measured_and_modelled_points_are_told_apart(beside: Bundle) -> None:
    found = points(beside)
    simulated = [one for one in found if one.how == "simulated"]
    assert [one.op for one in simulated] == ["aten::mm", "aten::topk", "aten::x"]
    modelled = {one.op: one for one in found if one.how == "modelled"}
    assert modelled["aten::mm"].seconds == 0.52 * 0.012
    assert modelled["aten::mm"].verdict == "native"


def test_a_token_is_that_of_one_sequence_not_of_the_soak(beside: Bundle) -> None:
    fast = how_fast(beside)
    assert fast is not None
    assert (fast.stage, fast.how, fast.seconds_per_token) == ("generate", "simulated", 0.002)
    generate = next(one for one in speeds(beside) if one.source == "generate")
    assert (generate.low, generate.high) == (1 / 625, 1 / 400)
    assert {one.source for one in speeds(beside)} == {"generate", "soak", "endpoint", "2 ranks"}


def test_faults_that_were_planted_are_said_at_once(good: Bundle) -> None:
    run = replace(good, environment={**good.environment, "faults planted in canary": "rope_shifted"})
    assert summarise(run).caveats[0] == (
        "faults planted in canary: rope_shifted: such a run says nothing about a device"
    )


def test_records_of_another_model_are_out_of_date(good: Bundle) -> None:
    status = {one.name: one.status for one in summarise(with_all(good, model="another")).beside}
    assert (status["fit"], status["ranks"]) == ("stale", "stale")
    damaged = {one.name: one for one in summarise(replace(good, damaged={"fit.json": "it is cut off"})).beside}
    assert (damaged["fit"].status, damaged["fit"].headline) == ("damaged", "it is cut off")
