"""Nothing that the registry says depends on the order in which implementations were registered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from day0.devices.profile import load_profile
from day0.errors import Day0Error
from day0.implementation import Accepted, Call, Constraints, Implementation, Rejected
from day0.records import ScalarValue, Signature, TensorValue
from day0.registry.collect import without_conflicts
from day0.registry.namespaces import load_parents, search_path
from day0.registry.overlap import find_overlaps
from day0.registry.resolve import candidates_for, choose
from tests.registry.sampling import implementation

OP = "aten::topk"
SIM = load_profile("sim")
PARENTS = load_parents()
CALLS = tuple(
    Signature(
        op=OP,
        args=(TensorValue(shape=(2, width), dtype=dtype, stride=(width, 1)), ScalarValue(type="int", value="2")),
    )
    for width, dtype in ((16, "float32"), (24, "float32"), (16, "bfloat16"))
)
LIMITS = (
    Constraints(),
    Constraints(dtypes=frozenset({"float32"})),
    Constraints(multiple_of={0: 16}),
    Constraints(max_rank=1),
)


def _narrow(call: Call) -> Accepted | Rejected:
    return Accepted() if call.tensors[0].shape[-1] < 20 else Rejected("too wide")


@st.composite
def candidates(draw: st.DrawFn) -> Implementation:
    version = draw(st.sampled_from(("1.0", "1.1", "1.10", "1.2rc1", "1.0.0")))
    return replace(
        implementation(
            OP,
            id=draw(st.sampled_from("abc")),
            version=version,
            namespace=draw(st.sampled_from(("base", "kimi/k3", "kimi/k3.1", "glm/5"))),
            rank=draw(st.sampled_from((50, 100))),
            limits=draw(st.sampled_from(LIMITS)),
        ),
        predicate=draw(st.sampled_from((None, None, _narrow))),
        contract=draw(st.sampled_from((1, 1, 1, 2))),
    )


ORIGINS = ("a.py:1", "b.py:7", "acme 1.2, acme/topk.py:3")


@st.composite
def registered(draw: st.DrawFn) -> list[Implementation]:
    """Return candidates, some of them found in several places, now and then with other content."""
    found: list[Implementation] = []
    for one in draw(st.lists(candidates(), max_size=5)):
        contents = draw(st.sampled_from((("sha256:1",), ("sha256:1",), ("sha256:1",), ("sha256:1", "sha256:2"))))
        places = draw(st.lists(st.sampled_from(ORIGINS), min_size=1, max_size=3, unique=True))
        found += [
            replace(one, origin=place, source_hash=contents[number % len(contents)])
            for number, place in enumerate(places)
        ]
    return found


def _said(known: Sequence[Implementation], namespace: str) -> object:
    """Return everything that comes out: a choice with the trace of decisions, or an error with both sides."""
    try:
        kept = without_conflicts(known)
        found = candidates_for(OP, kept, search_path(namespace, PARENTS))
        chosen, decisions = choose(OP, CALLS[:2], found, SIM)
        overlaps = [(one.status, one.identities, one.witness, one.reason) for one in find_overlaps(kept)]
        return chosen and (chosen.identity, chosen.origin, chosen.source_hash), decisions, overlaps
    except Day0Error as error:
        return str(error), error.facts, error.hint


@settings(max_examples=40)
@given(known=registered(), data=st.data())
def test_overlaps_are_the_same_in_any_order(known: list[Implementation], data: st.DataObject) -> None:
    one = {(str(it.identity), it.source_hash): it for it in known}
    found = [find_overlaps(order) for order in (one.values(), data.draw(st.permutations(list(one.values()))))]
    first, second = ([(it.status, it.identities, it.witness, it.reason) for it in many] for many in found)
    assert first == second


@settings(max_examples=80)
@given(
    known=registered(),
    namespace=st.sampled_from(("base", "kimi/k3.1", "glm/5")),
    data=st.data(),
)
def test_the_order_of_registration_changes_nothing(
    known: list[Implementation], namespace: str, data: st.DataObject
) -> None:
    assert _said(known, namespace) == _said(data.draw(st.permutations(known)), namespace)


@settings(max_examples=50)
@given(known=registered(), data=st.data())
def test_conflicting_identities_always_end_with_both_origins(known: list[Implementation], data: st.DataObject) -> None:
    one = data.draw(candidates())
    other = replace(one, source_hash="sha256:3", origin="elsewhere.py:1")
    apart = [each for each in known if (each.id, each.namespace) != (one.id, one.namespace)]
    try:
        without_conflicts(apart)
    except Day0Error:
        return  # those are in conflict themselves
    for order in ([one, *apart, other], data.draw(st.permutations([one, *apart, other]))):
        try:
            without_conflicts(order)
        except Day0Error as error:
            assert "claim this identity with different content" in error.what
            assert {fact.split(" from ")[1].partition("  ")[0] for fact in error.facts} == {one.origin, other.origin}
            continue
        raise AssertionError("two contents of one identity were taken")
