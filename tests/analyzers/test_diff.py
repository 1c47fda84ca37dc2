"""What `day0 diff` finds between records: each change planted once, and nothing where nothing changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from day0.analyzers.diff.change import Change, Diff, Part, layer_free
from day0.analyzers.diff.load import load_kinds
from day0.analyzers.diff.phases import compare_phases
from day0.errors import Day0Error
from day0.records import (
    CanaryReport,
    CaseResult,
    Gap,
    GateResult,
    Identity,
    Inventory,
    InventoryEntry,
    Lock,
    LockEntry,
    ModelInfo,
    NumericsReport,
    OperatorFigures,
    PhaseInfo,
    Record,
    ScalarValue,
    Signature,
    StageResult,
    TensorValue,
    Trace,
    TraceEntry,
    Value,
)
from day0.reference_ops.signatures import signature_id

MODEL = ModelInfo(
    source="toy", dtype="bfloat16", class_name="Toy", parameters=1, parameter_bytes=2, fingerprint="sha256:0"
)


def tensor(*shape: int, dtype: str = "bfloat16") -> TensorValue:
    steps = [1]
    for size in reversed(shape[1:]):
        steps.insert(0, steps[0] * size)
    return TensorValue(shape=shape, dtype=dtype, stride=tuple(steps[: len(shape)]))


def entry(op: str, *args: Value, module: str = "layers.0.mlp", **changes: Any) -> TraceEntry:
    signature = Signature(op=op, args=args)
    facts = {"counts": {"prefill": 4}, "module": module, "module_class": "Mlp", "bytes": 100, "flops": 0}
    return TraceEntry(id=signature_id(signature), signature=signature, outputs=(), **{**facts, **changes})


def trace(*entries: TraceEntry, **changes: Any) -> Trace:
    phases = tuple(
        PhaseInfo(name=name, batch=1, tokens=tokens, context=0, calls=10)
        for name, tokens in (("prefill", 8), ("decode", 1))
    )
    facts: dict[str, Any] = {"model": MODEL, "mode": "meta", "mode_reason": "", "device": "meta", "phases": phases}
    return Trace(**{**facts, **changes}, entries=entries)


def compare(old: Record, new: Record) -> Part:
    (kind,) = [one for one in load_kinds() if one.record is type(old)]
    return kind.compare(old, new)


def seen(changes: Iterable[Change]) -> list[tuple[str, str, str, str, str]]:
    return [(one.kind, one.effect, one.subject, one.old, one.new) for one in changes]


MM = entry("aten::mm", tensor(8, 4), tensor(4, 4))


def test_kinds_are_found_by_their_file_names_in_the_order_of_the_stages() -> None:
    assert [one.name for one in load_kinds()] == [
        *("trace", "inventory", "register", "check", "canary"),
        *("endpoint", "ranks"),
    ]


def test_layers_are_one_place() -> None:
    assert layer_free("model.layers.31.mlp.experts.7") == "model.layers.*.mlp.experts.*"
    assert layer_free("conv2d.block2.x") == "conv2d.block2.x"


# ------------------------------------------------------------------------------------------------ trace


def test_equal_traces_have_no_difference() -> None:
    part = compare(trace(MM), trace(MM))
    assert (part.changes, part.same) == ((), 1)


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (entry("aten::mm", tensor(8, 4, dtype="float16"), tensor(4, 4)), ("dtype", "bfloat16 bfloat16", "float16 bfloat16")),
        (entry("aten::mm", tensor(9, 4), tensor(4, 4)), ("sizes", "bfloat16[8, 4] bfloat16[4, 4]", "bfloat16[9, 4] bfloat16[4, 4]")),
        (MM.model_copy(update={"module": "layers.7.attn"}), ("module", "layers.*.mlp", "layers.*.attn")),
        (MM.model_copy(update={"counts": {"prefill": 4, "decode": 4}}), ("calls", "4 prefill", "4 decode, 4 prefill")),
        (MM.model_copy(update={"host_sync": True}), ("host sync", "does not wait", "waits for the host")),
    ],
)  # fmt: skip
def test_what_may_change_about_one_call(new: TraceEntry, expected: tuple[str, str, str]) -> None:
    (change,) = compare(trace(MM), trace(new)).changes
    assert (change.kind, change.old, change.new) == expected
    assert change.subject == "aten::mm"
    assert change.effect == ("worse" if expected[0] == "host sync" else "other")


def test_the_same_module_in_another_layer_is_the_same_place() -> None:
    assert not compare(trace(MM), trace(MM.model_copy(update={"module": "layers.9.mlp"}))).changes


def test_operators_appear_and_disappear_before_new_calls_of_known_ones() -> None:
    topk = entry("aten::topk", tensor(8, 4), ScalarValue(type="int", value="2"))
    more = entry("aten::mm", tensor(16, 16, dtype="float32"), tensor(16, 16, dtype="float32"), bytes=10**9)
    part = compare(trace(MM), trace(MM, more, topk))
    assert [(one.kind, one.subject, one.reason) for one in part.changes] == [
        ("appeared", "aten::topk", ""),
        ("appeared", "aten::mm", "other calls of it are in both"),
    ]
    back = compare(trace(MM, topk), trace(MM)).changes
    assert seen(back) == [("disappeared", "other", "aten::topk", "bfloat16[8, 4]", "")]


def test_a_cast_to_another_dtype_is_a_change_of_dtype() -> None:
    def cast(dtype: str) -> TraceEntry:
        return entry("aten::_to_copy", tensor(8), ScalarValue(type="dtype", value=dtype))

    (change,) = compare(trace(cast("float32")), trace(cast("float16"))).changes
    assert (change.kind, change.new) == ("dtype", "bfloat16 to float16")


def test_model_and_phases_are_compared_too() -> None:
    other = trace(MM, model=MODEL.model_copy(update={"parameters": 2_000}), phases=(), device="cpu")
    assert seen(compare(trace(MM), other).changes) == [
        ("model", "other", "parameters", "1", "2,000"),
        ("model", "other", "recorded on", "meta", "cpu"),
        ("phase", "other", "decode", "batch 1, 1 tokens after 0", "not there"),
        ("phase", "other", "prefill", "batch 1, 8 tokens after 0", "not there"),
    ]


# ----------------------------------------------------------------------------------------------- phases


def test_another_path_of_the_experts_is_seen_between_phases() -> None:
    experts = {"module": "layers.1.mlp.experts", "module_class": "Experts"}
    grouped = entry("aten::_grouped_mm", tensor(64, 8), tensor(4, 8, 8), counts={"prefill": 6}, flops=10**6, **experts)
    single = entry("aten::bmm", tensor(2, 1, 8), tensor(2, 8, 8), counts={"decode": 6}, **experts)
    norms = [entry("aten::rsqrt", tensor(n, 1), counts={p: 2}, module="n") for n, p in ((64, "prefill"), (1, "decode"))]
    part = compare_phases(trace(grouped, single, *norms), "prefill", "decode")
    assert [(one.kind, one.subject, one.old, one.new, one.where) for one in part.changes[:2]] == [
        ("only in one", "aten::_grouped_mm", "6", "0", "Experts 6 → 0"),
        ("only in one", "aten::bmm", "0", "6", "Experts 0 → 6"),
    ]
    (sizes,) = part.changes[2:]
    assert (sizes.kind, sizes.subject, sizes.old, sizes.new) == (
        "sizes", "aten::rsqrt", "bfloat16[64, 1]", "bfloat16[1, 1]",
    )  # fmt: skip


def test_calls_that_were_merged_in_one_phase_are_no_other_path() -> None:
    # In decode both modules call with one shape, and a trace names the first module alone.
    apart = [
        entry("aten::mul.Tensor", tensor(n, 8), counts={"prefill": 3}, module_class=c)
        for n, c in ((64, "A"), (32, "B"))
    ]
    merged = entry("aten::mul.Tensor", tensor(1, 8), counts={"decode": 6}, module_class="A")
    part = compare_phases(trace(*apart, merged), "prefill", "decode")
    assert {one.kind for one in part.changes} == {"sizes"}


def test_arithmetic_per_byte_falls_from_prefill_to_decode() -> None:
    big = entry("aten::mm", tensor(64, 8), tensor(8, 8), counts={"prefill": 1}, flops=800, bytes=10)
    small = entry("aten::mm", tensor(1, 8), tensor(8, 8), counts={"decode": 1}, flops=20, bytes=10)
    (change,) = compare_phases(trace(big, small), "prefill", "decode").changes
    assert change.reason == "80.0 → 2.0 FLOPs a byte"


def test_phases_that_are_not_there() -> None:
    with pytest.raises(Day0Error, match="no phase 'prefil'") as caught:
        compare_phases(trace(MM), "prefil", "decode")
    assert "prefill" in caught.value.hint
    with pytest.raises(Day0Error, match="with itself"):
        compare_phases(trace(MM), "decode", "decode")


# -------------------------------------------------------------------------------------------- inventory


def met(op: str, verdict: str = "native", *, own: str = "", share: float = 0.1, **changes: Any) -> InventoryEntry:
    facts = {"id": op, "op": op, "dtypes": ("bfloat16",), "shapes": "bfloat16[2]", "reason": "r", "evidence": "static"}
    return InventoryEntry(**{**facts, **changes}, verdict=verdict, device_verdict=own or verdict, share=share, calls=5)


def inventory(*entries: InventoryEntry, device: str = "sim", seconds: float = 1.0) -> Inventory:
    return Inventory(device=device, model="toy", entries=entries, roofline_seconds=seconds)


@pytest.mark.parametrize(
    ("old", "new", "kind", "effect"),
    [
        (met("a"), met("a", "missing"), "new gap", "worse"),
        (met("a", "missing"), met("a"), "gap closed", "better"),
        (met("a", "replaced", own="missing"), met("a", "missing"), "verdict", "worse"),
        (met("a", "missing"), met("a", "replaced", own="missing"), "verdict", "better"),
        (met("a"), met("a", "replaced", own="missing"), "new gap", "worse"),
        (met("a", "cpu_fallback"), met("a", "crashes"), "verdict", "worse"),
        (met("a", "decomposes"), met("a", "decomposes_with_sync"), "verdict", "worse"),
        (met("a"), met("a", "decomposes"), "verdict", "other"),
        (met("a"), met("a", id="b", dtypes=("float16",), shapes="float16[2]"), "dtype", "other"),
        (met("a"), met("a", share=0.2), "share", "other"),
    ],
)
def test_what_may_change_about_a_verdict(old: InventoryEntry, new: InventoryEntry, kind: str, effect: str) -> None:
    (change,) = compare(inventory(old), inventory(new)).changes
    assert (change.kind, change.effect, change.subject) == (kind, effect, "a")


def test_a_gap_of_a_new_call_is_worse_and_one_that_is_gone_is_better() -> None:
    base = met("a")
    gone = met("b", "missing", share=0.0)
    assert seen(compare(inventory(base), inventory(base, gone)).changes) == [
        ("new gap", "worse", "b", "not called", "missing")
    ]
    assert seen(compare(inventory(base, gone), inventory(base)).changes) == [
        ("gap gone", "better", "b", "missing", "not called")
    ]


def test_gaps_come_before_what_is_better_and_the_dearest_gap_first() -> None:
    old = inventory(met("a"), met("b"), met("c", "missing"))
    new = inventory(met("a", "missing", share=0.1), met("b", "missing", share=0.105), met("c"), seconds=2.0)
    changes = compare(old, new).changes
    assert [(one.kind, one.subject) for one in changes] == [
        ("new gap", "b"),
        ("new gap", "a"),
        ("gap closed", "c"),
        ("time", "roofline time of all phases"),
    ]


# ----------------------------------------------------------------------------------------------- others


def locked(kind: str = "kernel", version: str = "1", source: str = "sha256:a") -> LockEntry:
    identity = Identity(operator="aten::a", contract=1, namespace="base", id=kind, version=version)
    return LockEntry(
        operator="aten::a", dtypes=("float32",), signatures=(), identity=identity, kind=kind, source_hash=source,
        origin="mine.py:1", decisions=(),
    )  # fmt: skip


def lock(*entries: LockEntry, gaps: int = 0) -> Lock:
    gap = Gap(operator="aten::a", dtypes=("float32",), signatures=(), calls=3, module="", reason="no", decisions=())
    return Lock(device="sim", namespace="base", model="toy", entries=entries, gaps=(gap,) * gaps)


@pytest.mark.parametrize(
    ("old", "new", "kind", "effect"),
    [
        (lock(locked()), lock(locked("cpu_fallback")), "implementation", "worse"),
        (lock(locked("reference")), lock(locked()), "implementation", "better"),
        (lock(locked()), lock(locked(version="2")), "implementation", "other"),
        (lock(locked()), lock(locked(source="sha256:b")), "code", "other"),
        (lock(locked()), lock(gaps=1), "gap opened", "worse"),
        (lock(gaps=1), lock(locked()), "gap closed", "better"),
        (lock(), lock(locked()), "now needed", "other"),
        (lock(locked()), lock(), "no longer needed", "other"),
    ],
)
def test_what_may_change_in_a_lock(old: Lock, new: Lock, kind: str, effect: str) -> None:
    (change,) = compare(old, new).changes
    assert (change.kind, change.effect, change.subject) == (kind, effect, "aten::a")
    assert not compare(new, new).changes


def case(status: str = "pass", error: float | None = 1e-3, **changes: Any) -> CaseResult:
    facts = {"case": "k", "signature": "s", "op": "aten::a", "shapes": "", "implementation": "native", "regime": "wide"}
    judged = {"seed": 0, "rule": "float", "reason": "", "yardstick": 2e-3, "limit": 8e-3}
    return CaseResult(**{**facts, **judged, **changes}, status=status, error=error)


def report(*cases: CaseResult) -> NumericsReport:
    return NumericsReport(device="sim", lock="x", seed=0, cases=cases)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (report(case()), report(case("fail")), [("newly failing", "worse")]),
        (report(case("crashed")), report(case()), [("fixed", "better")]),
        (report(case("crashed")), report(case("skipped")), [("newly skipped", "better")]),
        (report(case("skipped")), report(case()), [("newly passing", "better")]),
        (report(case()), report(case("skipped")), [("newly skipped", "worse")]),
        (report(case()), report(case("fell_back")), [("status", "worse")]),
        (report(case()), report(case(error=5e-3)), [("error grew", "worse")]),
        (report(case(error=5e-3)), report(case()), [("error shrank", "better")]),
        # Below what the dtype itself costs a larger error is another order of sums.
        (report(case(error=1e-4)), report(case(error=1e-3)), []),
        (report(case(error=4e-3)), report(case(error=5e-3)), []),
        (report(case()), report(), [("no longer there", "other")]),
        (report(), report(case("hung")), [("newly failing", "worse")]),
        (report(), report(case()), [("new case", "other")]),
    ],
)
def test_what_may_change_in_a_check(old: NumericsReport, new: NumericsReport, expected: list[tuple[str, str]]) -> None:
    assert [(one.kind, one.effect) for one in compare(old, new).changes] == expected


def stage(
    status: str = "pass",
    value: float = 1.0,
    rule: str = "<=",
    seconds: float = 1.0,
    verdict: str = "successful",
    mm: float = 1e-5,
    clock: str = "sim",
) -> CanaryReport:
    gate = GateResult(metric="ratio", rule=rule, limit=3.0, value=value, verdict=verdict, passed=True)
    operator = OperatorFigures(
        operator="aten::mm", calls=1, clock=clock, seconds=mm, worst_seconds=mm, bytes=1, flops=1
    )
    one = StageResult(
        name="load", title="t", status=status, reason="why", gates=(gate,), metrics={"ratio": value, "seconds": seconds},
        operators=(operator,),
    )  # fmt: skip
    return CanaryReport(device="sim", lock="x", allow_unverified=False, stages=(one,))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (stage(), stage("fail"), [("newly failing", "worse")]),
        (stage("skipped"), stage(), [("newly passing", "better")]),
        (stage(), stage(value=1.5), [("gate", "worse")]),
        (stage(rule=">="), stage(value=1.5, rule=">="), [("gate", "better")]),
        (stage(), stage(value=1.05), []),
        (stage(), stage(seconds=2.0), [("metric", "other")]),
        (stage(), stage(verdict="inconclusive"), [("gate", "worse")]),
        (stage(verdict="inconclusive"), stage(), [("gate", "better")]),
        (stage(), stage(mm=2e-5), [("slower", "worse")]),
        (stage(mm=2e-5), stage(), [("faster", "better")]),
        (stage(), stage(mm=1.09e-5), []),
        (stage(clock="events"), stage(mm=1.2e-5, clock="events"), []),
        (stage(clock="events"), stage(mm=1.3e-5, clock="events"), [("slower", "worse")]),
        # Far from its limit a figure may double: 1 % of the way to 3 is no step towards it.
        (stage(value=0.01), stage(value=0.03), [("gate", "other")]),
        (stage(value=2.4), stage(value=2.9), [("gate", "worse")]),
        (stage(), stage("fail", verdict="failed"), [("newly failing", "worse"), ("gate", "worse")]),
        (stage(clock="wall"), stage(mm=2e-5, clock="wall"), []),
    ],
)
def test_what_may_change_in_a_canary(old: CanaryReport, new: CanaryReport, expected: list[tuple[str, str]]) -> None:
    assert [(one.kind, one.effect) for one in compare(old, new).changes] == expected


def test_a_diff_counts_by_effect() -> None:
    part = compare(inventory(met("a"), met("b", "missing")), inventory(met("a", "missing"), met("b")))
    made = Diff(old="x", new="y", parts=(part,))
    assert (made.count("worse"), made.count("better"), made.count("other")) == (1, 1, 0)
