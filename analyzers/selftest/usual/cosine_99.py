"""Cosine similarity of at least 0.99 with the same dtype on the CPU, which ports of whole models are often held to."""

from __future__ import annotations

import torch

from day0.analyzers.selftest.usual._pair import comparable, wide

__all__ = ["NAME", "agrees"]

NAME = "cosine 0.99"


def agrees(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Say whether the rule passes. Places where both are NaN, or the same infinity, are left out.

    So do equal results pass, of which the cosine may be undefined: zeros, or nothing.
    """
    if not comparable(got, expected):
        return False
    one, two = wide(got).flatten(), wide(expected).flatten()
    kept = ~((one.isnan() & two.isnan()) | (one.isinf() & (one == two)))
    one, two = one[kept], two[kept]
    if torch.equal(one, two):
        return True
    # Written so that NaN fails.
    return bool(torch.nn.functional.cosine_similarity(one, two, dim=0) >= 0.99)
