"""The commands of docs/endpoint.md are run, against real servers on other ports than the page's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from day0.analyzers.endpoint.figures import METRICS
from day0.analyzers.endpoint.outcomes import WORDS
from day0.cli.app import app
from tests.analyzers.endpoint.served import Service, serve
from tests.analyzers.endpoint.tiny import save_tiny

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "endpoint.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
FILE = re.search(r"<!-- file: prompts.jsonl -->\n```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("docs") / "checkpoint")


def test_every_command_of_the_page_passes(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoint").symlink_to(tiny)
    assert FILE is not None
    (tmp_path / "prompts.jsonl").write_text(FILE[1], encoding="utf-8")
    # The bundled prompts are long for a test; what the commands say of them is the same.
    short = ("--prompts", "prompts.jsonl")
    assert len(COMMANDS) == 4
    with serve(Service(folder=tiny)) as one, serve(Service(folder=tiny)) as other:
        for command in COMMANDS:
            words = shlex.split(
                command.replace("http://127.0.0.1:8000", one.url).replace("http://127.0.0.1:8001", other.url)
            )
            assert words.pop(0) == "day0"
            done = CliRunner().invoke(app, [*words, *(() if "--prompts" in words else short)])
            # Two questions are too few to say that no right answer is lost, which is a warning and no failure.
            assert done.exit_code == 0, f"{command}\n{done.output}"


def test_the_page_names_every_outcome() -> None:
    named = set(re.findall(r"`([a-z_]+)`", PAGE))
    assert WORDS.keys() - named == set()
    assert {"unexplained_prompts", "divergence_ratio", "unanswered", "accuracy_drop"} <= METRICS & named
