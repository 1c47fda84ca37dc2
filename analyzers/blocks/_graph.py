"""A trace as a graph: calls at their sites, with an edge where one call took what another made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from day0.records import ListValue, Site, TensorValue, Trace, TraceEntry, Value
from day0.reference_ops.signatures import dtype_of, tensor_values

__all__ = ["Graph", "Node", "bare_name", "build_graph"]


@dataclass(frozen=True, kw_only=True)
class Node:
    """The calls of one signature at one site."""

    entry: TraceEntry
    site: Site
    name: str
    """Operator without namespace of torch, overload and underscore: `mul`, `day0::rope`."""

    @cached_property
    def tensors(self) -> int:
        """How many tensors it takes."""
        return sum(1 for _ in tensor_values(self.entry.signature))

    @cached_property
    def calls(self) -> int:
        """Calls in all phases."""
        return sum(self.site.counts.values())

    @cached_property
    def out_bytes(self) -> int:
        """Bytes of the results of one call."""
        return sum(_bytes(value) for value in self.entry.outputs)

    @property
    def runs(self) -> bool:
        """False for a view, which the device never sees."""
        return self.entry.bytes > 0 or self.entry.flops > 0

    @property
    def keeps(self) -> bool:
        """True where the result outlives the step: written in place, or put into a cache."""
        return bool(self.entry.mutates) or "cache" in self.site.source.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Nodes by the number of their site, and edges both ways with the number of calls."""

    nodes: dict[int, Node]
    feeds: dict[int, dict[int, int]] = field(default_factory=dict)
    """From a maker to those that take its results."""


def build_graph(trace: Trace) -> Graph:
    """Return the graph of a trace. A trace without sites gives nodes without edges."""
    nodes: dict[int, Node] = {}
    for entry in trace.entries:
        for site in entry.sites or (_lone_site(entry, -1 - len(nodes)),):
            nodes[site.number] = Node(entry=entry, site=site, name=bare_name(entry.signature.op))
    feeds: dict[int, dict[int, int]] = {}
    for number, node in nodes.items():
        for maker, count in node.site.inputs.items():
            if int(maker) in nodes:
                feeds.setdefault(int(maker), {})[number] = count
    return Graph(nodes=nodes, feeds=feeds)


def _lone_site(entry: TraceEntry, number: int) -> Site:
    return Site(
        number=number, classes=entry.module_class, counts=entry.counts, modules=entry.modules, source=entry.source
    )


def bare_name(op: str) -> str:
    """Return an operator's name as paths write it."""
    name = op.partition(".")[0]
    return name.removeprefix("aten::").rstrip("_") if name.startswith("aten::") else name


def _bytes(value: Value) -> int:
    if isinstance(value, TensorValue):
        size = dtype_of(value.dtype).itemsize
        for length in value.shape:
            size *= length
        return size
    return _sum(value.items) if isinstance(value, ListValue) else 0


def _sum(values: Iterable[Value]) -> int:
    return sum(_bytes(value) for value in values)
