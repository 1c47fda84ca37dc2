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
    ends: set[int] | None = None
    if block.also:
        ends = set(_search(graph, block, block.also, allowed, None).anchors)
    if block.never:
        barred = set(_search(graph, block, block.never, allowed, None).anchors)
        ends = (set(graph.nodes) if ends is None else ends) - barred
    return _search(graph, block, block.paths, allowed, ends)


def _search(graph: Graph, block: Block, paths: tuple[str, ...], allowed: set[int], ends: set[int] | None) -> Found:
    found = Found()
    for text in paths:
        for steps in parse_path(text):
            _walk(_Search(graph=graph, block=block, allowed=allowed, ends=ends), steps, found)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Search:
    """What a walk needs: where it may go, and which nodes may be anchors (all if None)."""

    graph: Graph
    block: Block
    allowed: set[int]
    ends: set[int] | None

    def fits(self, step: Step, number: int) -> bool:
        node = self.graph.nodes[number]
        if not any(name == node.name and count in (None, node.tensors) for name, count in step.ops):
            return False
        if not step.anchor:
            return True
        named = self.ends is None or number in self.ends
        return named and (self.block.when is None or self.block.when(node.entry))


Via = tuple[int, tuple[int, ...], int]
"""A node of the step before, what lies between, and how many calls can have come that way."""


def _walk(search: _Search, steps: tuple[Step, ...], found: Found) -> None:
    first = {number for number in search.allowed if search.fits(steps[0], number)}
    reached: list[dict[int, list[Via]]] = [{number: [] for number in first}]
    for step in steps[1:]:
        reached.append(_next(search, step, reached[-1]))
        if not reached[-1]:
            return
    keep = set(reached[-1])
    for place in range(len(steps) - 1, -1, -1):
        found.nodes |= keep
        if steps[place].anchor:
            _count(search, found, keep, reached[place] if place else {})
        ways = [way for number in keep for way in reached[place][number]]
        found.nodes.update(number for _, between, _ in ways for number in between)
        keep = {earlier for earlier, _, _ in ways}


def _count(search: _Search, found: Found, anchors: set[int], reached: dict[int, list[Via]]) -> None:
    """Count an anchor with all of its calls; in a fusion with those that took what the step before made."""
    for number in anchors:
        calls = search.graph.nodes[number].calls
        if reached and search.block.kind == "fusion":
            calls = min(calls, sum(count for _, _, count in reached[number]))
        found.anchors[number] = max(calls, found.anchors.get(number, 0))


def _next(search: _Search, step: Step, layer: Iterable[int]) -> dict[int, list[Via]]:
    reached: dict[int, list[Via]] = {}
    for start in layer:
        for number, between, count in _ahead(search, start, step):
            reached.setdefault(number, []).append((start, between, count))
    return reached


def _ahead(search: _Search, start: int, step: Step) -> Iterable[Via]:
    """Yield the nodes that fit the step and take what `start` made, directly or over what may stand between."""
    nodes, chain = search.graph.nodes, search.graph.nodes[start].site.classes
    seen = {start}
    front: list[tuple[int, tuple[int, ...], int]] = [(start, (), search.graph.nodes[start].calls)]
    for _ in range((WIDE if step.wide else CARRIED) + 1):
        ahead: list[tuple[int, tuple[int, ...], int]] = []
        for number, between, most in front:
            for taker, count in search.graph.feeds.get(number, {}).items():
                if taker in seen or taker not in search.allowed:
                    continue
                if not _in_scope(search.block, chain, nodes[taker].site.classes):
                    continue
                if search.fits(step, taker):
                    yield taker, between, min(count, most)
                if step.wide or nodes[taker].name in CARRIERS:
                    seen.add(taker)
                    ahead.append((taker, (*between, taker), min(count, most)))
        front = ahead


def _in_scope(block: Block, one: str, other: str) -> bool:
    if block.scope == "any" or one == other:
        return True
    homes = {one, one.rpartition("/")[0]}, {other, other.rpartition("/")[0]}
    return block.scope == "parent" and bool(homes[0] & homes[1])
