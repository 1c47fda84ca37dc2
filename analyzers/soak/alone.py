"""A sequence of the soak decoded once more, alone and with a cache of its own.

Shape suffixes: N tokens, V vocabulary, B one sequence, S tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from day0.models.driver import greedy

__all__ = ["FAR", "FAR_HALF", "Wrong", "compare_alone"]

FAR = 1e-2
"""Relative distance of logits beyond which other pages or states were read: sums in another order are far below."""
FAR_HALF = 0.25
"""The same in half types, where a near tie of experts or tokens may fall otherwise in another batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wrong:
    """Where a sequence went another way than alone."""

    token: int
    distance: float
    reason: str


def compare_alone(
    model: nn.Module, device: torch.device, prompt: tuple[int, ...], tokens: list[int], logits_NV: torch.Tensor
) -> Wrong | None:
    """Return the first difference that rounding does not explain; None where there is none.

    `tokens` and the logits [N, V] they were taken from are the soak's. Another token is explained where the two best
    logits lie closer than twice the distance of both runs at that place; the tokens after it are not compared.
    """
    ids_BS = torch.tensor([prompt]).to(device)
    alone_BN, alone_BNV = greedy(model, ids_BS, len(tokens))
    half = any(one.is_floating_point() and one.dtype.itemsize == 2 for one in model.parameters())
    far = FAR_HALF if half else FAR
    for place, (mine, right) in enumerate(zip(tokens, alone_BN[0].tolist(), strict=True)):
        got_V, right_V = logits_NV[place], alone_BNV[0, place]
        size = float(torch.linalg.vector_norm(right_V)) or 1.0
        distance = float(torch.linalg.vector_norm(got_V - right_V)) / size
        if not distance <= far:  # also where it is not finite
            return Wrong(token=place, distance=distance, reason=f"logits are {distance:.3g} away from those alone")
        if mine != right:
            best_2 = right_V.topk(2).values
            error = float((got_V - right_V).abs().max())
            margin = float(best_2[0] - best_2[1])
            if not margin <= 2.0 * error:
                reason = f"token {mine} instead of {right}, whose margin is {margin:.3g} and the error {error:.3g}"
                return Wrong(token=place, distance=distance, reason=reason)
            return None
    return None
