"""Calls of kernels beyond the samples of their contracts, small enough for Triton's interpreter."""

from __future__ import annotations

from day0.analyzers.kernel_check import Call

__all__ = ["hard_calls"]


def hard_calls(operator: str) -> list[Call]:
    """Return calls on the CPU; none for an operator that has no such."""
    return []
