"""How fast four-bit experts become FP8 and BF16, beside other people's code, in one run with interleaved repeats.

In memory: gpt-oss shapes, one thread, each tier into buffers that are there already, transformers' dequantiser as it
is. File to file: the same experts under the names of compressed-tensors, our whole conversion (plan, verdicts, fsync,
manifest) beside `convert_checkpoint` of that library, both with one worker and the files in the page cache.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from day0.converters.convert import convert
from day0.converters.folder import open_folder
from day0.converters.plan import make_plan
from day0.converters.tables import BF16, E4M3, LOWEST, Table, fp8_table, wide_table
from day0.converters.tiers.load import load_tiers, pick_tier
from day0.converters.writer import Output, ShardWriter
from day0.records.convert import ConversionParameters

ROWS, COLUMNS = 5760, 2880
"""Of gate and up of one gpt-oss expert."""


def main() -> None:
    """Print tables and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experts", type=int, default=2)
    parser.add_argument("--file-experts", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="where to write; else a temporary one")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    os.environ["TQDM_DISABLE"] = "1"
    in_memory(options.experts, options.repeat)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        file_to_file(Path(folder), options.file_experts, max(2, options.repeat // 2))


def clear(folder: Path) -> None:
    """Remove what an earlier turn wrote, and let its pages go to the disk."""
    for one in folder.iterdir():
        if one.name != "source":
            shutil.rmtree(one)
    os.sync()


def interleaved(
    actions: dict[str, Callable[[], Any]], repeat: int, before: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    """Run each once for nothing, then all of them again and again: what else the machine does hits all of them.

    In another order each time: what comes after one that frees much memory pays for it.
    """
    order = random.Random(0)  # noqa: S311 - an order, no secret
    for action in actions.values():
        before()
        action()
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeat):
        for name, action in order.sample(list(actions.items()), len(actions)):
            before()
            began = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def in_memory(experts: int, repeat: int) -> None:
    """Tiers beside transformers' dequantiser."""
    from transformers.integrations.mxfp4 import _convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (experts, ROWS, COLUMNS // 32, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(115, 127, (experts, ROWS, COLUMNS // 32), dtype=torch.uint8, generator=generator)
    codes = blocks.view(-1, 16)
    tables: dict[str, tuple[Table, torch.Tensor]] = {
        "fp8": (fp8_table(E4M3), (scales - 126 + 6 - LOWEST).view(-1)),
        "bf16": (wide_table(BF16), scales.view(-1)),
    }
    actions: dict[str, Callable[[], Any]] = {
        "transformers bf16": lambda: _convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
    }
    for tier in load_tiers().values():
        for name, (table, rows) in tables.items():
            if not tier.missing("cpu"):
                out = torch.zeros(codes.shape, dtype=table.pairs.dtype)
                actions[f"{tier.name} {name}"] = lambda d=tier.decode, r=rows, t=table, o=out: d(codes, r, t, o)
    found = interleaved(actions, repeat)
    peer = found["transformers bf16"]
    print(f"{codes.numel() / 1e6:.0f} MB of packed codes, {repeat} repeats, one thread")
    for name, seconds in found.items():
        rate = codes.numel() / min(seconds) / 1e9
        print(f"{name:20} {rate:7.3f} GB/s packed   {ratio(peer, seconds):7.1f} x transformers")
    print(f"figure: eager_over_transformers {ratio(peer, found['eager fp8']):.1f}")
    print(f"figure: eager_bf16_over_transformers {ratio(peer, found['eager bf16']):.1f}")
    print(f"figure: compiled_over_transformers {ratio(peer, found['compiled fp8']):.1f}")
    print(f"figure: compiled_bf16_over_transformers {ratio(peer, found['compiled bf16']):.1f}")
    if "native fp8" in found:
        print(f"figure: native_over_transformers {ratio(peer, found['native fp8']):.1f}")


def ratio(peer: list[float], ours: list[float]) -> float:
    """Return the median of the ratios of neighbours: both had the same disturbance."""
    return statistics.median(one / other for one, other in zip(peer, ours, strict=True))


def file_to_file(folder: Path, experts: int, repeat: int) -> None:
    """Whole checkpoints: ours to FP8 and to BF16, theirs to BF16."""
    from compressed_tensors.entrypoints.convert import CompressedTensorsDequantizer, convert_checkpoint
    from loguru import logger  # of compressed-tensors, which turns it on when it is imported

    logger.disable("compressed_tensors")

    source = folder / "source"
    write_source(source, experts)
    plan_of = {to: ConversionParameters(to=to) for to in ("fp8-128x128", "bf16")}

    def ours(to: str, tier: str) -> None:
        target = folder / f"ours {to} {tier}"
        convert(make_plan(open_folder(source), plan_of[to]), target, pick_tier(tier))

    def theirs() -> None:
        # Without a device it would take every accelerator that it finds.
        convert_checkpoint(
            str(source), str(folder / "theirs"), CompressedTensorsDequantizer(str(source)), max_workers=1, device="cpu"
        )

    actions: dict[str, Callable[[], Any]] = {"compressed-tensors bf16": theirs}
    for tier in ("eager", "native"):
        if not load_tiers()[tier].missing("cpu"):
            actions |= {f"{tier} {to}": lambda t=to, k=tier: ours(t, k) for to in plan_of}
    found = interleaved(actions, repeat, before=lambda: clear(folder))
    size = sum(one.stat().st_size for one in source.glob("*.safetensors"))
    peer = found["compressed-tensors bf16"]
    print(f"file to file: {size / 1e6:.0f} MB, {repeat} repeats, one worker, files in {folder.parent}")
    for name, seconds in found.items():
        print(
            f"{name:24} {size / min(seconds) / 1e9:7.3f} GB/s packed   {ratio(peer, seconds):7.1f} x compressed-tensors"
        )
    best = "native" if "native fp8-128x128" in found else "eager"
    print(f"figure: file_over_compressed_tensors {ratio(peer, found[f'{best} fp8-128x128']):.1f}")
    print(f"figure: file_bf16_over_compressed_tensors {ratio(peer, found[f'{best} bf16']):.1f}")
    print(f"figure: file_eager_over_compressed_tensors {ratio(peer, found['eager fp8-128x128']):.1f}")


def write_source(folder: Path, experts: int) -> None:
    """A checkpoint in the names of compressed-tensors."""
    folder.mkdir()
    outputs = []
    names = [f"model.layers.0.mlp.experts.{expert}.gate_proj.weight" for expert in range(experts)]
    for name in names:
        outputs.append(Output(name=name + "_packed", dtype="U8", shape=(ROWS, COLUMNS // 2)))
        outputs.append(Output(name=name + "_scale", dtype="U8", shape=(ROWS, COLUMNS // 32)))
    writer = ShardWriter(folder / "model.safetensors", outputs, {"format": "pt"})
    generator = torch.Generator().manual_seed(0)
    for name in names:
        writer.append(
            name + "_packed", torch.randint(0, 256, (ROWS, COLUMNS // 2), dtype=torch.uint8, generator=generator)
        )
        scales = torch.randint(115, 127, (ROWS, COLUMNS // 32), dtype=torch.uint8, generator=generator)
        writer.append(name + "_scale", scales)
    writer.finish()
    group = {
        "targets": ["Linear"],
        "format": "mxfp4-pack-quantized",
        "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True},
    }
    config = {
        "model_type": "deepseek_v3",
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "mxfp4-pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
        },
    }
    (folder / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main()
