"""Sparse attention in decode beside dense attention over the same latent cache, on one GPU.

A step of a sparse layer is the indexer over all keys, the selection of 2048 tokens and attention to those. Dense is the
quickest of three over all rows: torch's batched products, our own kernel given every row, torch's attention. Each is
compared with the others' result first. All are captured as CUDA graphs, as serving engines do, and replayed.

`python benchmarks/gpu/sparse_decode.py [--context 131072] [--batch 1 8 32]`
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
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


def main() -> None:
    """Print a table for each batch, and the figures of the largest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, default=131072)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    options = parser.parse_args()
    for batch in options.batch:
        measure(batch, options.context)
        torch.cuda.empty_cache()


def measure(batch: int, context: int) -> None:
    """One batch: compare, time, print."""
    layer = Layer(batch, context)
    layer.compare()
    sparse = {
        "indexer": timed(lambda: indexer(layer.index_q, layer.index_k, layer.index_w, context - 1)),
        "selection": timed(lambda: select(layer.logits, TOPK)),
        "torch.topk, for comparison": timed(lambda: torch.topk(layer.logits, TOPK)),
        "sparse attention": timed(lambda: decode(layer.q, layer.pages, layer.rows, LATENT, SCALE)),
        "sparse layer": timed(layer.sparse),
    }
    dense = {
        "dense, torch products": timed(layer.dense),
        "dense, our kernel": timed(lambda: decode(layer.q, layer.pages, layer.everything, LATENT, SCALE)),
        "dense, torch attention": timed(layer.attention, repeat=3),
    }
    best = min(dense.values())
    print(f"\n{batch} requests of {context} tokens, {HEADS} heads, bfloat16")
    for name, ms in (sparse | dense).items():
        print(f"{name:28} {ms:9.4f} ms   {best / ms:7.2f} x the quickest dense")
    tag = f"{context // 1024}k_batch_{batch}"
    print(f"figure: sparse_layer_{tag}_over_dense {best / sparse['sparse layer']:.2f}")
    print(f"figure: sparse_attention_{tag}_over_dense {best / sparse['sparse attention']:.2f}")


class Layer:
    """Random queries and caches of one layer."""

    def __init__(self, batch: int, context: int) -> None:
        torch.manual_seed(0)
        half: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        self.context = context
        self.q = torch.randn(batch, 1, HEADS, WIDTH, **half)
        self.pages = torch.randn(batch * context // PAGE, PAGE, WIDTH, **half)
        self.index_q = torch.randn(batch, 1, INDEX_HEADS, INDEX_DIM, **half)
        self.index_k = torch.randn(batch, context, INDEX_DIM, **half)
        self.index_w = torch.randn(batch, 1, INDEX_HEADS, device="cuda")
        self.first = (torch.arange(batch, device="cuda") * context).to(torch.int32)[:, None, None]
        self.everything = self.first + torch.arange(context, device="cuda", dtype=torch.int32)
        self.logits = indexer(self.index_q, self.index_k, self.index_w, context - 1)
        self.rows = self.first + select(self.logits, TOPK)[0]

    def sparse(self) -> torch.Tensor:
        """The three operators of a sparse layer."""
        logits = indexer(self.index_q, self.index_k, self.index_w, self.context - 1)
        return decode(self.q, self.pages, self.first + select(logits, TOPK)[0], LATENT, SCALE)[0]

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
        same = torch.equal(values, torch.topk(self.logits, TOPK).values)
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
