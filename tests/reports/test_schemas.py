"""Every schema accepts what day0 writes, refuses what is wrong, and is published as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # altair brings it, without types
from typer.testing import CliRunner

from day0.analyzers.diff.change import Change, Diff, Part
from day0.cli.app import app
from day0.cli.schemas import text_of
from day0.codec import SCHEMAS
from day0.reports.bundle import Bundle
from day0.reports.jsonreport import render_json
from day0.reports.schemas import file_name, schema_names, schema_of
from tests.golden.make import path_of, records

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "docs" / "schemas"
PLAYBOOKS = sorted((ROOT / "playbooks").glob("*.yaml"))


def errors(name: str, value: Any) -> list[str]:
    return [f"{one.json_path}: {one.message}" for one in Draft202012Validator(schema_of(name)).iter_errors(value)]


@pytest.mark.parametrize("name", schema_names())
def test_published_schemas_are_current(name: str) -> None:
    Draft202012Validator.check_schema(schema_of(name))
    path = PUBLISHED / file_name(name)
    assert path.read_text(encoding="utf-8") == text_of(name), "write them again: day0 schema --out docs/schemas"


def test_every_record_has_a_schema_with_its_number() -> None:
    numbered = {file_name(name) for name in schema_names()}
    assert {f"{name.removeprefix('day0.')}-{number}.json" for name, number in SCHEMAS.values()} <= numbered
    assert {path.name for path in PUBLISHED.glob("*.json")} >= numbered, "older numbers stay"


@pytest.mark.parametrize("path", [path_of(record) for record in records()], ids=lambda path: path.stem)
def test_golden_files_are_valid_and_damaged_ones_are_not(path: Path) -> None:
    name, document = path.stem.rpartition("-")[0], json.loads(path.read_text(encoding="utf-8"))
    document["sha256"] = "sha256:" + "0" * 64
    assert errors(name, document) == []
    assert errors(name, {**document, "schema": "day0.other/1"})
    assert errors(name, {**document, "body": {}})
    assert errors(name, {key: value for key, value in document.items() if key != "environment"})
    assert errors(name, {**document, "a_later_field": 1}) == [], "a new optional field is free"


@pytest.mark.parametrize("run", ["good", "failing", "incomplete", "hostile"])
def test_reports_are_valid(run: str, request: pytest.FixtureRequest) -> None:
    bundle: Bundle = request.getfixturevalue(run)
    assert errors("report", render_json(bundle)) == []


def test_a_diff_is_valid() -> None:
    change = Change(kind="verdict", effect="worse", subject="aten::mm", weight=float("inf"))
    made = Diff(old="a", new="b", parts=(Part(name="inventory", summary="x", same=1, changes=(change,)),))
    plain = json.loads(made.model_dump_json())
    assert errors("diff", {"schema": "day0.diff/1", **plain}) == []
    assert errors("diff", {"schema": "day0.diff/1", **plain, "parts": [{"name": 1}]})


@pytest.mark.parametrize("path", PLAYBOOKS, ids=lambda path: path.stem)
def test_playbooks_are_valid(path: Path) -> None:
    assert errors("playbook", yaml.safe_load(path.read_text(encoding="utf-8"))) == []


def test_variables_includes_and_a_matrix_are_no_mistakes() -> None:
    good = yaml.safe_load((ROOT / "playbooks/toy-on-sim.yaml").read_text(encoding="utf-8"))
    variables = {"vars": {"n": 2}, "workload": {"batch": "${n}"}, "check": {"regimes": ["wide", "${r}"]}}
    assert (
        errors("playbook", {**good, **variables, "matrix": {"device": ["sim"], "exclude": [{"device": "sim"}]}}) == []
    )
    assert errors("playbook", {"include": ["toy-on-sim"], "remove": ["canary.stages"]}) == []
    assert errors("playbook", {"name": "x"}), "it includes nothing, so it has to have all that a plan needs"
    assert errors("playbook", {**good, "workload": {"batch": "n"}})
    assert errors("playbook", {**good, "matrix": {"device": "sim"}})


def test_a_mistake_in_a_playbook_shows_in_the_editor() -> None:
    good = yaml.safe_load((ROOT / "playbooks/toy-on-sim.yaml").read_text(encoding="utf-8"))
    assert errors("playbook", {**good, "modle": {}})
    assert errors("playbook", {**good, "check": {"level": "op"}})
    assert errors("playbook", {**good, "canary": {"soak_s": -1}})
    properties = schema_of("playbook")["$defs"]["CheckPlan"]["properties"]
    assert properties["level"]["description"] == "Operators, the whole model, or both."
    assert properties["level"]["anyOf"][0]["enum"] == ["ops", "model", "all"]
    assert schema_of("playbook")["properties"]["register"], "by the name that stands in the file"


def test_the_command(tmp_path: Path) -> None:
    run = CliRunner().invoke
    assert json.loads(run(app, ["schema", "trace"]).stdout)["title"] == "day0.trace/1"
    assert run(app, ["schema"]).stdout.split() == list(schema_names())
    assert run(app, ["schema", "--out", str(tmp_path)]).exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {file_name(name) for name in schema_names()}
    wrong = run(app, ["schema", "playbok"])
    assert wrong.exit_code == 2
    assert "did you mean playbook" in wrong.stderr
