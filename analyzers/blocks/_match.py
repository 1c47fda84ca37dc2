"""Find a path in a graph, for all of its occurrences at once: forward by steps, then back from the ends that were met.

Linear in nodes and edges for each path: nothing is enumerated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from day0.analyzers.blocks._block import Block, Step, parse_path
from day0.analyzers.blocks._graph import Graph

__all__ = ["Found", "find_paths"]

CARRIERS = frozenset({"_to_copy", "clone", "copy"})
"""Casts and copies: they stand between any two steps."""
CARRIED = 2
WIDE = 6


@dataclass(kw_only=True, slots=True)
class Found:
    """Nodes on paths, and those of them that count runs, each with how many of its calls the path was seen to feed."""

    nodes: set[int] = field(default_factory=set)
    anchors: dict[int, int] = field(default_factory=dict)


def find_paths(graph: Graph, block: Block, allowed: set[int]) -> Found:
    """Return the nodes of all occurrences of a block's paths among the allowed nodes."""
    found = Found()
    for text in block.paths:
        for steps in parse_path(text):
            _walk(graph, block, steps, allowed, found)
    return found


Via = tuple[int, tuple[int, ...], int]
"""A node of the step before, what lies between, and in how many calls the last edge was seen."""


def _walk(graph: Graph, block: Block, steps: tuple[Step, ...], allowed: set[int], found: Found) -> None:
    layer = {number for number in allowed if _fits(graph, block, steps[0], number)}
    reached: list[dict[int, list[Via]]] = [{number: [] for number in layer}]
    for step in steps[1:]:
        reached.append(_next(graph, block, step, reached[-1], allowed))
        if not reached[-1]:
            return
    keep = set(reached[-1])
    for place in range(len(steps) - 1, -1, -1):
        found.nodes |= keep
        if steps[place].anchor:
            for number in keep:
                seen = sum(count for _, _, count in reached[place][number])
                whole = graph.nodes[number].calls
                calls = min(whole, seen) if place and block.kind == "fusion" else whole
                found.anchors[number] = max(calls, found.anchors.get(number, 0))
        before: set[int] = set()
        for number in keep:
            for earlier, between, _ in reached[place][number]:
                before.add(earlier)
                found.nodes.update(between)
        keep = before


def _next(
    graph: Graph, block: Block, step: Step, layer: Iterable[int], allowed: set[int]
) -> dict[int, list[Via]]:
    reached: dict[int, list[Via]] = {}
    for start in layer:
        for number, between, count in _ahead(graph, block, start, step, allowed):
            reached.setdefault(number, []).append((start, between, count))
    return reached


def _ahead(graph: Graph, block: Block, start: int, step: Step, allowed: set[int]) -> Iterable[Via]:
    """Yield the nodes that fit the step and take what `start` made, directly or over what may stand between."""
    limit = WIDE if step.wide else CARRIED
    chain = graph.nodes[start].site.classes
    seen = {start}
    front: list[tuple[int, tuple[int, ...]]] = [(start, ())]
    for _ in range(limit + 1):
        ahead: list[tuple[int, tuple[int, ...]]] = []
        for number, between in front:
            for taker, count in graph.feeds.get(number, {}).items():
                if taker in seen or taker not in allowed:
                    continue
                node = graph.nodes[taker]
                if not _in_scope(block, chain, node.site.classes):
                    continue
                if _fits(graph, block, step, taker):
                    yield taker, between, count
                if step.wide or node.name in CARRIERS:
                    seen.add(taker)
                    ahead.append((taker, (*between, taker)))
        front = ahead


def _in_scope(block: Block, one: str, other: str) -> bool:
    if block.scope == "any" or one == other:
        return True
    homes = {one, one.rpartition("/")[0]}, {other, other.rpartition("/")[0]}
    return block.scope == "parent" and bool(homes[0] & homes[1])


def _fits(graph: Graph, block: Block, step: Step, number: int) -> bool:
    node = graph.nodes[number]
    if not any(name == node.name and count in (None, node.tensors) for name, count in step.ops):
        return False
    return not step.anchor or block.when is None or block.when(node.entry)
