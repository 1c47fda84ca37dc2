"""What a file of faults says: small frozen entries, and the smallest call on which each of them shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from day0.devices.sim.planting import Plant

__all__ = ["Aspect", "Fault", "Minimal", "NotOnADevice"]

Aspect = Literal["values", "strides", "dtypes", "error", "counters"]
"""In what a result can differ: values (bit for bit, NaN equal to NaN), shape and strides, dtypes, what is raised and
how it reads, what the device counted (fallbacks, host syncs, operator calls)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Minimal:
    """The smallest thing to do on a device so that one fault shows."""

    run: Callable[[torch.device], Any]
    """Make the inputs on the device and return what comes out: tensors, numbers, or lists of them. The same on the CPU."""
    shows: frozenset[Aspect]
    """In what the result with the fault differs from the result without; in nothing else."""
    gives: Any = None
    """What `run` returns with the fault, as nested lists of numbers; None where it is not worth writing down."""
    raises: type[Exception] | None = None
    """What `run` raises with the fault."""
    message: str = ""
    """What the error says, in part."""
    on_cpu: bool = True
    """Whether the CPU gives the same without the fault; not where the point is that there are two devices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One planted fault, or one difference that a device may have without being wrong."""

    name: str
    family: str
    source: str
    """Public report of the bug, as an address or `owner/repo#number`; several with a space between."""
    does: str
    """What the kernel does, and when, in one line."""
    operators: tuple[str, ...]
    """`aten::topk` for all overloads, `aten::topk.values` for one, `day0::rope`."""
    plant: Plant
    minimal: Minimal
    is_fault: bool = True
    """False for a legitimate difference: a checker that reports it cries wolf."""
    warns: bool = False
    """True where each result is right in itself, and a warning is what a checker owes its user."""
    needs: tuple[str, ...] = ()
    """Dtypes without which a device cannot have the bug."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NotOnADevice:
    """A row of the catalogues that no kernel can have, and why."""

    row: str
    source: str
    reason: str
