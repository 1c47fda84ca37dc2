"""Blocks of a trace: which calls together are a known operator, and what one replacement of them would save."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from day0.analyzers.blocks._block import Block
from day0.analyzers.blocks._graph import Graph, Node, build_graph
from day0.analyzers.blocks._match import find_paths
from day0.analyzers.blocks.load import load_blocks
from day0.devices.profile import DeviceProfile
from day0.implementation import Implementation
from day0.records import InventoryBlock, InventoryEntry, PhaseInfo, Trace
from day0.registry.resolve import candidates_for

__all__ = ["Group", "blocks_of", "bytes_saved", "find_groups"]

How = Literal["module", "pattern", "operator"]


@dataclass(kw_only=True, slots=True)
class Group:
    """A block where it was found in one way."""

    name: str
    block: Block
    how: How
    reason: str
    nodes: set[int]
    calls: dict[str, int]
    sites: int
    classes: tuple[str, ...]
    phases: frozenset[str]
    """The phases that count: some blocks are only where one token comes at a time."""


@dataclass(kw_only=True, slots=True)
class _Claims:
    """Which block a node belongs to, and through which class."""

    nodes: dict[int, str] = field(default_factory=dict)
    classes: dict[str, dict[str, set[int]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))


def find_groups(trace: Trace, blocks: Mapping[str, Block] | None = None) -> tuple[Graph, tuple[Group, ...]]:
    """Return the graph of a trace and the blocks in it: by operator, by module class, by pattern; then fusions."""
    known = load_blocks() if blocks is None else blocks
    graph, phases = build_graph(trace), trace.phases
    ours = _by_operator(graph, known, phases)
    claimed = _claim_classes(graph, known)
    called = {group.name for group in ours}  # the model calls the operator: its module is more than the operator is
    modules = [group for group in _by_module(graph, known, claimed, phases) if group.name not in called]
    taken = {number: group.name for group in modules for number in group.nodes}
    taken.update({number: group.name for group in ours for number in group.nodes})
    found = [*ours]
    carved: set[int] = set()
    for name, block in known.items():
        if not block.paths:
            continue
        free = {n for n in graph.nodes if block.kind == "fusion" or n not in taken or taken[n] in block.carves}
        group = _by_path(graph, name, block, free - carved if block.kind == "block" else free, phases)
        if group is not None:
            found.append(group)
            carved |= group.nodes if block.kind == "block" else set()
    for group in modules:
        group.nodes -= carved
        if any(graph.nodes[number].runs for number in group.nodes):
            found.append(group)
    return graph, tuple(found)


def _counting(block: Block, phases: Iterable[PhaseInfo]) -> frozenset[str]:
    wanted = {"all": (True, False), "one": (True,), "many": (False,)}[block.phases]
    return frozenset(phase.name for phase in phases if (phase.tokens == 1) in wanted)


def _by_operator(graph: Graph, known: Mapping[str, Block], phases: Iterable[PhaseInfo]) -> list[Group]:
    groups = []
    for name, block in known.items():
        counting = _counting(block, phases)
        nodes = {n for n, node in graph.nodes.items() if node.name in block.operators and node_calls(node, counting)}
        if nodes and block.kind == "block":
            first = {n for n in nodes if graph.nodes[n].name == block.operators[0]} or nodes
            calls = _sum_calls(graph, dict.fromkeys(first, 0), counting)
            groups.append(_group(graph, name, block, "operator", nodes, calls, counting))
    return groups


def _sum_calls(graph: Graph, anchors: Mapping[int, int], phases: frozenset[str]) -> dict[str, int]:
    """Add up the calls of anchors by phase. An anchor counts with so many of its calls; 0 is all of them."""
    calls: dict[str, int] = defaultdict(int)
    for number, limit in anchors.items():
        node = graph.nodes[number]
        for phase, count in node.site.counts.items():
            if phase in phases:
                calls[phase] += count * (limit or node.calls) // node.calls
    return calls


def _claim_classes(graph: Graph, known: Mapping[str, Block]) -> _Claims:
    """Give each node to the innermost of its modules whose class a block knows."""
    cache: dict[str, tuple[tuple[str, ...], str]] = {}
    claims = _Claims()
    for number, node in graph.nodes.items():
        chain = node.site.classes
        if chain not in cache:
            cache[chain] = _innermost(chain, known)
        for name in cache[chain][0]:
            claims.classes[name][cache[chain][1]].add(number)
    return claims


def _innermost(chain: str, known: Mapping[str, Block]) -> tuple[tuple[str, ...], str]:
    classes = chain.split("/")
    for depth in range(len(classes), 0, -1):
        inside = "/".join(classes[max(0, depth - 2) : depth])
        names = tuple(name for name, block in known.items() if _takes(block, inside, classes[depth - 1]))
        if names:
            return names, "/".join(classes[:depth])
    return (), ""


def _takes(block: Block, inside: str, own: str) -> bool:
    def match(pattern: str) -> bool:
        return fnmatchcase(inside if "/" in pattern else own, pattern)

    return any(map(match, block.classes)) and not any(map(match, block.unlike))


def _by_module(graph: Graph, known: Mapping[str, Block], claims: _Claims, phases: Iterable[PhaseInfo]) -> list[Group]:
    groups = []
    for name, chains in claims.classes.items():
        block = known[name]
        counting = _counting(block, phases)
        nodes: set[int] = set()
        calls: dict[str, int] = defaultdict(int)
        for chain, members in chains.items():
            live = {number for number in members if node_calls(graph.nodes[number], counting)}
            if block.confirm and not any(graph.nodes[number].name in block.confirm for number in live):
                continue
            nodes |= live
            for phase, count in _runs_of(graph, block, chain, live, counting).items():
                calls[phase] += count
        if nodes:
            groups.append(_group(graph, name, block, "module", nodes, calls, counting))
    return groups


def _runs_of(graph: Graph, block: Block, chain: str, members: set[int], phases: frozenset[str]) -> dict[str, int]:
    """Return how often modules of a class run in each phase.

    Loops call an operator many times in one run, so modules are counted, not calls: those that share the signature
    that most of them share.
    """
    if block.counts:
        return _sum_calls(graph, {n: 0 for n in members if graph.nodes[n].name in block.counts}, phases)
    calls: dict[str, int] = defaultdict(int)
    for number in [n for n in members if graph.nodes[n].site.classes == chain] or members:
        site = graph.nodes[number].site
        for phase, count in site.counts.items():
            if phase in phases:
                calls[phase] = max(calls[phase], min(site.modules, count))
    return calls


def _by_path(graph: Graph, name: str, block: Block, free: set[int], phases: Iterable[PhaseInfo]) -> Group | None:
    counting = _counting(block, phases)
    free = {number for number in free if node_calls(graph.nodes[number], counting)}
    found = find_paths(graph, block, free)
    if not found.anchors:
        return None
    nodes = _absorb(graph, block, found.nodes, free)
    return _group(graph, name, block, "pattern", nodes, _sum_calls(graph, found.anchors, counting), counting)


def _absorb(graph: Graph, block: Block, nodes: set[int], free: set[int]) -> set[int]:
    """Add what is made for these nodes alone, as far as the block says that it belongs to it."""
    makers: dict[int, set[int]] = defaultdict(set)
    for maker, takers in graph.feeds.items():
        for taker in takers:
            makers[taker].add(maker)
    nodes, front = set(nodes), list(nodes)
    while front:
        for maker in makers[front.pop()]:
            fits = maker in free and graph.nodes[maker].name in block.absorbs
            if maker not in nodes and fits and set(graph.feeds[maker]) <= nodes:
                nodes.add(maker)
                front.append(maker)
    return nodes


def _group(
    graph: Graph,
    name: str,
    block: Block,
    how: How,
    nodes: set[int],
    calls: Mapping[str, int],
    phases: frozenset[str],
) -> Group:
    classes = tuple(sorted({_shown_class(block, graph.nodes[number]) for number in nodes}))
    reason = {
        "module": f"module class {', '.join(classes)}",
        "pattern": "its operators feed each other as in " + " or ".join(f"`{path}`" for path in block.paths),
        "operator": f"the model calls {', '.join(sorted({graph.nodes[n].name for n in nodes}))}",
    }[how]
    return Group(
        name=name,
        block=block,
        how=how,
        reason=reason,
        nodes=nodes,
        calls=dict(sorted(calls.items())),
        sites=max(calls.values(), default=0),
        classes=classes,
        phases=phases,
    )


def _shown_class(block: Block, node: Node) -> str:
    classes = node.site.classes.split("/")
    for depth in range(len(classes), 0, -1):
        if _takes(block, "/".join(classes[max(0, depth - 2) : depth]), classes[depth - 1]):
            return classes[depth - 1]
    return classes[-1] or "model"


def node_calls(node: Node, phases: frozenset[str]) -> int:
    """Return the calls of a node in some phases."""
    return sum(count for phase, count in node.site.counts.items() if phase in phases)


def bytes_saved(graph: Graph, group: Group) -> int:
    """Return the bytes of results that are only passed on inside, in all calls.

    A result is read once less for each call inside that takes it, and never written if nothing outside takes it.
    What is written in place or stands in a cache has to be there afterwards, so it saves nothing.
    """
    total = 0
    for number in group.nodes:
        node = graph.nodes[number]
        takers = graph.feeds.get(number, {})
        inside = sum(count for taker, count in takers.items() if taker in group.nodes)
        if not inside or node.keeps or not node.runs:
            continue
        part = node_calls(node, group.phases) / node.calls
        reads = sum(
            count * min(node.out_bytes, graph.nodes[taker].entry.bytes)
            for taker, count in takers.items()
            if taker in group.nodes
        )
        writes = node.calls * node.out_bytes if inside == sum(takers.values()) else 0
        total += int(part * (reads + writes))
    return total


def blocks_of(
    trace: Trace,
    entries: Iterable[InventoryEntry],
    seconds: Mapping[str, float],
    profile: DeviceProfile,
    known: tuple[Implementation, ...],
    namespaces: tuple[str, ...],
) -> tuple[InventoryBlock, ...]:
    """Return the blocks and fusions of a trace on a device, by share; `seconds` is the roofline of each signature."""
    graph, groups = find_groups(trace)
    gaps = {entry.id for entry in entries if entry.is_gap}
    whole: dict[str, int] = defaultdict(int)
    for entry in trace.entries:
        whole[entry.signature.op] += sum(entry.counts.values()) if entry.id in gaps else 0
    total = sum(seconds.values()) or 1.0
    made = [_priced(graph, group, gaps, whole, seconds, total, profile, known, namespaces) for group in groups]
    return tuple(sorted(made, key=lambda one: (one.kind, -one.share, one.name, one.recognised)))


def _priced(
    graph: Graph,
    group: Group,
    gaps: set[str],
    whole: Mapping[str, int],
    seconds: Mapping[str, float],
    total: float,
    profile: DeviceProfile,
    known: tuple[Implementation, ...],
    namespaces: tuple[str, ...],
) -> InventoryBlock:
    nodes = [graph.nodes[number] for number in group.nodes]
    entries = {node.entry.id: node.entry for node in nodes}
    spent = sum(seconds[n.entry.id] * node_calls(n, group.phases) / (sum(n.entry.counts.values()) or 1) for n in nodes)
    launches = sum(node_calls(node, group.phases) for node in nodes if node.runs)
    saved = bytes_saved(graph, group) if group.how != "operator" else 0
    inside: dict[str, int] = defaultdict(int)
    for node in nodes:
        if node.entry.id in gaps:
            inside[node.entry.signature.op] += node_calls(node, group.phases)
    fewer = max(0, launches - sum(group.calls.values()))
    worth = saved / (profile.bandwidth_gb_s * 1e9) + fewer * profile.launch_us * 1e-6
    return InventoryBlock(
        name=group.name,
        title=group.block.title,
        kind=group.block.kind,
        operators=group.block.operators,
        recognised=group.how,
        reason=group.reason,
        module_classes=group.classes,
        sites=group.sites,
        calls=group.calls,
        entries=tuple(sorted(entries)),
        launches=launches,
        share=spent / total,
        gaps=dict(sorted(inside.items())),
        closes=tuple(sorted(op for op, calls in inside.items() if calls == whole[op])),
        bytes_saved=saved,
        saved=min(worth / total, spent / total),
        options=_available(group.block, profile, known, namespaces),
    )


def _available(
    block: Block, profile: DeviceProfile, known: tuple[Implementation, ...], namespaces: tuple[str, ...]
) -> tuple[str, ...]:
    """Return what the registry has for the operators of a block and this device: by operator, references last."""
    found = [
        one
        for operator in block.operators
        for one in candidates_for(operator, known, namespaces)
        if "*" in one.devices or profile.torch_device in one.devices
    ]
    return tuple(
        str(one.identity)
        for one in sorted(found, key=lambda one: (block.operators.index(one.operator), one.kind == "reference"))
    )
