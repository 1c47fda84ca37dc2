"""A short causal convolution of each channel by itself, with its activation."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from day0.analyzers.blocks._block import Block, Call
from day0.records import ScalarValue, TensorValue, TraceEntry

__all__ = ["BLOCK"]


def _conv(x_BDS: torch.Tensor, weight_D1W: torch.Tensor) -> torch.Tensor:
    width = weight_D1W.shape[-1]
    return F.silu(F.conv1d(x_BDS, weight_D1W, padding=width - 1, groups=weight_D1W.shape[0])[..., : x_BDS.shape[-1]])


def _sample() -> Call:
    return Call(_conv, torch.ones(1, 6, 5), torch.ones(6, 1, 4))


def _near_miss() -> Call:
    """A convolution over all channels."""
    return Call(lambda x_BDS, weight_EDW: F.silu(F.conv1d(x_BDS, weight_EDW)), torch.ones(1, 6, 5), torch.ones(6, 6, 4))


def _depthwise(entry: TraceEntry) -> bool:
    """One input channel for each group, and more than one group."""
    weight, groups = entry.signature.args[1], entry.signature.args[-1]
    one_each = isinstance(weight, TensorValue) and len(weight.shape) == 3 and weight.shape[1] == 1
    return one_each and isinstance(groups, ScalarValue) and groups.value != "1"


BLOCK = Block(
    title="short convolution",
    operators=("day0::short_conv",),
    why="convolution, activation and the kept tail in one pass",
    classes=("ShortConvolution",),
    confirm=("convolution", "conv1d"),
    paths=("convolution! silu", "?cat convolution! silu"),
    absorbs=("cat",),
    when=_depthwise,
    carves=("kda_chunked", "kda_recurrent"),
    sample=_sample,
    near_miss=_near_miss,
)
