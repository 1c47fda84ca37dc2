"""Calls on which the Triton kernels are timed: sizes of real models, and the same shapes tiny for a dry run on a CPU.

`CHECKS` are small calls with the row widths, heads and experts of five models, for correctness.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from day0.analyzers.kernel_check import Call
from day0.implementation import Implementation
from day0.kernels.load import load_implementations
from day0.reference_ops import _cache_layouts as layouts
from day0.reference_ops.load import load_operators

__all__ = ["CASES", "TUNED", "Case", "Maker", "Tuned", "checks_of", "kernel_of"]


@dataclass(frozen=True, kw_only=True)
class Maker:
    """Makes tensors for a call."""

    device: str
    tiny: bool
    seed: int = 0

    def size(self, full: int, tiny: int) -> int:
        """Return a size."""
        return tiny if self.tiny else full

    def random(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Return normal values."""
        generator = torch.Generator(self.device).manual_seed(self.seed + sum(shape))
        return torch.randn(*shape, generator=generator, device=self.device, dtype=torch.float32).to(dtype)

    def whole(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Return whole numbers from low to high - 1."""
        generator = torch.Generator(self.device).manual_seed(self.seed + sum(shape))
        return torch.randint(low, high, shape, generator=generator, device=self.device, dtype=dtype)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One timed call."""

    name: str
    make: Callable[[Maker], Call]
    eager: bool = True
    """Whether the reference, run on the device, is a peer: some would fill its memory, or take minutes."""
    uncompiled: str = ""
    """Why torch.compile is not given the reference."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Tiles to be tuned: the name by which a kernel asks for them, and the case that they are measured on."""

    kernel: str
    case: str
    defaults: str = "TILES"
    choices: str = "CHOICES"
    starts: str = "STARTS"
    """The name of sizes that are tried together, where the kernel's file has some."""


def norm(rows: int) -> Callable[[Maker], Call]:
    """Return a maker of rows of Kimi K3's width."""
    return lambda m: ((m.random(m.size(rows, 3), m.size(7168, 96)), m.random(m.size(7168, 96)), 1e-5), {})


def add_norm(m: Maker) -> Call:
    """Rows of Kimi K3's width, twice."""
    shape = (m.size(8192, 3), m.size(7168, 96))
    return (m.random(*shape), m.random(*shape), m.random(shape[1]), 1e-5), {}


def norm_quantise(m: Maker) -> Call:
    """Rows of Kimi K3's width, in groups of 128."""
    return (m.random(m.size(8192, 3), m.size(7168, 256)), m.random(m.size(7168, 256)), 1e-5, 128, True), {}


def gate(kind: str, interleaved: bool, features: int) -> Callable[[Maker], Call]:
    """Return a maker for one kind."""
    attributes = (kind, interleaved, 7.0, 4.0, 25.0)
    return lambda m: ((m.random(m.size(8192, 3), 2 * m.size(features, 48)), *attributes), {})


def residual(m: Maker) -> Call:
    """Eight snapshots of Kimi K3's width."""
    shape = (1, m.size(4096, 2), m.size(7168, 96))
    width = shape[2]
    bank = [m.random(*shape) for _ in range(8)]
    return (bank, m.random(*shape), m.random(width) * width**-0.25, m.random(width) * width**-0.25, 1e-5), {}


def router(experts: int, topk: int, groups: int, kept: int) -> Callable[[Maker], Call]:
    """Return a maker of logits."""

    def make(m: Maker) -> Call:
        logits = m.random(m.size(8192, 3), experts, dtype=torch.float32)
        return (logits, m.random(experts, dtype=torch.float32), topk, 2.5, groups, kept), {}

    return make


def kv_write(layout: str) -> Callable[[Maker], Call]:
    """Return a maker of rows for every second slot."""

    def make(m: Maker) -> Call:
        rows, latent, page = m.size(65536, 5), m.size(512, 128), 64
        rope = m.size(64, 8)
        stored = torch.bfloat16 if layout == "plain" else torch.uint8
        shape = layouts.page_shape(cache_layout(layout, latent, rope), page)
        pages = torch.zeros(-(-2 * rows // page), *shape, dtype=stored, device=m.device)
        slots = 2 * torch.arange(rows, device=m.device)
        return (pages, m.random(rows, latent + rope), slots, latent, layout), {}

    return make


def cache_layout(layout: str, latent: int, rope: int) -> layouts.Layout:
    """Return a layout at these widths."""
    return layouts.Layout(kind=layout, latent=latent, width=latent + rope, page=0)


def indexer(m: Maker) -> Call:
    """A step of decode of eight requests over 128 Ki keys, heads of DeepSeek V3.2."""
    batch, keys, heads, dim = m.size(8, 1), m.size(131072, 70), m.size(64, 16), m.size(128, 32)
    weights = m.random(batch, 1, heads, dtype=torch.float32)
    return (m.random(batch, 1, heads, dim), m.random(batch, keys, dim), weights, keys - 1), {}


def topk(rows: int) -> Callable[[Maker], Call]:
    """Return a maker of rows, of which 2048 of 128 Ki tokens are chosen."""
    return lambda m: ((m.random(m.size(rows, 1), 1, m.size(131072, 70), dtype=torch.float32), m.size(2048, 16)), {})


def prefill(m: Maker) -> Call:
    """Queries of DeepSeek V3.2 that have chosen 2048 of 32 Ki rows each."""
    queries, heads, keys, chosen = m.size(1024, 2), m.size(128, 16), m.size(32768, 70), m.size(2048, 32)
    latent, rope = m.size(512, 32), m.size(64, 16)
    start = m.whole(0, keys, 1, queries, 1)
    # Distinct for each query, in no order: an odd step visits every row of a power of two.
    indices = (start + torch.arange(chosen, device=m.device, dtype=torch.int32) * m.size(1237, 1)) % keys
    args = (m.random(1, queries, heads, latent + rope), m.random(1, keys, latent + rope), indices.to(torch.int32))
    return (*args, latent, 192**-0.5), {}


def decode(layout: str, requests: int = 32) -> Callable[[Maker], Call]:
    """Return a maker of a step of decode: requests of 128 Ki tokens, 2048 rows of each chosen."""

    def make(m: Maker) -> Call:
        batch, heads, context, chosen, page = (
            m.size(requests, 1),
            m.size(128, 16),
            m.size(131072, 128),
            m.size(2048, 32),
            64,
        )
        latent, rope = m.size(512, 128), m.size(64, 16)
        shape = layouts.page_shape(cache_layout(layout, latent, rope), page)
        if layout == "plain":
            pages = m.random(batch * context // page, *shape)
        else:
            pages = torch.zeros(batch * context // page, *shape, dtype=torch.uint8, device=m.device)
            rows = m.random(page, latent + rope)
            pages[:] = layouts.pack(rows, cache_layout(layout, latent, rope), torch.uint8)[0]
        step = torch.arange(chosen, device=m.device, dtype=torch.int32) * m.size(1237, 1)
        first = torch.arange(batch, device=m.device, dtype=torch.int32)[:, None, None] * context
        indices = first + (m.whole(0, context, batch, 1, 1) + step) % context
        args = (m.random(batch, 1, heads, latent + rope), pages, indices.to(torch.int32), latent, 192**-0.5, layout)
        return args, {}

    return make


def kda(batch: int, tokens: int, *rest: Any) -> Callable[[Maker], Call]:
    """Return a maker with Kimi K3's heads."""

    def make(m: Maker) -> Call:
        many, length, heads, width = m.size(batch, 1), m.size(tokens, 5), m.size(96, 1), m.size(128, 16)
        shape = (many, length, heads, width)
        gates = -5.0 * torch.rand(shape, device=m.device)
        beta = torch.rand(shape[:3], device=m.device)
        state = m.random(many, heads, width, width, dtype=torch.float32)
        return (m.random(*shape), m.random(*shape) + 0.1, m.random(*shape), gates, beta, state, *rest), {}

    return make


def experts(tokens: int, number: int, choices: int) -> Callable[[Maker], Call]:
    """Return a maker with experts of Kimi K3's latent width, fewer of them."""

    def make(m: Maker) -> Call:
        many, count, width, features = m.size(tokens, 3), m.size(number, 5), m.size(3584, 48), m.size(3072, 32)
        picked = m.size(choices, 2)
        gate_up = m.random(count, 2 * features, width) * width**-0.5
        down = m.random(count, width, features) * features**-0.5
        chosen = m.random(many, count, dtype=torch.float32).argsort(dim=-1)[:, :picked].contiguous()
        weights = torch.full((many, picked), 1.0 / picked, device=m.device)
        return (m.random(many, width), gate_up, down, weights, chosen, "situ", False, False, 0.0, 4.0, 25.0), {}

    return make


def packed(m: Maker) -> Call:
    """Four-bit experts of gpt-oss."""
    rows, columns = m.size(32 * 5760, 4), m.size(2880, 64)
    codes = m.whole(0, 256, rows, columns // 2, dtype=torch.uint8)
    return (codes, m.whole(118, 130, rows, columns // 32, dtype=torch.uint8), torch.bfloat16), {}


CASES: dict[str, tuple[Case, ...]] = {
    "rms_norm": (Case(name="prefill", make=norm(8192)), Case(name="decode", make=norm(64))),
    "fused_add_rms_norm": (Case(name="prefill", make=add_norm),),
    "rms_norm_quantise": (Case(name="prefill", make=norm_quantise),),
    "gated_activation": (
        Case(name="situ", make=gate("situ", False, 3072)),
        Case(name="swiglu_oai_interleaved", make=gate("swiglu_oai", True, 2880)),
    ),
    "attention_residual": (Case(name="prefill", make=residual),),
    "moe_router": (
        Case(name="kimi_k3", make=router(896, 16, 1, 1)),
        Case(name="deepseek_v3", make=router(256, 8, 8, 4)),
    ),
    "paged_kv_write": (
        Case(name="plain", make=kv_write("plain")),
        Case(name="fp8_656", make=kv_write("fp8_656")),
    ),
    "mxfp4_decode": (Case(name="bfloat16", make=packed),),
    "lightning_indexer": (Case(name="decode_128k", make=indexer),),
    "topk_tokens": (Case(name="decode_128k_batch_1", make=topk(1)), Case(name="decode_128k", make=topk(32))),
    "sparse_mla_prefill": (Case(name="queries_of_32k", make=prefill, eager=False),),
    "sparse_mla_decode": (
        Case(name="plain_128k", make=decode("plain"), eager=False),
        Case(name="fp8_656_128k", make=decode("fp8_656"), eager=False),
        Case(name="plain_128k_batch_1", make=decode("plain", 1), eager=False),
    ),
    "kda_recurrent": (Case(name="decode", make=kda(32, 1)),),
    "kda_chunked": (
        Case(name="prefill_8k", make=kda(1, 8192, 16), uncompiled="it would unroll 512 chunks, for minutes"),
    ),
    "fused_experts": (
        Case(name="decode", make=experts(64, 64, 8), eager=False),
        Case(name="prefill", make=experts(8192, 32, 8), eager=False),
    ),
}

TUNED: dict[str, tuple[Tuned, ...]] = {
    **{
        name: (Tuned(kernel=name, case=cases[0].name),)
        for name, cases in CASES.items()
        if name not in ("mxfp4_decode", "topk_tokens", "fused_experts", "sparse_mla_decode")
    },
    "topk_tokens": (
        Tuned(kernel="topk_tokens_few", case="decode_128k_batch_1", defaults="FEW", choices="FEW_CHOICES"),
        Tuned(kernel="topk_tokens", case="decode_128k"),
    ),
    "sparse_mla_decode": (
        Tuned(kernel="sparse_mla_decode_few", case="plain_128k_batch_1", defaults="FEW", choices="FEW_CHOICES"),
        Tuned(kernel="sparse_mla_decode", case="plain_128k"),
    ),
    "fused_experts": (
        Tuned(kernel="fused_experts_few", case="decode", defaults="FEW", choices="FEW_CHOICES"),
        Tuned(kernel="fused_experts", case="prefill"),
    ),
}
"""What can be tuned, by operator."""


def kernel_of(name: str) -> Implementation:
    """Return the Triton kernel of an operator."""
    found = [one for one in load_implementations() if one.origin.startswith("kernels/triton/")]
    return next(one for one in found if one.operator == f"day0::{name}")


def module_of(name: str) -> Any:
    """Return the module of a kernel."""
    return import_module(f"day0.kernels.triton.{name}")


def checks_of(name: str) -> list[Call]:
    """Return small calls with the sizes of Kimi K3, DeepSeek V3.2, Kimi Linear, GLM-5 and gpt-oss."""
    m = Maker(device="cpu", tiny=False, seed=7)
    found: list[Call] = []
    if name == "rms_norm":
        found = [
            ((m.random(5, width), m.random(width), 1e-6), {}) for width in (7168, 2304, 6144, 2880, 1536, 512, 128)
        ]
    if name == "fused_add_rms_norm":
        found = [((m.random(3, w), m.random(3, w) * 9, m.random(w), 1e-5), {}) for w in (7168, 2304, 6144, 2880)]
    if name == "rms_norm_quantise":
        found = [((m.random(3, w), m.random(w), 1e-5, g, p), {}) for w, g, p in ((7168, 128, True), (2304, 0, False))]
    if name == "gated_activation":
        for kind, interleaved, width in (("situ", False, 3072), ("swiglu", False, 2048), ("swiglu_oai", True, 2880)):
            found.append(((3.0 * m.random(3, 2 * width), kind, interleaved, 7.0, 4.0, 25.0), {}))
    if name == "moe_router":
        float32 = {"dtype": torch.float32}
        for experts_, top, groups, kept in ((896, 16, 1, 1), (256, 8, 8, 4), (256, 8, 1, 1)):
            logits, bias = m.random(9, experts_, **float32), m.random(experts_, **float32)
            found.append(((logits, bias, top, 2.5, groups, kept), {}))
        found.append(((m.random(9, 128, **float32), torch.zeros(128), 4, 1.0, 1, 1, "softmax_topk"), {}))
    if name in ("kda_chunked", "kda_recurrent"):
        contract = load_operators()[f"day0::{name}"]
        for tokens, heads in ((37, 3), (64, 2)):
            args = [m.random(1, tokens, heads, 128) for _ in range(4)]
            args += [m.random(1, tokens, heads), m.random(1, heads, 128, 128, dtype=torch.float32)]
            if contract.fill:
                contract.fill(tuple(args), {}, torch.Generator().manual_seed(3))
            found.append((tuple(args), {}))
    return found
