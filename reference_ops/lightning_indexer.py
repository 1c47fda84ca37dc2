"""Scores of a sparse attention's indexer: which earlier tokens matter to a query.

Shape suffixes: B batch, S queries, T keys, H index heads, D index dimension.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["OP", "fake", "reference", "validate"]

NAME = "day0::lightning_indexer"


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
    """Small, odd sizes, and the corner of one query before any other key."""
    for kind, (batch, queries, keys, heads, dim, first) in (
        ("small", (1, 4, 4, 16, 8, 0)),
        ("odd", (2, 3, 11, 17, 13, 8)),
        ("corner", (1, 1, 1, 1, 1, 0)),
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
        Attribute(name="rope, Hadamard, key norm", meaning="applied by the caller before this operator, to q and k"),
    ),
    verified_against="plain loops over heads and keys",
)
