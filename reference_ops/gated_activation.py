"""The activation between the two projections of a gated feed-forward block.

Shape suffixes: F hidden features; gate_up has 2F columns behind any number of leading dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["KINDS", "OP", "fake", "reference", "validate", "validate_kind"]

NAME = "day0::gated_activation"
OAI_ALPHA = 1.702
"""Slope of the sigmoid in `swiglu_oai`, part of that kind's meaning."""
KINDS = {"swiglu": (), "swiglu_clamped": ("limit",), "swiglu_oai": ("limit",), "situ": ("beta", "linear_beta")}
"""Every kind with the attributes it reads. The others may hold anything: a model passes its whole configuration."""
FLOPS = {"swiglu": 5, "swiglu_clamped": 8, "swiglu_oai": 10, "situ": 11}
"""Operations for one result, an exponential or a hyperbolic tangent counted as one."""


FLOAT32_MAX = torch.finfo(torch.float32).max


def validate_kind(check: Arguments, kind: str, limit: float, beta: float, linear_beta: float) -> None:
    """Refuse an unknown kind, and values that it cannot compute with of the attributes that it reads."""
    check.true("kind", kind in KINDS, " or ".join(KINDS), repr(kind))
    if "limit" in KINDS[kind]:
        check.true("limit", 0 < limit <= FLOAT32_MAX, f"a positive number for {kind}", limit)
    if "beta" in KINDS[kind]:
        check.true("beta", 0 < beta < float("inf"), f"a positive number for {kind}", beta)
        check.true("linear_beta", 0 <= linear_beta < float("inf"), "a bound, or 0 for a linear up half", linear_beta)


def validate(gate_up: torch.Tensor, kind: str, limit: float, beta: float, linear_beta: float) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.floating("gate_up", gate_up)
    check.true("gate_up", gate_up.dim() >= 1, "at least one dimension", gate_up.dim())
    check.true("gate_up", gate_up.shape[-1] % 2 == 0, "an even number of columns", gate_up.shape[-1])
    validate_kind(check, kind, limit, beta, linear_beta)


def reference(
    gate_up: torch.Tensor,
    kind: str,
    interleaved: bool = False,
    limit: float = 0.0,
    beta: float = 0.0,
    linear_beta: float = 0.0,
) -> torch.Tensor:
    """Return [..., F] in the dtype of gate_up, rounded once.

    The first half of the columns is the gate and the second half is up; interleaved, the even columns are the gate.
    Both clamps come before the activation and keep NaN; the gate is clamped from above only. Attributes that the kind
    does not read change nothing: plain swiglu is not clamped, whatever the limit.
    """
    validate(gate_up, kind, limit, beta, linear_beta)
    wide = gate_up.to(torch.float64 if gate_up.dtype == torch.float64 else torch.float32)
    features = gate_up.shape[-1] // 2
    gate, up = (wide[..., 0::2], wide[..., 1::2]) if interleaved else (wide[..., :features], wide[..., features:])
    if kind in ("swiglu_clamped", "swiglu_oai"):
        gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    if kind == "situ":
        bounded = up if linear_beta == 0 else linear_beta * torch.tanh(up / linear_beta)
        activated = beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * bounded
    elif kind == "swiglu_oai":
        activated = gate * torch.sigmoid(OAI_ALPHA * gate) * (up + 1.0)
    else:
        activated = gate * torch.sigmoid(gate) * up
    return activated.to(gate_up.dtype).contiguous()


def fake(
    gate_up: torch.Tensor,
    kind: str,
    interleaved: bool = False,
    limit: float = 0.0,
    beta: float = 0.0,
    linear_beta: float = 0.0,
) -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(gate_up, kind, limit, beta, linear_beta)
    return gate_up.new_empty((*gate_up.shape[:-1], gate_up.shape[-1] // 2))


def flops(gate_up: torch.Tensor, kind: str, *rest: Any, **named: Any) -> int:
    """Elementwise work; small beside the projections."""
    return int(gate_up.numel() // 2 * FLOPS[kind])


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Every kind; values beyond both clamps, infinities, one column, no tokens; the width of a K3 expert."""
    sizes = {"swiglu": (2, 3, 8), "swiglu_clamped": (5, 14), "swiglu_oai": (3, 1, 10), "situ": (7, 6)}
    settings = {
        "swiglu": (False, 0.0, 0.0, 0.0),
        "swiglu_clamped": (False, 2.0, 0.0, 0.0),
        "swiglu_oai": (True, 1.5, 0.0, 0.0),
        "situ": (False, 0.0, 2.0, 3.0),
    }
    for kind, attributes in settings.items():
        gate_up = 3.0 * torch.randn(sizes[kind], generator=generator)
        yield Sample(kind="small" if kind == "swiglu" else "odd", args=(gate_up, kind, *attributes), kwargs={})
    extreme = torch.tensor([[0.0, -0.0], [float("inf"), 2.0], [-3e38, 3e38], [1.0, float("-inf")]])
    yield Sample(kind="corner", args=(extreme, "situ", False, 0.0, 4.0, 25.0), kwargs={})
    yield Sample(kind="corner", args=(torch.zeros(0, 6), "swiglu_oai", True, 7.0, 0.0, 0.0), kwargs={})
    wide = 4.0 * torch.randn(4, 2 * 3072, generator=generator)
    yield Sample(kind="traced", args=(wide, "situ", False, 0.0, 4.0, 25.0), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="gated activation of a feed-forward block: SwiGLU, its clamped forms, SiTU",
    schema="(Tensor gate_up, str kind, bool interleaved=False, float limit=0.0, float beta=0.0, "
    "float linear_beta=0.0) -> Tensor",
    mathematics="swiglu: g s(g) u, s the sigmoid; clamped: the same of min(g, limit) and clip(u, limit); "
    "swiglu_oai: g s(1.702 g) (u + 1) of the clamped; situ: b tanh(g/b) s(g) lb tanh(u/lb), lb 0: u itself",
    source="Shazeer, GLU Variants Improve Transformer; gpt-oss, DeepSeek-V4 and Kimi K3 model code",
    reference=reference,
    fake=fake,
    flops=flops,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=4.0,
        reason="one sigmoid, at most two tangents and three products in float32; 4 ULP cover other exponentials",
    ),
    attributes=(
        Attribute(name="kind", meaning="the formula; the slope 1.702 of swiglu_oai belongs to it"),
        Attribute(name="interleaved", meaning="gate and up alternate by column (gpt-oss) instead of two halves"),
        Attribute(name="limit", meaning="gate at most, up at most in magnitude: 10 in DeepSeek-V4, 7 in gpt-oss"),
        Attribute(name="beta", meaning="bound of the gate in situ"),
        Attribute(name="linear_beta", meaning="bound of the up half in situ; 0 leaves it linear"),
    ),
    verified_against="transformers gpt_oss, deepseek_v4, glm5_next, llama; nemo-automodel kimi_k3 situ",
)
