"""`day0 trace inputs:FILE` and `day0 export-inputs`, from flags to the file and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from day0.cli.app import app

FEATURES = Path(__file__).resolve().parents[1] / "analyzers" / "every_feature.txt"
TEXT = """Operator: aten.mm.default
cnt: 3, ((T([8, 4], f32), T([4, 2], f32)), {})
Operator: aten.embedding.default
cnt: 2, ((T([10, 3], f32), T([2], i64)), {})
Operator: aten.no_such.default
cnt: 1, ((T([2], f32),), {})
"""


def day0(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def imported(run_folder: Path) -> Path:
    Path("in.txt").write_text(TEXT)
    done = day0("trace", "inputs:in.txt", "--run", run_folder)
    assert done.exit_code == 0, done.output
    assert "1 of 3 calls are in the text and not in the trace" in done.output
    assert "line 6: aten.no_such.default: torch" in done.output
    return run_folder


def test_a_run_without_a_device_has_a_status(imported: Path) -> None:
    done = day0("status", "--run", imported)
    assert done.exit_code == 1, done.output
    assert "no device was named yet" in done.output


def test_an_imported_text_goes_through_the_stages_that_need_no_model(imported: Path) -> None:
    for words in (("inventory", "--device", "sim"), ("register",), ("check",)):
        done = day0(*words, "--run", imported)
        assert done.exit_code == 0, done.output
    ran = json.loads((imported / "numerics.json").read_text())["body"]["cases"]
    assert {(one["op"], one["status"]) for one in ran} >= {("aten::mm", "pass"), ("aten::embedding", "pass")}
    done = day0("canary", "--run", imported)
    assert done.exit_code == 2
    assert "there is no model that could be run" in done.stderr
    assert "day0 trace hf:" in done.stderr
    assert day0("status", "--run", imported).exit_code == 1
    Path("in.txt").write_text(TEXT.replace("cnt: 3", "cnt: 4"))
    assert "changed since: model" in day0("status", "--run", imported).output


def test_the_text_comes_back_byte_for_byte(run_folder: Path) -> None:
    done = day0("trace", f"inputs:{FEATURES}", "--run", run_folder)
    assert done.exit_code == 0, done.output
    done = day0("export-inputs", "--run", run_folder, "--out", "out.txt")
    assert done.exit_code == 0, done.output
    assert Path("out.txt").read_bytes() == FEATURES.read_bytes()
    assert "byte for byte" in done.output
    told = day0("export-inputs", "--run", run_folder)
    assert told.stdout_bytes == FEATURES.read_bytes(), "without --out the text alone is on stdout"
    told = day0("export-inputs", "--run", run_folder, "--json")
    assert json.loads(told.stdout)["text"].encode() == FEATURES.read_bytes()


def test_a_trace_of_a_model_is_exported_and_what_is_lost_is_named(run_folder: Path) -> None:
    assert day0("trace", "toy", "--run", run_folder, "--phase", "prefill=4").exit_code == 0
    done = day0("export-inputs", "--run", run_folder, "--out", "toy.txt")
    assert done.exit_code == 0, done.output
    for words in ("storage offsets", "phases, modules", "strides of dimensions of size one"):
        assert words in done.output
    again = run_folder.parent / "again"
    assert day0("trace", "inputs:toy.txt", "--run", again).exit_code == 0
    assert day0("export-inputs", "--run", again, "--out", "again.txt").exit_code == 0
    assert Path("again.txt").read_bytes() == Path("toy.txt").read_bytes()
    Path("toy.txt").write_text("mine\n")
    done = day0("export-inputs", "--run", run_folder, "--out", "toy.txt")
    assert (done.exit_code, Path("toy.txt").read_text()) == (2, "mine\n")
    assert "says something else" in done.stderr and "--force" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("trace", "inputs:nowhere.txt"), "inputs:nowhere.txt: there is no such file"),
        (("trace", "inputs:bad.txt"), "bad.txt:2:18: 'f31' is no dtype"),
        (("trace", "inputs:in.txt", "--set", "a=1"), "has no config to change"),
        (("trace", "inputs:in.txt", "--phase", "prefill=4"), "has no phases"),
        (("trace", "inputs:"), "is of no known form"),
        (("export-inputs", "--run", "nowhere"), "there is no trace.json yet"),
    ],
)
def test_mistakes_are_told(run_folder: Path, words: tuple[str, ...], says: str) -> None:
    Path("in.txt").write_text(TEXT)
    Path("bad.txt").write_text("Operator: aten.relu.default\ncnt: 1, ((T([2], f31),), {})\n")
    done = day0(*words, *(() if "--run" in words else ("--run", run_folder)))
    assert done.exit_code == 2, done.output
    assert says in done.stderr
    assert "hint:" in done.stderr


@pytest.mark.parametrize(("out", "says"), [(".", "this is a folder"), ("no/where.txt", "no such folder")])
def test_places_that_cannot_be_written(imported: Path, out: str, says: str) -> None:
    done = day0("export-inputs", "--run", imported, "--out", out)
    assert done.exit_code == 2 and says in done.stderr
