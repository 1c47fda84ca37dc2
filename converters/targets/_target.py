"""What a target is to the engine: which tensors it makes of a weight, and how a tile of rows becomes theirs.

Shape suffixes: R rows of a tile, C columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from day0.converters.reading import Buffers, Reader
from day0.converters.tiers._tier import Decode
from day0.converters.verdict import Verdict
from day0.converters.weight import MxTile, Weight
from day0.converters.writer import Output
from day0.records.convert import ConversionParameters

__all__ = ["ROWS", "Job", "Made", "Target"]

ROWS = 128
"""Tiles have a multiple of these: no block of scales is cut."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a tile is converted with."""

    weight: Weight
    expert: int
    parameters: ConversionParameters
    decode: Decode
    buffers: Buffers
    first: int = 0
    """Row number of the tile's first row."""
    prepared: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """What became of a tile."""

    tensors: Mapping[str, torch.Tensor]
    """By role."""
    verdict: Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One format to convert to."""

    name: str
    summary: str
    from_mx: str
    """What becomes of E2M1 values with power-of-two scales: exact, exact under a condition, or the bound."""
    from_values: str
    """What becomes of all other weights."""
    outputs: Callable[[Weight, ConversionParameters], Mapping[str, Output]]
    """Role to tensor; shapes have rows before columns."""
    tile: Callable[[Job, MxTile | torch.Tensor], Made]
    scan_tile: Callable[[Job, torch.Tensor, Callable[[], torch.Tensor]], Verdict] | None = None
    """`scan_tile(job, scale bytes, read the codes)`: the verdict of an MX tile without converting it."""
    prepare: Callable[[Job, Reader], Any] | None = None
    """What has to be known of a whole matrix before its first tile."""
    bits: int = 0
    """Significant bits of the target; a source that needs more cannot come out exact."""
    bound: str = ""
    """Of a changed value."""
    transposes: bool = False
    """Whether rows and columns may change places."""
    finer: tuple[str, ...] = ()
    """Targets that --finer tries next."""
    keeps: Callable[[Weight, ConversionParameters], bool] | None = None
    """Where the source is the result already."""
    quantisation: Callable[[ConversionParameters], dict[str, Any]] | None = None
    """The entry `quantization_config` of config.json; None where the weights are plain."""
    mx_only: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
