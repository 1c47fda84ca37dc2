"""How sub-layers of the toy read from the residual and write into it.

Shape suffixes: B batch, S tokens, D hidden, n streams.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from day0.models.toy.calls import Calls
from day0.models.toy.config import ToyConfig

__all__ = [
    "AttentionResidual",
    "HyperConnection",
    "PlainResidual",
    "Reading",
    "Residual",
    "make_last_residual",
    "make_residual",
]

Bank = tuple[torch.Tensor, ...]
ITERATIONS = 20
"""Of the Sinkhorn normalisation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What a sub-layer gets [B, S, D], and what its result is written back with."""

    x_BSD: torch.Tensor
    mixing: tuple[torch.Tensor, ...] = ()


class PlainResidual(nn.Module):
    """A sum."""

    def spread(self, x_BSD: torch.Tensor) -> torch.Tensor:
        """Return the stream that embedded tokens begin."""
        return x_BSD

    def read(self, stream: torch.Tensor, bank: Bank) -> Reading:
        """Return what the sub-layer gets."""
        return Reading(x_BSD=stream)

    def gather(self, stream: torch.Tensor, bank: Bank) -> torch.Tensor:
        """Return what the last norm gets, [B, S, D]."""
        return self.read(stream, bank).x_BSD

    def write(
        self, stream: torch.Tensor, y_BSD: torch.Tensor, into: Reading, bank: Bank, *, snapshot: bool
    ) -> tuple[torch.Tensor, Bank]:
        """Return the new stream and the bank."""
        return stream + y_BSD, bank


class AttentionResidual(PlainResidual):
    """Each sub-layer attends over snapshots of earlier blocks and the running sum of its own (K3)."""

    def __init__(self, config: ToyConfig, calls: Calls) -> None:
        super().__init__()
        self.calls, self.eps = calls, config.rms_norm_eps
        self.norm = nn.Parameter(torch.empty(config.hidden_size))
        self.proj = nn.Parameter(torch.empty(config.hidden_size))

    def read(self, stream: torch.Tensor, bank: Bank) -> Reading:
        """Return a mix of the snapshots and the sum."""
        return Reading(x_BSD=self.calls.attention_residual(list(bank), stream, self.norm, self.proj, self.eps))

    def write(
        self, stream: torch.Tensor, y_BSD: torch.Tensor, into: Reading, bank: Bank, *, snapshot: bool
    ) -> tuple[torch.Tensor, Bank]:
        """Add to the sum; at the begin of a block the old sum goes into the bank and a new one is begun."""
        return (y_BSD, (*bank, stream)) if snapshot else (stream + y_BSD, bank)


class StreamEnds(PlainResidual):
    """Where several streams begin and end."""

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.streams = config.residual_streams

    def spread(self, x_BSD: torch.Tensor) -> torch.Tensor:
        """Return the same tokens in every stream, [B, S, n, D]."""
        return x_BSD[:, :, None].expand(-1, -1, self.streams, -1).contiguous()

    def gather(self, stream: torch.Tensor, bank: Bank) -> torch.Tensor:
        """Return the mean over the streams."""
        return stream.mean(dim=2)


class HyperConnection(PlainResidual):
    """Several streams, mixed by doubly stochastic matrices that depend on the token (GLM-5.3-Flash)."""

    def __init__(self, config: ToyConfig, calls: Calls) -> None:
        super().__init__()
        streams = config.residual_streams
        self.calls, self.eps = calls, config.rms_norm_eps
        self.weight = nn.Parameter(torch.empty((2 + streams) * streams, streams * config.hidden_size))
        self.base = nn.Parameter(torch.empty((2 + streams) * streams))
        self.scale = nn.Parameter(torch.empty(3))

    def read(self, stream: torch.Tensor, bank: Bank) -> Reading:
        """Return the mixed streams, and what writes back need."""
        x_BSD, post_BSn, comb_BSnn = self.calls.hyper_connection_pre(
            stream, self.weight, self.base, self.scale, self.eps, 1e-6, ITERATIONS
        )
        return Reading(x_BSD=x_BSD, mixing=(post_BSn, comb_BSnn))

    def write(
        self, stream: torch.Tensor, y_BSD: torch.Tensor, into: Reading, bank: Bank, *, snapshot: bool
    ) -> tuple[torch.Tensor, Bank]:
        """Mix the streams and add the result to each."""
        return self.calls.hyper_connection_post(stream, y_BSD, *into.mixing), bank


Residual = PlainResidual


def make_residual(config: ToyConfig, calls: Calls) -> Residual:
    """Return the kind that the config names."""
    if config.residual == "attention":
        return AttentionResidual(config, calls)
    return HyperConnection(config, calls) if config.residual == "hyper" else PlainResidual()


def make_last_residual(config: ToyConfig, calls: Calls) -> Residual:
    """Return what begins the stream and ends it; several streams end in their mean, without parameters."""
    return StreamEnds(config) if config.residual == "hyper" else make_residual(config, calls)
