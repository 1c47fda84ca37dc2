"""`day0 diff`: sides, exit codes, the first lines of the screen, `--json`, warnings."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from day0.cli.app import app
from day0.codec import decode, encode
from day0.records import Inventory, Trace


def day0(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run folder with a trace and an inventory of the toy, once for all tests here."""
    folder = tmp_path_factory.mktemp("diff") / "run"
    few = ("--set", "num_hidden_layers=1", "--set", "mla_layers=[]", "--set", "vision=false")
    done = day0("trace", "toy", *few, "--run", folder, "--phase", "prefill=4", "--phase", "decode=1@4")
    assert done.exit_code == 0, done.output
    assert day0("inventory", "--run", folder, "--device", "sim").exit_code == 0
    return folder


@pytest.fixture
def run(made: Path, run_folder: Path) -> Path:
    """Return a copy of it, for one test to change."""
    shutil.copytree(made, run_folder)
    return run_folder


@pytest.fixture
def worse(run: Path) -> Path:
    """Return a run folder in which one operator more is missing, made elsewhere."""
    folder = run.parent / "worse"
    folder.mkdir()
    (folder / "trace.json").write_bytes((run / "trace.json").read_bytes())
    text = (run / "inventory.json").read_text()
    found = decode(Inventory, text, where="", remake="")
    entries = tuple(
        one.model_copy(update={"verdict": "missing", "device_verdict": "missing"}) if one.op == "aten::mm" else one
        for one in found.record.entries
    )
    record = found.record.model_copy(update={"entries": entries})
    environment = {**found.environment, "torch": "9.9.9", "planted": "[bold]x"}
    (folder / "inventory.json").write_text(encode(record, inputs=found.inputs, environment=environment))
    return folder


def test_a_run_does_not_differ_from_itself(run: Path) -> None:
    done = day0("diff", run, run, "--gate")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("no difference")
    assert "careful" not in done.output


def test_what_is_worse_comes_first_and_is_a_regression(run: Path, worse: Path) -> None:
    done = day0("diff", run, worse)
    assert done.exit_code == 1, "one model on one device: what is worse is a regression"
    lines = done.output.splitlines()
    assert lines[0].startswith("1 worse, 0 better")
    assert done.output.index("inventory") < done.output.index("\ntrace"), "the part with something worse comes first"
    assert "worse new gap (1)" in done.output
    assert day0("diff", run, worse, "--no-gate").exit_code == 0
    assert day0("diff", worse, run).exit_code == 0, "closing a gap is no failure"
    assert day0("diff", run, worse, "--only", "trace").exit_code == 0


def test_another_model_or_device_differs_without_failing(run: Path, worse: Path) -> None:
    found = decode(Inventory, (worse / "inventory.json").read_text(), where="", remake="")
    record = found.record.model_copy(update={"device": "other"})
    (worse / "inventory.json").write_text(encode(record, inputs=found.inputs, environment=found.environment))
    done = day0("diff", run, worse)
    assert "1 worse" in done.output
    assert done.exit_code == 0, "two devices are compared, not two states of one"
    assert day0("diff", run, worse, "--gate").exit_code == 1


def test_markdown_and_html_say_the_same(run: Path, worse: Path) -> None:
    done = day0("diff", run, worse, "--format", "markdown")
    assert done.exit_code == 1
    assert done.stdout.startswith("# ")
    assert "**Worse: 1 change**" in done.stdout
    assert "| `aten::mm` | new gap |" in done.stdout
    done = day0("diff", run, worse, "--format", "html", "-o", "out/diff.html")
    assert done.exit_code == 1
    page = Path("out/diff.html").read_text()
    assert "<title>1 worse, 0 better" in page
    assert "<code>aten::mm</code>" in page
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")


@pytest.mark.parametrize("form", ["markdown", "html"])
def test_hostile_names_stay_text_in_every_format(run: Path, worse: Path, form: str) -> None:
    found = decode(Inventory, (worse / "inventory.json").read_text(), where="", remake="")
    hostile = "<script>alert(1)</script>\n# [x](javascript:y) | \x1b[31m `a` \u202e"
    entries = tuple(
        one.model_copy(update={"reason": hostile, "module": hostile, "op": hostile}) if one.op == "aten::mm" else one
        for one in found.record.entries
    )
    record = found.record.model_copy(update={"entries": entries})
    (worse / "inventory.json").write_text(encode(record, inputs=found.inputs, environment=found.environment))
    text = day0("diff", run, worse, "--format", form).stdout
    assert "alert(1)" in text
    assert all(char == "\n" or char.isprintable() for char in text)
    if form == "html":
        assert "<script>alert" not in text
    else:
        assert not [line for line in text.splitlines() if line.startswith("# [x]")]
        # In a code span or escaped: nothing of it is another column.
        tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
        assert any("alert(1)" in one for one in tables)
        for one in tables:
            assert len({line.replace("\\|", "").count("|") for line in one.splitlines()}) == 1


def test_another_environment_is_said(run: Path, worse: Path) -> None:
    said = " ".join(day0("diff", run, worse).output.split())
    assert "careful: torch" in said and "→ 9.9.9: operators and their kernels may differ" in said
    assert "planted none → [bold]x: a fault was planted on one side" in said, "names are text, not markup"


def test_json_is_on_stdout_alone(run: Path, worse: Path) -> None:
    done = day0("diff", run / "inventory.json", worse / "inventory.json", "--json", "--gate")
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert told["schema"] == "day0.diff/1"
    (part,) = told["parts"]
    assert [(one["kind"], one["effect"], one["subject"]) for one in part["changes"] if one["effect"] == "worse"] == [
        ("new gap", "worse", "aten::mm")
    ]
    assert any("9.9.9" in text for text in told["warnings"])


def test_a_record_that_was_made_from_another_one_is_told(run: Path, worse: Path) -> None:
    found = decode(Trace, (run / "trace.json").read_text(), where="", remake="")
    record = found.record.model_copy(update={"mode_reason": "another"})
    (worse / "trace.json").write_text(encode(record, inputs=found.inputs, environment=found.environment))
    said = " ".join(day0("diff", run, worse).output.split())
    assert "after: inventory.json was made from another trace" in said


def test_phases_of_one_run(run: Path) -> None:
    done = day0("diff", run, "--phases", "prefill", "decode")
    assert done.exit_code == 0, done.output
    assert "prefill 4 tokens after 0, decode 1 tokens after 4" in done.output
    assert "sizes (" in done.output
    told = json.loads(day0("diff", run, "--phases", "prefill", "decode", "--json").stdout)
    assert {one["kind"] for one in told["parts"][0]["changes"]} >= {"sizes"}


@pytest.mark.parametrize("columns", ["80", "120"])
def test_no_line_is_wider_than_the_terminal(run: Path, worse: Path, columns: str) -> None:
    for words in (("diff", run, worse), ("diff", run, "--phases", "prefill", "decode")):
        done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": columns})
        assert max(len(line) for line in done.output.splitlines()) <= int(columns)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("{run}",), "a second run or record is missing"),
        (("{run}", "nowhere"), "nowhere: there is no such run folder or record"),
        (("{run}", "."), "there is no record in this folder"),
        (("{run}", "other.json"), "other.json: this is no record of day0"),
        (("{run}", "{run}/plan.json"), "are not compared"),
        (("{run}/trace.json", "{run}/inventory.json"), "no kind of record in common"),
        (("{run}", "{run}", "--only", "traces"), "there is no such kind of record"),
        (("{run}", "{run}", "--phases", "a", "b"), "two phases of one trace"),
        (("{run}", "--phases", "prefill", "decoed"), "did you mean decode?"),
        (("{run}/inventory.json", "--phases", "prefill", "decode"), "there is no trace in it"),
        (("{run}", "deep.json"), "this is no record of day0"),
        (("{run}", "/dev/zero"), "this is no record"),
        (("{run}", "{run}", "--format", "pdf"), "there is no such format"),
        (("{run}", "{run}", "--format", "html", "--json"), "--json is a format of its own"),
        (("{run}", "{run}", "-o", "x"), "the terminal's text goes to no file"),
        (("{run}", "{run}", "--format", "html", "-o", "other.json/x.html"), "cannot be written"),
    ],
)
def test_mistakes_are_told(run: Path, words: tuple[str, ...], says: str) -> None:
    Path("other.json").write_text('{"schema": ["day0')
    Path("deep.json").write_text("[" * 100_000)
    done = day0("diff", *(word.format(run=run) for word in words))
    assert done.exit_code == 2, done.output
    assert says in done.stderr
    assert "hint:" in done.stderr
