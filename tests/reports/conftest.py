"""Runs made by hand: a good one, a failing one, an incomplete one, a hostile one, a large one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest

from day0.codec import body_hash
from day0.records import (
    CanaryReport,
    CaseResult,
    CaseStatus,
    Decision,
    Gap,
    GateResult,
    Identity,
    Inventory,
    InventoryEntry,
    Lock,
    LockEntry,
    ModelInfo,
    NumericsReport,
    PhaseInfo,
    Receipt,
    Signature,
    StageResult,
    TensorValue,
    Trace,
    TraceEntry,
    Verdict,
)
from day0.reports.bundle import Bundle
from day0.reports.html import render_html
from tests.reports.beside_runs import with_all

HOSTILE = (
    "<script>alert(1)</script>",
    "</style></title><img src=x onerror=alert(1)>",
    "\x1b[31mred\x1b[0m",
    "nul\0byte",
    "\u202egnp.exe",
    "../../x",
    "a|b`c``d",
    "{{ 7 * 7 }}",
    "]]>&amp;<!--",
    "[link](javascript:alert(1)) @team #1",
    "\ufffe\uffff\x85\u2028",
)
"""Each has broken some report of some tool."""

Row = tuple[str, str, Verdict, Verdict, float, int]

ROWS: tuple[Row, ...] = (
    # op, dtype, verdict, device's own verdict, share, calls
    ("aten::mm", "bfloat16", "native", "native", 0.52, 240),
    ("aten::bmm", "bfloat16", "native", "native", 0.11, 96),
    ("day0::lightning_indexer", "bfloat16", "replaced", "missing", 0.12, 12),
    ("aten::topk", "float32", "replaced", "missing", 0.08, 24),
    ("aten::histc", "int32", "missing", "missing", 0.05, 16),
    ("aten::_softmax", "float32", "decomposes", "decomposes", 0.06, 48),
    ("aten::nonzero", "bool", "decomposes_with_sync", "decomposes_with_sync", 0.03, 16),
    ("aten::add.Tensor", "bfloat16", "native", "native", 0.03, 310),
)


def ident(number: int) -> str:
    return f"{number:016x}"


def make_trace(rows: Sequence[Row]) -> Trace:
    entries = tuple(
        TraceEntry(
            id=ident(number),
            signature=Signature(op=op, args=(TensorValue(shape=(2, 64), dtype=dtype, stride=(64, 1)),)),
            outputs=(),
            counts={"prefill": calls},
            module="layers.0.self_attn",
            source="modeling.py:120",
        )
        for number, (op, dtype, _, _, _, calls) in enumerate(rows)
    )
    return Trace(
        model=ModelInfo(
            source="toy",
            overrides={"num_layers": "4"},
            dtype="bfloat16",
            class_name="ToyModel",
            parameters=1_204_224,
            parameter_bytes=2_408_448,
            fingerprint="sha256:" + "ab" * 32,
        ),
        mode="meta",
        mode_reason="asked for",
        device="meta",
        phases=(
            PhaseInfo(name="prefill", batch=2, tokens=24, context=0, calls=sum(row[5] for row in rows)),
            PhaseInfo(name="decode", batch=2, tokens=1, context=24, calls=762, reason="one token after the prompt"),
        ),
        entries=entries,
    )


def make_inventory(rows: Sequence[Row]) -> Inventory:
    return Inventory(
        device="sim",
        model="toy",
        entries=tuple(
            InventoryEntry(
                id=ident(number),
                op=op,
                dtypes=(dtype,),
                shapes=f"{dtype}[2, 64]",
                verdict=verdict,
                device_verdict=own,
                reason=f"the profile lacks {op}" if own == "missing" else "registered for the device",
                evidence="static",
                calls=calls,
                phases=("prefill",),
                module="layers.0.self_attn",
                source="modeling.py:120",
                share=share,
            )
            for number, (op, dtype, verdict, own, share, calls) in enumerate(rows)
        ),
        roofline_seconds=0.012,
    )


def make_identity(op: str, name: str) -> Identity:
    return Identity(operator=op, contract=1, namespace="kimi/k3.1", id=name, version="1.0")


def make_lock(rows: Sequence[Row], *, open_ops: tuple[str, ...] = (), fallback_ops: tuple[str, ...] = ()) -> Lock:
    lacking = [(number, row) for number, row in enumerate(rows) if row[3] == "missing"]
    return Lock(
        device="sim",
        namespace="kimi/k3.1",
        model="sha256:" + "ab" * 32,
        entries=tuple(
            LockEntry(
                operator=row[0],
                dtypes=(row[1],),
                signatures=(ident(number),),
                identity=make_identity(row[0], "cpu_fallback" if row[0] in fallback_ops else "composed"),
                kind="cpu_fallback" if row[0] in fallback_ops else "decomposition",
                source_hash="sha256:" + "cd" * 32,
                origin="kernels/torch/composed.py:10",
                decisions=(
                    Decision(candidate="fast", accepted=False, reason="takes bfloat16, not int32"),
                    Decision(candidate="composed", accepted=True, reason="built from operators that the device has"),
                ),
            )
            for number, row in lacking
            if row[0] not in open_ops
        ),
        gaps=tuple(
            Gap(
                operator=row[0],
                dtypes=(row[1],),
                signatures=(ident(number),),
                calls=row[5],
                module="layers.2.mlp",
                reason=f"the profile lacks {row[0]}",
                decisions=(Decision(candidate="cpu_fallback", accepted=False, reason="the plan says fallback: none"),),
            )
            for number, row in lacking
            if row[0] in open_ops
        ),
    )


def make_case(number: int, row: Row, status: CaseStatus = "pass", regime: str = "ordinary") -> CaseResult:
    measured = status in ("pass", "fail", "fell_back")
    return CaseResult(
        case=f"{ident(number)}-{regime}-0",
        signature=ident(number),
        op=row[0],
        shapes=f"{row[1]}[2, 64]",
        implementation=str(make_identity(row[0], "composed")) if row[3] == "missing" else "native",
        regime=regime,
        seed=0,
        status=status,
        rule="relative_l2" if measured else "ran",
        reason="" if status == "pass" else f"{status} for a reason",
        golden="float64 on cpu" if measured else "",
        error=(0.04 if status == "fail" else 0.002 + number * 1e-4) if measured else None,
        yardstick=0.0019 if measured else None,
        limit=0.0057 if measured else None,
        worst_index=(1, 7) if status == "fail" else None,
        worst_got="0.5" if status == "fail" else "",
        worst_expected="0.25" if status == "fail" else "",
        reproducer="evidence/repro/1" if status == "fail" else "",
    )


def make_numerics(
    rows: Sequence[Row], lock: Lock, statuses: dict[str, CaseStatus] | None = None, *, seed: int = 0
) -> NumericsReport:
    special = statuses or {}
    cases = tuple(make_case(number, row, special.get(row[0], "pass")) for number, row in enumerate(rows))
    return NumericsReport(device="sim", lock=body_hash(lock), seed=seed, cases=cases)


def make_canary(lock: Lock, *, broken: str = "") -> CanaryReport:
    stages: list[StageResult] = []
    for name, title in (("load", "load"), ("one_layer", "one layer of each kind"), ("generate", "generate, greedy")):
        if broken and any(stage.status == "fail" for stage in stages):
            stages.append(StageResult(name=name, title=title, status="skipped", reason=f"stage {broken} failed"))
            continue
        passed = name != broken
        gate = GateResult(
            metric="worst_error",
            rule="<=",
            limit=0.01,
            value=0.002 if passed else 0.3,
            verdict="successful" if passed else "failed",
            passed=passed,
            reason="" if passed else "worst_error is 0.3, the gate is <= 0.01",
        )
        stages.append(
            StageResult(
                name=name,
                title=title,
                status="pass" if passed else "fail",
                reason=gate.reason,
                gates=(gate,),
                metrics={"worst_error": gate.value or 0.0, "tokens": 12.0},
                receipts=tuple(
                    Receipt(
                        identity=str(entry.identity), operator=entry.operator, kind=entry.kind, device="sim:0", calls=3
                    )
                    for entry in lock.entries
                ),
                evidence="" if passed else "evidence/one_layer",
            )
        )
    return CanaryReport(device="sim", lock=body_hash(lock), allow_unverified=False, stages=tuple(stages))


def make_bundle(rows: Sequence[Row] = ROWS) -> Bundle:
    """A run in which everything passed."""
    lock = make_lock(rows, fallback_ops=("aten::histc",))
    return Bundle(
        name="toy-on-sim",
        trace=make_trace(rows),
        inventory=make_inventory(rows),
        lock=lock,
        numerics=make_numerics(rows, lock, {"aten::histc": "fell_back"}),
        canary=make_canary(lock),
        environment={"torch": "2.13.0", "python": "3.11.2", "platform": "Linux"},
        hashes={"trace.json": "sha256:" + "01" * 32, "ops.lock": body_hash(lock)},
        run="runs/toy-on-sim",
    )


@pytest.fixture(scope="session")
def good() -> Bundle:
    return make_bundle()


@pytest.fixture(scope="session")
def failing() -> Bundle:
    """An open gap, a wrong kernel, a crash and a canary that stopped half way."""
    lock = make_lock(ROWS, open_ops=("aten::histc",))
    statuses: dict[str, CaseStatus] = {"aten::topk": "fail", "aten::bmm": "crashed", "aten::histc": "skipped"}
    return replace(
        make_bundle(),
        lock=lock,
        numerics=make_numerics(ROWS, lock, statuses),
        canary=make_canary(lock, broken="one_layer"),
    )


@pytest.fixture(scope="session")
def beside() -> Bundle:
    """A good run with everything beside the stages: warnings, speed, a soak, fit, a server, ranks."""
    return with_all(make_bundle())


@pytest.fixture(scope="session")
def incomplete() -> Bundle:
    return Bundle(name="toy-on-sim", trace=make_trace(ROWS), inventory=make_inventory(ROWS))


@pytest.fixture(scope="session")
def hostile() -> Bundle:
    """Hostile texts wherever a record has text."""
    text = " ".join(HOSTILE)
    rows: list[Row] = [(name, name, "missing", "missing", 0.1, 3) for name in HOSTILE]
    lock = make_lock(rows, open_ops=HOSTILE[::2])
    entries = tuple(one.model_copy(update={"origin": text, "source_hash": text}) for one in lock.entries)
    lock = lock.model_copy(update={"entries": entries, "namespace": text})
    numerics = make_numerics(rows, lock, dict.fromkeys(HOSTILE[::3], "fail"))
    cases = tuple(_poisoned(case, text) for case in numerics.cases)
    canary = make_canary(lock, broken="one_layer")
    stages = tuple(
        one.model_copy(
            update={
                "name": one.name + text,
                "title": text,
                "reason": text,
                "evidence": "../../x",
                "metrics": {text: 1.0},
            }
        )
        for one in canary.stages
    )
    trace = make_trace(rows)
    model = trace.model.model_copy(update={"class_name": text, "overrides": {text: text}})
    whole = Bundle(
        name=text,
        trace=trace.model_copy(update={"model": model}),
        inventory=make_inventory(rows),
        lock=lock,
        numerics=numerics.model_copy(update={"cases": cases}),
        canary=canary.model_copy(update={"stages": stages}),
        environment={text: text},
        hashes={text: text},
        damaged={"fit.json": text},
        run=text,
    )
    return with_all(whole, text, "../../x")


Pages = Callable[[str], str]


@pytest.fixture(scope="session")
def page_of(good: Bundle, failing: Bundle, incomplete: Bundle, hostile: Bundle, large: Bundle, beside: Bundle) -> Pages:
    """The page of a run by the run's name, drawn once for all tests."""
    runs = {
        "good": good,
        "failing": failing,
        "incomplete": incomplete,
        "hostile": hostile,
        "large": large,
        "beside": beside,
        "traced": replace(incomplete, inventory=None),
    }
    return cache(lambda name: render_html(runs[name]))


def _poisoned(case: CaseResult, text: str) -> CaseResult:
    return case.model_copy(
        update={
            "reason": text,
            "regime": text,
            "worst_got": text,
            "reproducer": "../../x",
            "golden": text,
            "shapes": text,
        }
    )


@pytest.fixture(scope="session")
def large() -> Bundle:
    """5,000 signatures, a third of them gaps, each with its own operator."""
    kinds: tuple[Verdict, ...] = ("native", "missing", "decomposes")
    rows: list[Row] = [
        (f"aten::operator_{n}", "bfloat16", kinds[n % 3], kinds[n % 3], 1 / 5000, 1 + n) for n in range(5000)
    ]
    lock = make_lock(rows, open_ops=tuple(row[0] for row in rows[:2500]))
    statuses: dict[str, CaseStatus] = {row[0]: "fail" for row in rows[::2]}
    return replace(make_bundle(rows), lock=lock, numerics=make_numerics(rows, lock, statuses), canary=make_canary(lock))
