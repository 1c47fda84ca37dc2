"""`day0 fit` as a person calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from day0.cli.fit import fit
from day0.cli.rundir import RunFolder
from day0.codec import decode
from day0.errors import Day0Error
from day0.playbook import Playbook
from day0.records import FitReport

DEFAULTS: dict[str, Any] = {
    "model": "toy",
    "device": None,
    "memory_gib": 80.0,
    "format": "",
    "kv_format": "bf16",
    "index_format": "fp8",
    "workspace": None,
    "context": 512,
    "batch": 1,
    "chunk": 64,
    "layout": "",
    "cards": 0,
    "node": 8,
    "reserve": 0.1,
    "train": False,
    "sets": [],
    "trust_remote_code": False,
    "json": False,
}


def _fit(**changes: Any) -> int:
    return fit(**{**DEFAULTS, **changes})


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_first_line_is_the_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert _fit() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("needs 1 card of 80 GiB: tp=1 ep=1 pp=1 dp=1")
    assert lines[1].startswith("toy: 659.21 K parameters, 475.66 K active; 1 x 512 tokens")
    assert max(len(line.rstrip()) for line in lines) <= int(columns)
    text = "\n".join(lines)
    assert text.index("a card holds") < text.index("cache of a sequence") < text.index("what would help")


def test_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert _fit(json=True, model="toy", memory_gib=1.0) == 0
    captured = capsys.readouterr()
    found = decode(FitReport, captured.out, where="stdout", remake="").record
    assert json.loads(captured.out)["schema"] == "day0.fit/1"
    assert found.fits
    assert found.card is not None
    assert found.card.total + found.card.free == found.card.usable == int(0.9 * (1 << 30))
    assert "needs 1 card" in captured.err


def test_a_layout_that_is_too_small_is_a_failed_gate(capsys: pytest.CaptureFixture[str]) -> None:
    assert _fit(layout="tp=1", memory_gib=0.001) == 1
    assert capsys.readouterr().out.startswith("does not fit on 1 card of 0.001 GiB")


def test_a_device_without_four_bits_gets_a_workspace(capsys: pytest.CaptureFixture[str]) -> None:
    assert _fit(device="s5000", memory_gib=None, json=True) == 0
    found = decode(FitReport, capsys.readouterr().out, where="stdout", remake="").record
    assert found.card is not None
    assert (found.device, found.card.workspace_format) == ("s5000", "fp8")
    assert found.card.workspace > 0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"memory_gib": 0.0}, "0 GiB is no card"),
        ({"memory_gib": float("nan")}, "nan GiB is no card"),
        ({"device": "s5000"}, "--memory-gib says 80"),
        ({"kv_format": "fp9"}, "--kv-format fp9: there is no such format"),
        ({"sets": ["num_hidden_layers=1000000"]}, "1,000,000 is more than 4,096"),
        ({"model": "hf:deepseek_v32", "sets": ["n_routed_experts=1000000000000"]}, "1,000,000,000,000 is more than"),
        ({"sets": ["hidden_size=" + "9" * 40]}, "which no model has"),
        ({"model": "kimi-k3"}, "there is no such description"),
        ({"memory_gib": 1e-10}, "1e-10 GiB is no card"),
        ({"format": "experts=mxfp4,experts=fp8"}, "experts stands twice"),
    ],
)
def test_bad_input(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(Day0Error, match=text):
        _fit(**changes)


def test_a_description_of_ones_own(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("schema: day0.model/1\nname: mine\ntitle: mine\nsource: toy\nset: {n_experts: 12}\n")
    assert _fit(model=str(path)) == 0
    path.write_text("schema: day0.model/1\nname: mine\ntitle: mine\nsource: toy\nsets: {n_experts: 12}\n")
    with pytest.raises(Day0Error, match="there is no such field 'sets'"):
        _fit(model=str(path))


def test_a_model_with_its_own_inputs_is_measured_by_its_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import torch\ndef make():\n    return torch.nn.Linear(8, 4), (torch.zeros(2, 8),)\n")
    assert _fit(model=f"py:{file}:make", json=True) == 0
    found = decode(FitReport, capsys.readouterr().out, where="-", remake="").record
    assert (found.fits, found.weight_bytes) == (True, (8 * 4 + 4) * 4)
    assert _fit(model=f"py:{file}:make", layout="tp=1") == 0
    with pytest.raises(Day0Error, match="brings its own inputs"):
        _fit(model=f"py:{file}:make", train=True)


def test_a_run_folder_gets_the_record_of_its_model(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    asked = {"schema": "day0.playbook/1", "name": "x", "model": {"source": "toy"}, "device": "sim"}
    folder.write_plan(Playbook.model_validate(asked))
    assert _fit(model=None, memory_gib=None, run=tmp_path) == 0
    text = (tmp_path / "fit.json").read_text(encoding="utf-8")
    found = decode(FitReport, text, where="fit.json", remake="").record
    assert (found.model, found.device, found.memory_bytes) == ("toy", "sim", 16 << 30)


def test_a_run_folder_and_a_model_are_not_named_together(tmp_path: Path) -> None:
    with pytest.raises(Day0Error, match="toy was named beside a run folder"):
        _fit(run=tmp_path)
    with pytest.raises(Day0Error, match="there is no trace yet"):
        _fit(model=None, run=tmp_path)
    with pytest.raises(Day0Error, match="no model was named"):
        _fit(model=None)
