"""torch's layer normalisation, with the statistics that its backward pass needs."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from day0.reference_ops._spec import Operator, Sample, Tolerance

__all__ = ["OP", "reference"]


def reference(
    input: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the normalised input, and mean and 1 / standard deviation of every row."""
    out, mean, rstd = torch.native_layer_norm(input, normalized_shape, weight, bias, eps)
    return out, mean, rstd


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, two normalised dimensions without weight, rows that do not vary, and DeepSeek-V3.2's index keys."""
    weight = torch.randn(8, generator=generator)
    yield Sample(
        kind="small", args=(torch.randn(3, 8, generator=generator), [8], weight, torch.zeros(8), 1e-5), kwargs={}
    )
    yield Sample(kind="odd", args=(torch.randn(2, 3, 5, generator=generator), [3, 5], None, None, 1e-6), kwargs={})
    yield Sample(kind="corner", args=(torch.ones(2, 4), [4], None, None, 1e-5), kwargs={})
    keys, scale, shift = (torch.randn(*shape, generator=generator) for shape in ((1, 4, 128), (128,), (128,)))
    yield Sample(kind="traced", args=(keys.to(torch.bfloat16), [128], scale, shift, 1e-6), kwargs={})


OP = Operator(
    name="aten::native_layer_norm",
    version=1,
    summary="layer normalisation with mean and reciprocal deviation",
    schema="",
    mathematics="out = (x - mean) * rstd * weight + bias, rstd = (variance + eps)^-1/2 over the normalised dimensions",
    source="torch.nn.functional.layer_norm documentation",
    reference=reference,
    samples=samples,
    free_dtypes=(1, 2),
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=2.0,
        reason="two sums and a root; the statistics are float32 on CUDA and of the input's dtype on the CPU for half "
        "types, and nobody but the backward pass reads them",
    ),
    verified_against="torch's own CPU kernel",
)
