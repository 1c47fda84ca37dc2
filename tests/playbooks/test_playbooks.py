"""Every playbook that ships: it names only what is there, and it runs from the trace to the report.

`make test-long` runs each of them; two of DeepSeek-V3.2 and the toy's run every time, in tests/flow.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from day0.analyzers.canary.stages import choose_stages
from day0.devices.profile import load_profile
from day0.devices.sim.device import open_sim
from day0.devices.sim.state import STATE
from day0.errors import Day0Error
from day0.models.driver import step
from day0.models.source import open_model
from day0.models.toy.calls import references
from day0.models.workload import token_ids
from day0.playbook import ModelPlan, Playbook
from day0.reference_ops.load import load_operators
from day0.registry.namespaces import load_parents, search_path
from day0.yamlfile import read_yaml, validate_yaml
from tests.flow.conftest import PLAYBOOKS, run_day0

BUNDLED = sorted(PLAYBOOKS.glob("*.yaml"))
NAMES = [path.stem for path in BUNDLED]
FAMILIES = (
    "kimi-k3.1", "kimi-linear", "deepseek-v32", "deepseek-v4", "glm-5", "glm-5.3-flash", "gpt-oss", "qwen3",
)  # fmt: skip
SKIPPED = {"unfit", ""}
"""Why a stage of a canary may be left out: the model has nothing for it."""


def read(path: Path) -> Playbook:
    return validate_yaml(Playbook, read_yaml(path))


def refuse(path: Path) -> None:
    """Raise for a playbook that names something that is not there."""
    plan = read(path)
    load_profile(plan.device)
    search_path(plan.register_.namespace, load_parents(()))
    calls = "phases" if plan.model.source.startswith(("py:", "export:")) else "tokens"
    choose_stages(plan.canary, calls=calls)
    for one in plan.check.expect:
        if one.op.startswith("day0::") and one.op not in load_operators():
            raise Day0Error("check.expect", f"there is no operator '{one.op}'", hint="see `day0 ops list`")


def test_every_family_has_a_playbook() -> None:
    missing = [family for family in FAMILIES if not any(name.startswith(f"{family}-") for name in NAMES)]
    assert not missing


@pytest.mark.parametrize("path", BUNDLED, ids=NAMES)
def test_a_playbook_names_only_what_is_there(path: Path) -> None:
    refuse(path)


@pytest.mark.parametrize("path", BUNDLED, ids=NAMES)
def test_a_playbook_says_what_it_is(path: Path) -> None:
    plan, text = read(path), path.read_text()
    assert plan.name == path.stem
    assert plan.description.endswith(".")
    assert text.startswith("# ")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("device: sim\n", "device: simm\n", "simm"),
        ("namespace: kimi/k3.1", "namespace: kimi/k3.2", "'kimi/k3.2' is not declared"),
        ("    one_op: {}\n", "    one_operator: {}\n", "there is no stage 'one_operator'"),
        ("metric: worst_error,", "metric: worst_eror,", "worst_eror"),
        ("  seed: 0\n", "  seed: 0\n  expect: [{op: 'day0::rms', status: fail, reason: x}]\n", "there is no operator"),
    ],
)
def test_a_playbook_that_names_something_else_is_refused(old: str, new: str, said: str, tmp_path: Path) -> None:
    text = (PLAYBOOKS / "toy-on-sim.yaml").read_text()
    assert old in text
    path = tmp_path / "toy-on-sim.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(Day0Error, match=said):
        refuse(path)


@pytest.fixture
def null() -> Iterator[None]:
    yield
    open_sim(load_profile("null"))


@pytest.mark.parametrize(
    ("name", "without"),
    [("toy-experts-in-batches-on-sim", {"expert_batch": 0}), ("toy-training-on-sim", {"checkpointing": False})],
)
@pytest.mark.usefixtures("null")
def test_without_what_a_playbook_shows_memory_runs_out(
    name: str, without: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # No lock is active here, so the toy calls references; the device lacks nothing but memory.
    monkeypatch.setattr("day0.models.toy.model.dispatched", references)
    plan = read(PLAYBOOKS / f"{name}.yaml")
    gc.collect()
    gib = load_profile(plan.device).memory_gib + STATE.allocated_bytes / 2**30
    open_sim(load_profile("null").model_copy(update={"memory_gib": gib}))
    _call(plan.model)
    with pytest.raises(torch.OutOfMemoryError, match="sim out of memory"):
        _call(plan.model.model_copy(update={"set": {**plan.model.set, **without}}))


def _call(plan: ModelPlan) -> None:
    spec = open_model(plan)
    model = spec.build("sim")
    if spec.phases:
        spec.phases[0].prepare(model, "sim")()
    else:
        step(model, token_ids(spec, 1, 6, seed=0).to("sim"))


ELSEWHERE = ("deepseek-v32-tiny-on-sim", "deepseek-v32-adapted-on-sim", "toy-on-sim")
"""Run whole by tests of the flow."""


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ELSEWHERE])
@pytest.mark.slow
def test_a_playbook_runs_from_the_trace_to_the_report(name: str, tmp_path: Path) -> None:
    if read(PLAYBOOKS / f"{name}.yaml").device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    done = run_day0("run", PLAYBOOKS / f"{name}.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "runs" / name
    assert (folder / "report" / "report.html").is_file()
    stages = _stages(folder)
    assert {stage["name"] for stage in stages if stage["status"] == "fail"} == set()
    assert {stage["skip"] for stage in stages} <= SKIPPED
    assert sum(stage["status"] == "pass" for stage in stages) >= 3


def _stages(folder: Path) -> list[dict[str, Any]]:
    body: dict[str, Any] = json.loads((folder / "canary.json").read_text())["body"]
    stages: list[dict[str, Any]] = body["stages"]
    return stages
