from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest

from day0.codec import body_hash
from day0.records import Gap, Inventory, InventoryEntry, StageResult, Verdict
from day0.reports.bundle import Bundle
from day0.reports.charts.marks import COLOURS
from day0.reports.findings import MEANINGS
from day0.reports.stages import judge_stages
from day0.reports.summarise import summarise


def statuses(bundle: Bundle) -> list[str]:
    return [stage.status for stage in summarise(bundle).stages]


def inventory_of(bundle: Bundle) -> Inventory:
    assert bundle.inventory is not None
    return bundle.inventory


def with_entries(bundle: Bundle, change: Callable[[InventoryEntry], InventoryEntry]) -> Bundle:
    inventory = inventory_of(bundle)
    entries = tuple(change(entry) for entry in inventory.entries)
    return replace(bundle, inventory=inventory.model_copy(update={"entries": entries}))


def test_every_verdict_has_a_meaning_and_a_colour() -> None:
    assert set(MEANINGS) == set(COLOURS) == set(get_args(Verdict))


def test_a_good_run_is_ready(good: Bundle) -> None:
    summary = summarise(good)
    assert summary.can_run
    assert summary.why == (
        "all 8 signatures have an implementation on sim, 7 numerics cases held on the device, 1 on the CPU, "
        "and 3 canary stages met every gate"
    )
    assert summary.caveats == ("1 operator runs on the CPU (16 calls, 5.0 % of the roofline time)",)
    assert [action.kind for action in summary.next] == ["replace_fallback", "remove_sync"]
    assert not any(action.blocking for action in summary.next)


def test_verdicts_are_weighted_by_calls_and_share(good: Bundle) -> None:
    lines = {line.verdict: line for line in summarise(good).verdicts}
    assert list(lines) == ["native", "decomposes", "decomposes_with_sync", "replaced", "missing"]
    assert (lines["native"].signatures, lines["native"].calls) == (3, 646)
    assert lines["native"].share == pytest.approx(0.66)
    assert sum(line.share for line in lines.values()) == pytest.approx(1.0)
    assert sum(line.signatures for line in lines.values()) == 8
    assert lines["missing"].left_open == 0


def test_replacements_show_what_ran_and_what_was_refused(good: Bundle) -> None:
    first = summarise(good).replacements[0]
    assert (first.operator, first.implementation, first.ran) == (
        "day0::lightning_indexer",
        "kimi/k3.1:composed==1.0",
        9,
    )
    assert first.refused == ("fast: takes bfloat16, not int32",)


def test_a_locked_implementation_that_never_ran_is_named(good: Bundle) -> None:
    assert good.canary is not None
    stages = tuple(stage.model_copy(update={"receipts": ()}) for stage in good.canary.stages)
    summary = summarise(replace(good, canary=good.canary.model_copy(update={"stages": stages})))
    assert summary.caveats[-1] == (
        "3 locked implementations never ran in the canary: kimi/k3.1:composed==1.0 for day0::lightning_indexer, "
        "kimi/k3.1:composed==1.0 for aten::topk and kimi/k3.1:cpu_fallback==1.0 for aten::histc"
    )
    assert {one.ran for one in summary.replacements} == {0}


def test_a_failing_run_names_the_most_valuable_repairs_first(failing: Bundle) -> None:
    summary = summarise(failing)
    assert not summary.can_run
    assert statuses(failing) == ["pass", "pass", "fail", "fail", "fail"]
    assert [(action.kind, round(action.share, 2)) for action in summary.next] == [
        ("repair", 0.11),
        ("repair", 0.08),
        ("close_gap", 0.05),
    ]
    # A repaired device shows in no hash, a repaired implementation does.
    assert [action.command for action in summary.next] == [
        "day0 check --run runs/toy-on-sim --force",
        "day0 check --run runs/toy-on-sim",
        "day0 register --run runs/toy-on-sim --with my_kernels.py",
    ]
    assert summary.more_actions == 2
    assert summary.gaps[0].operator == "aten::histc"
    assert summary.gaps[0].refused == ("cpu_fallback: the plan says fallback: none",)
    assert [case.status for case in summary.failures] == ["crashed", "fail"]
    assert summary.failures[1].worst == "worst at [1, 7]: 0.5, expected 0.25"
    assert [step.status for step in summary.canary] == ["pass", "fail", "skipped"]


def test_open_gaps_are_named_by_share(good: Bundle) -> None:
    assert good.lock is not None
    gaps = tuple(
        Gap(
            operator=entry.operator,
            dtypes=entry.dtypes * 3,
            signatures=entry.signatures,
            calls=1,
            module="",
            reason=f"the profile lacks {entry.operator}",
            decisions=entry.decisions,
        )
        for entry in reversed(good.lock.entries)
    )
    summary = summarise(replace(good, lock=good.lock.model_copy(update={"entries": (), "gaps": gaps})))
    assert summary.stages[2].problems == (
        "day0::lightning_indexer (bfloat16) has no implementation: the profile lacks day0::lightning_indexer",
        "aten::topk (float32) has no implementation: the profile lacks aten::topk",
        "aten::histc (int32) has no implementation: the profile lacks aten::histc",
    )
    assert [gap.operator for gap in summary.gaps] == ["day0::lightning_indexer", "aten::topk", "aten::histc"]


def test_a_broken_gate_is_the_thing_to_do(good: Bundle) -> None:
    assert good.canary is not None
    first, *rest = good.canary.stages
    gates = tuple(gate.model_copy(update={"passed": False}) for gate in first.gates)
    stages = (first.model_copy(update={"status": "fail", "gates": gates, "evidence": "evidence/load"}), *rest)
    action = summarise(replace(good, canary=good.canary.model_copy(update={"stages": stages}))).next[0]
    assert action.what == "Meet the gate worst_error <= 0.01 of canary stage load"
    assert action.why == "evidence: evidence/load"
    assert action.command == "day0 canary --run runs/toy-on-sim --force"


def test_worst_case_first_and_not_a_number_is_worst_of_all(failing: Bundle) -> None:
    assert failing.numerics is not None
    cases = tuple(
        case.model_copy(update={"status": "fail", "error": error, "limit": 0.01})
        for case, error in zip(failing.numerics.cases, (0.1, 0.9, float("nan"), 0.02, 0.3, 0.2, 0.05, 0.4), strict=True)
    )
    summary = summarise(replace(failing, numerics=failing.numerics.model_copy(update={"cases": cases})))
    assert [str(case.error) for case in summary.failures] == ["nan", "0.9", "0.4", "0.3", "0.2", "0.1", "0.05", "0.02"]


def test_an_incomplete_run_says_what_is_missing_and_how_to_make_it(incomplete: Bundle) -> None:
    summary = summarise(incomplete)
    assert not summary.can_run
    assert statuses(incomplete) == ["pass", "pass", "missing", "missing", "missing"]
    assert summary.why == "register: there is no ops.lock yet"
    assert summary.stages[3].headline == "not run: register did not pass"
    assert summary.next[0].command == "day0 register --run RUN"
    assert len(summary.gaps) == 3


def test_a_trace_alone_asks_for_a_device(incomplete: Bundle) -> None:
    summary = summarise(replace(incomplete, inventory=None, run="runs/my run"))
    assert summary.device == ""
    assert summary.next[0].command == "day0 inventory --run 'runs/my run' --device NAME"
    assert summary.weighted_by == "calls"


def test_without_roofline_figures_calls_are_the_weight(good: Bundle) -> None:
    summary = summarise(with_entries(good, lambda entry: entry.model_copy(update={"share": 0.0})))
    assert summary.weighted_by == "calls"
    assert summary.operators[0].op == "aten::add.Tensor"
    assert sum(sum(one.weights.values()) for one in summary.operators) == pytest.approx(1.0)


def change_lock(bundle: Bundle) -> Bundle:
    assert bundle.lock is not None
    return replace(bundle, lock=bundle.lock.model_copy(update={"namespace": "base"}))


def change_model(bundle: Bundle) -> Bundle:
    model = bundle.trace.model.model_copy(update={"fingerprint": "sha256:" + "ef" * 32})
    return replace(bundle, trace=bundle.trace.model_copy(update={"model": model}))


def change_source(bundle: Bundle) -> Bundle:
    model = bundle.trace.model.model_copy(update={"source": "hf:deepseek_v32"})
    return replace(bundle, trace=bundle.trace.model_copy(update={"model": model}))


def add_signature(bundle: Bundle) -> Bundle:
    extra = bundle.trace.entries[0].model_copy(update={"id": "f" * 16})
    return replace(bundle, trace=bundle.trace.model_copy(update={"entries": (*bundle.trace.entries, extra)}))


def change_device(bundle: Bundle) -> Bundle:
    return replace(bundle, inventory=inventory_of(bundle).model_copy(update={"device": "other"}))


def add_gap(bundle: Bundle) -> Bundle:
    return with_entries(
        bundle,
        lambda entry: entry.model_copy(update={"device_verdict": "missing"}) if entry.op == "aten::mm" else entry,
    )


@pytest.mark.parametrize(
    ("change", "stage", "headline"),
    [
        (change_lock, 3, "out of date: it was made with another lock"),
        (change_model, 2, "out of date: it was made for a model with another fingerprint"),
        (change_source, 1, "out of date: it was made for toy, the trace is of hf:deepseek_v32"),
        (add_signature, 1, "out of date: 1 traced signature not in it"),
        (change_device, 2, "out of date: it was made for sim, the inventory for other"),
        (add_gap, 2, "out of date: the inventory has 1 gap that it does not know"),
    ],
)
def test_records_that_do_not_belong_together_are_not_ready(
    good: Bundle, change: Callable[[Bundle], Bundle], stage: int, headline: str
) -> None:
    summary = summarise(change(good))
    assert not summary.can_run
    assert (summary.stages[stage].status, summary.stages[stage].headline) == ("stale", headline)
    assert summary.next[0].kind == "run_stage"
    assert summary.next[0].command.endswith("--force")


def test_a_check_that_judged_nothing_has_not_passed(good: Bundle) -> None:
    assert good.numerics is not None
    cases = tuple(case.model_copy(update={"status": "skipped"}) for case in good.numerics.cases)
    skipped = replace(good, numerics=good.numerics.model_copy(update={"cases": cases}))
    assert statuses(skipped)[3] == "fail"
    assert statuses(replace(good, numerics=good.numerics.model_copy(update={"cases": ()})))[3] == "fail"


def test_what_the_verdict_does_not_cover_is_said(good: Bundle) -> None:
    assert good.numerics is not None
    assert good.canary is not None
    cases = list(good.numerics.cases)
    cases[1] = cases[1].model_copy(update={"status": "skipped"})
    phases = (*good.trace.phases, good.trace.phases[0].model_copy(update={"name": "vision", "calls": 0}))
    bundle = replace(
        good,
        trace=good.trace.model_copy(update={"phases": phases}),
        numerics=good.numerics.model_copy(update={"cases": tuple(cases)}),
        canary=good.canary.model_copy(update={"allow_unverified": True}),
    )
    caveats = summarise(with_entries(bundle, lambda entry: entry.model_copy(update={"evidence": "claimed"}))).caveats
    assert [text.split(":")[0] for text in caveats] == [
        "phase vision was not traced",
        "the numbers of 1 signature were not checked (96 calls, 11.0 % of the roofline time)",
        "1 operator runs on the CPU (16 calls, 5.0 % of the roofline time)",
        "the canary was entered with --allow-unverified",
        "8 verdicts of the inventory rest on a data sheet, not on a probe",
    ]


def test_texts_of_a_summary_are_clean_and_paths_stay_below(hostile: Bundle) -> None:
    text = summarise(hostile).model_dump_json()
    assert "\x1b" not in text
    assert "\\u001b" not in text
    assert "\u202e" not in text
    assert summarise(hostile).failures[0].reproducer == "(refused: not a path below the run folder)"


def test_the_canary_must_have_been_run_with_this_lock(good: Bundle) -> None:
    assert good.lock is not None
    assert good.numerics is not None
    lock = good.lock.model_copy(update={"namespace": "base"})
    numerics = good.numerics.model_copy(update={"lock": body_hash(lock)})
    assert statuses(replace(good, lock=lock, numerics=numerics)) == ["pass", "pass", "pass", "pass", "stale"]


def test_canary_stages_that_do_not_fit_the_model_keep_nothing_from_passing(good: Bundle) -> None:
    bundle = good
    assert bundle.canary is not None
    vision = StageResult(name="vision", title="t", status="skipped", skip="unfit", reason="it has no vision branch")
    warned = bundle.canary.stages[0].model_copy(update={"warnings": ("m is not known",)})
    canary = bundle.canary.model_copy(update={"stages": (warned, *bundle.canary.stages[1:], vision)})
    found = judge_stages(replace(bundle, canary=canary))[-1]
    assert (found.status, found.headline) == ("pass", "3 of 3 stages met their gates, 1 gate not decided")
    assert summarise(replace(bundle, canary=canary)).why.endswith("3 canary stages met their gates, 1 gate not decided")


def test_a_canary_of_some_stages_is_out_of_date(good: Bundle) -> None:
    bundle = good
    assert bundle.canary is not None
    left_out = StageResult(name="soak", title="t", status="skipped", skip="not_asked", reason="nobody asked for it")
    canary = bundle.canary.model_copy(update={"stages": (*bundle.canary.stages, left_out)})
    found = judge_stages(replace(bundle, canary=canary))[-1]
    assert (found.status, found.problems) == ("stale", ("only some of its stages were asked for; not soak",))
