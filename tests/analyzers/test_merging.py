"""Runs in different modes become one trace: nothing is lost, and sites of two runs are never taken for each other."""

from __future__ import annotations

from day0.analyzers.merging import merge_calls, merge_entries
from day0.records import CallEntry, Signature, Site, TraceEntry


def _entry(name: str, phase: str, *sites: Site) -> TraceEntry:
    return TraceEntry(id=name, signature=Signature(op=name, args=()), outputs=(), counts={phase: 2}, sites=sites)


def _site(number: int, fed_by: int) -> Site:
    return Site(number=number, classes="Model", counts={"x": 1}, inputs={str(fed_by): 1})


def test_sites_of_two_runs_keep_apart() -> None:
    first = (_entry("a", "prefill", _site(0, 1), _site(1, 0)),)
    second = (_entry("a", "vision", _site(0, 0)), _entry("b", "vision", _site(1, 0)))
    merged = {entry.id: entry for entry in merge_entries([first, second])}
    assert [site.number for site in (*merged["a"].sites, *merged["b"].sites)] == [0, 1, 2, 3]
    assert [site.inputs for site in (*merged["a"].sites, *merged["b"].sites)] == [
        {"1": 1},
        {"0": 1},
        {"2": 1},
        {"2": 1},
    ]
    assert merged["a"].counts == {"prefill": 2, "vision": 2}


def test_functions_of_two_runs_are_added_up() -> None:
    call = CallEntry(id="f", signature=Signature(op="f", args=()), outputs=(), counts={"prefill": 1}, ops={"a": 3})
    (merged,) = merge_calls([(call,), (call.model_copy(update={"counts": {"vision": 4}, "ops": {"a": 1, "b": 1}}),)])
    assert merged.counts == {"prefill": 1, "vision": 4}
    assert merged.ops == {"a": 4, "b": 1}
