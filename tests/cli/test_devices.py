"""`day0 device probe`, `list`, `show` and `schema`, from flags to the file and the exit code."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from day0.cli.app import app
from day0.devices.profile import load_profile
from tests.started import quick_starts

PLANTED = Path(__file__).resolve().parents[1] / "devices" / "planted.py"


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Workers that import nothing: tests/devices/test_probe.py has one that is spawned."""
    with quick_starts():
        yield


def _call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["device", *map(str, arguments)])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Return a trace of two operators: one that is planted, one that is not."""
    from day0.codec import encode
    from day0.devices.probe_suite import suite
    from day0.records import ModelInfo, Trace, TraceEntry
    from day0.reference_ops.signatures import signature_id

    chosen = [one for one in suite() if one.op in ("aten::sin", "aten::neg")]
    model = ModelInfo(source="toy", dtype="float32", class_name="T", parameters=0, parameter_bytes=0, fingerprint="x")
    entries = tuple(TraceEntry(id=signature_id(one), signature=one, outputs=(), counts={"p": 1}) for one in chosen)
    record = Trace(model=model, mode="meta", mode_reason="", device="meta", phases=(), entries=entries)
    path = tmp_path / "trace.json"
    path.write_text(encode(record, inputs={}, environment={}))
    return path


def test_probe_writes_a_profile_from_the_toys_calls(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    done = _call("probe", "--device", "sim", "--no-suite", "--out", path)
    assert done.exit_code == 0, done.output
    assert "calls:" in done.output
    made = load_profile(str(path))
    assert {"aten::silu", "aten::rsqrt"} <= set(made.lacks)
    assert made.probed is not None
    assert made.probed.calls > 100


def test_what_probe_wrote_probe_may_write_again(tmp_path: Path, trace: Path) -> None:
    for _ in range(2):
        done = _call("probe", "--device", "null", "--trace", trace, "--no-suite", "--out", tmp_path / "mine.yaml")
        assert done.exit_code == 0, done.output


@pytest.mark.slow  # tests/devices/test_probe.py has planted crashes each time
def test_probe_by_a_trace_records_a_planted_crash(tmp_path: Path, trace: Path) -> None:
    path = tmp_path / "mine.yaml"
    words = ("probe", "--device", "null", "--trace", trace, "--no-suite", "--import", PLANTED, "--out", path, "--json")
    done = _call(*words)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["restarts"] == len(told["calls"]) > 0
    assert {one["status"] for one in told["calls"]} == {"crashed"}
    assert told["lacks"]["aten::sin"]["effect"] == "crashes"
    assert load_profile(str(path)).lacks["aten::sin"].effect == "crashes"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--device", "simm"), "device 'simm': there is no such profile"),
        (("--device", "sim", "--trace", "nowhere"), "--trace nowhere: there is no such trace"),
        (("--device", "sim", "--import", "no_such_module"), "--import no_such_module: ModuleNotFoundError"),
        (("--device", "sim", "--out", "own.yaml"), "--out own.yaml: this file is there and was not written by probe"),
        (("--device", "sim", "--out", "."), "--out .: this is a folder"),
        (("--device", "sim", "--out", "no/where.yaml"), "there is no folder"),
        (
            (
                "--device",
                "s5000",
            ),
            "import_module 'torch_musa' is not installed",
        ),
    ],
)
def test_mistakes_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text("name: mine\n")
    done = _call("probe", "--no-suite", *words)
    assert done.exit_code == 2, done.output
    assert says in done.stderr
    assert "hint:" in done.stderr


def test_list_show_and_schema() -> None:
    assert "sim-strict" in _call("list").output
    assert "aten::topk" in _call("show", "sim").output
    assert json.loads(_call("show", "s5000", "--json").stdout)["basis"]["memory_gib"]["evidence"] == "claimed"
    assert json.loads(_call("schema").stdout)["title"] == "day0 device profile"


def test_a_folder_that_cannot_be_written_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("day0.cli.devices.os.access", lambda path, mode: False)
    done = _call("probe", "--device", "cpu", "--out", tmp_path / "x.yaml")
    assert done.exit_code == 2
    assert "nothing can be written into" in done.output
