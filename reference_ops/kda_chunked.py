"""Kimi Delta Attention, chunk by chunk: the form for prefill and training, with the results of the recurrent form.

Shape suffixes: B batch, S tokens, H heads, K key channels, V value channels; C, I, J tokens of one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from day0.reference_ops import _kda
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["NAME", "OP", "fake", "reference", "validate"]

NAME = "day0::kda_chunked"


def validate(
    q_BSHK: torch.Tensor,
    k_BSHK: torch.Tensor,
    v_BSHV: torch.Tensor,
    g_BSHK: torch.Tensor,
    beta_BSH: torch.Tensor,
    state: torch.Tensor,
    chunk: int = 16,
    state_layout: str = "kv",
) -> None:
    """Refuse arguments that break the contract."""
    check = _kda.check_arguments(NAME, (q_BSHK, k_BSHK, v_BSHV, g_BSHK, beta_BSH, state), state_layout)
    check.true("chunk", chunk >= 1, "1 token or more", chunk)


def reference(
    q_BSHK: torch.Tensor,
    k_BSHK: torch.Tensor,
    v_BSHV: torch.Tensor,
    g_BSHK: torch.Tensor,
    beta_BSH: torch.Tensor,
    state: torch.Tensor,
    chunk: int = 16,
    state_layout: str = "kv",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output [B, S, H, V] in the dtype of q, and the new state in the layout and dtype of `state`.

    Means the same as `day0::kda_recurrent` for every chunk; the last chunk may be shorter. `g` is the logarithm of
    the decay (at most 0, -inf too). Queries and keys are normalised here, the query scaled by K^-1/2. Autograd works.
    """
    validate(q_BSHK, k_BSHK, v_BSHV, g_BSHK, beta_BSH, state, chunk, state_layout)
    wide = torch.float64 if q_BSHK.dtype == torch.float64 else torch.float32
    q, k = _kda.normalised(q_BSHK.to(wide)) * q_BSHK.shape[-1] ** -0.5, _kda.normalised(k_BSHK.to(wide))
    tokens_of = [x.to(wide).transpose(1, 2) for x in (q, k, v_BSHV, g_BSHK, beta_BSH[..., None])]
    state_BHKV = _kda.read_state(state, state_layout, wide)
    outputs = []
    for part in zip(*(x_BHSN.split(chunk, dim=2) for x_BHSN in tokens_of), strict=True):
        # A split of no tokens is one part without tokens.
        if part[0].shape[2]:
            q_BHCK, k_BHCK, v_BHCV, g_BHCK, beta_BHC1 = (x_BHCN.contiguous() for x_BHCN in part)
            out_BHCV, state_BHKV = one_chunk(q_BHCK, k_BHCK, v_BHCV, g_BHCK, beta_BHC1, state_BHKV)
            outputs.append(out_BHCV)
    out_BHSV = torch.cat(outputs, dim=2) if outputs else tokens_of[2]
    out_BSHV = out_BHSV.transpose(1, 2).to(q_BSHK.dtype).clone(memory_format=torch.contiguous_format)
    return out_BSHV, _kda.write_state(state_BHKV, state_layout, state.dtype)


def one_chunk(
    q_BHCK: torch.Tensor,
    k_BHCK: torch.Tensor,
    v_BHCV: torch.Tensor,
    g_BHCK: torch.Tensor,
    beta_BHC1: torch.Tensor,
    state_BHKV: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output of some tokens at once, and the state after them.

    What token i writes depends on what the tokens j < i of the chunk have written: one triangular system gives all.
    """
    # How much of key j is left at token i, for each channel. j > i is computed as well and never used.
    left_BHIJK = pair_decay(g_BHCK) * k_BHCK[:, :, None]
    key_read_BHIJ = (left_BHIJK * k_BHCK[:, :, :, None]).sum(dim=-1)
    query_read_BHIJ = (left_BHIJK * q_BHCK[:, :, :, None]).sum(dim=-1).tril()
    since_start_BHCK = g_BHCK.cumsum(dim=2).exp()
    change_BHCV = beta_BHC1 * (v_BHCV - (k_BHCK * since_start_BHCK) @ state_BHKV)
    # Reads below the diagonal only: change_i + beta_i sum_{j<i} read_ij change_j = what the old state alone asks for.
    change_BHCV = torch.linalg.solve_triangular(beta_BHC1 * key_read_BHIJ, change_BHCV, upper=False, unitriangular=True)
    out_BHCV = (q_BHCK * since_start_BHCK) @ state_BHKV + query_read_BHIJ @ change_BHCV
    written_BHKV = left_BHIJK[:, :, -1].transpose(-1, -2) @ change_BHCV
    return out_BHCV, since_start_BHCK[:, :, -1, :, None] * state_BHKV + written_BHKV


def pair_decay(g_BHCK: torch.Tensor) -> torch.Tensor:
    """Return exp of the sum of g over the tokens after j up to i, [B, H, I, J, K]; 1 for j >= i.

    Never the difference or the quotient of two running sums: exp(-sum) overflows float32 after 18 tokens at g = -5,
    and a difference of large sums has lost its digits. Here every exponent is a sum of g alone, so at most 0.
    """
    tokens = g_BHCK.shape[2]
    t = torch.arange(tokens, device=g_BHCK.device)
    between_IJC = (t > t[None, :, None]) & (t <= t[:, None, None])
    # 0 times -inf is NaN; exp is 0 for both.
    finite_BHCK = g_BHCK.clamp_min(-1e30)
    sum_BHXK = between_IJC.flatten(0, 1).to(g_BHCK.dtype) @ finite_BHCK
    decay_BHIJK: torch.Tensor = sum_BHXK.exp().unflatten(2, (tokens, tokens))
    return decay_BHIJK


def fake(
    q_BSHK: torch.Tensor,
    k_BSHK: torch.Tensor,
    v_BSHV: torch.Tensor,
    g_BSHK: torch.Tensor,
    beta_BSH: torch.Tensor,
    state: torch.Tensor,
    chunk: int = 16,
    state_layout: str = "kv",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of the results."""
    validate(q_BSHK, k_BSHK, v_BSHV, g_BSHK, beta_BSH, state, chunk, state_layout)
    return _kda.fake(q_BSHK, v_BSHV, state)


def flops(
    q_BSHK: torch.Tensor,
    k_BSHK: torch.Tensor,
    v_BSHV: torch.Tensor,
    g_BSHK: torch.Tensor,
    beta_BSH: torch.Tensor,
    state: torch.Tensor,
    chunk: int = 16,
    state_layout: str = "kv",
) -> int:
    """Two scores of each pair below the diagonal, the system, its output, and three products with the state."""
    batch, tokens, heads, keys = q_BSHK.shape
    values, pairs = v_BSHV.shape[-1], (min(chunk, tokens) + 1) // 2
    return int(batch * tokens * heads * (pairs * (6 * keys + 4 * values) + 6 * keys * values))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Sequences that are no multiple of the chunk, a chunk longer than the sequence, chunks of one token."""
    settings = {"small": (2, "kv"), "odd": (3, "vk"), "corner": (64, "kv"), "traced": (2, "vk")}
    for kind, (chunk, layout) in settings.items():
        args = dict(_kda.argument_sets(generator, layout))[kind]
        yield Sample(kind=kind, args=(*args, chunk, layout), kwargs={})
    # Nothing but the bound of a bounded gate, over more tokens than exp(-sum) survives.
    q_BSHK, k_BSHK, v_BSHV = (torch.randn(1, 40, 1, size, generator=generator) for size in (4, 4, 3))
    decay = (torch.full_like(q_BSHK, -5.0), torch.rand(1, 40, 1, generator=generator))
    state_BHKV = torch.randn(1, 1, 4, 3, generator=generator)
    yield Sample(kind="corner", args=(q_BSHK, k_BSHK, v_BSHV, *decay, state_BHKV, 64, "kv"), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="Kimi Delta Attention, chunked form",
    schema="(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor state, int chunk=16, "
    'str state_layout="kv") -> (Tensor, Tensor)',
    mathematics="the recurrence of day0::kda_recurrent; in a chunk with d_ij = exp(sum of g after j up to i): "
    "(I + beta tril(k_i.(d_ij k_j), -1)) u = beta (v - (d_i0 k_i)^T S); o_i = (d_i0 q_i)^T S + "
    "sum_{j<=i} q_i.(d_ij k_j) u_j; S <- d_C0 S + sum_j (d_Cj k_j) u_j^T",
    source="Kimi Linear technical report (KDA); flash-linear-attention ops/kda",
    reference=reference,
    fake=fake,
    flops=flops,
    fill=_kda.fill,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=32.0,
        reason="float32 inside, as the recurrence, and the system adds sums of its own; 32 ULP cover another chunk. A "
        "kernel that keeps the state or the inverse in 16 bits between chunks is other numerics and exceeds this",
    ),
    attributes=(
        Attribute(name="chunk", meaning="tokens solved at once; changes rounding only"),
        Attribute(name="state_layout", meaning="[K, V] or [V, K] of the state, in and out; silent where K = V"),
        Attribute(name="gate", meaning="plain or bounded, applied by the caller; g arrives as a logarithm"),
        Attribute(
            name="state between chunks",
            meaning="float32 here; kernels that keep BF16 between chunks, or an inverse in FP16, are other numerics: "
            "their error grows with the number of chunks and is not within this tolerance",
        ),
        Attribute(name="padding", meaning="a token with g = 0 and beta = 0 leaves the state as it is"),
        Attribute(name="NaN", meaning="spoils its head from its chunk's start, not only from its own token"),
    ),
    verified_against="flash-linear-attention naive recurrent and chunked KDA; transformers kimi_linear chunked; "
    "day0::kda_recurrent",
)
