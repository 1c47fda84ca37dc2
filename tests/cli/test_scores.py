"""`day0 check scores`: three answers, three exit codes, and files that anybody may have written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from day0.cli.app import app


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["check", "scores", *map(str, arguments)])
    return done.exit_code, " ".join(done.output.split())


def write(path: Path, value: object) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def test_fifty_questions_cannot_tell(tmp_path: Path) -> None:
    before = write(tmp_path / "a.json", [1] * 14 + [0] * 36)
    after = write(tmp_path / "b.jsonl", "\n".join(["true"] * 10 + ["false"] * 40))
    code, text = run(before, after)
    assert code == 125
    assert "cannot tell: the difference lies between -24.2% and +8.8% with 95% confidence" in text
    assert "before 28.0% of 50 questions" in text


def test_pass_and_fail_question_by_question(tmp_path: Path) -> None:
    rows = [{"id": f"q{n}", "correct": n % 2} for n in range(400)]
    before = write(tmp_path / "a.json", rows)
    assert run(before, write(tmp_path / "b.json", rows[::-1]))[0] == 0
    worse = [{**row, "correct": int(n % 10 in (1, 3, 7))} for n, row in enumerate(rows)]
    code, text = run(before, write(tmp_path / "c.json", worse))
    assert code == 1 and "the same questions, one by one" in text
    code, text = run(before, tmp_path / "c.json", "--json")
    assert '"answer": "fail"' in text and '"paired": true' in text


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "it has no answers"),
        ("[]", "it has no answers"),
        ("[1, 2]", "answer 2 is '2', neither right nor wrong"),
        ("[1, 0.5]", "answer 2 is '0.5', neither right nor wrong"),
        ('[1, "1"]', "answer 2 is '1', neither right nor wrong"),
        ("[1, null]", "answer 2 is 'None'"),
        ("[1, {}]", "answer 2 is of another kind than the first"),
        ('[{"id": "a"}]', "answer 1 has no id or no 'correct'"),
        ('[{"id": "a", "correct": 1}, {"id": "a", "correct": 0}]', "question 'a' is answered twice"),
        ("[1,", "the list is not JSON"),
        ("[" * 100_000, "the list is not JSON"),
        ("1\nnope", "line 2 is not JSON"),
    ],
)
def test_bad_files_are_the_users_to_repair(tmp_path: Path, text: str, error: str) -> None:
    good = write(tmp_path / "good.json", [1, 0])
    done = run(good, write(tmp_path / "bad.json", text))
    assert done[0] == 2
    assert f"bad.json: {error}" in done[1].replace(str(tmp_path) + "/", "")
    assert "Traceback" not in done[1]


def test_other_questions_and_files_that_are_not_there(tmp_path: Path) -> None:
    a = write(tmp_path / "a.json", [{"id": 1, "correct": 1}])
    b = write(tmp_path / "b.json", [{"id": 2, "correct": 1}])
    code, text = run(a, b)
    assert code == 2 and "it answers other questions than" in text and "2 stand in one file alone" in text
    code, text = run(a, tmp_path / "none.json")
    assert code == 2 and "there is no such file" in text
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    assert "byte 0 is not UTF-8" in run(a, tmp_path / "binary.json")[1]
