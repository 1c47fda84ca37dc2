"""What a shell offers, through typer's protocol and in a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from day0.cli import complete
from day0.devices.faults.load import load_faults
from day0.devices.profile import list_profiles
from day0.models.toy.variants import VARIANTS
from day0.reference_ops.load import load_operators
from tests.flow.conftest import run_day0


def _asked(folder: Path, *words: str) -> list[str]:
    """Ask as bash does: its words end at colons, and the last one is being written."""
    os.environ.update(
        _DAY0_COMPLETE="complete_bash", COMP_WORDS="\n".join(("day0", *words)), COMP_CWORD=str(len(words))
    )
    try:
        done = run_day0(cwd=folder)
    finally:
        for name in ("_DAY0_COMPLETE", "COMP_WORDS", "COMP_CWORD"):
            del os.environ[name]
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_is_read_from_sources_is_what_there_is() -> None:
    assert complete.faults("") == sorted(load_faults())
    assert sorted(complete.operators("")) == sorted(load_operators())
    assert complete.devices("no/such/") == list(list_profiles())
    assert complete.models("toy:") == [f"toy:{name}" for name in VARIANTS]


def test_model_types_are_those_of_transformers() -> None:
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    offered = {name.removeprefix("hf:") for name in complete.models("hf:")}
    known = set(auto.CONFIG_MAPPING_NAMES)
    assert offered <= known
    assert {"deepseek_v32", "llama", "gpt_oss"} <= offered
    assert len(offered) > 0.9 * len(known)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("trace", "to"), ["toy", "toy:deepseek-v3.2", "toy:glm-5", "toy:glm-5.3-flash"]),
        (("trace", "toy", ":", "glm"), ["glm-5", "glm-5.3-flash"]),
        (("trace", "toy", ":"), ["deepseek-v3.2", "glm-5", "glm-5.3-flash"]),
        (("run", "toy-on"), ["toy-on-sim"]),
        (("run", "mine/"), ["mine/play.yaml", "mine/deeper/"]),
        (("status", "--run", "ru"), ["runs/"]),
        (("check", "--run", "runs/a"), ["runs/a", "runs/a-folder/"]),
        (("inventory", "--device", "nu"), ["null"]),
        (("check", "--plant", "rope_other_p"), ["rope_other_pairing"]),
        (("ops", "show", "day0", "::", "rope"), ["rope", "rope_2d"]),
        (("run", "--dry"), ["--dry-run"]),
    ],
)
def test_bash_is_offered_what_fits(tmp_path: Path, words: tuple[str, ...], offered: list[str]) -> None:
    for folder in ("runs/a", "runs/a-folder", "mine/deeper", "runs/.hidden"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "runs/a/plan.json").write_text("{}")
    (tmp_path / "mine/play.yaml").write_text("")
    (tmp_path / "mine/notes.txt").write_text("")
    assert _asked(tmp_path, *words) == offered


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_a_real_bash_puts_the_rest_of_a_word_behind_its_colon(tmp_path: Path) -> None:
    program = tmp_path / "day0"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m day0 "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    script = subprocess.run(
        [sys.executable, "-m", "day0"],
        cwd=tmp_path, env={**environment, "_DAY0_COMPLETE": "source_bash"}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    function = script.split("(", 1)[0].strip()
    ask = (
        f"COMP_WORDS=(day0 trace hf : deepseek_v3); COMP_CWORD=4; {function} day0; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\n{ask}"], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["deepseek_v3", "deepseek_v32"]
    assert done.stderr == ""


def test_a_key_press_loads_nothing_heavy(tmp_path: Path) -> None:
    environment = {
        **os.environ, "_DAY0_COMPLETE": "complete_bash", "COMP_WORDS": "day0 check --plant rope", "COMP_CWORD": "3",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "day0"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "rope_other_pairing" in done.stdout
    assert not imported & {"torch", "transformers", "day0.playbook", "yaml"}, "typer itself loads pydantic"
