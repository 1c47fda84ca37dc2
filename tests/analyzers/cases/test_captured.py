"""Real values: kept by a trace, read by the check, and refused with a reason where they are missing or damaged."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from day0.analyzers.cases.captured import FOLDER, find_captured, index_hash
from day0.analyzers.cases.case import Case, CaseInputs, Unfillable
from day0.analyzers.cases.fill import make_inputs
from day0.analyzers.cases.plan import plan_cases
from day0.analyzers.recorder import Recorder
from day0.analyzers.recording import keeping as module
from day0.analyzers.recording.keeping import INDEX, keeping
from day0.errors import Day0Error
from day0.playbook import CheckPlan
from day0.records import ModelInfo, Signature, Trace

VALUES = torch.tensor([[3.5, -1.0, 0.25], [7.0, 2.0, -8.0]])


def _record(folder: Path) -> tuple[str, Signature]:
    """Trace one call on real values and keep them; return the id of its signature and the signature."""
    with keeping(folder / FOLDER):
        recorder = Recorder()
        recorder.phase = "prefill"
        with recorder:
            torch.sigmoid(VALUES.t())
        (entry,) = [one for one in recorder.entries() if one.signature.op == "aten::sigmoid"]
    return entry.id, entry.signature


def _case(folder: Path) -> Case:
    name, signature = _record(folder)
    return Case(signature_id=name, signature=signature, regime="captured", seed=0, captured=find_captured(folder)[name])


def test_a_case_has_the_values_and_the_layout_of_the_traced_call(tmp_path: Path) -> None:
    inputs = make_inputs(_case(tmp_path), None)
    assert isinstance(inputs, CaseInputs)
    (tensor,) = inputs.args
    assert torch.equal(tensor, VALUES.t())
    assert tensor.stride() == (1, 3)


def test_what_an_operator_writes_to_is_kept_as_it_was_before(tmp_path: Path) -> None:
    value = torch.ones(3)
    with keeping(tmp_path / FOLDER):
        recorder = Recorder()
        with recorder:
            value.add_(1.0)
        (entry,) = recorder.entries()
    case = Case(
        signature_id=entry.id,
        signature=entry.signature,
        regime="captured",
        seed=0,
        captured=find_captured(tmp_path)[entry.id],
    )
    inputs = make_inputs(case, None)
    assert isinstance(inputs, CaseInputs)
    assert inputs.args[0].tolist() == [1.0, 1.0, 1.0]


def test_the_plan_names_a_case_for_each_file(tmp_path: Path) -> None:
    name, signature = _record(tmp_path)
    trace = _trace(name, signature)
    plan = CheckPlan(derived=False, regimes=("ordinary",))
    assert [case.key for case in plan_cases(trace, plan, find_captured(tmp_path))] == [
        f"{name}-ordinary-0",
        f"{name}-captured-0",
    ]


def _trace(name: str, signature: Signature) -> Trace:
    entry = {"id": name, "signature": signature, "outputs": (), "counts": {"prefill": 1}}
    model = ModelInfo(
        source="toy", dtype="float32", class_name="Toy", parameters=1, parameter_bytes=4, fingerprint="sha256:0"
    )
    return Trace.model_validate(
        {
            "model": model,
            "mode": "real",
            "mode_reason": "asked for",
            "device": "cpu",
            "phases": (),
            "entries": (entry,),
        }
    )


def test_a_file_that_is_gone_cut_off_or_changed_is_said(tmp_path: Path) -> None:
    case = _case(tmp_path)
    path = tmp_path / FOLDER / f"{case.signature_id}.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert _reason(case).endswith("the captured values are not those that were written: their hash differs")
    path.write_bytes(whole.replace(whole[-4:], b"\0\0\0\0"))
    assert "hash differs" in _reason(case)
    path.unlink()
    assert _reason(case).endswith("the captured values cannot be read: No such file or directory")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"no safetensors at all", "the captured values are damaged"),
        (save({"0": torch.zeros(2, 3)}), "tensor 0 was not captured, or has another shape or dtype"),
        (save({"0": torch.zeros(3, 2, dtype=torch.int32)}), "tensor 0 was not captured, or has another shape or dtype"),
        (save({"1": torch.zeros(3, 2)}), "tensor 0 was not captured, or has another shape or dtype"),
    ],
)
def test_a_file_of_somebody_else_is_refused_even_with_its_hash(tmp_path: Path, data: bytes, reason: str) -> None:
    case = _case(tmp_path)
    path = tmp_path / FOLDER / f"{case.signature_id}.safetensors"
    path.write_bytes(data)
    forged = f"{path}#{hashlib.sha256(data).hexdigest()}"
    made = make_inputs(
        Case(signature_id="x", signature=case.signature, regime="captured", seed=0, captured=forged), None
    )
    assert isinstance(made, Unfillable)
    assert reason in made.reason


def _reason(case: Case) -> str:
    made = make_inputs(case, None)
    assert isinstance(made, Unfillable)
    return made.reason


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"files": 3}', json.dumps({"files": {"../../etc/passwd": "0"}}), "[" * 100_000]
)
def test_an_index_that_is_damaged_or_leads_elsewhere_is_the_users_to_repair(tmp_path: Path, text: str) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / INDEX).write_text(text)
    with pytest.raises(Day0Error) as caught:
        find_captured(tmp_path)
    assert caught.value.where == str(tmp_path / FOLDER / INDEX)
    assert caught.value.what.startswith("the index of captured values is damaged")
    assert "trace MODEL --capture --force" in str(caught.value.hint)


def test_what_does_not_fit_is_left_out_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CALL_BYTES", 8)
    name, _ = _record(tmp_path)
    assert find_captured(tmp_path) == {}
    index = json.loads((tmp_path / FOLDER / INDEX).read_text())
    assert index["left_out"][name] == "0.0 MiB do not fit into 0 MiB"


def test_a_trace_that_stops_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    _record(tmp_path)
    before = index_hash(tmp_path)
    with pytest.raises(RuntimeError), keeping(tmp_path / FOLDER):
        raise RuntimeError("the model stopped")
    assert index_hash(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == [FOLDER]


def test_nothing_captured_is_nothing_to_check(tmp_path: Path) -> None:
    assert find_captured(tmp_path) == {}
    assert index_hash(tmp_path) == ""
