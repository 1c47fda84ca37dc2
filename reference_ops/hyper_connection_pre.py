"""Manifold-constrained hyper-connections, before a sub-layer: its input, and how its result is written back.

Shape suffixes: B batch, S tokens, n residual streams, D hidden, F = n * D, M = 2 n + n * n mixing coefficients.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["NAME", "OP", "doubly_stochastic", "fake", "reference", "validate"]

NAME = "day0::hyper_connection_pre"


def validate(
    streams_BSnD: torch.Tensor,
    weight_MF: torch.Tensor,
    base_M: torch.Tensor,
    scale_3: torch.Tensor,
    norm_eps: float,
    eps: float,
    iterations: int,
) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("streams", streams_BSnD, "BSnD")
    for name, tensor, letters in (("weight", weight_MF, "MF"), ("base", base_M, "M"), ("scale", scale_3, "3")):
        check.shape(name, tensor, letters)
    for name, tensor in (("streams", streams_BSnD), ("weight", weight_MF), ("base", base_M), ("scale", scale_3)):
        check.floating(name, tensor)
    streams, hidden = streams_BSnD.shape[2:]
    check.true("streams", streams >= 1, "1 stream or more", streams)
    expected = [(2 + streams) * streams, streams * hidden]
    check.true("weight", list(weight_MF.shape) == expected, f"shape {expected}", f"shape {list(weight_MF.shape)}")
    check.true("scale", scale_3.shape[0] == 3, "3 numbers: pre, post, comb", scale_3.shape[0])
    check.true("norm_eps", norm_eps > 0, "a positive number", norm_eps)
    check.true("eps", eps >= 0, "0 or more", eps)
    check.true("iterations", iterations >= 1, "1 or more", iterations)


def reference(
    streams_BSnD: torch.Tensor,
    weight_MF: torch.Tensor,
    base_M: torch.Tensor,
    scale_3: torch.Tensor,
    norm_eps: float,
    eps: float,
    iterations: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the sub-layer's input x [B, S, D] in the dtype of streams, post [B, S, n] and comb [B, S, n, n] wide.

    Wide is float64 for float64 streams, else float32. The rows of weight and base are: n for pre, n for post, n * n
    for comb, row by row; scale holds one factor for each of the three. comb[j, m] is what stream j gives to the new
    stream m; its columns sum to 1, its rows nearly (the last step of an iteration is that of the columns).
    """
    validate(streams_BSnD, weight_MF, base_M, scale_3, norm_eps, eps, iterations)
    wide = torch.float64 if streams_BSnD.dtype == torch.float64 else torch.float32
    streams = streams_BSnD.shape[2]
    value_BSnD = streams_BSnD.to(wide)
    flat_BSF = value_BSnD.flatten(2)
    unit_BSF = flat_BSF / (flat_BSF.square().mean(dim=-1, keepdim=True) + norm_eps).sqrt()
    # One factor for all the coefficients of a kind.
    sizes = (streams, streams, streams**2)
    scale_M = torch.cat([one.expand(size) for one, size in zip(scale_3.to(wide), sizes, strict=True)])
    mix_BSM = unit_BSF @ weight_MF.to(wide).T * scale_M + base_M.to(wide)
    pre_BSn, post_BSn, comb_BSM = mix_BSM.split(sizes, dim=-1)
    x_BSD = ((torch.sigmoid(pre_BSn) + eps)[..., None] * value_BSnD).sum(dim=2)
    comb_BSnn = doubly_stochastic(comb_BSM.unflatten(-1, (streams, streams)), eps, iterations)
    return x_BSD.to(streams_BSnD.dtype), 2.0 * torch.sigmoid(post_BSn), comb_BSnn


def doubly_stochastic(logits_BSnn: torch.Tensor, eps: float, iterations: int) -> torch.Tensor:
    """Return positive matrices whose columns and (nearly) rows sum to 1: Sinkhorn and Knopp's iteration.

    The first iteration is a softmax of the rows and a division of the columns; the others divide rows, then columns.
    """
    matrix_BSnn = torch.softmax(logits_BSnn, dim=-1) + eps
    matrix_BSnn = matrix_BSnn / (matrix_BSnn.sum(dim=-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        matrix_BSnn = matrix_BSnn / (matrix_BSnn.sum(dim=-1, keepdim=True) + eps)
        matrix_BSnn = matrix_BSnn / (matrix_BSnn.sum(dim=-2, keepdim=True) + eps)
    return matrix_BSnn


def fake(
    streams_BSnD: torch.Tensor,
    weight_MF: torch.Tensor,
    base_M: torch.Tensor,
    scale_3: torch.Tensor,
    norm_eps: float,
    eps: float,
    iterations: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of the results."""
    validate(streams_BSnD, weight_MF, base_M, scale_3, norm_eps, eps, iterations)
    wide = torch.float64 if streams_BSnD.dtype == torch.float64 else torch.float32
    batch, tokens, streams, hidden = streams_BSnD.shape
    return (
        streams_BSnD.new_empty(batch, tokens, hidden),
        streams_BSnD.new_empty(batch, tokens, streams, dtype=wide),
        streams_BSnD.new_empty(batch, tokens, streams, streams, dtype=wide),
    )


def flops(
    streams_BSnD: torch.Tensor,
    weight_MF: torch.Tensor,
    base_M: torch.Tensor,
    scale_3: torch.Tensor,
    norm_eps: float,
    eps: float,
    iterations: int,
) -> int:
    """The norm, the projection to the coefficients, the sum of the streams, and the iterations on n x n numbers."""
    batch, tokens, streams, hidden = streams_BSnD.shape
    wide = streams * hidden
    return int(batch * tokens * (2 * wide + 2 * wide * weight_MF.shape[0] + 2 * wide + 4 * iterations * streams**2))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Four streams, three of odd sizes, one stream alone, no tokens, and the streams of GLM-5.3-Flash."""
    for kind, (batch, tokens, streams, hidden), iterations in (
        ("small", (1, 2, 4, 6), 20),
        ("odd", (2, 3, 3, 5), 3),
        ("corner", (1, 1, 1, 2), 1),
        ("corner", (1, 0, 4, 3), 2),
        ("traced", (1, 2, 4, 4096), 20),
    ):
        coefficients = (2 + streams) * streams
        streams_BSnD = torch.randn(batch, tokens, streams, hidden, generator=generator)
        weight_MF = torch.randn(coefficients, streams * hidden, generator=generator) / (streams * hidden) ** 0.5
        base_M = torch.randn(coefficients, generator=generator)
        scale_3 = 0.5 + torch.rand(3, generator=generator)
        yield Sample(kind=kind, args=(streams_BSnD, weight_MF, base_M, scale_3, 1e-5, 1e-6, iterations), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="hyper-connection before a sub-layer: collapse n streams, make the weights of the way back",
    schema="(Tensor streams, Tensor weight, Tensor base, Tensor scale, float norm_eps, float eps, int iterations) "
    "-> (Tensor, Tensor, Tensor)",
    mathematics="m = RMSNorm(flat streams) weight^T, scaled by kind, plus base, cut into p, o, c; "
    "x = sum_j (sigmoid(p_j) + eps) stream_j; post = 2 sigmoid(o); comb = Sinkhorn(softmax_rows(c) + eps)",
    source="mHC: manifold-constrained hyper-connections; transformers glm5_next and deepseek_v4",
    reference=reference,
    fake=fake,
    flops=flops,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=32.0,
        reason="a projection summed over n D numbers in float32, then 2 * 20 divisions by sums that pull towards 1 and "
        "so keep errors from growing; 32 ULP cover another order of the sums",
    ),
    attributes=(
        Attribute(name="iterations", meaning="of Sinkhorn, 20 in GLM-5.3-Flash; the first has no division of rows"),
        Attribute(name="eps", meaning="added to pre, to the softmax and to every sum that divides"),
        Attribute(name="norm_eps", meaning="inside the root of the norm of the flat streams, which has no weight"),
        Attribute(name="streams", meaning="4 in GLM-5.3-Flash; how they end (mean, learned sum) is the caller's"),
    ),
    verified_against="transformers glm5_next and deepseek_v4 hyper-connection modules",
)
