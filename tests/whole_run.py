"""A run folder with every kind of file in it, in seconds: real trace, inventory and lock; the rest made by hand."""

from __future__ import annotations

from pathlib import Path

from day0.cli import commands
from day0.cli.canary_history import keep_history
from day0.cli.make import record_evidence
from day0.cli.report import write_report
from day0.cli.session import Session, environment
from day0.cli.stages import STAGES, inputs_of
from day0.codec import body_hash, encode
from day0.records import CanaryReport, CaseResult, Lock, LockEntry, NumericsReport, StageResult
from tests.canary_ready import session_of
from tests.golden.other_samples import endpoint, ranks

__all__ = ["KERNEL", "make_whole_run"]

KERNEL = """\
import torch
from day0.implementation import Implementation

IMPLEMENTATIONS = (
    Implementation(
        operator="aten::silu", contract=1, id="mine", version="1.0", kind="kernel",
        run=lambda x: x * torch.sigmoid(x), why="x times its sigmoid", devices=("sim",),
    ),
)
"""

FEW = ["num_hidden_layers=1", "mla_layers=[]", "vision=false"]
"""Of the toy: every record is read again by each test that changes a byte."""

REPRO = "repro/0123456789abcdef-ordinary-0"


def make_whole_run(run: Path, kernel: Path) -> None:
    """Make it, with a user's kernel, one failed case, a failed canary stage and a report."""
    kernel.write_text(KERNEL)
    commands.trace(
        model="toy", run=run, sets=FEW, dtype="float32", mode="auto", shrink=False, batch=1, phases=["prefill=4"],
        trust_remote_code=False, force=False, json=False,
    )  # fmt: skip
    commands.stage(name="inventory", run=run, force=False, json=False, device="sim")
    commands.stage(name="register", run=run, force=False, json=False, load=[kernel])
    session = session_of(run)
    _check(session)
    _canary(session)
    _others(run)
    write_report(session.folder, "whole")


def _write(session: Session, stage: str, record: NumericsReport | CanaryReport) -> None:
    one = next(one for one in STAGES if one.name == stage)
    session.folder.write(record, inputs=inputs_of(one, session), environment=session.environment)


def _check(session: Session) -> None:
    lock = session.folder.need(Lock).record
    good = [_case(entry) for entry in lock.entries]
    bad = good[0].model_copy(
        update={"case": "0123456789abcdef-ordinary-0", "implementation": "native", "status": "fail", "error": 0.5}
    )
    journal = "".join(f"{one.model_dump_json()}\n" for one in (*good, bad))
    key = '{"key": "sha256:' + "0" * 64 + '"}\n'
    session.folder.file("numerics.cases.jsonl").write_text(key + journal)
    cases = (*good, bad.model_copy(update={"reproducer": REPRO}))
    _write(session, "check", NumericsReport(device="sim", lock=body_hash(lock), seed=0, cases=cases))
    record_evidence(session)


def _case(entry: LockEntry) -> CaseResult:
    signature = entry.signatures[0]
    return CaseResult(
        case=f"{signature}-ordinary-0", signature=signature, op=entry.operator, shapes="float32[2, 8]",
        implementation=str(entry.identity), regime="ordinary", seed=0, status="pass", rule="relative_l2", reason="",
        golden="float64 on cpu", error=0.25, yardstick=0.25, limit=0.75, seconds=0.5,
    )  # fmt: skip


def _canary(session: Session) -> None:
    lock = body_hash(session.folder.need(Lock).record)
    stages = (
        StageResult(name="load", title="load", status="pass", reason=""),
        StageResult(name="one_op", title="one op", status="fail", reason="x", evidence="evidence/one_op"),
    )
    report = CanaryReport(device="sim", lock=lock, allow_unverified=False, stages=stages)
    # One that passed stands before it, so that there is a kept lock.
    _write(session, "canary", report.model_copy(update={"stages": stages[:1]}))
    keep_history(session)
    _write(session, "canary", report)
    keep_history(session)


def _others(run: Path) -> None:
    files = {
        "canary.trace.json": '{"traceEvents": []}\n',
        "canary.partial.json": (run / "canary.json").read_text(),
        "evidence/one_op/got.safetensors": "tensors",
        f"{REPRO}/case.json": '{"schema": "day0.repro/1"}\n',
        f"{REPRO}/inputs.safetensors": "tensors",
        "reference/all_layers-0.safetensors": "tensors",
        "endpoint.json": encode(endpoint(), inputs={}, environment=environment()),
        "endpoint.junit.xml": "<testsuites/>\n",
        "evidence/endpoint/00000.json": "{}\n",
        "ranks.json": encode(ranks(), inputs={}, environment=environment()),
        "ranks.junit.xml": "<testsuites/>\n",
    }
    for name, text in files.items():
        path = run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
