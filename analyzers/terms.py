"""How many terms one element of a result sums up: the floor of a tolerance grows with it."""

from __future__ import annotations

import math

import torch

__all__ = ["RUNNING", "adds_up", "levels_of", "stands_alone", "summed_terms"]

_CONTRACTIONS = {
    "mm": 0,
    "bmm": 0,
    "mv": 0,
    "dot": 0,
    "vdot": 0,
    "inner": 0,
    "linear": 0,
    "matmul": 0,
    "addmm": 1,
    "addmv": 1,
    "addbmm": 1,
    "baddbmm": 1,
    "_grouped_mm": 0,
    "convolution": 1,
    "conv1d": 1,
    "conv2d": 1,
    "conv3d": 1,
}
"""Which tensor argument has the summed dimension last."""

_REDUCTIONS = frozenset(
    {"sum", "nansum", "mean", "var", "var_mean", "std", "std_mean", "norm", "linalg_vector_norm", "prod", "logsumexp"}
)
_ALONG_LAST = frozenset(
    {"softmax", "_softmax", "_safe_softmax", "_log_softmax", "native_layer_norm", "rms_norm", "_fused_rms_norm"}
)
RUNNING = frozenset({"cumsum", "cumprod", "logcumsumexp"})
"""Each result is the one before it and one value more."""


def summed_terms(name: str, tensors: list[torch.Tensor], result: torch.Tensor) -> int:
    """Return the number of terms, 1 for operators that sum nothing.

    `name` is without namespace and overload; `tensors` are the tensor arguments in order.
    """
    if name.startswith("conv") and name in _CONTRACTIONS and len(tensors) > 1:
        return max(1, tensors[1].numel() // max(1, tensors[1].shape[0]))
    if name in _CONTRACTIONS and len(tensors) > _CONTRACTIONS[name]:
        return _last(tensors[_CONTRACTIONS[name]])
    if not tensors:
        return 1
    if name in _REDUCTIONS:
        return max(1, tensors[0].numel() // max(1, result.numel()))
    if name in _ALONG_LAST:
        return _last(tensors[0])
    return max(1, *tensors[0].shape) if name in RUNNING and tensors[0].dim() else 1


def adds_up(name: str) -> bool:
    """Say whether an operator is a plain sum of products or values, which can cancel."""
    return name in _CONTRACTIONS or name in {"sum", "nansum", "mean", "cumsum"}


def stands_alone(name: str) -> bool:
    """Say whether a reduction's results have nothing to do with their neighbours."""
    return name in _REDUCTIONS


def levels_of(name: str, dtype: torch.dtype, terms: int) -> int:
    """Return how many numbers of the dtype itself are added up in a row on the way to one result.

    Running sums of half types: each is a result, so a scan adds numbers that have been rounded to the dtype, in a tree of
    log2(terms) levels; a kernel that keeps them all in float32 does better. Elsewhere sums are kept in float32: none.
    """
    narrow = dtype.is_floating_point and torch.finfo(dtype).bits < 32
    return 1 + math.ceil(math.log2(terms)) if name in RUNNING and narrow and terms > 1 else 0


def _last(tensor: torch.Tensor) -> int:
    return max(1, int(tensor.shape[-1])) if tensor.dim() else 1
