from __future__ import annotations

from pathlib import Path

import pytest

from day0.errors import Day0Error
from day0.registry.collect import collect

MINE = """\
import torch
from day0.implementation import Implementation

IMPLEMENTATIONS = (
    Implementation(
        operator="aten::silu", contract=1, id="{id}", version="1.0", kind="decomposition",
        run=lambda x: x * torch.sigmoid(x), why="x times its sigmoid", rank={rank},
    ),
)
"""


def test_a_users_file_is_collected_with_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE.format(id="mine", rank=1))
    found = [one for one in collect((path,)) if one.id == "mine"]
    assert len(found) == 1
    assert found[0].origin == str(path)
    assert found[0].source_hash.startswith("sha256:")
    path.write_text(MINE.format(id="mine", rank=2))
    assert next(one for one in collect((path,)) if one.id == "mine").source_hash != found[0].source_hash


def test_two_files_with_one_identity_are_a_conflict(tmp_path: Path) -> None:
    for name, rank in (("a.py", 1), ("b.py", 2)):
        (tmp_path / name).write_text(MINE.format(id="mine", rank=rank))
    with pytest.raises(Day0Error, match="claim this identity") as caught:
        collect((tmp_path / "a.py", tmp_path / "b.py"))
    assert all(name in str(caught.value.facts) for name in ("a.py", "b.py"))


def test_everything_that_ships_has_an_origin_and_a_hash() -> None:
    for one in collect():
        assert one.origin.startswith(("kernels/torch/", "reference_ops/")), one
        assert len(one.source_hash) == len("sha256:") + 64, one
        assert one.why, one
