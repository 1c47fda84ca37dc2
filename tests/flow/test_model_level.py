"""The model level from the command line: a right device passes, a wrong kernel's module is named, everywhere it is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.flow.conftest import FEW_LAYERS, only_traced_calls, run_day0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trace of the toy without a decode phase: the model level runs prompts alone."""
    cwd = tmp_path_factory.mktemp("model")
    for command in (f"trace toy {FEW_LAYERS} --phase prefill=9", "inventory --device null", "register"):
        done = run_day0(*command.split(), "--run", "r", cwd=cwd)
        assert done.returncode == 0, done.stderr
    only_traced_calls(cwd / "r", level="all")
    return cwd


def model(folder: Path) -> Any:
    found: Any = json.loads((folder / "r" / "numerics.json").read_text())["body"]["model"]
    return found


def test_a_right_device_passes_and_a_planted_fault_is_named_in_every_report(folder: Path) -> None:
    done = run_day0("check", "--run", "r", "--level", "model", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no cases, model pass" in done.stdout
    right = model(folder)
    assert right["golden"] == "float64 on cpu"
    assert right["notes"] == ["decoding was left out: the trace has no phase with tokens in a cache"]
    assert {one["fresh"]["status"] for one in right["modules"]} == {"pass", "skipped"}
    assert [one["name"] for one in right["ways"]] == ["a row alone and in a batch"]
    done = run_day0("check", "--run", "r", "--level", "model", "--plant", "gate_bound_is_a_clamp", cwd=folder)
    assert done.returncode == 1
    assert "first divergent module: layers.0.self_attn (KdaAttention) in prefill" in done.stdout
    assert run_day0("report", "--run", "r", cwd=folder).returncode == 0
    report = folder / "r" / "report"
    assert "## Model" in (report / "report.md").read_text()
    assert "layers.0.self_attn (KdaAttention) in prefill" in (report / "report.html").read_text()
    tree = ElementTree.fromstring((report / "junit.xml").read_text())  # noqa: S314  # we wrote it ourselves
    cases = tree.iterfind(".//testcase[@classname='day0.check.model']")
    assert {case.get("name"): case.find("failure") is not None for case in cases}["modules"]


def test_operators_alone_and_words_that_are_no_level(folder: Path) -> None:
    done = run_day0("check", "--run", "r", "--level", "ops", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert model(folder) is None
    plan = json.loads((folder / "r" / "plan.json").read_text())
    assert plan["check"]["level"] == "all", "what was asked for once is not kept"
    done = run_day0("check", "--run", "r", "--level", "modules", cwd=folder)
    assert done.returncode == 2
    assert "error: --level: 'modules' is not known" in done.stderr
