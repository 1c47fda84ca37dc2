from __future__ import annotations

from pathlib import Path

import pytest

from day0.errors import Day0Error
from day0.playbook import Playbook
from day0.yamlfile import MAX_YAML_BYTES, read_yaml, validate_yaml

GOOD = """\
schema: day0.playbook/1
name: mine
model:
  source: toy
device: sim
check:
  seed: 3
"""


def _write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_good_playbook_is_read(tmp_path: Path) -> None:
    plan = validate_yaml(Playbook, read_yaml(_write(tmp_path, GOOD)))
    assert (plan.name, plan.check.seed, plan.register_.fallback) == ("mine", 3, "cpu")


def test_malformed_yaml_names_the_line(tmp_path: Path) -> None:
    path = _write(tmp_path, GOOD + "canary: [1, 2\nworkload: }\n")
    with pytest.raises(Day0Error, match="malformed YAML") as caught:
        read_yaml(path)
    assert caught.value.where == f"{path}:9"


@pytest.mark.parametrize(
    ("change", "where", "what"),
    [
        (("device: sim", "devise: sim"), ":1: device", "this field is missing"),
        (("  seed: 3", "  seed: many"), ":7: check.seed", "got the str 'many'"),
        (("  seed: 3", "  seeds: 3"), ":7: check.seeds", "there is no such field 'seeds'"),
        (("name: mine", "name: ../mine"), ":2: name", "plain name without slashes"),
        (("day0.playbook/1", "day0.playbook/9"), "", "up to /1"),
    ],
)
def test_a_wrong_field_names_file_line_and_field(
    tmp_path: Path, change: tuple[str, str], where: str, what: str
) -> None:
    path = _write(tmp_path, GOOD.replace(*change))
    with pytest.raises(Day0Error) as caught:
        validate_yaml(Playbook, read_yaml(path))
    assert caught.value.where.startswith(str(path))
    assert where in caught.value.where
    assert what in caught.value.what


def test_a_number_that_yaml_reads_as_text_is_a_number_all_the_same(tmp_path: Path) -> None:
    gate = "canary:\n  stages:\n    load:\n      gates: [{metric: a, rule: '<=', limit: 1e-2}]\n"
    plan = validate_yaml(Playbook, read_yaml(_write(tmp_path, GOOD + gate)))
    assert plan.canary.stages["load"].gates[0].limit == 0.01


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "empty"),
        ("a: 1\na: 2\n", "stands twice"),
        ("a: &x [1]\nb: *x\n", "alias"),
        ("? [1, 2]\n: 3\n", "not plain text"),
        (b"\xff\xfe\x00", "not UTF-8"),
        ("a: !!python/object/apply:os.system ['true']\n", "malformed YAML"),
        ("[" * 3000 + "]" * 3000, "too deep|malformed"),
        ("#" * (MAX_YAML_BYTES + 1), "more than"),
    ],
)
def test_hostile_files_are_refused(tmp_path: Path, text: str | bytes, what: str) -> None:
    with pytest.raises(Day0Error, match=what):
        read_yaml(_write(tmp_path, text))


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Day0Error, match="no such file"):
        read_yaml(tmp_path / "nothing.yaml")
    with pytest.raises(Day0Error, match="folder"):
        read_yaml(tmp_path)
