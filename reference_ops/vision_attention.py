"""Attention between the patches of each image, many images packed into one sequence.

Shape suffixes: N patches (queries), M patches (keys), H heads, D head dimension.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance
from day0.reference_ops.rope_2d import grid_positions

__all__ = ["OP", "fake", "images_from_lengths", "reference", "validate", "visible_patches"]

NAME = "day0::vision_attention"


def validate(
    q_NHD: torch.Tensor,
    k_NHD: torch.Tensor,
    v_NHD: torch.Tensor,
    image_N: torch.Tensor,
    positions_N2: torch.Tensor,
    scale: float,
    window: int = -1,
    global_tokens: int = 0,
) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    for name, tensor in (("q", q_NHD), ("k", k_NHD), ("v", v_NHD)):
        check.shape(name, tensor, "NHD")
        check.floating(name, tensor)
        check.dtype(name, tensor, q_NHD.dtype)
    check.shape("image", image_N, "N")
    check.dtype("image", image_N, torch.int32)
    check.shape("positions", positions_N2, "N2")
    check.true("positions", positions_N2.shape[1] == 2, "two columns: row and column", list(positions_N2.shape))
    check.dtype("positions", positions_N2, torch.int32, torch.int64)
    check.true("scale", math.isfinite(scale) and scale > 0, "a positive number", scale)
    check.true("window", window >= -1, "-1 for the whole image, or a distance from 0", window)
    check.true("global_tokens", global_tokens >= 0, "0 or more", global_tokens)


def reference(
    q_NHD: torch.Tensor,
    k_NHD: torch.Tensor,
    v_NHD: torch.Tensor,
    image_N: torch.Tensor,
    positions_N2: torch.Tensor,
    scale: float,
    window: int = -1,
    global_tokens: int = 0,
) -> torch.Tensor:
    """Return [N, H, D] in the dtype of q: every patch attends to the patches it sees, in both directions.

    The masked dense form, in float32 (float64 for float64). Padding sees nothing and is 0.
    """
    validate(q_NHD, k_NHD, v_NHD, image_N, positions_N2, scale, window, global_tokens)
    wide = torch.float64 if q_NHD.dtype == torch.float64 else torch.float32
    seen_NM = visible_patches(image_N, positions_N2, window, global_tokens)
    score_HNM = torch.einsum("nhd,mhd->hnm", q_NHD.to(wide), k_NHD.to(wide)) * scale
    score_HNM = score_HNM.masked_fill(~seen_NM, float("-inf"))
    # Padding, which sees nothing, is 0 / 0.
    weight_HNM = torch.softmax(score_HNM, dim=-1).masked_fill(~seen_NM, 0.0)
    value_MHD = v_NHD.to(wide)
    finite_MHD = torch.isfinite(value_MHD)
    out_NHD = torch.einsum("hnm,mhd->nhd", weight_HNM, torch.where(finite_MHD, value_MHD, 0.0))
    # 0 times NaN is NaN: what is not finite may reach only the patches that see it.
    spoiled_NHD = torch.einsum("nm,mhd->nhd", seen_NM.to(wide), (~finite_MHD).to(wide)) > 0
    return torch.where(spoiled_NHD, float("nan"), out_NHD).to(q_NHD.dtype).contiguous()


def visible_patches(
    image_N: torch.Tensor, positions_N2: torch.Tensor, window: int = -1, global_tokens: int = 0
) -> torch.Tensor:
    """Return a mask [N, M], True where patch n sees patch m.

    `image` below 0 is padding. Distance is the larger of the distances in rows and in columns; frames of a video lie
    on top of each other. The first `global_tokens` patches of an image, in packed order, see and are seen by all of it.
    """
    same_NM = (image_N[:, None] == image_N[None, :]) & (image_N[:, None] >= 0)
    if window < 0:
        return same_NM
    near_NM = (positions_N2[:, None] - positions_N2[None, :]).abs().amax(dim=-1) <= window
    order_N = torch.arange(image_N.shape[0], device=image_N.device)
    rank_N = (same_NM & (order_N[None, :] < order_N[:, None])).sum(dim=-1)
    global_N = rank_N < global_tokens
    return same_NM & (near_NM | global_N[:, None] | global_N[None, :])


def images_from_lengths(cu_seqlens: torch.Tensor) -> torch.Tensor:
    """Return the image number [N] int32 of each patch from cumulative lengths [images + 1] that start with 0."""
    lengths = cu_seqlens.diff()
    numbers = torch.arange(lengths.shape[0], dtype=torch.int32, device=cu_seqlens.device)
    return numbers.repeat_interleave(lengths)


def fake(
    q_NHD: torch.Tensor,
    k_NHD: torch.Tensor,
    v_NHD: torch.Tensor,
    image_N: torch.Tensor,
    positions_N2: torch.Tensor,
    scale: float,
    window: int = -1,
    global_tokens: int = 0,
) -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(q_NHD, k_NHD, v_NHD, image_N, positions_N2, scale, window, global_tokens)
    return q_NHD.new_empty(q_NHD.shape)


def flops(
    q_NHD: torch.Tensor,
    k_NHD: torch.Tensor,
    v_NHD: torch.Tensor,
    image_N: torch.Tensor,
    positions_N2: torch.Tensor,
    scale: float,
    window: int = -1,
    global_tokens: int = 0,
) -> int:
    """Scores and sums over at most the window and the global patches; one image, as shapes do not tell their number."""
    patches, heads, width = q_NHD.shape
    seen = patches if window < 0 else min(patches, (2 * window + 1) ** 2 + global_tokens)
    return int(4 * patches * seen * heads * width)


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Two images of unequal size where there is room, each a grid of its own."""
    image_N, positions_N2 = args[3], args[4]
    patches = image_N.shape[0]
    first = patches - patches // 3
    for number, (begin, end) in enumerate(((0, first), (first, patches))):
        columns = max(1, math.isqrt(2 * (end - begin)))
        rows = -(-(end - begin) // columns)
        image_N[begin:end] = number
        positions_N2[begin:end].copy_(grid_positions(rows, columns)[: end - begin])


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, odd sizes with window, global patches and padding, nothing and padding alone, K3's heads."""
    for kind, (patches, heads, width), rest in (
        ("small", (6, 2, 4), ()),
        ("odd", (23, 3, 5), (1, 2)),
        ("odd", (11, 1, 7), (0, 0)),
        ("corner", (0, 2, 4), ()),
        ("corner", (1, 1, 1), (0, 5)),
        ("traced", (96, 16, 72), ()),
        ("traced", (96, 16, 72), (2, 1)),
    ):
        q_NHD, k_NHD, v_NHD = torch.randn(3, patches, heads, width, generator=generator).clone().unbind(0)
        image_N = torch.zeros(patches, dtype=torch.int32)
        positions_N2 = torch.zeros(patches, 2, dtype=torch.int64)
        args = (q_NHD.clone(), k_NHD.clone(), v_NHD.clone(), image_N, positions_N2, width**-0.5, *rest)
        fill(args, {}, generator)
        if kind == "odd":
            image_N[-1] = -1
        yield Sample(kind=kind, args=args, kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="two-way attention inside each image of a packed sequence of patches",
    schema="(Tensor q, Tensor k, Tensor v, Tensor image, Tensor positions, float scale, int window=-1, "
    "int global_tokens=0) -> Tensor",
    mathematics="softmax of scale q.k over the patches of the same image at most `window` away in rows and columns "
    "(-1: all), besides its first global_tokens patches, which see and are seen by all of it; image < 0 is padding: 0",
    source="Kimi K3's vision tower as NeMo AutoModel holds it (whole image); windows as in Swin, arXiv 2103.14030, "
    "global tokens as in Longformer, arXiv 2004.05150",
    reference=reference,
    fake=fake,
    flops=flops,
    fill=fill,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=8.0,
        reason="one softmax and two sums in float32; 8 ULP cover another order of the sums and another exponential",
    ),
    attributes=(
        Attribute(name="scale", meaning="of the score, usually D^-1/2"),
        Attribute(name="window", meaning="Chebyshev distance that a patch sees; -1 is the whole image"),
        Attribute(name="global_tokens", meaning="first patches of an image that see and are seen by all of it"),
        Attribute(
            name="image", meaning="packing: an image number for each patch instead of cu_seqlens; < 0 is padding"
        ),
    ),
    verified_against="NeMo AutoModel's kimi_k3, transformers' kimi_k25, torch's scaled_dot_product_attention",
)
