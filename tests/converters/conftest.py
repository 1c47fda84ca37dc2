"""Small checkpoints in every format, written with the safetensors library and not with our writer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from day0.converters.convert import convert
from day0.converters.folder import open_folder
from day0.converters.plan import make_plan
from day0.converters.tiers.load import pick_tier
from day0.records.convert import ConversionParameters, ConvertReport

Tensors = dict[str, torch.Tensor]
LAYER = "model.layers.0.mlp.experts"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def codes(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator(seed))


def scale_bytes(*shape: int, low: int = 118, high: int = 127, seed: int = 1) -> torch.Tensor:
    return torch.randint(low, high + 1, shape, dtype=torch.uint8, generator=generator(seed))


def gpt_oss(experts: int = 2, rows: int = 256, columns: int = 128, *, seed: int = 0, name: str = LAYER) -> Tensors:
    return {
        f"{name}.down_proj_blocks": codes(experts, rows, columns // 32, 16, seed=seed),
        f"{name}.down_proj_scales": scale_bytes(experts, rows, columns // 32, seed=seed + 1),
    }


def packed(rows: int = 256, columns: int = 128, *, seed: int = 0) -> Tensors:
    stem = f"{LAYER}.0.gate_proj.weight"
    return {f"{stem}_packed": codes(rows, columns // 2, seed=seed), f"{stem}_scale": scale_bytes(rows, columns // 32)}


def deepseek_v4(rows: int = 256, columns: int = 128) -> Tensors:
    stem = "layers.0.ffn.experts.0.w1."
    return {
        stem + "weight": codes(rows, columns // 2).view(torch.int8),
        stem + "scale": scale_bytes(rows, columns // 32).view(torch.float8_e8m0fnu),
    }


def fp8(rows: int = 256, columns: int = 128, *, power_of_two: bool = False) -> Tensors:
    byte = torch.randint(0, 127, (rows, columns), dtype=torch.uint8, generator=generator())
    grid = (-(-rows // 128), -(-columns // 128))
    scale = torch.exp2(torch.randint(-9, -5, grid, generator=generator()).float())
    if not power_of_two:
        scale = scale * (1 + torch.rand(grid, generator=generator()))
    name = "model.layers.0.mlp.down_proj.weight"
    return {name: byte.view(torch.float8_e4m3fn), f"{name}_scale_inv": scale}


def nvfp4(rows: int = 256, columns: int = 128) -> Tensors:
    stem = "model.layers.0.mlp.down_proj.weight"
    scale = torch.rand(rows, columns // 16, generator=generator()) * 4 + 0.5
    return {
        f"{stem}_packed": codes(rows, columns // 2),
        f"{stem}_scale": scale.to(torch.float8_e4m3fn),
        f"{stem}_global_scale": torch.tensor([1024.0]),
    }


def int4(rows: int = 256, columns: int = 128) -> Tensors:
    stem = "model.layers.0.mlp.down_proj.weight"
    scale = torch.rand(rows, columns // 32, generator=generator()) * 0.01 + 0.001
    return {
        f"{stem}_packed": codes(rows, columns // 2).view(torch.int32),
        f"{stem}_scale": scale.to(torch.bfloat16),
        f"{stem}_shape": torch.tensor([rows, columns]),
    }


def plain(rows: int = 256, columns: int = 128) -> Tensors:
    weight = torch.randn(rows, columns, generator=generator()).to(torch.bfloat16)
    return {"model.layers.0.mlp.down_proj.weight": weight}


MAKERS: Mapping[str, tuple[Callable[[], Tensors], str]] = {
    "gpt-oss-mxfp4": (gpt_oss, "gpt_oss"),
    "packed-mxfp4": (packed, "deepseek_v3"),
    "deepseek-v4-fp4": (deepseek_v4, "deepseek_v4"),
    "fp8": (fp8, "deepseek_v3"),
    "nvfp4": (nvfp4, "deepseek_v3"),
    "int4": (int4, "deepseek_v3"),
    "plain": (plain, "deepseek_v3"),
}
"""For every format a checkpoint, and the model type whose map knows its names."""


def write(folder: Path, tensors: Tensors, model_type: str = "gpt_oss", *, shards: int = 1, **config: Any) -> Path:
    """Write a checkpoint: norms and embeddings stand in for the rest of a model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, **config}))
    (folder / "tokenizer.json").write_text('{"a": 1}')
    names = sorted(tensors)
    rest = {"model.norm.weight": torch.ones(8)} if model_type != "deepseek_v4" else {"norm.weight": torch.ones(8)}
    if shards == 1:
        save_file({**tensors, **rest}, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    places: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[number::shards]} | (rest if number == 0 else {})
        save_file(part, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def run(source: Path, target: Path, to: str, *, tier: str = "eager", jobs: int = 1, **options: Any) -> ConvertReport:
    """Plan and convert, as the command does."""
    plan = make_plan(open_folder(source), ConversionParameters(to=to, **options), jobs=jobs)
    return convert(plan, target, pick_tier(tier), jobs=jobs)


@pytest.fixture
def kit() -> Any:
    """Everything above, for tests that cannot import it: the folders of tests are no packages."""
    from types import SimpleNamespace

    return SimpleNamespace(**{name: value for name, value in globals().items() if not name.startswith("_")})
