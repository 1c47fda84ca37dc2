"""`day0 ops export` and `day0 ops receipts` as they are typed."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from day0.cli.app import app
from day0.codec import encode
from tests.registry.export.conftest import KERNELS, lock_of


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """Return the user's file."""
    path = tmp_path / "mine.py"
    path.write_text(KERNELS, encoding="utf-8")
    return path


@pytest.fixture
def run(tmp_path: Path, kernels: Path) -> Path:
    """Return a run folder that holds a lock and nothing else."""
    folder = tmp_path / "run"
    folder.mkdir()
    lock = lock_of(kernels, "day0::rms_norm", "day0::gated_activation")
    (folder / "ops.lock").write_text(encode(lock, inputs={}, environment={}))
    return folder


def day0(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def export(run: Path, kernels: Path, tmp_path: Path) -> Callable[..., Result]:
    """Return what exports that lock."""
    common = ("--with", kernels, "--receipts", tmp_path / "receipts")
    return lambda *more: day0("ops", "export", "--to", "vllm", run, tmp_path / "dist", *common, *more)


def test_an_export_and_a_gate_without_receipts(export: Callable[..., Result], tmp_path: Path) -> None:
    done = export("--allow-unverified", "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["requires"] == ["day0==0.1.0"]
    assert facts["routes"][0] == {
        "identity": "day0::rms_norm@1 base:mine==1.0",
        "targets": ["RMSNorm", "hw_agnostic.RMSNorm"],
    }
    assert not (tmp_path / "receipts").exists()
    gate = day0("ops", "receipts", facts["wheel"], "--json")
    assert gate.exit_code == 1
    said = json.loads(gate.stdout)
    assert [one["status"] for one in said["entries"]] == ["inert", "inert"]
    assert day0("ops", "receipts", facts["wheel"], tmp_path / "mistyped").exit_code == 2
    shown = day0("ops", "receipts", facts["wheel"])
    assert "inert   day0::rms_norm@1 base:mine==1.0 (float32, float32)" in shown.output
    assert "2 of 2 locked implementations did not run everywhere that they should" in shown.output


def test_what_no_report_verified_is_refused_unless_told(export: Callable[..., Result], tmp_path: Path) -> None:
    done = export()
    assert done.exit_code == 2
    assert "day0::rms_norm@1 base:mine==1.0: no numerics report has verified it" in done.stderr
    assert "--allow-unverified" in done.stderr
    assert not (tmp_path / "dist").exists()


def test_a_skipped_operator_is_said_and_not_expected(export: Callable[..., Result], tmp_path: Path) -> None:
    done = export("--allow-unverified", "--skip", "day0::rms_norm")
    assert done.exit_code == 0
    assert "left to the engine by --skip" in done.output
    (tmp_path / "receipts").mkdir()
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    gate = day0("ops", "receipts", wheel, "--json")
    assert [one["identity"] for one in json.loads(gate.stdout)["entries"]] == [
        "day0::gated_activation@1 base:mine==1.0"
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ops", "export", "--to", "vllm", "nowhere", "dist"), "there is no such lock"),
        (("ops", "receipts", "nowhere"), "there is no such lock"),
        (("ops", "receipts", "no.whl"), "this is no plugin of ours"),
        (("ops", "receipts", "zero.whl"), "this is no plugin of ours"),
        (("ops", "receipts", "zero.whl", "none"), "this is no plugin of ours"),
    ],
)
def test_bad_input_is_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zero.whl").write_bytes(b"")
    done = day0(*words)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "Traceback" not in done.output


def test_a_lock_does_not_know_where_receipts_are(run: Path) -> None:
    done = day0("ops", "receipts", run)
    assert done.exit_code == 2
    assert "a lock does not say where receipts are written" in done.stderr


def test_an_aten_operator_that_was_locked_for_the_simulated_device_is_refused(tmp_path: Path, kernels: Path) -> None:
    lock = lock_of(kernels, "aten::erfinv").model_copy(update={"device": "sim"})
    path = tmp_path / "ops.lock"
    path.write_text(encode(lock, inputs={}, environment={}))
    words = ("--with", kernels, "--allow-unverified")
    done = day0("ops", "export", "--to", "vllm", path, tmp_path / "dist", *words)
    assert done.exit_code == 2
    assert "aten::erfinv was locked for sim, the simulated device, which no engine runs on" in done.stderr


@pytest.mark.parametrize("change", [{"schema": "day0.export/9"}, {"entries": 3}, {"entries": [{"identity": 1}]}])
def test_a_wheel_whose_manifest_is_none_of_ours_is_refused(
    export: Callable[..., Result], tmp_path: Path, change: dict[str, object]
) -> None:
    export("--allow-unverified")
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    other = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("MANIFEST.json"):
                data = json.dumps({**json.loads(data), **change}).encode()
            new.writestr(name, data)
    done = day0("ops", "receipts", other)
    assert done.exit_code == 2
    assert "its MANIFEST.json is none of ours" in done.stderr
