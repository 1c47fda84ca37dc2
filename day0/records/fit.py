"""How many cards a model needs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from day0.records._base import Record

__all__ = ["FitCard", "FitOption", "FitPlan", "FitProposal", "FitReport", "FitRow"]


class FitRow(Record):
    """One kind of weight or of cache. For a cache, `bytes` is what one sequence of the asked context takes."""

    name: str
    title: str
    format: str
    values: int
    bytes: int
    shared_by: str
    """Which parallelism divides it."""
    layers: int = 0
    bytes_per_token: float = 0.0


class FitCard(Record):
    """What a card of the fullest pipeline stage holds, in bytes."""

    cards: int
    tp: int
    ep: int
    pp: int
    dp: int
    stage: int
    weights: dict[str, int]
    replicated: int
    """Of the weights, what every card of a stage holds whole."""
    cache: dict[str, int]
    workspace: int
    workspace_format: str
    activations: int
    communication: int
    saved: int = 0
    """Training: what forward keeps for backward."""
    gradients: int = 0
    optimizer: int = 0
    total: int
    usable: int
    """Memory less the reserve."""
    free: int
    """Negative where it does not fit."""
    sequences: int
    """How many sequences of the asked context all cards together could hold."""
    rounded: tuple[str, ...] = ()


class FitPlan(Record):
    """Activations of one chunk on one card, in bytes."""

    planned: int
    """Tensors whose lifetimes do not meet share addresses."""
    unplanned: int
    """The sum of all tensors."""
    bound: int
    """The most that lives at one moment: no plan takes less."""
    written: int
    """Planned as the Python code stands: without operators that fuse attention and indexer."""
    tensors: int
    strategy: str
    note: str = ""


class FitOption(Record):
    """A number of cards with its best layout."""

    cards: int
    layout: str
    bytes_per_card: int
    fits: bool
    sequences: int


class FitProposal(Record):
    """What would take less memory, with what it saves on each card."""

    title: str
    why: str
    bytes_saved: int


class FitReport(Record):
    """How many cards a model needs and what takes their memory."""

    model: str
    class_name: str
    overrides: dict[str, str] = Field(default_factory=dict)
    device: str
    memory_bytes: int
    reserve_bytes: int
    context: int
    batch: int
    """Sequences at one time, on all cards together."""
    chunk: int
    """Tokens of a prompt that run at one time."""
    parameters: int
    active_parameters: int
    weights: tuple[FitRow, ...]
    weight_bytes: int
    cache: tuple[FitRow, ...]
    asked: Literal["smallest", "layout", "cards"]
    fits: bool
    card: FitCard | None = None
    """None where no layout of the search fits."""
    plan: FitPlan | None = None
    options: tuple[FitOption, ...] = ()
    proposals: tuple[FitProposal, ...] = ()
    unread: str = ""
    """Why cache and activations are not in here, where the model does not run on meta."""
