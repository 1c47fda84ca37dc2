"""Rotary position embedding of a slice of every head.

Shape suffixes: B batch, S tokens, H heads, D head dimension, R rotated values, P = R / 2 pairs; A is B or 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance
from day0.reference_ops._write import write

__all__ = ["NAME", "OP", "PAIRINGS", "fake", "reference", "validate"]

NAME = "day0::rope"
PAIRINGS = ("half", "interleaved")


def validate(x_BSHD: torch.Tensor, cos_ASP: torch.Tensor, sin_ASP: torch.Tensor, pairing: str, start: int) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("x", x_BSHD, "BSHD")
    check.shape("cos", cos_ASP, "ASP")
    check.shape("sin", sin_ASP, "ASP")
    for name, tensor in (("x", x_BSHD), ("cos", cos_ASP), ("sin", sin_ASP)):
        check.floating(name, tensor)
    batch, tokens, _, width = x_BSHD.shape
    check.true("cos", cos_ASP.shape[0] in (1, batch), f"size 1 or {batch} in dimension B", list(cos_ASP.shape))
    check.true("cos", cos_ASP.shape[1] == tokens, f"size {tokens} in dimension S", list(cos_ASP.shape))
    check.true("pairing", pairing in PAIRINGS, " or ".join(f"'{one}'" for one in PAIRINGS), repr(pairing))
    last = width - 2 * cos_ASP.shape[-1]
    check.true("cos", last >= 0, f"at most {width // 2} pairs for heads of {width}", list(cos_ASP.shape))
    check.true("start", 0 <= start <= last, f"0 to {last}, where the slice still fits", start)


def reference(
    x_BSHD: torch.Tensor, cos_ASP: torch.Tensor, sin_ASP: torch.Tensor, pairing: str, start: int
) -> torch.Tensor:
    """Return [B, S, H, D] in the dtype of x: values `start` to `start + R` rotated, the others as they came.

    A pair is (i, i + R/2) of the slice with pairing "half", (2i, 2i + 1) with "interleaved"; pair i turns by the angle
    of cos and sin at i, and both of its values stay in their places. Computed wide and rounded once.
    """
    validate(x_BSHD, cos_ASP, sin_ASP, pairing, start)
    wide = torch.float64 if x_BSHD.dtype == torch.float64 else torch.float32
    pairs = cos_ASP.shape[-1]
    cos_AS1P, sin_AS1P = cos_ASP.to(wide)[:, :, None], sin_ASP.to(wide)[:, :, None]
    # The two values of a pair stand apart by P or by 1.
    shape, side = ((2, pairs), -2) if pairing == "half" else ((pairs, 2), -1)
    slice_BSHR = x_BSHD[..., start : start + 2 * pairs].to(wide)
    a_BSHP, b_BSHP = slice_BSHR.unflatten(-1, shape).unbind(dim=side)
    turned = (a_BSHP * cos_AS1P - b_BSHP * sin_AS1P, b_BSHP * cos_AS1P + a_BSHP * sin_AS1P)
    out_BSHD = x_BSHD.clone(memory_format=torch.contiguous_format)
    out_BSHD[..., start : start + 2 * pairs] = torch.stack(turned, dim=side).flatten(-2).to(x_BSHD.dtype)
    return out_BSHD


def fake(x_BSHD: torch.Tensor, cos_ASP: torch.Tensor, sin_ASP: torch.Tensor, pairing: str, start: int) -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(x_BSHD, cos_ASP, sin_ASP, pairing, start)
    return x_BSHD.new_empty(x_BSHD.shape)


def flops(x_BSHD: torch.Tensor, cos_ASP: torch.Tensor, sin_ASP: torch.Tensor, pairing: str, start: int) -> int:
    """Four products and two sums for every pair."""
    return int(6 * x_BSHD[..., 0].numel() * cos_ASP.shape[-1])


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Cosines and sines of angles that differ for every token and pair."""
    cos_ASP, sin_ASP = (args[n] if len(args) > n else kwargs[name] for n, name in ((1, "cos"), (2, "sin")))
    angle_ASP = 6.28 * torch.rand(cos_ASP.shape, generator=generator, dtype=torch.float64)
    write(cos_ASP, angle_ASP.cos())
    write(sin_ASP, angle_ASP.sin())


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Both pairings at every kind of slice: all, first, last, none; no tokens; and the sizes of DeepSeek V3.2."""
    for kind, (batch, tokens, heads, width), angles, pairs, pairing, start in (
        ("small", (1, 3, 2, 8), 1, 4, "half", 0),
        ("small", (1, 3, 2, 8), 1, 4, "interleaved", 0),
        ("odd", (2, 5, 3, 13), 2, 3, "half", 7),
        ("odd", (2, 5, 3, 13), 1, 3, "interleaved", 2),
        ("corner", (2, 1, 1, 2), 2, 1, "half", 0),
        ("corner", (2, 3, 2, 5), 1, 0, "interleaved", 5),
        ("corner", (1, 0, 2, 4), 1, 1, "half", 1),
        ("traced", (1, 3, 64, 128), 1, 32, "half", 0),
        ("traced", (1, 3, 128, 192), 1, 32, "interleaved", 128),
    ):
        x_BSHD = torch.randn(batch, tokens, heads, width, generator=generator)
        cos_ASP, sin_ASP = (torch.zeros(angles, tokens, pairs) for _ in range(2))
        fill((x_BSHD, cos_ASP, sin_ASP), {}, generator)
        yield Sample(kind=kind, args=(x_BSHD, cos_ASP, sin_ASP, pairing, start), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="rotary position embedding of a slice of every head",
    schema="(Tensor x, Tensor cos, Tensor sin, str pairing, int start) -> Tensor",
    mathematics="(a, b) <- (a cos - b sin, b cos + a sin) for every pair of the slice, each in its own place",
    source="RoFormer (Su et al. 2021); transformers llama (half), glm (interleaved)",
    reference=reference,
    fake=fake,
    flops=flops,
    fill=fill,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=2.0,
        reason="two products and one sum, rounded once; 2 ULP cover a sum that is fused with its product",
    ),
    attributes=(
        Attribute(name="pairing", meaning="half: i with i + R/2; interleaved: 2i with 2i + 1"),
        Attribute(
            name="start", meaning="first (0) or last (D - R) slice, or any; no pairs at all in models without rope"
        ),
        Attribute(
            name="output layout",
            meaning="pairs stay in their places; transformers' DeepSeek interleaved code also moves the slice to half "
            "order, which leaves q.k as it is only if both sides do so",
        ),
        Attribute(name="angles", meaning="base, scaling and mscale are in cos and sin already"),
        Attribute(name="rounding", meaning="once; models that multiply in bfloat16 round three times"),
    ),
    verified_against="transformers llama, glm, deepseek_v3, deepseek_v32, glm_moe_dsa; complex numbers",
)
