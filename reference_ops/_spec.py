"""What an operator file says: the contract of one operator, as one frozen record named `OP`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

__all__ = ["DEFAULT_TOLERANCE", "Attribute", "Operator", "Quantisation", "Routing", "Sample", "Tolerance"]

# floats: error against a golden, relative to what the dtype itself costs · exact: bit for bit ·
# index_set: indices compared as sets with the score margin at the cut, ties allowed · index_order: the same, and the
# scores must come in the expected order · routes: `routing` says what was chosen from, weights belong to the chosen ·
# quantised: codes times scales, as `quantisation` says · nearby: exact for the inputs or for one of `nearby`
Comparison = Literal["floats", "exact", "index_set", "index_order", "routes", "quantised", "nearby"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """How far a result may be from the golden. Nothing loosens it from outside."""

    ratio: float
    """Error over the error of a same-dtype reference on the same inputs."""
    ceiling: float
    """Largest relative L2 error, whatever the ratio says."""
    ulps: float
    """Floor in units in the last place of the output dtype; errors below it pass."""
    reason: str
    """Why these numbers."""


DEFAULT_TOLERANCE = Tolerance(
    ratio=3.0,
    ceiling=1e-2,
    ulps=1.0,
    reason="3 is the ratio at which three independent teams cut (peers: dynamo, Neuron, msprobe use 2 to 5); "
    "1e-2 is the method's own ceiling; one ULP is the rounding of the output itself",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attribute:
    """Something in which models differ, and which is therefore never a hidden constant."""

    name: str
    meaning: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Ready arguments for one call, on the CPU."""

    kind: str
    """`small`, `odd`, `corner`, or `traced` (the shapes of a real model, few tokens): one of each at least."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Routing:
    """How an operator chooses experts, in float64: its results are weights [N, K] and expert numbers [N, K]."""

    scores: Callable[..., torch.Tensor]
    """What is chosen by [N, E], before any group is closed; same arguments as the operator."""
    groups: Callable[..., tuple[int, int]]
    """Into how many groups the experts are divided, and how many of them are chosen from; same arguments."""
    weights: Callable[..., torch.Tensor]
    """The weights [N, K] of given experts [N, K]; the experts come first, then the operator's arguments."""
    exact: Callable[..., torch.Tensor]
    """What is chosen by [N, E], where no implementation rounds it by its place; NaN elsewhere. Ties of it are ties."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantisation:
    """What an operator that returns codes and scales, in this order, quantises."""

    values: Callable[..., torch.Tensor]
    """The values before they are quantised, in float64 and rounded nowhere; same arguments as the operator."""
    spread: Callable[..., torch.Tensor]
    """Each scale over the codes that it belongs to; the scales come first, then the operator's arguments."""
    power_of_two: Callable[..., bool]
    """Whether scales have to be powers of two; same arguments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    """The whole meaning of one operator.

    `reference` is plain PyTorch, computes in the dtype it is given (float64 too, which is how goldens are made)
    and returns what the schema says. `fill` writes valid values into freshly allocated arguments whose shapes and
    strides come from a trace: index-like inputs must be valid by construction. `flops` counts from arguments.
    """

    name: str
    """Torch qualified name without overload: `aten::topk` or `day0::lightning_indexer`."""
    version: int
    summary: str
    schema: str
    """Torch schema without the name, for our own operators; empty for aten, where torch holds it."""
    mathematics: str
    source: str
    """Where the mathematics comes from."""
    reference: Callable[..., Any]
    samples: Callable[[torch.Generator], Iterator[Sample]]
    fake: Callable[..., Any] | None = None
    quantised: Callable[..., Any] | None = None
    """A second reference that also simulates the quantisation of kernels that store in fewer bits; same arguments."""
    fill: Callable[[tuple[Any, ...], dict[str, Any], torch.Generator], None] | None = None
    flops: Callable[..., int] | None = None
    bytes: Callable[..., int] | None = None
    """Bytes that have to move, where it is not each argument and each result once."""
    comparison: Comparison = "floats"
    index_output: int = 0
    """For index comparisons: which of the results holds the indices; the others are copies."""
    free_dtypes: tuple[int, ...] = ()
    """Results whose dtype is the device's own choice; their values are judged all the same."""
    choice_dim: Callable[[tuple[Any, ...], dict[str, Any]], int] | None = None
    """For index comparisons: the dimension of the first argument that is chosen from; the last without it."""
    routing: Routing | None = None
    quantisation: Quantisation | None = None
    nearby: Callable[[tuple[Any, ...], dict[str, Any]], Iterator[tuple[tuple[Any, ...], dict[str, Any]]]] | None = None
    """Arguments that rounding inside the operator cannot tell from the given ones: their results are right too."""
    deterministic: bool = True
    """Whether two calls with the same arguments must give the same bits."""
    tolerance: Tolerance = DEFAULT_TOLERANCE
    attributes: tuple[Attribute, ...] = ()
    verified_against: str = ""
    """Independent code that reference_ops/agreement compares the reference with, for people; empty where there is none."""
