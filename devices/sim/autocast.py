"""Autocast on the simulated device: which operators run in the narrow dtype, which in float32.

A backend brings these kernels itself. The lists are those that torch documents for CUDA.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.autocast_mode import _cast

from day0.reference_ops.signatures import dtype_name, resolve, tensors_in

__all__ = ["autocast_dtypes", "register_autocast"]

_NARROW = [
    "_convolution",
    "convolution",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "mm",
    "mv",
    "linalg_vecdot",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "einsum",
    "scaled_dot_product_attention",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
]
_WIDE = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "group_norm",
    "rms_norm",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "nll_loss_nd",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "prod",
    "softmax",
    "log_softmax",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "norm",
    "sum",
]
_WIDEST = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
    "cat",
    "stack",
]

_KEY: Any = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]  # torch's stub leaves it out
_CANDIDATES = (torch.bfloat16, torch.float16)

Kernel = Callable[..., Any]
Choose = Callable[[Any], torch.dtype]


def autocast_dtypes(held: tuple[str, ...]) -> list[torch.dtype]:
    """Return the narrow dtypes that autocast may take on a device that holds these dtypes."""
    return [dtype for dtype in _CANDIDATES if dtype_name(dtype) in held]


def register_autocast() -> list[torch.library.Library]:
    """Register the kernels of autocast, and for all other operators that it lets them through."""
    others = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    others.fallback(torch.library.fallthrough_kernel)
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for names, choose in ((_NARROW, _narrow), (_WIDE, _wide), (_WIDEST, _widest)):
            for name in names:
                for overload in _overloads(name):
                    library.impl(overload.removeprefix("aten::"), _casting(resolve(overload), choose), _KEY.name)
    return [others, library]


def _overloads(name: str) -> list[str]:
    """All overloads that return a new tensor: autocast does not touch what is written in place or into `out`."""
    packet = getattr(torch.ops.aten, name)
    every = [getattr(packet, one).name() for one in packet.overloads()]
    return [one for one in every if not resolve(one)._schema.is_mutable and "Dimname" not in str(resolve(one)._schema)]


def _casting(func: Any, choose: Choose) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = choose((args, kwargs))
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY)):
            return func(*_cast(args, "sim", dtype), **_cast(kwargs, "sim", dtype))

    return kernel


def _narrow(given: Any) -> torch.dtype:
    return torch.get_autocast_dtype("sim")


def _wide(given: Any) -> torch.dtype:
    return torch.float32


def _widest(given: Any) -> torch.dtype:
    """Return what the arguments have in common, so that operators with several of them can take them."""
    found = [one.dtype for one in tensors_in(given) if one.is_floating_point()]
    return torch.float32 if torch.float32 in found or not found else torch.get_autocast_dtype("sim")
