from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from day0.devices.profile import DeviceProfile, load_profile
from day0.errors import Day0Error
from day0.implementation import Constraints, Implementation
from day0.records import Signature, TensorValue
from day0.registry.collect import without_conflicts
from day0.registry.namespaces import load_parents, merge_parents, search_path
from day0.registry.resolve import candidates_for, choose, judge

PATH = ("kimi/k3.1", "kimi/k3", "base")


def _make(
    *, id: str = "a", version: str = "1.0", namespace: str = "base", rank: int = 100, source_hash: str = "sha256:1"
) -> Implementation:
    return Implementation(
        operator="aten::topk",
        contract=1,
        namespace=namespace,
        id=id,
        version=version,
        kind="kernel",
        run=lambda *args: None,
        why="because",
        rank=rank,
        origin=f"{id}.py",
        source_hash=source_hash,
    )


def _call(dtype: str = "float32", *, width: int = 16, rank: int = 2) -> Signature:
    shape = (3,) * (rank - 1) + (width,)
    return Signature(op="aten::topk", args=(TensorValue(shape=shape, dtype=dtype, stride=(1,) * rank),))


@pytest.fixture(scope="module")
def sim() -> DeviceProfile:
    return load_profile("sim")


def test_the_same_choice_whatever_the_order_of_registration(sim: DeviceProfile) -> None:
    known = [
        _make(id="slow", rank=200),
        _make(id="fast", rank=50),
        _make(id="k3", namespace="kimi/k3"),
        _make(id="other", namespace="glm/5", rank=1),
    ]
    for order in itertools.permutations(known):
        candidates = candidates_for("aten::topk", order, PATH)
        chosen, decisions = choose("aten::topk", [_call()], candidates, sim)
        assert chosen is not None
        assert chosen.id == "k3"
        assert [one.candidate.split(":")[-1] for one in decisions] == ["k3==1.0", "fast==1.0", "slow==1.0"]


def test_a_newer_version_wins_within_one_id_and_versions_are_not_text(sim: DeviceProfile) -> None:
    known = [_make(version="1.9"), _make(version="1.10"), _make(version="1.2")]
    chosen, _ = choose("aten::topk", [_call()], candidates_for("aten::topk", known, PATH), sim)
    assert chosen is not None
    assert chosen.version == "1.10"


def test_a_bad_version_is_an_error() -> None:
    with pytest.raises(Day0Error, match="not a version"):
        candidates_for("aten::topk", [_make(version="latest")], PATH)


def test_a_tie_is_an_error_that_shows_both(sim: DeviceProfile) -> None:
    candidates = candidates_for("aten::topk", [_make(id="a"), _make(id="b")], PATH)
    with pytest.raises(Day0Error, match="both accept") as caught:
        choose("aten::topk", [_call()], candidates, sim)
    assert [fact.split(" from ")[1] for fact in caught.value.facts] == ["a.py", "b.py"]


def test_two_with_one_identity_and_other_content_are_a_conflict_in_any_order() -> None:
    first, second = _make(), replace(_make(source_hash="sha256:2"), origin="elsewhere.py")
    messages = set()
    for pair in ((first, second), (second, first)):
        with pytest.raises(Day0Error, match="claim this identity") as caught:
            without_conflicts(pair)
        messages.add(caught.value.facts)
    assert len(messages) == 1
    assert "a.py" in str(messages)
    assert "elsewhere.py" in str(messages)
    assert without_conflicts((first, first)) == (first,)


@pytest.mark.parametrize(
    ("limits", "call", "reason"),
    [
        (Constraints(dtypes=frozenset({"bfloat16"})), _call(), "takes bfloat16, not float32"),
        (Constraints(first_dtype=frozenset({"int32"})), _call(), "first tensor must be int32"),
        (Constraints(max_rank=1), _call(), "at most 1 dimensions, not 2"),
        (Constraints(multiple_of={0: 16}), _call(width=17), "multiple of 16, not 17"),
        (Constraints(multiple_of={0: 16}), _call(width=32), ""),
        (Constraints(max_rank=3, dtypes=frozenset({"float32"})), _call(rank=3), ""),
    ],
)
def test_constraints_refuse_with_a_reason(
    limits: Constraints, call: Signature, reason: str, sim: DeviceProfile
) -> None:
    decision = judge(replace(_make(), constraints=limits), call, sim)
    assert decision.accepted is (not reason)
    assert reason in decision.reason


def test_devices_are_a_constraint(sim: DeviceProfile) -> None:
    assert judge(replace(_make(), devices=("sim",)), _call(), sim).accepted
    assert "runs on cuda, not on sim" in judge(replace(_make(), devices=("cuda",)), _call(), sim).reason


def test_one_refused_call_of_a_group_refuses_the_candidate(sim: DeviceProfile) -> None:
    picky = replace(_make(id="picky", rank=1), constraints=Constraints(multiple_of={0: 16}))
    candidates = candidates_for("aten::topk", [picky, _make(id="any")], PATH)
    chosen, decisions = choose("aten::topk", [_call(), _call(width=17)], candidates, sim)
    assert chosen is not None
    assert chosen.id == "any"
    assert "float32[3, 17]" in decisions[0].reason


def test_namespaces() -> None:
    parents = load_parents()
    assert search_path("kimi/k3.1", parents) == ("kimi/k3.1", "kimi/k3", "kimi/linear", "base")
    assert search_path("base", parents) == ("base",)
    with pytest.raises(Day0Error) as caught:
        search_path("kimi/k31", parents)
    assert "kimi/k3.1" in caught.value.hint
    with pytest.raises(Day0Error, match="circle"):
        search_path("a", {"a": "b", "b": "a"})


def test_pre_releases_come_after_every_final_version_of_their_id(sim: DeviceProfile) -> None:
    known = [_make(version=one) for one in ("2.0rc1", "1.0", "1.1.dev3", "1.1", "2.0a2", "1.1.post1")]
    order = [one.version for one in candidates_for("aten::topk", known, PATH)]
    assert order == ["1.1.post1", "1.1", "1.0", "2.0rc1", "2.0a2", "1.1.dev3"]
    only = candidates_for("aten::topk", [_make(version="2.0rc1")], PATH)
    assert choose("aten::topk", [_call()], only, sim)[0] == only[0]


def test_an_implementation_of_the_overload_and_one_of_all_overloads_are_two(sim: DeviceProfile) -> None:
    known = [_make(), replace(_make(source_hash="sha256:2"), operator="aten::topk.default")]
    for pair in (known, known[::-1]):
        assert {one.operator for one in candidates_for("aten::topk.default", pair, PATH)} == {
            "aten::topk",
            "aten::topk.default",
        }
        with pytest.raises(Day0Error, match="both accept"):
            choose("aten::topk.default", [_call()], candidates_for("aten::topk.default", pair, PATH), sim)


def test_long_chains_of_namespaces_are_walked_once() -> None:
    many = 20_000
    chain = {f"n/{i}": f"n/{i + 1}" if i < many - 1 else "base" for i in range(many)}
    assert len(search_path("n/0", merge_parents([("a.py", chain)]))) == many + 1
    with pytest.raises(Day0Error, match="circle"):
        merge_parents([("a.py", {**chain, f"n/{many - 1}": "n/0"})])
