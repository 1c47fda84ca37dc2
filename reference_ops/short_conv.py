"""Depthwise causal convolution over the last few tokens of each channel, with the inputs it has to remember.

Shape suffixes: B batch, S tokens, C channels, W taps.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["NAME", "OP", "fake", "reference", "validate"]

NAME = "day0::short_conv"


def validate(
    x_BSC: torch.Tensor, weight_CW: torch.Tensor, state_BWC: torch.Tensor | None = None, silu: bool = True
) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("x", x_BSC, "BSC")
    check.floating("x", x_BSC)
    check.shape("weight", weight_CW, "CW")
    check.floating("weight", weight_CW)
    taps = weight_CW.shape[-1]
    check.true("weight", taps >= 1, "1 tap or more", taps)
    if state_BWC is not None:
        check.floating("state", state_BWC)
        expected = (x_BSC.shape[0], taps - 1, x_BSC.shape[2])
        check.true(
            "state",
            tuple(state_BWC.shape) == expected,
            f"shape {list(expected)} [B, W - 1, C]",
            f"shape {list(state_BWC.shape)}",
        )


def reference(
    x_BSC: torch.Tensor, weight_CW: torch.Tensor, state_BWC: torch.Tensor | None = None, silu: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return y [B, S, C] and the new state [B, W - 1, C], both in the dtype of x.

    The last tap weighs the newest token. The state holds the last W - 1 inputs before x, oldest first; None is a
    sequence's start, zeros. Fewer tokens than W - 1 push out only as many. Computed wide, rounded once after SiLU.
    """
    validate(x_BSC, weight_CW, state_BWC, silu)
    wide = torch.float64 if x_BSC.dtype == torch.float64 else torch.float32
    tokens, kept = x_BSC.shape[1], weight_CW.shape[-1] - 1
    if state_BWC is None:
        state_BWC = x_BSC.new_zeros(x_BSC.shape[0], kept, x_BSC.shape[2])
    seen_BTC = torch.cat((state_BWC.to(wide), x_BSC.to(wide)), dim=1)
    y_BSC = torch.zeros_like(x_BSC, dtype=wide)
    for tap, weight_C in enumerate(weight_CW.to(wide).unbind(dim=-1)):
        y_BSC = y_BSC + weight_C * seen_BTC[:, tap : tap + tokens]
    if silu:
        y_BSC = y_BSC * torch.sigmoid(y_BSC)
    # Counted from the front: with one tap nothing is kept, and a slice of the last 0 tokens would be all of them.
    new_BWC = seen_BTC[:, tokens:].to(x_BSC.dtype).clone(memory_format=torch.contiguous_format)
    return y_BSC.to(x_BSC.dtype).contiguous(), new_BWC


def fake(
    x_BSC: torch.Tensor, weight_CW: torch.Tensor, state_BWC: torch.Tensor | None = None, silu: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of the results."""
    validate(x_BSC, weight_CW, state_BWC, silu)
    batch, _, channels = x_BSC.shape
    return x_BSC.new_empty(x_BSC.shape), x_BSC.new_empty(batch, weight_CW.shape[-1] - 1, channels)


def flops(
    x_BSC: torch.Tensor, weight_CW: torch.Tensor, state_BWC: torch.Tensor | None = None, silu: bool = True
) -> int:
    """A product and a sum for each tap, and SiLU as one operation."""
    return int(x_BSC.numel() * (2 * weight_CW.shape[-1] + int(silu)))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """A start, a continuation shorter than the state, one tap, no tokens, and one decode step of K3's width."""
    for kind, (batch, tokens, channels, taps), has_state, silu in (
        ("small", (1, 5, 4, 4), False, True),
        ("odd", (2, 2, 7, 5), True, False),
        ("corner", (1, 3, 2, 1), True, True),
        ("corner", (2, 0, 3, 4), True, True),
        ("traced", (1, 1, 12288, 4), True, True),
    ):
        x_BSC = torch.randn(batch, tokens, channels, generator=generator)
        weight_CW = torch.randn(channels, taps, generator=generator)
        state_BWC = torch.randn(batch, taps - 1, channels, generator=generator) if has_state else None
        yield Sample(kind=kind, args=(x_BSC, weight_CW, state_BWC, silu), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="depthwise causal convolution with carried inputs",
    schema="(Tensor x, Tensor weight, Tensor? state=None, bool silu=True) -> (Tensor, Tensor)",
    mathematics="y_t = act(sum_w weight_w x_(t - W + 1 + w)), x before the start from the state; "
    "act is SiLU or nothing; state <- the last W - 1 inputs",
    source="Kimi Linear technical report (short convolution); causal-conv1d's interface",
    reference=reference,
    fake=fake,
    flops=flops,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=4.0,
        reason="a sum of W products and one sigmoid in float32; 4 ULP cover another order and another exponential",
    ),
    attributes=(
        Attribute(name="taps", meaning="width of the window, 4 in all models seen"),
        Attribute(name="silu", meaning="SiLU after the sum, or nothing"),
        Attribute(
            name="state",
            meaning="W - 1 inputs as [B, W - 1, C], oldest first; kernels that keep W of them, or [B, C, W], differ",
        ),
        Attribute(name="tap order", meaning="the last tap is the newest token, as torch's conv1d padded on the left"),
        Attribute(name="padding", meaning="a padding token must be 0 on the left of a sequence; it shifts the window"),
    ),
    verified_against="torch.nn.functional.conv1d; transformers kimi_linear causal_conv1d_fn and causal_conv1d_update",
)
