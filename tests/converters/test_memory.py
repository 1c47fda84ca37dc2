"""Memory: nothing grows with the checkpoint, and buffers are used again."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from day0.converters.reading import Buffers, Reader
from day0.converters.writer import Output, ShardWriter

LIMIT = 600 << 20


def test_buffers_are_the_same_memory(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight experts of two tiles take what one tile takes: every buffer is allocated once."""
    made: list[tuple[str, int]] = []
    take = Buffers.take

    def counted(self: Buffers, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        found = take(self, name, shape, dtype)
        made.append((name, found.untyped_storage().data_ptr()))
        return found

    from day0.converters import scan

    monkeypatch.setattr(scan, "TILE_BYTES", 128 * 64)
    source = kit.write(tmp_path / "s", kit.gpt_oss(8, 256, 128))
    monkeypatch.setattr(Buffers, "take", counted)
    kit.run(source, tmp_path / "t", "fp8", transpose=False)
    names = [name for name, _ in made]
    assert names.count("payload") == 16 and names.count("out") == 16
    # The plan has a reader of its own, and so has the one file.
    assert len({one for one in made if one[0] == "payload"}) == 1
    assert len({one for one in made if one[0] == "scales"}) <= 2


def test_a_piece_beyond_the_end_is_our_bug(kit: Any, tmp_path: Path) -> None:
    from day0.converters.folder import open_folder

    stored = open_folder(kit.write(tmp_path / "s", kit.gpt_oss())).tensors["model.norm.weight"]
    with pytest.raises(ValueError, match="beyond its end"):
        Reader().piece(stored, 4, (5,), into="x")


def large(folder: Path, shards: int, experts: int) -> None:
    folder.mkdir()
    places: dict[str, str] = {}
    codes = torch.randint(0, 256, (2880, 1440), dtype=torch.uint8)
    scales = torch.randint(118, 127, (2880, 90), dtype=torch.uint8)
    for shard in range(shards):
        stem, file = f"model.layers.{shard}.mlp.experts.down_proj", f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        outputs = [
            Output(name=stem + "_blocks", dtype="U8", shape=(experts, 2880, 90, 16)),
            Output(name=stem + "_scales", dtype="U8", shape=(experts, 2880, 90)),
        ]
        writer = ShardWriter(folder / file, outputs, {"format": "pt"})
        for _ in range(experts):
            writer.append(stem + "_blocks", codes)
            writer.append(stem + "_scales", scales)
        writer.finish()
        places |= dict.fromkeys((one.name for one in outputs), file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "config.json").write_text('{"model_type": "gpt_oss"}')


def test_the_limit_is_one() -> None:
    """What the test below relies on: a process with that limit cannot take as much."""
    program = f"import resource; resource.setrlimit(resource.RLIMIT_DATA, ({LIMIT}, {LIMIT})); bytearray({LIMIT})"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize("to", ["fp8", "bf16"])
def test_two_gigabytes_under_600_megabytes(tmp_path: Path, to: str) -> None:
    """Data of the process is limited, so that more fails; its resident set is looked at beside that."""
    large(tmp_path / "s", shards=4, experts=114)
    size = sum(one.stat().st_size for one in (tmp_path / "s").iterdir())
    assert size > 2_000_000_000
    command = [sys.executable, "-m", "day0", "convert", tmp_path / "s", tmp_path / "t", "--to", to, "--jobs", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    with subprocess.Popen([str(one) for one in command], env=environment) as process:
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (LIMIT, LIMIT))
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert usage.ru_maxrss << 10 < LIMIT
    made = sum(one.stat().st_size for one in (tmp_path / "t").glob("*.safetensors"))
    assert made > (1.8 if to == "fp8" else 3.7) * size * 16 / 17
    for one in (tmp_path / "t").glob("*.safetensors"):
        one.unlink()  # gigabytes
