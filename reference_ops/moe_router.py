"""Which experts a token goes to, and with which weights.

Shape suffixes: N tokens, E experts, K chosen experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["OP", "fake", "reference", "validate"]

NAME = "day0::moe_router"


def validate(logits_NE: torch.Tensor, bias_E: torch.Tensor, topk: int, scale: float) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("logits", logits_NE, "NE")
    check.shape("bias", bias_E, "E")
    check.floating("logits", logits_NE)
    check.floating("bias", bias_E)
    experts = logits_NE.shape[-1]
    check.true("topk", 1 <= topk <= experts, f"1 to the {experts} experts", topk)


def reference(
    logits_NE: torch.Tensor, bias_E: torch.Tensor, topk: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights [N, K] (float32, or float64 for float64) and expert numbers [N, K] int64, best first.

    The bias takes part in the choice only; the weights are the unbiased scores, over their sum, times `scale`.
    Ties go to the lower expert number.
    """
    validate(logits_NE, bias_E, topk, scale)
    wide = torch.float64 if logits_NE.dtype == torch.float64 else torch.float32
    score_NE = torch.sigmoid(logits_NE.to(wide))
    order_NE = torch.sort(score_NE + bias_E.to(wide), dim=-1, descending=True, stable=True).indices
    chosen_NK = order_NE[:, :topk].contiguous()
    weight_NK = torch.gather(score_NE, -1, chosen_NK)
    return weight_NK / (weight_NK.sum(dim=-1, keepdim=True) + 1e-20) * scale, chosen_NK


def fake(logits_NE: torch.Tensor, bias_E: torch.Tensor, topk: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of the results."""
    validate(logits_NE, bias_E, topk, scale)
    wide = torch.float64 if logits_NE.dtype == torch.float64 else torch.float32
    shape = (logits_NE.shape[0], topk)
    return logits_NE.new_empty(shape, dtype=wide), logits_NE.new_empty(shape, dtype=torch.int64)


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Biases of both signs, and scores further apart than rounding, so that the choice is decided by the values.

    Which expert wins a tie is tested with the samples; here two dtypes have to see the same order.
    """
    logits_NE, bias_E = args[0], args[1]
    experts = logits_NE.shape[-1]
    steps_NE = torch.rand(logits_NE.shape, generator=generator).argsort(dim=-1).float()
    logits_NE.copy_((steps_NE - experts / 2) * (4.0 / experts))
    bias_E.copy_(torch.where(torch.rand(bias_E.shape, generator=generator) < 0.5, -1.0, 1.0))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, odd sizes with ties, and all experts chosen."""
    logits_NE = torch.randn(4, 6, generator=generator)
    yield Sample(kind="small", args=(logits_NE, torch.randn(6, generator=generator), 2, 1.0), kwargs={})
    ties_NE = torch.randint(-1, 2, (5, 7), generator=generator).float()
    yield Sample(kind="odd", args=(ties_NE, torch.zeros(7), 3, 2.5), kwargs={})
    yield Sample(kind="corner", args=(torch.full((1, 3), -100.0), torch.zeros(3), 3, 1.0), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="mixture-of-experts routing: sigmoid scores, bias for the choice only",
    schema="(Tensor logits, Tensor bias, int topk, float scale) -> (Tensor, Tensor)",
    mathematics="s = sigmoid(logits); pick topk of s + bias; weight = s / (sum of picked s + 1e-20) * scale",
    source="DeepSeek-V3 technical report (auxiliary-loss-free balancing); transformers DeepseekV3TopkRouter",
    reference=reference,
    fake=fake,
    fill=fill,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0, ceiling=1e-2, ulps=4.0, reason="one exponential, one sum and one division in float32: 4 ULP"
    ),
    attributes=(
        Attribute(name="groups", meaning="one group; group-limited routing is another contract version"),
        Attribute(name="scale", meaning="routed_scaling_factor"),
    ),
    verified_against="transformers DeepseekV3TopkRouter",
)
