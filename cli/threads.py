"""How many threads torch computes with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from day0.records import Trace

__all__ = ["threads_for"]

SMALL_MODEL_BYTES = 64 << 20


@contextmanager
def threads_for(trace: Trace) -> Iterator[None]:
    """Run small models on one thread.

    Their operators are too short to share: with another program on the second of two cores, waiting for each other made
    the toy's check and canary ten times slower. On one thread the CPU's sums also come in one order.
    """
    before = torch.get_num_threads()
    if trace.model.parameter_bytes < SMALL_MODEL_BYTES:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
