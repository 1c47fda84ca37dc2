"""Residual across layers by attention: a softmax over snapshots of earlier blocks and the running sum.

Shape suffixes: B batch, S tokens, D hidden, M = snapshots + 1 values that are mixed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["NAME", "OP", "fake", "reference", "validate"]

NAME = "day0::attention_residual"


def validate(
    bank: Sequence[torch.Tensor], prefix_BSD: torch.Tensor, norm_D: torch.Tensor, score_D: torch.Tensor, eps: float
) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("prefix", prefix_BSD, "BSD")
    check.floating("prefix", prefix_BSD)
    for name, tensor, letters in (
        ("norm", norm_D, "D"),
        ("score", score_D, "D"),
        *((f"bank[{number}]", one_BSD, "BSD") for number, one_BSD in enumerate(bank)),
    ):
        check.shape(name, tensor, letters)
        check.floating(name, tensor)
    check.true("eps", eps > 0, "a positive number", eps)


def reference(
    bank: Sequence[torch.Tensor], prefix_BSD: torch.Tensor, norm_D: torch.Tensor, score_D: torch.Tensor, eps: float
) -> torch.Tensor:
    """Return sum_j a_j v_j [B, S, D] in the dtype of prefix, over the snapshots and the prefix.

    a is a softmax over j of <RMSNorm(v_j) * norm, score>; what is summed is v_j itself, not its norm. With an empty
    bank the prefix passes through, bit for bit.
    """
    validate(bank, prefix_BSD, norm_D, score_D, eps)
    if not bank:
        return prefix_BSD.clone(memory_format=torch.contiguous_format)
    wide = torch.float64 if prefix_BSD.dtype == torch.float64 else torch.float32
    value_MBSD = torch.stack([one_BSD.to(wide) for one_BSD in (*bank, prefix_BSD)])
    unit_MBSD = value_MBSD / (value_MBSD.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    score_MBS = (unit_MBSD * (norm_D.to(wide) * score_D.to(wide))).sum(dim=-1)
    weight_MBS = torch.softmax(score_MBS, dim=0)
    return (weight_MBS[..., None] * value_MBSD).sum(dim=0).to(prefix_BSD.dtype)


def fake(
    bank: Sequence[torch.Tensor], prefix_BSD: torch.Tensor, norm_D: torch.Tensor, score_D: torch.Tensor, eps: float
) -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(bank, prefix_BSD, norm_D, score_D, eps)
    return prefix_BSD.new_empty(prefix_BSD.shape)


def flops(
    bank: Sequence[torch.Tensor], prefix_BSD: torch.Tensor, norm_D: torch.Tensor, score_D: torch.Tensor, eps: float
) -> int:
    """A square sum, a product with the score and a weighted sum of every value; an empty bank costs nothing."""
    return int(6 * (len(bank) + 1) * prefix_BSD.numel()) if bank else 0


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Two snapshots, odd sizes with a row of zeros, an empty bank, no tokens, and a full bank of K3's width."""
    for kind, (batch, tokens, hidden), snapshots in (
        ("small", (1, 3, 8), 2),
        ("odd", (2, 3, 7), 3),
        ("corner", (1, 2, 5), 0),
        ("corner", (2, 0, 4), 1),
        ("traced", (1, 2, 7168), 8),
    ):
        bank = [torch.randn(batch, tokens, hidden, generator=generator) for _ in range(snapshots)]
        # Sums grow from block to block; RMSNorm takes their size out of the score.
        prefix_BSD = 30.0 * torch.randn(batch, tokens, hidden, generator=generator)
        norm_D, score_D = (torch.randn(hidden, generator=generator) / hidden**0.25 for _ in range(2))
        if kind == "odd":
            bank[1][0, 0] = 0.0
        yield Sample(kind=kind, args=(bank, prefix_BSD, norm_D, score_D, 1e-5), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="attention over block snapshots and the running residual sum",
    schema="(Tensor[] bank, Tensor prefix, Tensor norm, Tensor score, float eps) -> Tensor",
    mathematics="v in [bank..., prefix]; a = softmax_j <v_j / sqrt(mean(v_j^2) + eps) norm, score>; out = sum_j a_j v_j; "
    "an empty bank gives prefix",
    source="Attention Residuals (Kimi K3); NeMo AutoModel's kimi_k3",
    reference=reference,
    fake=fake,
    flops=flops,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=16.0,
        reason="a score summed over the hidden size in float32 and a softmax of it; 16 ULP cover another order of sums",
    ),
    attributes=(
        Attribute(name="eps", meaning="inside the root of the norm"),
        Attribute(name="norm and score", meaning="of that sub-layer; every sub-layer and the last norm have their own"),
        Attribute(
            name="bank",
            meaning="snapshots of the sum at block starts, taken after the mix of the attention side, when the sum is "
            "begun again; the caller keeps it, and a pipeline stage ships it. Its order does not matter",
        ),
    ),
    verified_against="NeMo AutoModel kimi_k3 _apply_attn_res",
)
