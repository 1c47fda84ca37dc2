"""What a conversion did to every weight, and what the result is."""

from __future__ import annotations

from typing import Literal

from day0.records._base import Record

__all__ = ["ConversionParameters", "ConvertReport", "ConvertedFile", "ConvertedWeight", "Exactness"]

Exactness = Literal["exact", "exact_with_subnormals", "bounded", "refused"]


class ConversionParameters(Record):
    """What was asked for: the same parameters and source give the same bytes."""

    to: str
    scales: str = "f32"
    fnuz: bool = False
    finer: bool = False
    allow_bounded: bool = False
    no_subnormal: bool = False
    keep_nan: bool = False
    keep_unknown: bool = False
    nibbles: str = "low_first"
    order: str = "low_first"
    architecture: str = "auto"
    transpose: bool | None = None
    gate_up: str = "keep"
    experts: str = "keep"
    only: str = ""
    skip: str = ""


class ConvertedWeight(Record):
    """One weight of the source and what became of it."""

    name: str
    shape: tuple[int, ...]
    source: str
    """Format it was found in."""
    target: str
    """Format it was written in; another than asked for where --finer chose it."""
    exactness: Exactness
    changed: int | None = None
    """Values that are not what they were; None where they have not been counted."""
    bound: str = ""
    """What a changed value differs by at most."""
    subnormal: int | None = None
    """Values that became subnormal numbers of the target."""
    nan: int = 0
    """Values that are NaN: 32 for every scale byte 255 that was kept."""
    why: str = ""
    source_bytes: int = 0
    bytes: int = 0


class ConvertedFile(Record):
    """A file of the result."""

    name: str
    bytes: int
    kind: Literal["weights", "linked", "copied", "written"]


class ConvertReport(Record):
    """A conversion, planned or done."""

    source: str
    """Fingerprint: sizes and headers of the shards, and the config."""
    parameters: ConversionParameters
    architecture: str
    done: bool
    """False for a plan (`--dry-run`)."""
    weights: tuple[ConvertedWeight, ...] = ()
    kept: tuple[str, ...] = ()
    """Tensors that were copied as they are."""
    dropped: tuple[str, ...] = ()
    """Tensors that have no meaning in the result, such as scales of activations."""
    left: tuple[str, ...] = ()
    """Files of the source that were not taken along."""
    files: tuple[ConvertedFile, ...] = ()
    source_bytes: int = 0
    bytes: int = 0
    notes: tuple[str, ...] = ()
