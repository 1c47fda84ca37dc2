from __future__ import annotations

from pathlib import Path

import pytest

from day0.cli.plans import override_plan, parse_phase, parse_set, trace_plan
from day0.cli.playbook_include import playbook_path
from day0.errors import Day0Error
from day0.playbook import Playbook


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=2", ("a", 2)),
        ("a=1.5", ("a", 1.5)),
        ("a=true", ("a", True)),
        ("a=null", ("a", None)),
        ("a=[1, 2]", ("a", [1, 2])),
        ("a=b=c", ("a", "b=c")),
        ("a=", ("a", None)),
    ],
)
def test_parse_set(text: str, expected: tuple[str, object]) -> None:
    assert parse_set(text) == expected


@pytest.mark.parametrize("text", ["a", "=1", "a=[1"])
def test_parse_set_refuses(text: str) -> None:
    with pytest.raises(Day0Error):
        parse_set(text)


def test_parse_phase() -> None:
    name, phase = parse_phase("decode=1@4096")
    assert (name, phase.tokens, phase.context) == ("decode", 1, 4096)
    for text in ("decode", "decode=x", "decode=0", "decode=1@-1"):
        with pytest.raises(Day0Error, match="NAME=TOKENS"):
            parse_phase(text)


def _plan(**changes: object) -> Playbook:
    ordinary: dict[str, object] = {
        "model": "toy", "sets": [], "dtype": "float32", "mode": "auto", "batch": 1, "phases": [],
        "trust_remote_code": False, "name": "x",
    }  # fmt: skip
    return trace_plan(**{**ordinary, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"batch": 10**14}, "--batch 100000000000000"),
        ({"world_size": 100_000}, "--world-size 100000"),
        ({"phases": ["decode=1@16", "decode=1@32"]}, "'decode' was named twice"),
        ({"phases": ["=4"]}, "the phase has no name"),
        ({"phases": ["a\tb=4"]}, "the phase has no name"),
    ],
)
def test_a_workload_that_no_plan_holds(changes: dict[str, object], text: str) -> None:
    with pytest.raises(Day0Error, match=text):
        _plan(**changes)


@pytest.mark.parametrize(
    ("folder", "name"), [("..", "run"), (".hidden", "hidden"), ("a\\b", "a_b"), ("x\udc80", "x?"), ("v32", "v32")]
)
def test_a_folder_of_any_name_holds_a_run(folder: str, name: str) -> None:
    assert _plan(name=folder).name == name


def test_flags_change_only_what_they_name() -> None:
    plan = trace_plan(
        model="toy", sets=[], dtype="float32", mode="auto", batch=1, phases=[], trust_remote_code=False, name="x"
    )
    changed = override_plan(plan, device="sim", load=[Path("mine.py")], replacements=False)
    assert changed.device == "sim"
    assert changed.register_.load == ("mine.py",)
    assert not changed.register_.replacements
    assert changed.register_.fallback == plan.register_.fallback
    again = override_plan(changed, load=[Path("mine.py")])
    assert again.register_.load == ("mine.py",)
    with pytest.raises(Day0Error, match="--fallback"):
        override_plan(plan, load=[], fallback="gpu")


def test_a_playbook_is_found_by_name_and_a_wrong_name_gets_a_hint() -> None:
    assert playbook_path(Path("toy-on-sim")).name == "toy-on-sim.yaml"
    assert playbook_path(Path("playbooks/toy-on-sim.yaml")).is_file()
    with pytest.raises(Day0Error) as caught:
        playbook_path(Path("toy-on-smi"))
    assert "toy-on-sim" in caught.value.hint


@pytest.mark.parametrize(("text", "value"), [("1e-5", 1e-5), ("2E3", 2000.0), ("-1.5e-06", -1.5e-6), ("1e", "1e")])
def test_exponents_are_numbers(text: str, value: object) -> None:
    assert parse_set(f"eps={text}") == ("eps", value)
