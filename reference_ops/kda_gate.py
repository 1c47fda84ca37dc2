"""The decay gate of Kimi Delta Attention: a logarithm of the decay for every key channel.

Shape suffixes: B batch, S tokens, H heads, K key channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["NAME", "OP", "fake", "reference", "validate"]

NAME = "day0::kda_gate"


def validate(
    raw_BSHK: torch.Tensor, a_log_H: torch.Tensor, dt_bias_HK: torch.Tensor, lower_bound: float | None = None
) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    for name, tensor, letters in (("raw", raw_BSHK, "BSHK"), ("a_log", a_log_H, "H"), ("dt_bias", dt_bias_HK, "HK")):
        check.shape(name, tensor, letters)
        check.floating(name, tensor)
    if lower_bound is not None:
        negative = lower_bound < 0 and math.isfinite(lower_bound)
        check.true("lower_bound", negative, "None or a negative number", lower_bound)


def reference(
    raw_BSHK: torch.Tensor, a_log_H: torch.Tensor, dt_bias_HK: torch.Tensor, lower_bound: float | None = None
) -> torch.Tensor:
    """Return g [B, S, H, K], at most 0: float64 for float64 raw, else float32, as the recurrence wants it.

    Without a bound -rate * softplus(raw + bias); with one, lower_bound * sigmoid(rate * (raw + bias)), where rate is
    exp(a_log). Two functions: the bound is approached, it does not cut the first one off.
    """
    validate(raw_BSHK, a_log_H, dt_bias_HK, lower_bound)
    wide = torch.float64 if raw_BSHK.dtype == torch.float64 else torch.float32
    rate_H1 = a_log_H.to(wide).exp()[:, None]
    biased_BSHK = raw_BSHK.to(wide) + dt_bias_HK.to(wide)
    if lower_bound is None:
        # log(1 + e^x) with the larger of both in front: exact for large x, where e^x overflows, and for small.
        return (-rate_H1 * torch.logaddexp(biased_BSHK, torch.zeros_like(biased_BSHK))).contiguous()
    return (lower_bound * torch.sigmoid(rate_H1 * biased_BSHK)).contiguous()


def fake(
    raw_BSHK: torch.Tensor, a_log_H: torch.Tensor, dt_bias_HK: torch.Tensor, lower_bound: float | None = None
) -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(raw_BSHK, a_log_H, dt_bias_HK, lower_bound)
    wide = torch.float64 if raw_BSHK.dtype == torch.float64 else torch.float32
    return raw_BSHK.new_empty(raw_BSHK.shape, dtype=wide)


def flops(
    raw_BSHK: torch.Tensor, a_log_H: torch.Tensor, dt_bias_HK: torch.Tensor, lower_bound: float | None = None
) -> int:
    """A sum, two products and a function, each as one operation."""
    return int(raw_BSHK.numel() * 4)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Both gates, raw values far on both sides, no tokens, and the heads of K3."""
    for kind, (batch, tokens, heads, keys), bound in (
        ("small", (1, 3, 2, 4), None),
        ("odd", (2, 3, 3, 5), -5.0),
        ("corner", (1, 1, 1, 8), None),
        ("corner", (1, 1, 1, 8), -5.0),
        ("corner", (1, 0, 2, 3), -1.0),
        ("traced", (1, 2, 96, 128), -5.0),
    ):
        raw_BSHK = 2.0 * torch.randn(batch, tokens, heads, keys, generator=generator)
        if kind == "corner" and tokens:
            raw_BSHK.copy_(torch.tensor([-1e4, -100.0, -20.0, 0.0, 19.9, 20.1, 100.0, 1e4]))
        # Rates between 1 and 16, as these models are initialised.
        a_log_H = torch.log(1.0 + 15.0 * torch.rand(heads, generator=generator))
        dt_bias_HK = torch.randn(heads, keys, generator=generator)
        yield Sample(kind=kind, args=(raw_BSHK, a_log_H, dt_bias_HK, bound), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="decay gate of Kimi Delta Attention, plain or bounded",
    schema="(Tensor raw, Tensor a_log, Tensor dt_bias, float? lower_bound=None) -> Tensor",
    mathematics="plain: g = -exp(a_log) softplus(raw + dt_bias); "
    "bounded: g = lower_bound sigmoid(exp(a_log) (raw + dt_bias))",
    source="Kimi Linear technical report (plain); Kimi K3 and GLM-5.3-Flash configurations (bounded, -5)",
    reference=reference,
    fake=fake,
    flops=flops,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-5,
        ulps=8.0,
        reason="float32 in and out of two exponentials; 8 ULP cover others, and a softplus that is the identity above 20",
    ),
    attributes=(
        Attribute(name="lower_bound", meaning="None is the plain gate; a number is another function, not a clamp"),
        Attribute(
            name="a_log",
            meaning="one value a head as [H]; checkpoints also hold [1, 1, H, 1] or pad it to 128, which the caller undoes",
        ),
    ),
    verified_against="transformers kimi_linear (plain) and glm5_next (both) forget gates; "
    "NeMo AutoModel kimi_k3 _torch_kda_gate (both)",
)
