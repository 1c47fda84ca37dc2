"""Calls of kernels beyond the samples of their contracts, small enough for Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable

import torch

from day0.analyzers.kernel_check import Call
from day0.reference_ops import _cache_layouts as layouts

__all__ = ["OTHERWISE", "hard_calls"]

BF16 = torch.bfloat16
NAN, INF = float("nan"), float("inf")

OTHERWISE = {"kda_chunked": {"values": 16, "keys": 16}}
"""Tiles that run other code: a kernel is judged with them as `tiles:NAME`."""


def hard_calls(operator: str) -> list[Call]:
    """Return calls on the CPU; none for an operator that has no such."""
    make = MAKERS.get(operator.removeprefix("day0::"))
    return make(torch.Generator().manual_seed(3)) if make else []


def norms(generator: torch.Generator) -> list[Call]:
    """Rows that lie apart, several in a tile; no eps."""
    apart = torch.randn(70, 9, generator=generator).t()
    return [((apart, torch.ones(70), 0.0, False), {}), ((apart.to(BF16), torch.ones(70, dtype=BF16), 1e-6), {})]


def added(generator: torch.Generator) -> list[Call]:
    """Rows that lie apart, and cancel."""
    x = torch.randn(70, 3, generator=generator).to(BF16).t()
    return [((x, -x * 1.25, torch.ones(70, dtype=BF16), 1e-5, False), {})]


def quantised_norms(generator: torch.Generator) -> list[Call]:
    """Groups of three, infinity in one token and NaN in another, a group larger than the row."""
    x = torch.randn(4, 20, generator=generator)
    x[1, 4], x[2, 5] = INF, NAN
    calls: list[Call] = [((x, torch.ones(20), 1e-6, 3, two), {}) for two in (True, False)]
    return [*calls, ((x[:1], torch.ones(20), 1e-6, 64, True), {})]


def gates(generator: torch.Generator) -> list[Call]:
    """What is not finite, a bound that is none, columns that lie apart."""
    x = 5.0 * torch.randn(6, 5, generator=generator)
    x[0, 0], x[3, 1], x[4, 2] = NAN, INF, -INF
    calls: list[Call] = [((x.t(), kind, False, 1.5, 2.0, 0.0), {}) for kind in ("swiglu_clamped", "situ", "swiglu")]
    return [*calls, ((x.t(), "swiglu_oai", True, 1.5, 2.0, 0.0), {})]


def residuals(generator: torch.Generator) -> list[Call]:
    """Twelve snapshots, one much larger than the others."""
    bank = [torch.randn(1, 2, 33, generator=generator) * (1e6 if one == 5 else 1.0) for one in range(12)]
    norm, score = (torch.randn(33, generator=generator) for _ in range(2))
    return [((bank, torch.randn(1, 2, 33, generator=generator), norm, score, 1e-6), {})]


def routers(generator: torch.Generator) -> list[Call]:
    """Ties everywhere, groups of which all but one are closed, NaN in one token."""
    same = torch.zeros(3, 24)
    some = torch.randint(-1, 2, (5, 24), generator=generator).float()
    spoiled = torch.randn(3, 24, generator=generator)
    spoiled[1, 7] = NAN
    return [
        ((same, torch.zeros(24), 9, 1.0, 1, 1, "softmax_topk"), {}),
        ((some, -torch.ones(24), 6, 2.5, 4, 1), {}),
        ((spoiled, torch.zeros(24), 5, 1.0, 1, 1, "sqrtsoftplus"), {}),
    ]


def writes(generator: torch.Generator) -> list[Call]:
    """Rows that are not finite, far slots, pages apart, a dtype other than that of the pages."""
    calls: list[Call] = []
    for layout, latent, rope in (("fp8_656", 130, 2), ("fp8_584:2", 64, 3), ("plain", 5, 2)):
        rows = torch.randn(5, latent + rope, generator=generator)
        rows[1, 0], rows[2, 1] = NAN, INF
        page = 2
        shape = layouts.page_shape(layouts.Layout(kind=layout[:7], latent=latent, width=latent + rope, page=2), page)
        pages = torch.zeros(9, *shape, dtype=torch.float16 if layout == "plain" else torch.uint8)[::3]
        slots = torch.tensor([5, 0, -7, 2**40, 3])
        calls.append(((pages, rows.to(BF16) if layout == "plain" else rows, slots, latent, layout), {}))
    return calls


def prefills(generator: torch.Generator) -> list[Call]:
    """More heads than a tile, a list that no tile divides, numbers that are no rows, NaN in rows nobody chose."""
    q = torch.randn(2, 2, 70, 24, generator=generator).to(BF16)
    kv = torch.randn(2, 90, 24, generator=generator).to(BF16)
    kv[:, 7] = NAN
    chosen = torch.rand(2, 2, 90, generator=generator).argsort(dim=-1)[..., :67].to(torch.int32)
    chosen[chosen == 7] = 2**31 - 1
    chosen[0, 1, 10:] = -1
    length = torch.tensor([[67, 67], [65, 0]], dtype=torch.int32)
    sink = torch.linspace(-3.0, 3.0, 70)
    return [((q, kv, chosen, 16, 0.2, length, sink), {}), ((q[:1, :1], kv[:1], chosen[:1, :1], 24, 0.2), {})]


def decodes(generator: torch.Generator) -> list[Call]:
    """Rows of FP8 whose scales lie at whole words and that do not, pages apart, marked pages, several parts."""
    calls: list[Call] = []
    for layout, latent, rope in (("plain", 16, 8), ("fp8_656", 128, 4), ("fp8_656", 131, 3), ("fp8_584", 64, 4)):
        q = torch.randn(2, 1, 5, latent + rope, generator=generator).to(BF16)
        found = layouts.Layout(kind=layout, latent=latent, width=latent + rope, page=8)
        stored = BF16 if layout == "plain" else torch.uint8
        pages = torch.zeros(22, *layouts.page_shape(found, 8), dtype=stored)[::2]
        rows = torch.randn(88, latent + rope, generator=generator).to(BF16)
        for view, piece in zip(layouts.views(pages, found, 8), layouts.pack(rows, found, stored), strict=True):
            view.copy_(piece.unflatten(0, (11, 8)))
        chosen = torch.rand(2, 1, 88, generator=generator).argsort(dim=-1)[..., :77].to(torch.int32)
        chosen[0, 0, 3] = 88
        name = "fp8_584:8" if layout == "fp8_584" else layout
        options = {
            "topk_length": torch.tensor([77, 66], dtype=torch.int32),
            "bitmap": torch.arange(22).view(2, 11) % 3 != 0,
            "attn_sink": torch.linspace(-2.0, 2.0, 5),
        }
        calls.append(((q, pages, chosen, latent, 0.1, name), options))
    return calls


def chunks(generator: torch.Generator) -> list[Call]:
    """More tokens than a chunk; gates at the bound throughout, and some that forget everything."""
    calls: list[Call] = []
    for bound in (False, True):
        q, k = (torch.randn(1, 37, 2, 9, generator=generator) for _ in range(2))
        v, state = torch.randn(1, 37, 2, 5, generator=generator), torch.randn(1, 2, 9, 5, generator=generator)
        g = torch.full((1, 37, 2, 9), -5.0) if bound else -torch.rand(1, 37, 2, 9, generator=generator)
        if not bound:
            g[0, 20, 1, 4] = -INF
        beta = torch.rand(1, 37, 2, generator=generator)
        calls.append(((q, k, v, g, beta, state), {}))
    return calls


def long_chunks(generator: torch.Generator) -> list[Call]:
    """The same, and keys that hardly differ, with almost nothing forgotten: powers of what they read would explode."""
    q, k = (torch.ones(1, 50, 1, 20) + 0.01 * torch.randn(1, 50, 1, 20, generator=generator) for _ in range(2))
    v, state = torch.randn(1, 50, 1, 5, generator=generator), torch.randn(1, 1, 20, 5, generator=generator)
    g, beta = torch.full((1, 50, 1, 20), -1e-4), torch.full((1, 50, 1), 0.999)
    # Gates that a model without a bound has: large ones in single places.
    spikes = torch.where(torch.rand(1, 50, 1, 20, generator=generator) < 0.1, -80.0, -0.01)
    calls = [*chunks(generator), ((q, k, v, g, beta, state), {}), ((q.to(BF16), k, v, spikes, beta, state), {})]
    return [*calls, ordinary_chunks(generator)]


def ordinary_chunks(generator: torch.Generator) -> Call:
    """As a model calls it, with many rows of outputs: in a few of them nearly all cancels, which few digits do not survive."""
    rows = (2, 24, 3)
    q, k = (torch.randn(*rows, 16, generator=generator).to(BF16) for _ in range(2))
    v, state = torch.randn(*rows, 24, generator=generator).to(BF16), torch.randn(2, 3, 16, 24, generator=generator)
    g, beta = -5.0 * torch.rand(*rows, 16, generator=generator), torch.rand(*rows, generator=generator)
    return (q, k, v, g, beta, state), {}


def experts(generator: torch.Generator) -> list[Call]:
    """More rows for one expert than a tile has, none for another, experts of other ranks, tokens of which none counts."""
    x = torch.randn(45, 40, generator=generator).to(BF16)
    x[3] = NAN
    gate_up = (torch.randn(4, 36, 40, generator=generator) / 6).to(BF16)
    down = (torch.randn(4, 40, 18, generator=generator) / 4).to(BF16)
    chosen = torch.ones(45, 3, dtype=torch.int64)
    chosen[:, 1], chosen[::2, 2], chosen[1::2, 2] = 3, 4, -1
    chosen[3] = -1
    weights = torch.rand(45, 3, generator=generator)
    # Few rows for each expert take other tiles.
    few = (x[5:8], gate_up, down, weights[5:8].to(BF16), chosen[5:8].to(torch.int32))
    # In the slots of a workspace a guard and another matrix lie between two experts.
    slots = torch.full((4, 36 * 40 + 40 * 18 + 16), NAN, dtype=BF16)
    there = [
        part.unflatten(1, shape)
        for part, shape in zip((slots[:, : 36 * 40], slots[:, 36 * 40 + 16 :]), ((36, 40), (40, 18)), strict=True)
    ]
    for slot, matrix in zip(there, (gate_up, down), strict=True):
        slot.copy_(matrix)
    return [
        ((x, *there, weights, chosen, "swiglu"), {}),
        ((x, gate_up, down, weights, chosen, "swiglu"), {}),
        ((*few, "swiglu_oai", True, True, 2.0), {}),
    ]


def selections(generator: torch.Generator) -> list[Call]:
    """Ties everywhere, zeros of both signs, what is not finite, closed rows, lengths; few rows, some, and many."""
    calls: list[Call] = []
    for rows, keys, topk in ((2, 300, 40), (12, 50, 20), (70, 9, 4)):
        score = (torch.randn(rows, 1, keys, generator=generator) * 2).round()
        score[0, 0, :4] = torch.tensor([-0.0, NAN, INF, -INF])
        score[1] = -INF
        lengths = torch.randint(-1, keys + 2, (rows, 1), generator=generator, dtype=torch.int32)
        calls += [((score, topk), {}), ((score.to(BF16), topk, lengths), {}), ((score, keys + 3), {})]
    return [*calls, ((torch.randn(1, 2, 700, generator=generator), 100), {})]


MAKERS: dict[str, Callable[[torch.Generator], list[Call]]] = {
    "rms_norm": norms,
    "fused_add_rms_norm": added,
    "rms_norm_quantise": quantised_norms,
    "gated_activation": gates,
    "attention_residual": residuals,
    "moe_router": routers,
    "topk_tokens": selections,
    "paged_kv_write": writes,
    "sparse_mla_prefill": prefills,
    "sparse_mla_decode": decodes,
    "kda_recurrent": chunks,
    "kda_chunked": long_chunks,
    "fused_experts": experts,
}
