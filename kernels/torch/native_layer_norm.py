"""aten::native_layer_norm where a device has none, and torch's own composite kernel rounds too early for half types.

The composite normalises by a batch norm whose result it stores in the dtype of the input, and applies weight and bias to
that. Where the two cancel, what was rounded away is large beside what is left.
"""

from __future__ import annotations

import torch

from day0.implementation import Constraints, Implementation

__all__ = ["IMPLEMENTATIONS"]

_HALF = (torch.float16, torch.bfloat16)


def native_layer_norm(
    input: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (x - mean) / sqrt(var + eps) * weight + bias, mean and 1 / sqrt(var + eps), in float32 for half types.

    The first has the input's dtype; the others have that of the weight, as on the CPU.
    """
    dims = list(range(input.dim() - len(normalized_shape), input.dim()))
    # The result is packed whatever the order of the input, as torch's own kernels make it.
    wide = (input.to(torch.float32) if input.dtype in _HALF else input).contiguous()
    mean = wide.mean(dim=dims, keepdim=True)
    away = wide - mean
    scale = 1.0 / (away.square().mean(dim=dims, keepdim=True) + eps).sqrt()
    out = away * scale
    if weight is not None:
        out = out * weight.to(out.dtype)
    if bias is not None:
        out = out + bias.to(out.dtype)
    stored = input.dtype if weight is None else weight.dtype
    return out.to(input.dtype), mean.to(stored), scale.to(stored)


IMPLEMENTATIONS = (
    Implementation(
        operator="aten::native_layer_norm",
        contract=1,
        id="float32_rows",
        version="1.1",
        kind="decomposition",
        run=native_layer_norm,
        why="rows are normalised in float32 and rounded once, which torch's composite kernel does not do for half types",
        constraints=Constraints(dtypes=frozenset({"float16", "bfloat16", "float32", "float64"})),
    ),
)
