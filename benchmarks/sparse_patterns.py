"""Which tokens a query reads, chosen in five ways, in one trained model: what each costs in answers, error and memory.

The toy was trained with its indexer (DSA). Here the same weights answer the same questions while another rule chooses as
many tokens: those with the most weight in attention itself (global top-k), or fixed blocks. Dense reads all. Errors are
those of attention's outputs against dense attention to the same rows, apart for prefill and for decode.

`.venv/bin/python benchmarks/sparse_patterns.py [--batch 64] [--write-docs]`

Shape suffixes: B batch, S queries, T tokens, H heads, C row width, K chosen tokens, L latent.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from day0.models.toy.calls import dispatched
from day0.models.toy.exam import exam, held_out
from day0.models.toy.model import ToyConfig, make_toy
from day0.models.toy.tasks import Questions
from day0.models.toy.weights import load_weights

PAGE = Path(__file__).parent.parent / "docs" / "toy.md"
BEGIN, END = "<!-- patterns: begin -->\n", "<!-- patterns: end -->\n"
BLOCK = 4
"""Tokens of a fixed block: two of them are what the indexer may choose."""
LATENT_ROW, INDEX_KEY, CONTEXT, CHOSEN, BYTES = 576, 128, 131072, 2048, 2
"""Of DeepSeek-V3.2 in bfloat16 at 128 Ki tokens: what memory is counted for."""
Seen = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Visible tokens [B, S, T] bool, their weight in attention [B, S, T], the indexer's choice [B, S, T] bool."""


def _blocks(seen: Seen, kept: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return the visible tokens of blocks that `kept` takes, given the number of each token's block and the newest one."""
    visible_BST = seen[0]
    block_T = torch.arange(visible_BST.shape[-1]) // BLOCK
    newest_BS1 = torch.where(visible_BST, block_T, 0).amax(dim=-1, keepdim=True)
    return visible_BST & kept(block_T.expand_as(visible_BST), newest_BS1)


def _heaviest(seen: Seen, topk: int) -> torch.Tensor:
    visible_BST, weight_BST, _ = seen
    order_BST = weight_BST.masked_fill(~visible_BST, -1.0).argsort(dim=-1, descending=True, stable=True)
    kept_BST = torch.zeros_like(visible_BST).scatter_(-1, order_BST[..., :topk], True)
    return kept_BST & visible_BST


PATTERNS: dict[str, Callable[[Seen, int], torch.Tensor]] = {
    "dense": lambda seen, _: seen[0],
    "DSA: the indexer's top-k": lambda seen, _: seen[2],
    "global top-k": _heaviest,
    "fixed: the newest blocks": lambda seen, topk: _blocks(seen, lambda b, new: b > new - topk // BLOCK),
    "fixed: the first and the newest": lambda seen, topk: _blocks(
        seen, lambda b, new: (b == 0) | (b > new - (topk // BLOCK - 1))
    ),
}


class Reads:
    """The toy's operators, with another rule for what its attention reads; counts how far that is from dense."""

    def __init__(self, pattern: str, topk: int) -> None:
        self._calls, self._keep, self._topk = dispatched(), PATTERNS[pattern], topk
        self._scored = False
        self._chosen_BST = torch.empty(0)
        self.errors: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._calls, name)

    def lightning_indexer(self, *args: Any) -> torch.Tensor:
        """Remember that the next selection is that of attention, and not of pictures."""
        self._scored = True
        logits_BST: torch.Tensor = self._calls.lightning_indexer(*args)
        return logits_BST

    def topk_tokens(self, scores_BST: torch.Tensor, topk: int) -> tuple[torch.Tensor, Any]:
        """Return all visible tokens in their order; keep the indexer's choice."""
        found: tuple[torch.Tensor, Any] = self._calls.topk_tokens(scores_BST, topk)
        if not self._scored:
            return found
        self._scored = False
        tokens = scores_BST.shape[-1]
        # One more place takes what is not a token.
        places_BSK = torch.where(found[0] < 0, tokens, found[0]).to(torch.int64)
        taken_BST = torch.zeros(*scores_BST.shape[:-1], tokens + 1, dtype=torch.bool)
        self._chosen_BST = taken_BST.scatter_(-1, places_BSK, True)[..., :-1]
        every_T = torch.arange(tokens, dtype=torch.int32)
        return torch.where(torch.isneginf(scores_BST), -1, every_T), found[1]

    def sparse_mla_prefill(self, q_BSHC: torch.Tensor, kv_BTC: torch.Tensor, all_BST: torch.Tensor, *more: Any) -> Any:
        """Attend to what the rule keeps of all visible tokens, whose number is their place."""
        kept_BSK = self._kept(q_BSHC, kv_BTC, all_BST, all_BST >= 0, more[1])
        dense, found = (self._calls.sparse_mla_prefill(q_BSHC, kv_BTC, one, *more) for one in (all_BST, kept_BSK))
        self._count("prefill", found[0], dense[0])
        return found

    def sparse_mla_decode(self, q_BSHC: torch.Tensor, pages: torch.Tensor, slots_BST: torch.Tensor, *more: Any) -> Any:
        """The same where rows lie in pages, by their slots."""
        rows_BTC = pages.flatten(0, 1)[slots_BST[:, 0].clamp_min(0).to(torch.int64)]
        kept_BSK = self._kept(q_BSHC, rows_BTC, slots_BST, slots_BST >= 0, more[1])
        dense, found = (self._calls.sparse_mla_decode(q_BSHC, pages, one, *more) for one in (slots_BST, kept_BSK))
        self._count("decode", found[0], dense[0])
        return found

    def _kept(
        self,
        q_BSHC: torch.Tensor,
        kv_BTC: torch.Tensor,
        names_BST: torch.Tensor,
        visible_BST: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Return what is kept of the named rows, in order, -1 behind them: [B, S, K] int32."""
        scores_BSHT = torch.einsum("bshc,btc->bsht", q_BSHC.float(), kv_BTC.float()) * scale
        hidden_BS1T = ~visible_BST[:, :, None]
        weight_BST = torch.softmax(scores_BSHT.masked_fill(hidden_BS1T, float("-inf")), dim=-1).mean(dim=2)
        kept_BST = self._keep((visible_BST, weight_BST, self._chosen_BST), self._topk)
        self.most = max(self.most, int(kept_BST.sum(dim=-1).max()))
        first_BST = kept_BST.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
        return torch.where(kept_BST, names_BST, -1).gather(-1, first_BST)[..., : max(1, self.most)].contiguous()

    def _count(self, phase: str, found: torch.Tensor, dense: torch.Tensor) -> None:
        total = self.errors[phase]
        total[0] += float((found.double() - dense.double()).square().sum())
        total[1] += float(dense.double().square().sum())

    def error(self, phase: str) -> float:
        """Return the relative L2 distance of attention's outputs from dense attention's."""
        apart, whole = self.errors[phase]
        return float((apart / whole) ** 0.5) if whole else 0.0


def memory(pattern: str) -> tuple[int, int]:
    """Return bytes of the cache for a token and a layer, and bytes that a query of decode reads, at real widths."""
    row, key = LATENT_ROW * BYTES, INDEX_KEY * BYTES
    if pattern == "dense":
        return row, CONTEXT * row
    if pattern.startswith("DSA"):
        return row + key, CONTEXT * key + CHOSEN * row
    if pattern.startswith("global"):
        # What weighs most is known when all scores are.
        return row, CONTEXT * row
    return row, CHOSEN * row


def measure(pattern: str, questions: Iterable[Questions]) -> list[str]:
    """Return the cells of a row."""
    reads = Reads(pattern, ToyConfig().index_topk)
    model = make_toy(ToyConfig(), calls=reads)
    load_weights(model)
    shares = exam(model, questions)
    cached, read = memory(pattern)
    errors = [f"{reads.error(phase):.3f}" for phase in ("prefill", "decode")]
    return [
        pattern,
        str(reads.most),
        *(f"{share:.3f}" for share in shares.values()),
        *errors,
        f"{cached:,}",
        f"{read / 2**20:.1f}",
    ]


def table(batch: int) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows."""
    questions = held_out(batch, ToyConfig().vision_patch)
    heads = ["tokens are chosen by", "at most", *(one.kind for one in questions), "error, prefill", "error, decode"]
    heads += ["cache, bytes a token", "read by a query, MiB"]
    return heads, [measure(pattern, questions) for pattern in PATTERNS]


def main() -> None:
    """Print the table and its figures, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64, help="prompts of each kind")
    parser.add_argument("--write-docs", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    heads, rows = table(options.batch)
    if options.write_docs:
        lines = [heads, ["---"] * len(heads), *rows]
        made = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{made}\n\n{END}{after}", encoding="utf-8")
    shown = Table(*heads, box=None)
    for cells in rows:
        shown.add_row(*cells)
    Console(width=200).print(shown)
    for cells in rows:
        print(f"figure: sparse_pattern_recall {cells[0]!r} {cells[2]}")


if __name__ == "__main__":
    main()
