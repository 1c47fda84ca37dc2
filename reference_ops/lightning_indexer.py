"""Scores of a sparse attention's indexer: which earlier tokens matter to a query.

Shape suffixes: B batch, S queries, T keys, H index heads, D index dimension.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["AMAX_FLOOR", "NAME", "OP", "fake", "quantised", "reference", "to_e4m3", "validate", "visible"]

NAME = "day0::lightning_indexer"
AMAX_FLOOR = 1e-4
"""Smallest magnitude from which `quantised` makes a scale, so that a row of zeros has one: DeepSeek's own, vLLM's is
1e-10. Rows that are smaller everywhere lose bits with the first and keep them with the second."""
E4M3_MAX = 448.0


def validate(q_BSHD: torch.Tensor, k_BTD: torch.Tensor, w_BSH: torch.Tensor, first_position: int) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("q", q_BSHD, "BSHD")
    check.shape("k", k_BTD, "BTD")
    check.shape("w", w_BSH, "BSH")
    check.floating("q", q_BSHD)
    check.dtype("k", k_BTD, q_BSHD.dtype)
    check.floating("w", w_BSH)
    check.true("first_position", first_position >= 0, "a position of 0 or more", first_position)
    check.true("q", min(q_BSHD.shape[2:]) >= 1, "at least one head and one dimension", list(q_BSHD.shape))


def reference(q_BSHD: torch.Tensor, k_BTD: torch.Tensor, w_BSH: torch.Tensor, first_position: int) -> torch.Tensor:
    """Return logits [B, S, T], float32 (float64 for float64 inputs), -inf where a key is not visible yet.

    The query at row s stands at position `first_position + s` and sees keys up to that position.
    """
    validate(q_BSHD, k_BTD, w_BSH, first_position)
    wide = torch.float64 if q_BSHD.dtype == torch.float64 else torch.float32
    queries, heads, dim = q_BSHD.shape[1:]
    logits_BST = torch.zeros(q_BSHD.shape[0], queries, k_BTD.shape[1], dtype=wide, device=q_BSHD.device)
    for head in range(heads):
        dot_BST = torch.matmul(q_BSHD[:, :, head].to(wide), k_BTD.to(wide).transpose(-1, -2))
        # ReLU stands inside the sum; the weight may be negative.
        logits_BST = logits_BST + w_BSH[:, :, head, None].to(wide) * torch.relu(dot_BST)
    logits_BST = logits_BST * (heads**-0.5 * dim**-0.5)
    hidden_ST = ~visible(queries, k_BTD.shape[1], first_position, q_BSHD.device)
    return torch.where(hidden_ST, float("-inf"), logits_BST)


def quantised(q_BSHD: torch.Tensor, k_BTD: torch.Tensor, w_BSH: torch.Tensor, first_position: int) -> torch.Tensor:
    """Return what `reference` does from queries and keys in FP8 (e4m3), with power-of-two scales.

    One scale for every token and head of q, which is folded into the weights, and one for every token of k, by which
    the finished sum is multiplied: I[t,s] = s_k[s] sum_h (w H^-1/2 D^-1/2 s_q)[t,h] relu(q8[t,h] . k8[s]).
    """
    validate(q_BSHD, k_BTD, w_BSH, first_position)
    wide = torch.float64 if q_BSHD.dtype == torch.float64 else torch.float32
    queries, heads, dim = q_BSHD.shape[1:]
    q8_BSHD, scale_BSH = to_e4m3(q_BSHD.to(wide), AMAX_FLOOR)
    k8_BTD, scale_BT = to_e4m3(k_BTD.to(wide), AMAX_FLOOR)
    folded_BSH = w_BSH.to(wide) * (heads**-0.5 * dim**-0.5) * scale_BSH
    dot_BSHT = torch.einsum("bshd,btd->bsht", q8_BSHD.to(wide), k8_BTD.to(wide))
    logits_BST = torch.einsum("bsh,bsht->bst", folded_BSH, torch.relu(dot_BSHT)) * scale_BT[:, None]
    hidden_ST = ~visible(queries, k_BTD.shape[1], first_position, q_BSHD.device)
    return torch.where(hidden_ST, float("-inf"), logits_BST)


def to_e4m3(x: torch.Tensor, floor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows in e4m3 and the scale of each, the smallest power of two with which its largest value fits."""
    amax = x.abs().amax(dim=-1).clamp(min=floor)
    mantissa, exponent = torch.frexp(amax / E4M3_MAX)
    # The mantissa lies from 1/2 to 1: exactly 1/2 is a power of two already.
    scale = torch.ldexp(torch.ones_like(amax), exponent - (mantissa == 0.5).to(exponent.dtype))
    scale = torch.where(torch.isfinite(amax), scale, float("nan"))
    return (x / scale[..., None]).to(torch.float8_e4m3fn), scale


def visible(queries: int, keys: int, first_position: int, device: torch.device) -> torch.Tensor:
    """Return a mask [S, T]: True where the key at t is not after the query at s."""
    position_S1 = torch.arange(queries, device=device)[:, None] + first_position
    mask_ST: torch.Tensor = torch.arange(keys, device=device)[None, :] <= position_S1
    return mask_ST


def fake(q_BSHD: torch.Tensor, k_BTD: torch.Tensor, w_BSH: torch.Tensor, first_position: int) -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(q_BSHD, k_BTD, w_BSH, first_position)
    wide = torch.float64 if q_BSHD.dtype == torch.float64 else torch.float32
    return q_BSHD.new_empty((q_BSHD.shape[0], q_BSHD.shape[1], k_BTD.shape[1]), dtype=wide)


def flops(q_BSHD: torch.Tensor, k_BTD: torch.Tensor, w_BSH: torch.Tensor, first_position: int) -> int:
    """Multiplications and additions: the products of all heads, then the weighted sum."""
    batch, queries, heads, dim = q_BSHD.shape
    return int(batch * queries * k_BTD.shape[1] * heads * (2 * dim + 3))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, odd sizes, one query before any other key, no tokens, and the heads of DeepSeek V3.2 and of GLM-5."""
    for kind, (batch, queries, keys, heads, dim, first) in (
        ("small", (1, 4, 4, 16, 8, 0)),
        ("odd", (2, 3, 11, 17, 13, 8)),
        ("corner", (1, 1, 1, 1, 1, 0)),
        ("corner", (2, 0, 3, 2, 4, 3)),
        ("corner", (1, 2, 0, 2, 4, 0)),
        ("traced", (1, 3, 70, 64, 128, 67)),
        ("traced", (2, 2, 33, 32, 128, 31)),
    ):
        q_BSHD = torch.randn(batch, queries, heads, dim, generator=generator)
        k_BTD = torch.randn(batch, keys, dim, generator=generator)
        w_BSH = torch.randn(batch, queries, heads, generator=generator)
        yield Sample(kind=kind, args=(q_BSHD, k_BTD, w_BSH, first), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="index logits of sparse attention (DSA)",
    schema="(Tensor q, Tensor k, Tensor w, int first_position) -> Tensor",
    mathematics="I[t,s] = H^-1/2 D^-1/2 sum_h w[t,h] relu(q[t,h] . k[s]) for s <= t, else -inf",
    source="DeepSeek-V3.2 technical report, section on DSA; transformers models/deepseek_v32",
    reference=reference,
    fake=fake,
    quantised=quantised,
    flops=flops,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=8.0,
        reason="float32 sums over D then H; 8 ULP of float32 cover another order of the sum, as scores near zero "
        "come from cancellation",
    ),
    attributes=(
        Attribute(
            name="rope",
            meaning="applied by the caller to q and k with day0::rope. DeepSeek V3.2: first 64, half (its main attention: "
            "last 64, interleaved); GLM-5 and Mistral Large 4: first 64, interleaved; HY4: last 64, half; "
            "GLM-5.3-Flash and Kimi K3.1: none",
        ),
        Attribute(
            name="Hadamard",
            meaning="applied by the caller with day0::hadamard to both q and k (DeepSeek V3.2) or to neither (GLM-5, "
            "HY4); a matter of quantisation alone, but on one side it chooses at random",
        ),
        Attribute(
            name="key norm",
            meaning="applied by the caller with aten::native_layer_norm: a LayerNorm with bias, eps 1e-6 or the "
            "model's own (HY4, Kimi K3.1 1e-5)",
        ),
        Attribute(
            name="weights", meaning="float32 in DeepSeek V3.2 and HY4, the model's dtype in GLM-5.3-Flash; any sign"
        ),
        Attribute(
            name="k-pool",
            meaning="keys from day0::pool_index_keys with first_position at or beyond T closes no pool here: give "
            "day0::topk_tokens the number of complete pools as lengths, then day0::expand_pools",
        ),
        Attribute(name="amax floor", meaning="of the quantised form: 1e-4 as in DeepSeek's code; vLLM 1e-10"),
    ),
    verified_against="transformers deepseek_v32, glm_moe_dsa, hy_v4 and glm5_next, nemo-automodel deepseek_v32; plain "
    "loops over heads and keys",
)
