"""How much memory a conversion takes at 1, 4 and 16 shards of the same size, each in a process of its own.

The peak is that of the process above what it had before it opened the checkpoint; the page cache is not its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROWS, COLUMNS, EXPERTS = 2880, 2880, 4
BASE = 256 << 20


def main() -> None:
    """Print a table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", default="fp8", help="format")
    parser.add_argument("--shards", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    peaks = {}
    for shards in options.shards:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "source"
            size = write_source(source, shards)
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
                before, peak, largest = fresh.submit(
                    measured, source, Path(folder) / "out", options.to, options.jobs
                ).result()
        peaks[shards] = peak - before
        limit = 2 * largest * options.jobs + BASE
        print(
            f"{shards:3} shards, {size / 2**20:7.1f} MiB: peak {peak / 2**20:6.1f} MiB, of which {before / 2**20:6.1f} before; "
            f"conversion {peaks[shards] / 2**20:5.1f} MiB (tile buffers {largest / 2**20:.1f} MiB, limit {limit / 2**20:.0f} MiB)"
        )
    first, last = options.shards[0], options.shards[-1]
    print(f"figure: peak_growth_ratio {peaks[last] / peaks[first]:.3f}")
    print(f"figure: peak_conversion_mib {max(peaks.values()) / 2**20:.1f}")


def measured(source: Path, target: Path, to: str, jobs: int) -> tuple[int, int, int]:
    """Return bytes of this process before, at most, and those of all tile buffers of a worker."""
    import torch

    from day0.converters import reading
    from day0.converters.convert import convert
    from day0.converters.folder import open_folder
    from day0.converters.plan import make_plan
    from day0.converters.tiers.load import pick_tier
    from day0.records.convert import ConversionParameters

    torch.set_num_threads(1)
    tier = pick_tier("auto")
    sizes: list[int] = []
    take = reading.Buffers.take

    def counted(self: reading.Buffers, *arguments: Any) -> Any:
        made = take(self, *arguments)
        sizes.append(sum(one.numel() for one in self._memory.values()))
        return made

    reading.Buffers.take = counted  # type: ignore[method-assign]  # to count what workers hold
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    plan = make_plan(open_folder(source), ConversionParameters(to=to, allow_bounded=True), jobs=jobs)
    convert(plan, target, tier, jobs=jobs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    shutil.rmtree(target)
    return before, peak, max(sizes)


def write_source(folder: Path, shards: int) -> int:
    """A checkpoint of so many shards, each with all experts of a layer."""
    import torch

    from day0.converters.writer import Output, ShardWriter

    folder.mkdir()
    places = {}
    generator = torch.Generator().manual_seed(0)
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        stem = f"model.layers.{shard}.mlp.experts.down_proj"
        shape = (EXPERTS, ROWS, COLUMNS // 32)
        outputs = [
            Output(name=stem + "_blocks", dtype="U8", shape=(*shape, 16)),
            Output(name=stem + "_scales", dtype="U8", shape=shape),
        ]
        writer = ShardWriter(folder / file, outputs, {"format": "pt"})
        for _ in range(EXPERTS):
            codes = torch.randint(0, 256, (ROWS, COLUMNS // 2), dtype=torch.uint8, generator=generator)
            writer.append(stem + "_blocks", codes)
            scales = torch.randint(115, 127, (ROWS, COLUMNS // 32), dtype=torch.uint8, generator=generator)
            writer.append(stem + "_scales", scales)
        writer.finish()
        places |= dict.fromkeys((one.name for one in outputs), file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "config.json").write_text('{"model_type": "gpt_oss"}')
    return sum(one.stat().st_size for one in folder.iterdir())


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
