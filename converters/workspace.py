"""Where a mixture of experts gets its weights from while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

__all__ = [
    "BatchedExperts",
    "DecodeEveryTime",
    "ExpertRound",
    "ExpertWorkspace",
    "PackedExperts",
    "RoutedWorkspace",
    "renumbered",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedExperts:
    """The stacked weights [E, out, in] of all experts of a layer as they lie in memory: four-bit codes and scales."""

    name: str
    """Where they stand in the model, for a workspace that keeps what it has converted."""
    codes: torch.Tensor
    """uint8 [E, out, in / 2]."""
    scales: torch.Tensor
    """uint8 [E, out, in / 32]."""


class ExpertWorkspace(Protocol):
    """Converts packed experts at inference, when they are needed."""

    def expert_weights(self, packed: PackedExperts, dtype: torch.dtype) -> torch.Tensor:
        """Return the weights [E, out, in] in `dtype`."""


class DecodeEveryTime:
    """Keeps nothing: every call decodes all experts."""

    def __init__(self, calls: Any) -> None:
        """Use the operator `mxfp4_decode` of `calls`, for example of `torch.ops.day0`."""
        self.calls = calls

    def expert_weights(self, packed: PackedExperts, dtype: torch.dtype) -> torch.Tensor:
        """Return the weights [E, out, in] in `dtype`."""
        weight: torch.Tensor = self.calls.mxfp4_decode(packed.codes, packed.scales, dtype)
        return weight


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertRound:
    """Some of the experts that a step needs, and who chose them."""

    gate_up: torch.Tensor
    """[n, 2 * features, in], gate above up, of n experts."""
    down: torch.Tensor
    """[n, out, features]."""
    chosen_NK: torch.Tensor
    """Numbers 0 to n - 1 within them, -1 for choices that another round computes."""


@runtime_checkable
class RoutedWorkspace(Protocol):
    """Converts only the experts that tokens chose, some at a time."""

    def rounds(
        self, packed: Sequence[PackedExperts], chosen_NK: torch.Tensor, dtype: torch.dtype
    ) -> Iterator[ExpertRound]:
        """Give rounds for `packed` gate, up and down; each holds until the next one is asked for.

        Every choice is in exactly one round, so the sum of their results is the layer's.
        """


def renumbered(chosen_NK: torch.Tensor, places: dict[int, int], experts: int) -> torch.Tensor:
    """Return the choices by their place, -1 for those that have none; on the device of `chosen`."""
    # One more than there are experts: -1, a choice that was dropped, finds the last.
    place_E = torch.full((experts + 1,), -1, dtype=chosen_NK.dtype)
    for expert, place in places.items():
        place_E[expert] = place
    return place_E[chosen_NK.cpu().long()].to(chosen_NK.device)


class BatchedExperts:
    """Keeps nothing, and decodes `batch` of the chosen experts at a time: for a device without room for a layer."""

    def __init__(self, calls: Any, batch: int) -> None:
        """Use the operator `mxfp4_decode` of `calls`, for example of `torch.ops.day0`."""
        if batch < 1:
            raise ValueError(f"batch of {batch} experts")
        self.calls, self.batch = calls, batch

    def rounds(
        self, packed: Sequence[PackedExperts], chosen_NK: torch.Tensor, dtype: torch.dtype
    ) -> Iterator[ExpertRound]:
        """Give one round for every `batch` experts."""
        experts = packed[0].codes.shape[0]
        needed = [one for one in chosen_NK.cpu().unique().tolist() if 0 <= one < experts]
        for first in range(0, len(needed), self.batch):
            some = needed[first : first + self.batch]
            gate, up, down = (self._decoded(one, some, dtype) for one in packed)
            yield ExpertRound(
                gate_up=torch.cat((gate, up), dim=1),
                down=down,
                chosen_NK=renumbered(chosen_NK, {expert: place for place, expert in enumerate(some)}, experts),
            )

    def _decoded(self, packed: PackedExperts, some: list[int], dtype: torch.dtype) -> torch.Tensor:
        index = torch.tensor(some, device=packed.codes.device)
        weight: torch.Tensor = self.calls.mxfp4_decode(packed.codes[index], packed.scales[index], dtype)
        return weight
