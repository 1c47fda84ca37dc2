"""`day0 report` on folders that are whole, damaged or half there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from day0.cli.report import read_bundle, write_report
from day0.cli.rundir import RunFolder
from day0.codec import encode
from day0.devices.profile import load_profile
from day0.errors import Day0Error
from day0.hashing import hash_json
from tests.reports.beside_runs import with_all
from tests.reports.conftest import make_bundle


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run folder with records of a good run, as far as the inventory, and with fit, endpoint and ranks."""
    made = with_all(make_bundle())
    found = RunFolder(tmp_path)
    assert made.inventory is not None
    profile = hash_json(load_profile("sim").model_dump(mode="json"))
    found.write(made.trace, inputs={}, environment={})
    found.write(made.inventory, inputs={"device": profile}, environment={})
    for name, record in (("fit", made.fit), ("endpoint", made.endpoint), ("ranks", made.ranks)):
        assert record is not None
        (tmp_path / f"{name}.json").write_text(encode(record, inputs={}, environment={}), encoding="utf-8")
    return found


def test_what_stands_beside_the_stages_is_read_and_hashed(folder: RunFolder) -> None:
    bundle = read_bundle(folder, "x")
    assert bundle.fit is not None
    assert bundle.endpoint is not None
    assert bundle.ranks is not None
    assert bundle.damaged == {}
    assert {"fit.json", "endpoint.json", "ranks.json", "trace.json", "inventory.json"} == set(bundle.hashes)
    assert bundle.peaks is not None
    assert bundle.peaks.rates["bfloat16"] == 2e14


@pytest.mark.parametrize("text", ["", "{", '{"schema": "day0.fit/9"}', "[]", "\0", '{"schema": "day0.trace/1"}'])
def test_a_damaged_record_is_told_and_the_rest_is_shown(folder: RunFolder, text: str) -> None:
    (folder.path / "fit.json").write_text(text, encoding="utf-8")
    bundle = read_bundle(folder, "x")
    assert bundle.fit is None
    assert bundle.damaged["fit.json"]
    assert bundle.ranks is not None


def test_no_roof_is_drawn_by_a_profile_that_changed(folder: RunFolder) -> None:
    made = make_bundle()
    assert made.inventory is not None
    folder.write(made.inventory, inputs={"device": "sha256:00"}, environment={})
    assert read_bundle(RunFolder(folder.path), "x").peaks is None


def test_every_format_is_written_from_a_run_that_stopped(folder: RunFolder) -> None:
    (folder.path / "ranks.json").write_text("{", encoding="utf-8")
    page = write_report(folder, "x")
    names = sorted(path.name for path in page.parent.iterdir())
    for_pipelines = ["annotations.txt", "gitlab.json", "junit.xml", "summary.md"]
    assert names == sorted([*for_pipelines, "manifest.json", "report.html", "report.json", "report.md"])
    body = json.loads((page.parent / "report.json").read_text(encoding="utf-8"))["body"]
    assert [(one["name"], one["status"]) for one in body["beside"]] == [
        ("fit", "pass"),
        ("soak", "missing"),
        ("endpoint", "fail"),
        ("ranks", "damaged"),
    ]
    assert "the record is cut off" in page.read_text(encoding="utf-8")


def test_without_a_trace_there_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(Day0Error, match=r"there is no trace\.json yet"):
        read_bundle(RunFolder(tmp_path), "x")
