"""Files written in pieces are files that the safetensors library reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from day0.converters.writer import Output, ShardWriter, planned_size
from day0.errors import Day0Error

OUTPUTS = (
    Output(name="bytes", dtype="U8", shape=(3, 5)),
    Output(name="scales", dtype="F32", shape=(2, 2)),
    Output(name="half", dtype="BF16", shape=(4,)),
    Output(name="nothing", dtype="F32", shape=(0, 7)),
)


def written(path: Path) -> None:
    writer = ShardWriter(path, OUTPUTS, {"format": "pt"})
    for row in range(3):
        writer.append("bytes", torch.full((5,), row, dtype=torch.uint8))
        writer.append("half", torch.ones(1, dtype=torch.bfloat16)) if row < 4 else None
    writer.append("half", torch.ones(1, dtype=torch.bfloat16))
    writer.append("scales", torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    writer.finish()


def test_pieces_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    written(path)
    found = load_file(path)
    assert found["bytes"].tolist() == [[0] * 5, [1] * 5, [2] * 5] and found["scales"].tolist() == [[1, 2], [3, 4]]
    assert found["half"].tolist() == [1.0] * 4 and found["nothing"].shape == (0, 7)
    assert path.stat().st_size == planned_size(OUTPUTS, {"format": "pt"})
    assert [one.name for one in tmp_path.iterdir()] == ["x.safetensors"]


def test_format_is_named_and_tensors_are_aligned(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    written(path)
    with safe_open(path, framework="pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert (8 + length) % 64 == 0
    for name, width in (("scales", 4), ("half", 2)):
        assert (8 + length + header[name]["data_offsets"][0]) % width == 0


def test_what_is_not_complete_gets_no_name(tmp_path: Path) -> None:
    """A reader would take zeros for the tensors that are missing."""
    path = tmp_path / "x.safetensors"
    writer = ShardWriter(path, OUTPUTS, {})
    writer.append("bytes", torch.zeros(5, dtype=torch.uint8))
    with pytest.raises(Day0Error, match="bytes: 5 of 15 bytes were written"):
        writer.finish()
    assert not path.exists()
    writer.discard()
    assert list(tmp_path.iterdir()) == []


def test_more_than_planned_is_our_bug(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "x.safetensors", OUTPUTS, {})
    with pytest.raises(ValueError, match="more bytes than planned"):
        writer.append("half", torch.zeros(5, dtype=torch.bfloat16))
    writer.discard()


def test_a_link_in_the_way_is_not_written_through(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    (tmp_path / "x.safetensors.part").symlink_to(other)
    ShardWriter(tmp_path / "x.safetensors", OUTPUTS, {}).discard()
    assert other.read_text() == "mine"
