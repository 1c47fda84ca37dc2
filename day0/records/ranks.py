"""What became of a model that was cut for several ranks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from day0.records._base import Record
from day0.records.canary import GateResult

__all__ = ["RankCollective", "RankResult", "RankScale", "RanksReport", "RanksRun"]


class RankCollective(Record):
    """One collective of one size and dtype, as one rank saw it."""

    kind: str
    dtype: str
    elements: int
    """Of the tensor that each rank gives."""
    status: Literal["pass", "fail", "unsupported"]
    reason: str = ""
    error: float = 0.0
    """Relative L2 error against the sum in float64."""
    yardstick: float = 0.0
    """The error of the same sum in the dtype itself, rank after rank, on the CPU."""
    limit: float = 0.0
    digest: str = ""
    """Hash of the bits that came back."""


class RankResult(Record):
    """What one rank did, and how it ended."""

    rank: int
    status: Literal["done", "died", "hung", "raised", "stopped"]
    """`stopped`: nothing was wrong with it, another rank ended first."""
    reason: str = ""
    phase: str = ""
    """Where it was last."""
    exit_code: int | None = None
    log_tail: tuple[str, ...] = ()
    """The last lines of its output, of a rank that died, hung or raised."""
    metrics: dict[str, float] = Field(default_factory=dict)
    first_divergent: str = ""
    """The first module whose results differ from the golden by more than the dtype explains."""
    divergence: str = ""
    tokens: tuple[int, ...] = ()
    """Chosen greedily, after the prompt."""
    collectives: tuple[RankCollective, ...] = ()


class RanksRun(Record):
    """One number of ranks, with or without a planted fault."""

    ranks: int
    whole_experts: bool = False
    planted: str = ""
    status: Literal["pass", "fail"]
    reasons: tuple[str, ...] = ()
    """What is wrong, most important first; each names the rank."""
    gates: tuple[GateResult, ...] = ()
    metrics: dict[str, float] = Field(default_factory=dict)
    plan: dict[str, str] = Field(default_factory=dict)
    """Rules by parameter, layer numbers as `*`."""
    results: tuple[RankResult, ...] = ()


class RankScale(Record):
    """One line of the table of scaling."""

    ranks: int
    prefill_s: float
    decode_s: float
    prefill_efficiency: float
    """Time of the fewest ranks over the time here, over how many times more ranks these are."""
    decode_efficiency: float
    collective_share: float
    """Time in collectives over the time of a step of decode; waiting for the others is part of it."""
    weight_bytes: int
    """Of the fullest rank."""


class RanksReport(Record):
    """A model on several ranks."""

    model: str
    class_name: str
    overrides: dict[str, str] = Field(default_factory=dict)
    dtype: str
    seed: int
    device: str
    backend: str
    prompt_tokens: int
    new_tokens: int
    runs: tuple[RanksRun, ...]
    scaling: tuple[RankScale, ...] = ()
    notes: tuple[str, ...] = ()
