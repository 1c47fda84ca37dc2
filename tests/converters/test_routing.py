"""Recorded routing: what is written is read, and what lies is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from day0.converters.online.routing import FORMAT, read_routing, routing_of, write_routing
from day0.errors import Day0Error

SAID = {"format": FORMAT, "layers": "2", "experts": "5"}
CALLS = [[0, 0, 2], [0, 1, 1], [1, 0, 1]]
CHOSEN = [[0, 4], [1, -1], [2, 3], [4, 0]]


def write(path: Path, *, calls: object = CALLS, chosen: object = CHOSEN, **changes: str) -> Path:
    tensors = {"calls": torch.tensor(calls, dtype=torch.int32), "chosen": torch.tensor(chosen, dtype=torch.int32)}
    save_file(tensors, path, metadata=SAID | changes)
    return path


def test_round_trip(tmp_path: Path) -> None:
    steps = [(0, 0, torch.tensor([[0, 4], [1, -1]])), (0, 1, torch.tensor([[2, 3]])), (1, 0, torch.tensor([[4, 0]]))]
    routing = routing_of(steps, layers=2, experts=5, facts={"model": "toy"})
    write_routing(tmp_path / "r.safetensors", routing)
    assert read_routing(tmp_path / "r.safetensors") == routing
    assert list(routing.needs()) == [(0, (0, 1, 4)), (1, (2, 3)), (0, (0, 4))]
    assert (routing.steps, routing.per_step()) == (2, 3)
    assert [one.name for one in tmp_path.iterdir()] == ["r.safetensors"], "nothing half-named stays"
    empty = routing_of([], layers=1, experts=1)
    write_routing(tmp_path / "e.safetensors", empty)
    assert read_routing(tmp_path / "e.safetensors") == empty
    assert read_routing(write(tmp_path / "w.safetensors")).calls == routing.calls


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "day0.routing/9"}, "expected format"),
        ({"layers": "-1"}, "layers: expected"),
        ({"layers": "999999999"}, "layers: expected"),
        ({"layers": "٣"}, "layers: expected"),
        ({"experts": "4"}, "beyond the 4"),
        ({"experts": "1e3"}, "experts: expected"),
        ({"chosen": [[0, -2], [1, 1], [2, 3], [4, 0]]}, "beyond the 5"),
        ({"calls": [[0, 0, 2], [0, 2, 1], [1, 0, 1]]}, "call 1 cannot be"),
        ({"calls": [[1, 0, 2], [0, 1, 1], [1, 0, 1]]}, "call 1 cannot be"),
        ({"calls": [[0, 0, 9]]}, "call 0 cannot be"),
        ({"calls": [[0, 0, -1]]}, "call 0 cannot be"),
        ({"calls": [[0, 0, 1]]}, "4 rows were chosen"),
        ({"calls": [[0, 0]]}, "2 columns"),
        ({"calls": [0, 0, 4]}, "two dimensions"),
    ],
)
def test_lies_are_refused(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    path = write(tmp_path / "r.safetensors", **changes)  # type: ignore[arg-type]
    with pytest.raises(Day0Error, match=said) as caught:
        read_routing(path)
    assert "record-routing" in caught.value.hint


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "r.safetensors")
    whole = path.read_bytes()
    for cut in (0, 7, 40, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(Day0Error):
            read_routing(path)
    with pytest.raises(Day0Error, match="no such file"):
        read_routing(tmp_path / "none")
    with pytest.raises(Day0Error, match="no such file"):
        read_routing(tmp_path)
    save_file({"calls": torch.zeros(1, 3)}, path, metadata=SAID)
    with pytest.raises(Day0Error, match="expected a tensor 'calls', I32"):
        read_routing(path)
    with pytest.raises(Day0Error, match="cannot be written"):
        write_routing(tmp_path / "no" / "folder", routing_of([], layers=1, experts=1))
    two = routing_of([(0, 0, torch.zeros(1, 2)), (0, 1, torch.zeros(1, 3))], layers=2, experts=1)
    with pytest.raises(Day0Error, match=r"choose \[2, 3\] experts"):
        write_routing(path, two)
