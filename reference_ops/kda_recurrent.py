"""Kimi Delta Attention, token by token: a gated delta rule with one decay for every key channel.

Shape suffixes: B batch, S tokens, H heads, K key channels, V value channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["OP", "fake", "reference", "validate"]

NAME = "day0::kda_recurrent"


def validate(
    q_BSHK: torch.Tensor,
    k_BSHK: torch.Tensor,
    v_BSHV: torch.Tensor,
    g_BSHK: torch.Tensor,
    beta_BSH: torch.Tensor,
    state_BHKV: torch.Tensor,
) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    for name, tensor, letters in (
        ("q", q_BSHK, "BSHK"),
        ("k", k_BSHK, "BSHK"),
        ("v", v_BSHV, "BSHV"),
        ("g", g_BSHK, "BSHK"),
        ("beta", beta_BSH, "BSH"),
        ("state", state_BHKV, "BHKV"),
    ):
        check.shape(name, tensor, letters)
        check.floating(name, tensor)


def reference(
    q_BSHK: torch.Tensor,
    k_BSHK: torch.Tensor,
    v_BSHV: torch.Tensor,
    g_BSHK: torch.Tensor,
    beta_BSH: torch.Tensor,
    state_BHKV: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output [B, S, H, V] in the dtype of q, and the new state [B, H, K, V] in the dtype of the state.

    `g` is the logarithm of the decay (at most 0). Queries and keys are normalised here, the query scaled by K^-1/2.
    """
    validate(q_BSHK, k_BSHK, v_BSHV, g_BSHK, beta_BSH, state_BHKV)
    wide = torch.float64 if q_BSHK.dtype == torch.float64 else torch.float32
    q, k, v, g, beta = (tensor.to(wide) for tensor in (q_BSHK, k_BSHK, v_BSHV, g_BSHK, beta_BSH))
    q, k = normalised(q) * q.shape[-1] ** -0.5, normalised(k)
    state = state_BHKV.to(wide)
    outputs = []
    for token in range(q.shape[1]):
        # Decay, read what the decayed state holds for this key, write the difference, read the output.
        state = state * g[:, token].exp()[..., None]
        held_BHV = torch.einsum("bhk,bhkv->bhv", k[:, token], state)
        change_BHV = beta[:, token, :, None] * (v[:, token] - held_BHV)
        state = state + k[:, token, :, :, None] * change_BHV[:, :, None, :]
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, token], state))
    out_BSHV = torch.stack(outputs, dim=1) if outputs else v.new_zeros(v.shape)
    # A result must not be an argument; with no tokens the state would be.
    return out_BSHV.to(q_BSHK.dtype), state.to(state_BHKV.dtype, copy=True)


def normalised(x: torch.Tensor) -> torch.Tensor:
    """Return x over its length, with 1e-6 inside the root."""
    return x / (x.square().sum(dim=-1, keepdim=True) + 1e-6).sqrt()


def fake(
    q_BSHK: torch.Tensor,
    k_BSHK: torch.Tensor,
    v_BSHV: torch.Tensor,
    g_BSHK: torch.Tensor,
    beta_BSH: torch.Tensor,
    state_BHKV: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of the results."""
    validate(q_BSHK, k_BSHK, v_BSHV, g_BSHK, beta_BSH, state_BHKV)
    out_BSHV = v_BSHV.new_empty(v_BSHV.shape, dtype=q_BSHK.dtype)
    return out_BSHV, state_BHKV.new_empty(state_BHKV.shape)


def flops(q_BSHK: torch.Tensor, k_BSHK: torch.Tensor, v_BSHV: torch.Tensor, *rest: torch.Tensor) -> int:
    """Three products with the state and the decay, for every token."""
    batch, tokens, heads, keys = q_BSHK.shape
    return int(batch * tokens * heads * keys * v_BSHV.shape[-1] * 7)


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Decays at most 1 (g from -5 to 0) and write strengths between 0 and 1."""
    g_BSHK, beta_BSH = args[3], args[4]
    g_BSHK.copy_(-5.0 * torch.rand(g_BSHK.shape, generator=generator))
    beta_BSH.copy_(torch.rand(beta_BSH.shape, generator=generator))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, odd sizes with K and V apart, and one token with a decay of almost nothing left."""
    for kind, (batch, tokens, heads, keys, values) in (
        ("small", (1, 4, 2, 8, 6)),
        ("odd", (2, 5, 3, 7, 11)),
        ("corner", (1, 1, 1, 1, 2)),
    ):
        qk = [torch.randn(batch, tokens, heads, keys, generator=generator) for _ in range(2)]
        v_BSHV = torch.randn(batch, tokens, heads, values, generator=generator)
        g_BSHK = torch.zeros(batch, tokens, heads, keys)
        beta_BSH = torch.zeros(batch, tokens, heads)
        state_BHKV = torch.randn(batch, heads, keys, values, generator=generator)
        args = (*qk, v_BSHV, g_BSHK, beta_BSH, state_BHKV)
        fill(args, {}, generator)
        if kind == "corner":
            g_BSHK.fill_(-80.0)
        yield Sample(kind=kind, args=args, kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="Kimi Delta Attention, recurrent form",
    schema="(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor state) -> (Tensor, Tensor)",
    mathematics="S <- diag(exp g) S; S <- S + beta k (v - S^T k)^T; o = S^T q; q and k of length 1, q times K^-1/2",
    source="Kimi Linear technical report (KDA); flash-linear-attention ops/kda",
    reference=reference,
    fake=fake,
    flops=flops,
    fill=fill,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=32.0,
        reason="a recurrence in float32 carries rounding from token to token; 32 ULP cover another order of the same "
        "sums over some tens of tokens",
    ),
    attributes=(
        Attribute(name="state layout", meaning="[K, V] here; a transposed state is another contract"),
        Attribute(name="gate", meaning="plain or bounded, applied by the caller; g arrives as a logarithm"),
    ),
    verified_against="transformers kimi_linear recurrent_kimi_delta_attention; the matrix form of the recurrence",
)
