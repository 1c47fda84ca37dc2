"""Sparse attention in decode beside dense attention over the same latent cache, on one GPU.

A step of a sparse layer is the indexer over all keys, the selection of 2048 tokens and attention to those. Dense is the
quickest of three over all rows: torch's batched products, our own kernel given every row, torch's attention. Each is
compared with the others' result first. All are captured as CUDA graphs, as serving engines do, and replayed.

`--compare-only` times nothing: the sparse layer against dense attention that is masked to the chosen tokens, which below
and at the 2048 that are chosen is dense attention itself.

`--sweep` walks contexts, batches and sizes of the selection with fewer repeats, and writes them as JSON (`--out`).

`python benchmarks/gpu/sparse_decode.py [--context 131072 ...] [--batch 1 8 32] [--compare-only]`
`python benchmarks/gpu/sparse_decode.py --sweep --out sweeps.json [--minutes 1.5]`
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from day0.kernels.triton.lightning_indexer import indexer
from day0.kernels.triton.sparse_mla_decode import decode
from day0.kernels.triton.topk_tokens import select

HEADS, LATENT, ROPE, INDEX_HEADS, INDEX_DIM, TOPK, PAGE = 128, 512, 64, 64, 128, 2048, 64
"""Of DeepSeek-V3.2."""
WIDTH = LATENT + ROPE
SCALE = 192**-0.5
SWEEP = (
    *((context, batch, TOPK) for context in (131072, 4096, 16384, 65536) for batch in (1, 8, 32)),
    *((131072, 8, topk) for topk in (512, 1024, 4096, 8192)),
    *((1 << 20, batch, TOPK) for batch in (1, 8)),
)
"""Context, batch and how many tokens are chosen."""


def main() -> None:
    """Print a table for each batch, and the figures of the largest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, nargs="+", default=[131072])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--compare-only", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--out", type=Path, help="of --sweep")
    parser.add_argument("--minutes", type=float, default=2.0, help="for --sweep")
    options = parser.parse_args()
    if options.sweep:
        sweep(options.out, time.monotonic() + 60 * options.minutes)
        return
    for context in options.context:
        for batch in options.batch:
            if options.compare_only:
                agree(batch, context)
            else:
                took = measure(Layer(batch, context), quick=False)
                show(took, batch, context)
            torch.cuda.empty_cache()


def sweep(out: Path | None, end: float) -> None:
    """Measure every case of the sweep that there is time for; the file is whole after each."""
    rows: list[dict[str, Any]] = []
    for context, batch, topk in SWEEP:
        row: dict[str, Any] = {"context": context, "batch": batch, "topk": topk}
        if time.monotonic() > end:
            row["not_run"] = "no time was left"
        else:
            try:
                row["ms"] = measure(Layer(batch, context, topk), quick=True)
            except torch.OutOfMemoryError:
                row["not_run"] = "the caches do not fit into the memory"
        rows.append(row)
        print(json.dumps(row), flush=True)
        torch.cuda.empty_cache()
        if out:
            out.write_text(json.dumps({"schema": "day0.sweeps/1", "rows": rows}, indent=1) + "\n")


def agree(batch: int, context: int) -> None:
    """Compare a sparse layer with dense attention to the same tokens, and with all of them where all are chosen."""
    layer = Layer(batch, context)
    error = layer.error_of_sparse()
    print(f"{batch} requests of {context} tokens, {min(context, TOPK)} chosen: sparse and dense differ by {error:.2e}")
    if error > 1e-2:
        raise SystemExit("error: that is more than the contract's 1e-2")


def measure(layer: Layer, *, quick: bool) -> dict[str, float]:
    """Compare, then return milliseconds by name; quick without torch's attention, which is slowest by far."""
    layer.compare()
    repeat = 7 if quick else 20
    last = layer.context - 1
    ways: dict[str, Callable[[], Any]] = {
        "indexer": lambda: indexer(layer.index_q, layer.index_k, layer.index_w, last),
        "selection": lambda: select(layer.logits, layer.topk),
        "torch.topk, for comparison": lambda: torch.topk(layer.logits, min(layer.topk, layer.context)),
        "sparse attention": lambda: decode(layer.q, layer.pages, layer.rows, LATENT, SCALE),
        "sparse layer": layer.sparse,
        "dense, torch products": layer.dense,
        "dense, our kernel": lambda: decode(layer.q, layer.pages, layer.everything, LATENT, SCALE),
    }
    found = {name: timed(way, repeat) for name, way in ways.items()}
    return found if quick else found | {"dense, torch attention": timed(layer.attention, 3)}


def show(took: dict[str, float], batch: int, context: int) -> None:
    """Print one batch and its figures."""
    best = min(ms for name, ms in took.items() if name.startswith("dense"))
    print(f"\n{batch} requests of {context} tokens, {HEADS} heads, bfloat16")
    for name, ms in took.items():
        print(f"{name:28} {ms:9.4f} ms   {best / ms:7.2f} x the quickest dense")
    tag = f"{context // 1024}k_batch_{batch}"
    print(f"figure: sparse_layer_{tag}_over_dense {best / took['sparse layer']:.2f}")
    print(f"figure: sparse_attention_{tag}_over_dense {best / took['sparse attention']:.2f}")
    if context == 131072:
        # The largest batch comes last, and counts.
        print(f"figure: sparse_decode_128k_over_dense {best / took['sparse layer']:.2f}")


class Layer:
    """Random queries and caches of one layer."""

    def __init__(self, batch: int, context: int, topk: int = TOPK) -> None:
        torch.manual_seed(0)
        half: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        self.context, self.topk = context, topk
        self.q = torch.randn(batch, 1, HEADS, WIDTH, **half)
        self.pages = torch.randn(batch * context // PAGE, PAGE, WIDTH, **half)
        self.index_q = torch.randn(batch, 1, INDEX_HEADS, INDEX_DIM, **half)
        self.index_k = torch.randn(batch, context, INDEX_DIM, **half)
        self.index_w = torch.randn(batch, 1, INDEX_HEADS, device="cuda")
        self.first = (torch.arange(batch, device="cuda") * context).to(torch.int32)[:, None, None]
        self.everything = self.first + torch.arange(context, device="cuda", dtype=torch.int32)
        self.logits = indexer(self.index_q, self.index_k, self.index_w, context - 1)
        self.rows = self.rows_of(select(self.logits, topk)[0])

    def rows_of(self, tokens: torch.Tensor) -> torch.Tensor:
        """Rows of the cache by tokens of a request; -1 stays."""
        return torch.where(tokens < 0, -1, self.first + tokens)

    def sparse(self) -> torch.Tensor:
        """The three operators of a sparse layer."""
        logits = indexer(self.index_q, self.index_k, self.index_w, self.context - 1)
        return decode(self.q, self.pages, self.rows_of(select(logits, self.topk)[0]), LATENT, SCALE)[0]

    def error_of_sparse(self) -> float:
        """Relative error against float64 attention to the chosen tokens alone."""
        kv = self.pages.view(len(self.q), self.context, WIDTH).double()
        scores = torch.bmm(self.q[:, 0].double(), kv.transpose(1, 2)) * SCALE
        chosen = torch.zeros(len(self.q), self.context, dtype=torch.bool, device=kv.device)
        for request, tokens in enumerate((self.rows - self.first)[:, 0]):
            chosen[request, tokens[self.rows[request, 0] >= 0].long()] = True
        if int(chosen.sum()) != len(self.q) * min(self.context, self.topk):
            raise SystemExit("error: a token was chosen twice, or not enough were")
        weights = torch.softmax(scores.masked_fill(~chosen[:, None], float("-inf")), dim=-1)
        right = torch.bmm(weights, kv[..., :LATENT])
        return float((self.sparse()[:, 0] - right).norm() / right.norm())

    def dense(self) -> torch.Tensor:
        """Two batched products and a softmax."""
        kv = self.pages.view(len(self.q), self.context, WIDTH)
        weights = torch.softmax(torch.bmm(self.q[:, 0], kv.transpose(1, 2)).float() * SCALE, dim=-1)
        return torch.bmm(weights.to(kv.dtype), kv[..., :LATENT])[:, None]

    def attention(self) -> torch.Tensor:
        """Torch's own attention, heads as queries of one shared head."""
        kv = self.pages.view(len(self.q), 1, self.context, WIDTH)
        found = torch.nn.functional.scaled_dot_product_attention(self.q, kv, kv[..., :LATENT].contiguous(), scale=SCALE)
        return found

    def compare(self) -> None:
        """Raise SystemExit where two ways differ."""
        ours = decode(self.q, self.pages, self.everything, LATENT, SCALE)[0].float()
        theirs = self.dense().float()
        error = float((ours - theirs).norm() / theirs.norm())
        chosen = self.rows - self.first
        values = self.logits.gather(-1, chosen.long())
        same = torch.equal(values, torch.topk(self.logits, self.topk).values)
        if error > 1e-2 or not same:
            raise SystemExit(f"error: dense attention differs by {error:.3g}, selection the same: {same}")


def timed(action: Callable[[], Any], repeat: int = 20) -> float:
    """Median milliseconds of a captured graph, with the second-level cache emptied before each replay."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        action()
        action()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        action()
    found = []
    for _ in range(repeat):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return median(found)


if __name__ == "__main__":
    main()
