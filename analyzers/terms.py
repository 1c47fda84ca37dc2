"""How many terms one element of a result sums up: the floor of a tolerance grows with it."""

from __future__ import annotations

import torch

__all__ = ["adds_up", "summed_terms"]

_CONTRACTIONS = {
    "mm": 0,
    "bmm": 0,
    "mv": 0,
    "dot": 0,
    "linear": 0,
    "matmul": 0,
    "addmm": 1,
    "addmv": 1,
    "baddbmm": 1,
    "_grouped_mm": 0,
    "convolution": 1,
}
"""Which tensor argument has the summed dimension last."""

_REDUCTIONS = frozenset({"sum", "mean", "var", "var_mean", "std", "norm", "linalg_vector_norm", "prod"})
_ALONG_LAST = frozenset(
    {"softmax", "_softmax", "_safe_softmax", "_log_softmax", "native_layer_norm", "rms_norm", "_fused_rms_norm"}
)
_RUNNING = frozenset({"cumsum", "cumprod", "logcumsumexp"})


def summed_terms(name: str, tensors: list[torch.Tensor], result: torch.Tensor) -> int:
    """Return the number of terms, 1 for operators that sum nothing.

    `name` is without namespace and overload; `tensors` are the tensor arguments in order.
    """
    if name == "convolution" and len(tensors) > 1:
        return max(1, tensors[1].numel() // max(1, tensors[1].shape[0]))
    if name in _CONTRACTIONS and len(tensors) > _CONTRACTIONS[name]:
        return _last(tensors[_CONTRACTIONS[name]])
    if not tensors:
        return 1
    if name in _REDUCTIONS:
        return max(1, tensors[0].numel() // max(1, result.numel()))
    if name in _ALONG_LAST:
        return _last(tensors[0])
    return max(1, *tensors[0].shape) if name in _RUNNING and tensors[0].dim() else 1


def adds_up(name: str) -> bool:
    """Say whether an operator is a plain sum of products or values, which can cancel."""
    return name in _CONTRACTIONS or name in {"sum", "mean", "cumsum"}


def _last(tensor: torch.Tensor) -> int:
    return max(1, int(tensor.shape[-1])) if tensor.dim() else 1
