"""Variables, includes and the matrix of playbooks; each error names its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from day0.cli.playbook_include import put_together
from day0.cli.playbook_matrix import PlannedRun, pick, read_playbook
from day0.errors import Day0Error

BASE = "schema: day0.playbook/1\nname: x\nmodel: {source: toy}\ndevice: sim\n"


def _write(folder: Path, text: str, name: str = "play.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _runs(folder: Path, text: str, **variables: Any) -> tuple[PlannedRun, ...]:
    return read_playbook(_write(folder, text), variables)


def _error(folder: Path, text: str, **variables: Any) -> Day0Error:
    with pytest.raises(Day0Error) as caught:
        _runs(folder, text, **variables)
    return caught.value


def test_a_variable_alone_keeps_its_type_and_inside_a_text_it_is_text(tmp_path: Path) -> None:
    text = BASE + (
        "vars: {n: 3, eps: 1.0e-5, flag: true, regimes: [ordinary, wide], where: sim, text: '${where}-${n}-${flag}'}\n"
        "description: '${text} costs $${n}'\n"
        "workload: {batch: '${n}'}\ncapture: ${flag}\ncheck: {regimes: '${regimes}'}\n"
    )
    (run,) = _runs(tmp_path, text)
    assert (run.plan.workload.batch, run.plan.capture) == (3, True)
    assert run.plan.check.regimes == ("ordinary", "wide")
    assert run.plan.description == "sim-3-true costs ${n}"
    assert run.plan.name == "x"


def test_fields_of_a_variable(tmp_path: Path) -> None:
    text = (
        "schema: day0.playbook/1\nname: x\nvars: {of: {source: 'toy:glm-5', space: zai/glm-5}}\n"
        "model: {source: '${of.source}'}\nregister: {namespace: '${of.space}'}\ndevice: sim\n"
    )
    (run,) = _runs(tmp_path, text)
    assert (run.plan.model.source, run.plan.register_.namespace) == ("toy:glm-5", "zai/glm-5")
    error = _error(tmp_path, text.replace("${of.space}", "${of.spaec}"))
    assert error.where == f"{tmp_path}/play.yaml:5"
    assert error.hint == "did you mean space?"


def test_variables_from_the_command_line_go_first(tmp_path: Path) -> None:
    text = BASE.replace("sim", "${device}") + "vars: {device: sim, n: 1}\nworkload: {batch: '${n}'}\n"
    (run,) = _runs(tmp_path, text, device="cpu", n=4)
    assert (run.plan.device, run.plan.workload.batch) == ("cpu", 4)
    error = _error(tmp_path, text, devcie="cpu")
    assert (error.where, error.hint) == ("--var devcie", "did you mean device?")


@pytest.mark.parametrize(
    ("tail", "line", "what", "hint"),
    [
        ("description: ${devise}\nvars: {device: sim}\n", 5, "no variable 'devise'", "did you mean device?"),
        ("description: ${HOME}\n", 5, "no variable 'HOME'", "declare it under vars"),
        ("description: a ${env:HOME}\n", 5, "'${env:HOME}' is not a variable", "nothing from the environment"),
        ("description: 'a ${n'\nvars: {n: 1}\n", 5, "'${n' is not closed", "$${"),
        ("description: 'a ${l}'\nvars: {l: [1]}\n", 5, "'l' is a list", "whole value"),
        ("description: 'a ${l}'\nvars: {l: null}\n", 5, "'l' is a null", "whole value"),
        ("vars:\n  a: ${b}\n  b: ${a}\n", 7, "'a' needs itself: a → b → a", "plain value"),
        ("vars:\n  a b: 1\n", 6, "'a b' is not a name", "letters"),
        ("vars:\n  a: 2026-01-01\n", 6, "not a valid JSON value", ""),
        ("vars: {n: 1}\ncanary: {stages: {'${n}': {}}}\n", 6, "stands in the key '${n}'", "values only"),
        ("vars: {n: many}\nworkload:\n  batch: ${n}\n", 7, "valid integer", ""),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_variable_is_said_with_its_line(
    tmp_path: Path, tail: str, line: int, what: str, hint: str
) -> None:
    error = _error(tmp_path, BASE + tail)
    assert error.where.startswith(f"{tmp_path}/play.yaml:{line}"), (error.where, error.what)
    assert what in error.what
    assert hint in error.hint


@pytest.mark.parametrize(
    "vars_",
    [
        {"a": "x" * 30_000, "b": "${a}-${a}-${a}"},
        {f"v{n}": [f"${{v{n + 1}}}"] * 9 for n in range(8)} | {"v8": 1},
        {f"v{n}": f"${{v{n + 1}}}" for n in range(500)} | {"v500": 1},
    ],
    ids=["long text", "many values", "long chain"],
)
def test_variables_that_explode_are_refused(tmp_path: Path, vars_: dict[str, Any]) -> None:
    error = _error(tmp_path, BASE + yaml.safe_dump({"vars": vars_}, width=1 << 20))
    assert "more than" in error.what


def test_includes_are_merged_and_what_stands_later_wins(tmp_path: Path) -> None:
    _write(tmp_path, "canary: {new_tokens: 2, prompt_tokens: 3}\ncheck: {regimes: [wide, ties]}\n", "parts/gates.yaml")
    _write(tmp_path, "include: gates.yaml\ndevice: cpu\nvars: {n: 5}\ncanary: {new_tokens: 7}\n", "parts/common.yaml")
    text = (
        "include: [parts/common.yaml]\n"
        + BASE.replace("device: sim\n", "")
        + ("vars: {m: 1}\ncheck: {regimes: [ordinary]}\nworkload: {batch: '${n}'}\ncanary: {soak_s: 1}\n")
    )
    (run,) = _runs(tmp_path, text)
    plan = run.plan
    assert (plan.device, plan.workload.batch) == ("cpu", 5)
    assert (plan.canary.new_tokens, plan.canary.prompt_tokens, plan.canary.soak_s) == (7, 3, 1.0)
    assert plan.check.regimes == ("ordinary",), "lists are replaced"


def test_a_shipped_playbook_is_included_by_its_name(tmp_path: Path) -> None:
    (run,) = _runs(tmp_path, "include: toy-on-sim\nname: mine\nworkload: {batch: 3}\n")
    assert (run.plan.name, run.plan.workload.batch, run.plan.register_.namespace) == ("mine", 3, "kimi/k3.1")
    assert list(run.plan.canary.stages)[:2] == ["load", "one_op"]


def test_fields_of_included_files_are_removed(tmp_path: Path) -> None:
    text = "include: toy-on-sim\nname: mine\nremove: [workload.phases, canary.stages]\ncanary: {stages: {load: {}}}\n"
    (run,) = _runs(tmp_path, text)
    assert (run.plan.workload.batch, run.plan.workload.phases) == (2, {})
    assert list(run.plan.canary.stages) == ["load"]
    error = _error(tmp_path, text.replace("workload.phases", "workload.phase"))
    assert error.where == f"{tmp_path}/play.yaml:3"
    assert error.hint.startswith("did you mean workload.phases")
    assert "takes a list of fields" in _error(tmp_path, "remove: workload\n" + BASE).what


def test_the_place_of_a_mistake_is_that_in_the_included_file(tmp_path: Path) -> None:
    _write(tmp_path, "workload:\n  batch: 1\n  phaes: {}\n", "part.yaml")
    error = _error(tmp_path, "include: part.yaml\n" + BASE)
    assert error.where == f"{tmp_path}/part.yaml:3: workload.phaes"
    error = _error(tmp_path, "include: part.yaml\n" + BASE + "workload:\n  phaes: {}\n")
    assert error.where == f"{tmp_path}/play.yaml:7: workload.phaes"


@pytest.mark.parametrize(
    ("include", "what"),
    [
        ("../outside.yaml", "lies outside of the playbook's folder"),
        ("/etc/passwd.yaml", "lies outside of the playbook's folder"),
        ("link.yaml", "lies outside of the playbook's folder"),
        ("sub/up.yaml", "lies outside of the playbook's folder"),
        ("missing.yaml", "there is no file 'missing.yaml'"),
        ("toy-on-smi", "no playbook 'toy-on-smi' ships with day0"),
        ("play.yaml", "'play.yaml' includes itself"),
        ("ring.yaml", "'../play.yaml' includes itself"),
        ("sub", "no playbook 'sub' ships"),
        ("sub/", "there is no file 'sub/'"),
        ("list.yaml", "a playbook is a mapping"),
        ("device.yaml", "it has schema 'day0.device/1'"),
        ("broken.yaml", "malformed YAML"),
        ("${part}.yaml", "without variables"),
        ("[1]", "got 1"),
        ("{a: b}", "got {'a': 'b'}"),
    ],
)
def test_an_include_that_cannot_be_names_the_chain(tmp_path: Path, include: str, what: str) -> None:
    folder = tmp_path / "here"
    _write(tmp_path, "device: cpu\n", "outside.yaml")
    _write(folder, "include: ../../outside.yaml\n", "sub/up.yaml")
    _write(folder, "include: sub/back.yaml\n", "ring.yaml")
    _write(folder, "include: ../play.yaml\n", "sub/back.yaml")
    _write(folder, "- 1\n", "list.yaml")
    _write(folder, "schema: day0.device/1\n", "device.yaml")
    _write(folder, "a: [\n", "broken.yaml")
    (folder / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    error = _error(folder, f"include: {include}\n" + BASE)
    assert what in error.what, error.what
    assert f"{folder}/play.yaml:1" in (error.where + " ".join(error.facts))
    if include == "ring.yaml":
        assert error.facts == tuple(
            f"included at {folder}/{name}:1" for name in ("play.yaml", "ring.yaml", "sub/back.yaml")
        )


def test_deep_and_many_includes_are_refused(tmp_path: Path) -> None:
    for number in range(12):
        _write(tmp_path, f"include: p{number + 1}.yaml\n", f"p{number}.yaml")
    _write(tmp_path, "device: cpu\n", "p12.yaml")
    assert "nested deeper than 8" in _error(tmp_path, "include: p0.yaml\n" + BASE).what
    many = ", ".join(["p12.yaml"] * 65)
    assert "more than 64 files" in _error(tmp_path, f"include: [{many}]\n" + BASE).what
    assert put_together(_write(tmp_path, "include: [p12.yaml, p12.yaml]\n" + BASE)).path.name == "play.yaml"


MATRIX = BASE + (
    "vars: {tokens: 4}\n"
    "workload: {phases: {prefill: {tokens: '${tokens}'}}}\n"
    "matrix:\n"
    "  device: [sim, cpu]\n"
    "  tokens: [4, 8]\n"
)  # fmt: skip


def test_a_matrix_over_a_field_and_a_variable(tmp_path: Path) -> None:
    runs = _runs(tmp_path, MATRIX)
    found = [(run.name, run.plan.device, run.plan.workload.phases["prefill"].tokens) for run in runs]
    assert found == [("x-sim-4", "sim", 4), ("x-sim-8", "sim", 8), ("x-cpu-4", "cpu", 4), ("x-cpu-8", "cpu", 8)]
    assert runs[1].chosen == {"device": "sim", "tokens": 8}
    named = _runs(tmp_path, MATRIX.replace("name: x", "name: at-${tokens}-on-${device}"))
    assert [run.name for run in named][:2] == ["at-4-on-sim", "at-8-on-sim"]
    one = _runs(tmp_path, MATRIX, device="null")
    assert [run.name for run in one] == ["x-null-4", "x-null-8"], "a value from outside takes the axis' place"


def test_a_matrix_of_things_that_go_together(tmp_path: Path) -> None:
    text = BASE.replace("{source: toy}", "{source: '${of.source}'}") + (
        "register: {namespace: '${of.space}'}\n"
        "matrix:\n  of:\n    - {name: kimi, source: toy, space: kimi/k3.1}\n"
        "    - {name: glm, source: 'toy:glm-5', space: zai/glm-5}\n  workload.batch: [1, 2]\n"
    )
    runs = _runs(tmp_path, text)
    assert [run.name for run in runs] == ["x-kimi-1", "x-kimi-2", "x-glm-1", "x-glm-2"]
    assert [run.plan.workload.batch for run in runs] == [1, 2, 1, 2]
    assert runs[2].plan.model.source == "toy:glm-5"


def test_what_is_excluded_is_left_out(tmp_path: Path) -> None:
    runs = _runs(tmp_path, MATRIX + "  exclude: [{device: cpu, tokens: 8}, {device: sim, tokens: 4}]\n")
    assert [run.name for run in runs] == ["x-sim-8", "x-cpu-4"]


@pytest.mark.parametrize(
    ("change", "line", "what"),
    [
        (("device: [sim, cpu]", "devise: [sim, cpu]"), 8, "the axis 'devise' is neither a field nor a variable"),
        (("device: [sim, cpu]", "device: []"), 8, "has no values"),
        (("device: [sim, cpu]", "device: sim"), 8, "tuple"),
        (("device: [sim, cpu]", "name: [a, b]"), 8, "'name' cannot be an axis"),
        (("device: [sim, cpu]", "model.surce: [toy]"), 8, "there is no such field 'surce'"),
        (("device: [sim, cpu]", "device.x: [toy]"), 8, "'device' holds a value"),
        (("device: [sim, cpu]", "device: [sim, sim]"), 2, "two runs are called 'x-sim-4'"),
        (("name: x", "name: x-${device}"), 2, "two runs are called 'x-sim'"),
        (("tokens: [4, 8]", "tokens: [4, 8]\n  exclude: [{devise: sim}]"), 10, "'devise' is not an axis"),
        (("tokens: [4, 8]", "tokens: [4, 8]\n  exclude: [{device: cuda}]"), 10, "no run is excluded by"),
        (("tokens: [4, 8]", "tokens: [4, 8]\n  exclude: [{device: sim}, {device: cpu}]"), 10, "every run is excluded"),
        (("tokens: [4, 8]", "tokens: [4, 8]\n  exclude: [sim]"), 10, "an entry of exclude is a mapping"),
        (("tokens: [4, 8]", f"tokens: {list(range(1, 200))}"), 7, "more than 256 runs"),
        (("tokens: [4, 8]", "tokens: ['${tokens}']"), 9, "no variable 'tokens'"),
    ],
)
def test_a_matrix_that_nothing_would_come_of(tmp_path: Path, change: tuple[str, str], line: int, what: str) -> None:
    error = _error(tmp_path, MATRIX.replace(*change))
    assert what in error.what, error.what
    assert error.where.startswith(f"{tmp_path}/play.yaml:{line}"), error.where


def test_runs_are_picked_by_name_or_pattern(tmp_path: Path) -> None:
    runs = _runs(tmp_path, MATRIX)
    assert [run.name for run in pick(runs, ["x-sim-*", "x-cpu-4"])] == ["x-sim-4", "x-sim-8", "x-cpu-4"]
    assert pick(runs, []) == runs
    with pytest.raises(Day0Error, match="no run of this name") as caught:
        pick(runs, ["x-smi-4"])
    assert caught.value.hint.startswith("did you mean x-sim-4")


def test_names_of_runs_are_names_of_folders(tmp_path: Path) -> None:
    text = BASE + "matrix:\n  device: [../../mine.yaml, '/a b/c.yaml', '..', '\x07']\n".replace("\x07", "\\a")
    names = [run.name for run in _runs(tmp_path, text)]
    assert names == ["x-mine", "x-a_b_c", "x-v0", "x-a"]
