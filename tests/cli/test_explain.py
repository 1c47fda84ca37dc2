from __future__ import annotations

import json
from pathlib import Path

import pytest

from day0.cli.explain import explain, ops_explain
from day0.cli.rundir import RunFolder
from day0.errors import Day0Error
from day0.records import Decision, Gap, Identity, Lock, LockEntry

TOPK = "aten::topk@1 "


def _decision(name: str, reason: str = "why it is good", *, accepted: bool = False) -> Decision:
    return Decision(candidate=f"{TOPK}{name}", accepted=accepted, reason=reason)


def _entry(chosen: str, kind: str, *decisions: Decision) -> LockEntry:
    namespace, _, rest = chosen.partition(":")
    name, _, version = rest.partition("==")
    return LockEntry.model_validate(
        {
            "operator": "aten::topk",
            "dtypes": ("bfloat16", "bfloat16", "int32"),
            "signatures": ("0" * 16,),
            "identity": Identity(operator="aten::topk", contract=1, namespace=namespace, id=name, version=version),
            "kind": kind,
            "source_hash": "sha256:1",
            "origin": "mine.py:3",
            "decisions": decisions,
        }
    )


KERNEL = _entry(
    "kimi/k3:fast==1.0",
    "kernel",
    _decision("kimi/k3.1:wide==2.0", "dimension -1 of self must be a multiple of 64, not 65 (bfloat16[2, 65])"),
    _decision("kimi/k3:fast==1.0", accepted=True),
    _decision("base:slow==1.0", f"{TOPK}kimi/k3:fast==1.0 comes first"),
    _decision("base:reference==1.0", f"{TOPK}kimi/k3:fast==1.0 comes first"),
)
REFERENCE = _entry(
    "base:reference==1.0",
    "reference",
    _decision("kimi/k3.1:wide==2.0", "takes at most 2 dimensions, not 3 (self)"),
    _decision("base:slow==1.0", "runs on cuda, not on sim"),
    _decision("base:reference==1.0", accepted=True),
)
GAP = Gap(
    operator="aten::histc.int",
    dtypes=(),
    signatures=("1" * 16, "2" * 16),
    calls=3,
    module="model",
    reason="no kernel",
    decisions=(Decision(candidate="cpu_fallback", accepted=False, reason="the plan says fallback: none"),),
)


def _lock(*entries: LockEntry, gaps: tuple[Gap, ...] = ()) -> Lock:
    return Lock(device="sim", namespace="kimi/k3.1", model="m", entries=entries, gaps=gaps)


def test_every_candidate_in_order_with_what_ruled_it_out() -> None:
    (one,) = explain(_lock(KERNEL))
    assert [(it.name, it.outcome) for it in one.candidates] == [
        ("kimi/k3.1:wide==2.0", "refused"),
        ("kimi/k3:fast==1.0", "chosen"),
        ("base:slow==1.0", "comes later"),
        ("base:reference==1.0", "comes later"),
    ]
    assert "multiple of 64, not 65" in one.candidates[0].reason
    assert one.candidates[2].reason == "takes these calls too"
    assert one.candidates[3].reason.startswith("not asked")
    assert one.why == ""


def test_why_the_reference_ran() -> None:
    (one,) = explain(_lock(REFERENCE))
    assert one.why == (
        "the reference runs: kimi/k3.1:wide==2.0 was refused, takes at most 2 dimensions, not 3 (self)"
        ", and 1 more were refused"
    )
    alone = REFERENCE.model_copy(update={"decisions": REFERENCE.decisions[2:]})
    assert explain(_lock(alone))[0].why == "the reference runs: nothing else on the search path implements it"


def test_a_gap_has_its_reasons_too_and_one_operator_can_be_asked_for() -> None:
    lock = _lock(KERNEL, gaps=(GAP,))
    assert [one.operator for one in explain(lock)] == ["aten::histc.int", "aten::topk"]
    for name in ("aten::histc", "aten::histc.int"):
        (one,) = explain(lock, name)
        assert (one.chosen, one.kind) == ("", "gap")
        assert one.why == "nothing runs: cpu_fallback was refused, the plan says fallback: none"
    with pytest.raises(Day0Error, match="nothing was decided on 'aten::topkk'") as caught:
        explain(lock, "aten::topkk")
    assert caught.value.hint.startswith("did you mean aten::topk")


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_screen(
    run_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    RunFolder(run_folder).write(_lock(KERNEL, REFERENCE, gaps=(GAP,)), inputs={}, environment={})
    assert ops_explain(name=None, run=run_folder, json=False) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= int(columns)
    assert "aten::topk  bfloat16 × 2, int32; 1 signature" in shown
    assert "→ kimi/k3:fast==1.0 (kernel)" in shown
    assert "→ nothing" in shown
    assert ops_explain(name="aten::histc", run=run_folder, json=True) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["operator"], row["kind"], row["candidates"][0]["outcome"]) == ("aten::histc.int", "gap", "refused")


def test_without_a_lock_the_hint_says_what_makes_one(run_folder: Path) -> None:
    with pytest.raises(Day0Error, match=r"there is no ops.lock yet") as caught:
        ops_explain(name=None, run=run_folder, json=False)
    assert "day0 register" in caught.value.hint
