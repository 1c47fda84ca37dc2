"""Kimi Delta Attention, token by token: a gated delta rule with one decay for every key channel.

Shape suffixes: B batch, S tokens, H heads, K key channels, V value channels.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from day0.reference_ops import _kda
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["NAME", "OP", "fake", "reference", "validate"]

NAME = "day0::kda_recurrent"


def validate(
    q_BSHK: torch.Tensor,
    k_BSHK: torch.Tensor,
    v_BSHV: torch.Tensor,
    g_BSHK: torch.Tensor,
    beta_BSH: torch.Tensor,
    state: torch.Tensor,
    state_layout: str = "kv",
) -> None:
    """Refuse arguments that break the contract."""
    _kda.check_arguments(NAME, (q_BSHK, k_BSHK, v_BSHV, g_BSHK, beta_BSH, state), state_layout)


def reference(
    q_BSHK: torch.Tensor,
    k_BSHK: torch.Tensor,
    v_BSHV: torch.Tensor,
    g_BSHK: torch.Tensor,
    beta_BSH: torch.Tensor,
    state: torch.Tensor,
    state_layout: str = "kv",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output [B, S, H, V] in the dtype of q, and the new state in the layout and dtype of `state`.

    The state is [B, H, K, V] ("kv") or [B, H, V, K] ("vk"). `g` is the logarithm of the decay (at most 0). Queries
    and keys are normalised here, the query scaled by K^-1/2.
    """
    validate(q_BSHK, k_BSHK, v_BSHV, g_BSHK, beta_BSH, state, state_layout)
    wide = torch.float64 if q_BSHK.dtype == torch.float64 else torch.float32
    q, k, v, g, beta = (tensor.to(wide) for tensor in (q_BSHK, k_BSHK, v_BSHV, g_BSHK, beta_BSH))
    q, k = _kda.normalised(q) * q.shape[-1] ** -0.5, _kda.normalised(k)
    state_BHKV = _kda.read_state(state, state_layout, wide)
    outputs = []
    for token in range(q.shape[1]):
        # Decay, read what the decayed state holds for this key, write the difference, read the output.
        state_BHKV = state_BHKV * g[:, token].exp()[..., None]
        held_BHV = torch.einsum("bhk,bhkv->bhv", k[:, token], state_BHKV)
        change_BHV = beta[:, token, :, None] * (v[:, token] - held_BHV)
        state_BHKV = state_BHKV + k[:, token, :, :, None] * change_BHV[:, :, None, :]
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, token], state_BHKV))
    out_BSHV = torch.stack(outputs, dim=1) if outputs else v.new_zeros(v.shape)
    return out_BSHV.to(q_BSHK.dtype), _kda.write_state(state_BHKV, state_layout, state.dtype)


def fake(
    q_BSHK: torch.Tensor,
    k_BSHK: torch.Tensor,
    v_BSHV: torch.Tensor,
    g_BSHK: torch.Tensor,
    beta_BSH: torch.Tensor,
    state: torch.Tensor,
    state_layout: str = "kv",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of the results."""
    validate(q_BSHK, k_BSHK, v_BSHV, g_BSHK, beta_BSH, state, state_layout)
    return _kda.fake(q_BSHK, v_BSHV, state)


def flops(q_BSHK: torch.Tensor, k_BSHK: torch.Tensor, v_BSHV: torch.Tensor, *rest: object, **named: object) -> int:
    """Three products with the state and the decay, for every token."""
    batch, tokens, heads, keys = q_BSHK.shape
    return int(batch * tokens * heads * keys * v_BSHV.shape[-1] * 7)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, odd sizes with K and V apart and padding, one token with almost nothing left, the heads of K3."""
    for kind, layout in (("small", "kv"), ("odd", "kv"), ("corner", "vk"), ("traced", "vk")):
        yield Sample(kind=kind, args=(*dict(_kda.argument_sets(generator, layout))[kind], layout), kwargs={})


OP = Operator(
    name=NAME,
    version=2,
    summary="Kimi Delta Attention, recurrent form",
    schema="(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor state, "
    'str state_layout="kv") -> (Tensor, Tensor)',
    mathematics="S <- diag(exp g) S; S <- S + beta k (v - S^T k)^T; o = S^T q; q and k of length 1, q times K^-1/2",
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
        reason="a recurrence in float32 carries rounding from token to token; 32 ULP cover another order of the same "
        "sums over some tens of tokens",
    ),
    attributes=(
        Attribute(name="state_layout", meaning="[K, V] or [V, K] of the state, in and out; silent where K = V"),
        Attribute(name="gate", meaning="plain or bounded, applied by the caller; g arrives as a logarithm"),
        Attribute(name="padding", meaning="a token with g = 0 and beta = 0 leaves the state as it is"),
    ),
    verified_against="flash-linear-attention naive_recurrent_kda; transformers kimi_linear "
    "recurrent_kimi_delta_attention; the matrix form of the recurrence",
)
