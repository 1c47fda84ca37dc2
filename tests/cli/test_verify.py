"""`day0 report verify`: one byte in any file is found and named; what cannot be checked is said."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from day0.cli.app import app
from day0.cli.rundir import RunFolder
from day0.cli.talk import Talk
from day0.cli.verify import verify_folder
from day0.codec import decode, encode
from day0.records import NumericsReport, Trace, VerifyReport
from tests.whole_run import KERNEL, REPRO, make_whole_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    make_whole_run(folder / "run", folder / "my_kernels.py")
    return folder / "run"


@pytest.fixture
def run(made: Path, run_folder: Path) -> Path:
    """Return a copy of it, for one test to change."""
    shutil.copytree(made, run_folder)
    return run_folder


def verify(run: Path) -> VerifyReport:
    """Verify without building the command line, which takes longer than the work."""
    return verify_folder(RunFolder(run), Talk(as_json=True))[0]


def day0(run: Path, *flags: str) -> Result:
    return CliRunner().invoke(app, ["report", "verify", "--run", str(run), *flags])


def flip(path: Path, needle: str) -> None:
    """Change the lowest bit of the byte that follows a text."""
    data = path.read_bytes()
    at = data.index(needle.encode()) + len(needle.encode())
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def test_a_run_that_nobody_touched(run: Path) -> None:
    done = day0(run, "--json")
    assert done.exit_code == 0, done.output
    found = decode(VerifyReport, done.stdout, where="", remake="").record
    assert found.problems == ()
    assert found.unchecked == (
        f"namespaces that files of your own declare, which would have to be run: {_kernel_of(run)}",
    )
    assert set(found.checked) == {
        "records by the hash of their body",
        "hashes that a record notes of its inputs",
        "sources of locked implementations",
        "cases in numerics.cases.jsonl",
        "lines of canary_history.jsonl",
        "kept locks",
        "files that records name",
        "reports by the hash of their body",
        "files by their hash in the report's manifest",
    }
    text = day0(run).output
    assert text.startswith("the evidence of ")
    assert "  7 records by the hash of their body" in text


def _kernel_of(run: Path) -> str:
    plan = RunFolder(run).read_plan()
    assert plan is not None
    return plan.register_.load[0]


ANYWHERE = {
    # file: (text, the byte after which is changed, part that has to be named with the report, and without it)
    "trace.json": ('"parameters": ', "body.model", "body"),
    "inventory.json": ('"op": "', "body.entries", "body"),
    "ops.lock": ('"source_hash": "sha256:', "body.entries", "body"),
    "numerics.json": ('"error": 0.', "body.cases", "body"),
    "canary.json": ('"title": "', "body.stages", "body"),
    "plan.json": ('"reference_mib": ', "canary", "canary"),
    "numerics.cases.jsonl": ('"error":0.', "line 2, error", "line 2, error"),
    "canary_history.jsonl": ('"record": "sha256:', "", None),
    "endpoint.json": ('"endpoint": "', "body.endpoint", "body"),
    "ranks.json": ('"backend": "', "body.backend", "body"),
    "report/report.json": ('"model_class": "', "body.model_class", "body"),
    # Only the manifest vouches for these.
    "canary.partial.json": ('"title": "', "body.stages", None),
    "timing.json": ('"trace": ', "stages", None),
    "canary.prom": ("# ", "", None),
    "canary.trace.json": ('{"', "", None),
    "evidence/one_op/got.safetensors": ("te", "", None),
    "evidence/endpoint/00000.json": ("", "", None),
    f"{REPRO}/case.json": ('"schema": "', "schema", None),
    f"{REPRO}/inputs.safetensors": ("te", "", None),
    "reference/all_layers-0.safetensors": ("te", "", None),
    "endpoint.junit.xml": ("<", "", None),
    "ranks.junit.xml": ("<", "", None),
    "report/report.html": ("<title>", "", None),
    "report/report.md": ("#", "", None),
    "report/junit.xml": ("<testsuites", "", None),
    "report/annotations.txt": ("::", "", None),
    "report/gitlab.json": ("{", "", None),
    "report/summary.md": ("##", "", None),
    "report/manifest.json": ('"sha256": "sha256:', "", None),
}


def test_every_kind_of_file_is_tried(run: Path) -> None:
    present = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    locks = {name for name in present if name.startswith("locks/")}
    assert len(locks) == 1
    assert present - locks - {".held"} == set(ANYWHERE)


@pytest.mark.parametrize("file", ANYWHERE)
def test_one_byte_in_any_file_is_named(run: Path, file: str) -> None:
    needle, part, _ = ANYWHERE[file]
    flip(run / file, needle)
    found = verify(run)
    assert file in {one.file for one in found.problems}, found.problems
    if part:
        assert part in {one.field for one in found.problems if one.file == file}, found.problems
    blamed = {one.file for one in found.problems}
    # A changed reason does not make its neighbours guilty; a changed history or lock does concern its other half.
    assert blamed <= {file, "canary_history.jsonl", "report/report.json"}, found.problems


@pytest.mark.parametrize("file", [name for name, (_, _, alone) in ANYWHERE.items() if alone is not None])
def test_records_are_checked_without_a_report_too(run: Path, file: str) -> None:
    needle, _, part = ANYWHERE[file]
    if not file.startswith("report/"):
        shutil.rmtree(run / "report")
    else:
        (run / "report/manifest.json").unlink()
    flip(run / file, needle)
    found = verify(run)
    mine = [one for one in found.problems if one.file == file]
    assert mine, found.problems
    assert not part or part in {one.field for one in mine}, mine


def test_the_command_ends_with_1_and_says_where(run: Path) -> None:
    flip(run / "numerics.cases.jsonl", '"error":0.')
    done = day0(run)
    assert done.exit_code == 1
    assert "problems in 1 file of" in done.output
    assert "line 2, error" in done.output
    assert json.loads(day0(run, "--json").stdout)["body"]["problems"]


def test_a_history_that_ends_with_another_canary_is_found_without_a_report(run: Path) -> None:
    shutil.rmtree(run / "report")
    path = run / "canary_history.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    found = verify(run)
    assert [(one.file, one.field) for one in found.problems] == [("canary_history.jsonl", "record")]


def test_kept_locks_are_checked(run: Path) -> None:
    (lock,) = (run / "locks").iterdir()
    flip(lock, '"source_hash": "sha256:')
    found = verify(run)
    assert {one.file for one in found.problems} == {f"locks/{lock.name}"}
    assert "body" in {one.field for one in found.problems}


@pytest.mark.parametrize(
    ("file", "needle", "part"),
    [
        ("trace.json", '"torch": "', "environment"),
        ("canary.json", '"platform": "', "environment"),
        ("canary.json", '"register": "sha256:', "inputs.register"),
        ("inventory.json", '"made_by": "', "made_by"),
        ("ops.lock", '"schema": "', "schema"),
        ("numerics.json", '"sha256": "sha256:', "body"),
        ("trace.json", "{\n", ""),
    ],
)
def test_what_is_no_body_is_covered_too(run: Path, file: str, needle: str, part: str) -> None:
    flip(run / file, needle)
    found = verify(run)
    assert file in {one.file for one in found.problems}
    assert not part or any(one.field.startswith(part) for one in found.problems if one.file == file), found.problems


def test_other_whitespace_is_found_without_a_report(run: Path) -> None:
    shutil.rmtree(run / "report")
    path = run / "canary.json"
    path.write_text(path.read_text().replace('"body": {', '"body":  {'))
    found = verify(run)
    assert [(one.file, one.field[:5]) for one in found.problems] == [("canary.json", "line ")]


def test_missing_and_additional_files_are_named(run: Path) -> None:
    (run / "reference/all_layers-0.safetensors").unlink()
    shutil.rmtree(run / "evidence/one_op")
    (run / "notes.txt").write_text("x")
    (run / "leads_out").symlink_to("/etc/passwd")
    os.mkfifo(run / "pipe.json")
    found = verify(run)
    said = {one.file: one.what for one in found.problems}
    assert said["reference/all_layers-0.safetensors"] == "missing: it was there when the report was written"
    assert said["evidence/one_op"] == "missing: canary.json names it (body.stages.1.evidence)"
    for name in ("notes.txt", "leads_out", "pipe.json"):
        assert said[name] == "additional: it was not there when the report was written"


def test_a_pipe_in_the_place_of_a_record_is_not_waited_for(run: Path) -> None:
    (run / "trace.json").unlink()
    os.mkfifo(run / "trace.json")
    found = verify(run)
    assert "this is no plain file, and reading it may never end" in {
        one.what for one in found.problems if one.file == "trace.json"
    }


def test_a_record_of_another_run_is_named_by_who_was_made_from_it(run: Path) -> None:
    found = decode(Trace, (run / "trace.json").read_text(), where="", remake="")
    record = found.record.model_copy(update={"mode_reason": "another"})
    (run / "trace.json").write_text(encode(record, inputs=found.inputs, environment=found.environment))
    shutil.rmtree(run / "report")
    told = verify(run)
    assert [(one.file, one.field) for one in told.problems] == [
        (name, "inputs.trace") for name in ("canary.json", "inventory.json", "numerics.json", "ops.lock")
    ]


def test_a_case_that_was_made_to_pass_is_found_by_its_journal(run: Path) -> None:
    found = decode(NumericsReport, (run / "numerics.json").read_text(), where="", remake="")
    cases = tuple(
        one.model_copy(update={"status": "pass", "error": 0.25}) if one.status == "fail" else one
        for one in found.record.cases
    )
    record = found.record.model_copy(update={"cases": cases})
    (run / "numerics.json").write_text(encode(record, inputs=found.inputs, environment=found.environment))
    shutil.rmtree(run / "report")
    told = verify(run)
    last = len(cases) + 1
    assert {(one.file, one.field) for one in told.problems if "jsonl" in one.file} == {
        ("numerics.cases.jsonl", f"line {last}, status"),
        ("numerics.cases.jsonl", f"line {last}, error"),
    }


def test_a_changed_kernel_is_named_and_a_moved_one_is_said(run: Path) -> None:
    kernel = Path(_kernel_of(run))
    try:
        kernel.write_text(KERNEL.replace("why", "why ", 1))
        found = verify(run)
        (one,) = found.problems
        assert one.file == "ops.lock"
        assert "aten::silu@1 base:mine==1.0" in one.field
        kernel.unlink()
        found = verify(run)
        assert found.problems == (), "what has moved was not changed"
        assert any(text.startswith("the source of aten::silu@1 base:mine==1.0") for text in found.unchecked)
    finally:
        kernel.write_text(KERNEL)


def test_a_foreign_folder_runs_nothing(run: Path) -> None:
    kernel, proof = Path(_kernel_of(run)), run.parent / "it_ran"
    try:
        kernel.write_text(f"from pathlib import Path\nPath({str(proof)!r}).touch()\n")
        verify(run)
        assert not proof.exists()
    finally:
        kernel.write_text(KERNEL)


def test_a_folder_without_a_report_says_what_that_costs(run: Path) -> None:
    shutil.rmtree(run / "report")
    found = verify(run)
    assert found.problems == ()
    assert any("no report was written yet" in text for text in found.unchecked)


def test_a_report_without_its_manifest_is_no_report(run: Path) -> None:
    (run / "report/manifest.json").unlink()
    found = verify(run)
    assert [one.file for one in found.problems] == ["report/manifest.json"]


@pytest.mark.parametrize("text", ["", "\xff", "[" * 10_000])
@pytest.mark.parametrize("file", ["trace.json", "plan.json", "report/manifest.json"])
def test_half_written_files_are_named_and_no_traceback_is_shown(run: Path, file: str, text: str) -> None:
    (run / file).write_bytes(text.encode("latin-1"))
    found = verify(run)
    assert file in {one.file for one in found.problems}


def test_hostile_names_lead_nowhere(run: Path) -> None:
    line = json.loads((run / "canary_history.jsonl").read_text().splitlines()[0])
    hostile = [{**line, "file": "../../../etc/passwd"}, {**line, "file": "\x1b[31m/x"}, {**line, "file": "/dev/zero"}]
    with (run / "canary_history.jsonl").open("a") as file:
        file.writelines(json.dumps(one) + "\n" for one in hostile)
    found = verify(run)
    assert sum("is not below the run folder" in one.what for one in found.problems) == 3
    assert "\x1b" not in day0(run).output


def test_where_there_is_nothing_to_verify(run_folder: Path) -> None:
    run_folder.mkdir(parents=True)
    done = day0(run_folder)
    assert done.exit_code == 2
    assert "this is not a run folder" in done.stderr
