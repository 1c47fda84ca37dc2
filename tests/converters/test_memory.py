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


def test_scales_are_read_a_piece_at_a_time(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale for 32 values is a thirty-second of a matrix, and all of it was read for every tile."""
    from day0.converters.find import find_weights
    from day0.converters.folder import open_folder
    from day0.converters.formats import _scaled
    from day0.converters.plan import make_plan
    from day0.records.convert import ConversionParameters

    name = "model.layers.0.mlp.down_proj.weight"
    tensors = {name: (kit.codes(512, 64) & 63).view(torch.float8_e4m3fn), f"{name}_scale": kit.scale_bytes(512, 2)}
    tensors |= {key.replace("down", "up"): one for key, one in kit.int4().items()}
    plan = make_plan(open_folder(kit.write(tmp_path / "s", tensors, "deepseek_v3")), ConversionParameters(to="fp32"))
    found = find_weights(plan.folder, plan.architecture, plan.parameters).weights
    asked: list[int] = []
    piece = Reader.piece

    def counted(self: Reader, stored: Any, first: int, shape: tuple[int, ...], *, into: str) -> torch.Tensor:
        asked.append(shape[0] * (shape[1] if len(shape) > 1 else 1))
        return piece(self, stored, first, shape, into=into)

    monkeypatch.setattr(Reader, "piece", counted)
    for weight in found:
        reader = Reader()
        assert weight.format.exact_bits is not None and weight.format.values is not None
        whole = _scaled.significant_bits(_scaled.read_scale(weight, reader))
        with monkeypatch.context() as patch:
            patch.setattr(_scaled, "PIECE", 7)
            asked.clear()
            assert _scaled.bits_of_scales(weight, reader) == whole and max(asked) == 7
        if weight.format.name == "fp8":
            asked.clear()
            rows = weight.format.values(weight, reader, 0, 128, 256).clone()
            assert sorted(asked) == [128 * 2, 128 * 64]
            assert torch.equal(rows, weight.format.values(weight, reader, 0, 0, 512)[128:256])


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


CONVERT = """
import atexit, resource, sys
from pathlib import Path
from day0.analyzers.resident import peak_resident
from day0.cli.app import main

def tell(path):
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    Path(path).write_text(str(max(peak_resident(), workers)))

atexit.register(tell, sys.argv.pop())
sys.exit(main())
"""
"""The command, which writes down its peak at the end: what the system tells of a child begins with its parent's."""


@pytest.mark.slow
@pytest.mark.parametrize("to", ["fp8", "bf16"])
def test_two_gigabytes_under_600_megabytes(tmp_path: Path, to: str) -> None:
    """Data of the process is limited, so that more fails; its resident set is looked at beside that."""
    large(tmp_path / "s", shards=4, experts=114)
    size = sum(one.stat().st_size for one in (tmp_path / "s").iterdir())
    assert size > 2_000_000_000
    told = tmp_path / "peak"
    command = [
        sys.executable,
        "-c",
        CONVERT,
        "convert",
        tmp_path / "s",
        tmp_path / "t",
        "--to",
        to,
        "--jobs",
        "2",
        told,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    with subprocess.Popen([str(one) for one in command], env=environment) as process:
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (LIMIT, LIMIT))
        assert process.wait() == 0
    assert 100 << 20 < int(told.read_text()) < LIMIT
    made = sum(one.stat().st_size for one in (tmp_path / "t").glob("*.safetensors"))
    assert made > (1.8 if to == "fp8" else 3.7) * size * 16 / 17
    for one in (tmp_path / "t").glob("*.safetensors"):
        one.unlink()  # gigabytes
