from __future__ import annotations

from pathlib import Path

import pytest

from day0.cli.failures import message_of, run_guarded
from day0.errors import Day0Error, near_names


def _raise(error: BaseException) -> int:
    raise error


def test_a_user_mistake_is_a_message_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    error = Day0Error("file.yaml:3", "no such field 'x'", facts=("known: a, b",), hint="did you mean a?")
    assert run_guarded(lambda: _raise(error)) == 2
    text = capsys.readouterr().err
    assert text == "error: file.yaml:3: no such field 'x'\n  known: a, b\n\nhint: did you mean a?\n"


def test_an_interrupt_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(lambda: _raise(KeyboardInterrupt())) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_bug_of_ours_is_3_with_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(lambda: _raise(ZeroDivisionError("ours"))) == 3
    text = capsys.readouterr().err
    assert "bug of ours: ZeroDivisionError: ours" in text
    assert "Traceback" not in text
    log = Path(text.split("log: ")[1].splitlines()[0])
    assert "Traceback" in log.read_text()
    log.unlink()


def test_terminal_escapes_in_names_are_harmless() -> None:
    text = message_of(Day0Error("evil\x1b[2Jname", "\x00\x07"))
    assert "\x1b" not in text
    assert "\x00" not in text


def test_near_names() -> None:
    assert near_names("deepseek_v23", ("deepseek_v2", "deepseek_v32", "llama")).startswith("did you mean deepseek_v")
    assert near_names("zzz", ("llama",)) == ""


@pytest.mark.parametrize("code", [0, None, 7, "text"])
def test_code_that_ends_the_program_does_not_end_it_as_a_success(
    code: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_guarded(lambda: _raise(SystemExit(code))) == 2
    assert f"ended the program with {code!r}" in capsys.readouterr().err


def test_a_full_disk_is_the_users_to_repair(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(lambda: _raise(OSError(28, "No space left on device", "runs/a/trace.json"))) == 2
    assert "error: runs/a/trace.json: No space left on device" in capsys.readouterr().err
