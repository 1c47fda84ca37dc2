from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.devices.profile import load_profile
from day0.implementation import Accepted, Call, Constraints, Implementation, Limit, Rejected, TensorLimit
from day0.registry.collect import collect
from day0.registry.overlap import Overlap, find_overlaps
from day0.registry.resolve import judge, refusal
from tests.registry.sampling import OPERATORS, constraints, constraints_that_take, implementation, random_call

F32, BF16 = frozenset({"float32"}), frozenset({"bfloat16"})


def _pair(op: str, first: Constraints, second: Constraints) -> tuple[Implementation, Implementation]:
    return implementation(op, id="a", limits=first), implementation(op, id="b", limits=second)


profile_of = cache(load_profile)


def _taken(one: Overlap) -> bool:
    profile = profile_of(one.device)
    assert one.signature is not None
    return all(judge(side, one.signature, profile).accepted for side in (one.first, one.second))


@settings(max_examples=120)
@given(data=st.data(), seed=st.integers(0, 1 << 32))
def test_a_witness_is_taken_by_both_and_no_call_is_where_they_are_disjoint(data: st.DataObject, seed: int) -> None:
    op = data.draw(st.sampled_from(OPERATORS))
    first, second = _pair(op, data.draw(constraints(op)), data.draw(constraints(op)))
    found = find_overlaps((first, second))
    rng = random.Random(seed)  # noqa: S311  # no secret
    if found:
        assert found[0].status == "overlap", found[0].reason
        assert _taken(found[0])
        return
    for _ in range(100):
        call = random_call(op, rng)
        assert refusal(first, call, "cpu") or refusal(second, call, "cpu"), call


@settings(max_examples=80)
@given(op=st.sampled_from(OPERATORS), seed=st.integers(0, 1 << 32))
def test_two_that_take_one_call_are_always_found(op: str, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  # no secret
    for _ in range(10):
        call = random_call(op, rng)
        pair = _pair(op, constraints_that_take(call, rng), constraints_that_take(call, rng))
        assert not any(refusal(one, call, "cpu") for one in pair)
        (found,) = find_overlaps(pair)
        assert found.status == "overlap", found.reason
        assert _taken(found)


@pytest.mark.parametrize(
    ("op", "first", "second", "witness"),
    [
        ("aten::topk", Constraints(), Constraints(), "aten::topk(self=float32[1], k=1) on cpu"),
        ("aten::topk", Constraints(dtypes=F32), Constraints(dtypes=BF16), None),
        ("aten::topk", Constraints(dtypes=F32), Constraints(dtypes=F32 | BF16, max_rank=2), "float32[1]"),
        (
            "aten::topk",
            Constraints(arguments={"self": TensorLimit(sizes={-1: Limit(multiple_of=6)})}),
            Constraints(arguments={0: TensorLimit(sizes={-1: Limit(multiple_of=4, at_least=13, at_most=40)})}),
            "self=float32[24]",
        ),
        (  # the same, but 24 is too large
            "aten::topk",
            Constraints(arguments={"self": TensorLimit(sizes={-1: Limit(multiple_of=6)})}),
            Constraints(arguments={0: TensorLimit(sizes={-1: Limit(multiple_of=4, at_least=13, at_most=23)})}),
            None,
        ),
        (  # one dimension from the front and the other from the end are one only where there is but one
            "aten::topk",
            Constraints(arguments={"self": TensorLimit(sizes={0: Limit(one_of=(3,))})}),
            Constraints(arguments={"self": TensorLimit(sizes={-1: Limit(one_of=(4,))})}),
            "self=float32[3, 4]",
        ),
        (
            "aten::topk",
            Constraints(max_rank=1, arguments={"self": TensorLimit(sizes={0: Limit(one_of=(3,))})}),
            Constraints(arguments={"self": TensorLimit(sizes={-1: Limit(one_of=(4,))})}),
            None,
        ),
        (
            "aten::topk",
            Constraints(arguments={"largest": Limit(one_of=(True,))}),
            Constraints(arguments={"largest": Limit(one_of=(False,))}),
            None,
        ),
        (
            "aten::topk",
            Constraints(arguments={"k": Limit(at_most=64)}),
            Constraints(arguments={"k": Limit(at_least=64)}),
            "k=64",
        ),
        (
            "day0::lightning_indexer",
            Constraints(equal=((("q", -1), ("k", -1)),), arguments={"q": TensorLimit(sizes={-1: Limit(at_least=5)})}),
            Constraints(arguments={"k": TensorLimit(sizes={-1: Limit(at_most=4)})}),
            None,
        ),
        (  # head sizes that are fine each for itself and not together
            "day0::sparse_mla_prefill",
            Constraints(
                any_of=tuple(
                    Constraints(
                        arguments={"q": TensorLimit(sizes={-1: Limit(one_of=(q,))}), "latent": Limit(one_of=(latent,))}
                    )
                    for q, latent in ((576, 512), (192, 128))
                )
            ),
            Constraints(arguments={"q": TensorLimit(sizes={-1: Limit(one_of=(576,))}), "latent": Limit(one_of=(128,))}),
            None,
        ),
        (
            "aten::topk",
            Constraints(contiguous=False),
            Constraints(max_rank=1),
            "self=float32[2] strides [2]",
        ),
        ("aten::topk", Constraints(contiguous=False), Constraints(max_rank=0), None),
        (  # what is not given is of no dtype: both take the call without it
            "day0::topk_tokens",
            Constraints(arguments={"lengths": TensorLimit(dtypes=frozenset({"int32"}))}),
            Constraints(arguments={"lengths": TensorLimit(dtypes=frozenset({"int64"}))}),
            "logits=float32[1], topk=1)",
        ),
        (
            "day0::topk_tokens",
            Constraints(arguments={"lengths": TensorLimit(required=True)}),
            Constraints(arguments={"lengths": Limit(one_of=(None,))}),
            None,
        ),
        (  # in a longer list the prefix stands elsewhere
            "day0::attention_residual",
            Constraints(multiple_of={1: 16}),
            Constraints(
                arguments={
                    "bank": TensorLimit(required=True),
                    "prefix": TensorLimit(sizes={-1: Limit(one_of=(7,))}),
                }
            ),
            "bank=[float32[1], float32[16]], prefix=float32[7]",
        ),
    ],
)
def test_overlaps_by_hand(op: str, first: Constraints, second: Constraints, witness: str | None) -> None:
    found = find_overlaps(_pair(op, first, second))
    assert len(found) == (witness is not None), found
    if witness is not None:
        assert witness in found[0].witness
        assert _taken(found[0])


def test_what_is_no_overlap() -> None:
    one = implementation("aten::topk", id="a")
    others: dict[str, dict[str, Any]] = {
        "a version of the same": {"id": "a", "version": "1.1"},
        "another rank": {"rank": 99},
        "another namespace": {"namespace": "glm/5"},
        "another contract": {"contract": 7},
        "another operator": {"operator": "aten::sort"},
    }
    for name, change in others.items():
        assert not find_overlaps((one, replace(implementation("aten::topk", id="b"), **change))), name
    assert find_overlaps((one, implementation("aten::topk", id="b")))
    assert not find_overlaps((one, implementation("aten::topk", id="b")), namespaces=("glm/5",))


def test_devices_are_part_of_it() -> None:
    one, other = _pair("aten::topk", Constraints(), Constraints())
    assert not find_overlaps((replace(one, devices=("cuda",)), replace(other, devices=("sim",))))
    (found,) = find_overlaps((replace(one, devices=("cuda", "sim")), replace(other, devices=("sim",))))
    assert found.witness.endswith("on sim")


def test_an_implementation_of_all_overloads_meets_one_of_an_overload() -> None:
    one, other = implementation("aten::add", id="a"), implementation("aten::add.Scalar", id="b")
    (found,) = find_overlaps((one, other))
    assert found.signature is not None
    assert found.signature.op == "aten::add.Scalar"
    assert not find_overlaps((implementation("aten::add.Tensor", id="a"), other))


def _only_wide(call: Call) -> Accepted | Rejected:
    return Accepted() if call.tensors[0].shape[-1:] == (96,) else Rejected("not 96 wide")


def test_a_predicate_leaves_it_open_unless_the_witness_is_proof_or_constraints_are_disjoint() -> None:
    one, other = _pair("aten::topk", Constraints(), Constraints())
    (found,) = find_overlaps((replace(one, predicate=_only_wide), other))
    assert (found.status, "not 96 wide" in found.reason) == ("undecidable", True)
    assert found.conflict().kind == "overlap"
    (proven,) = find_overlaps((replace(one, predicate=lambda call: Accepted()), other))
    assert proven.status == "overlap"
    apart = _pair("aten::topk", Constraints(dtypes=F32), Constraints(dtypes=BF16))
    assert not find_overlaps([replace(each, predicate=_only_wide) for each in apart])


def test_the_conflict_names_both_sides_and_the_call_in_any_order() -> None:
    one, other = _pair("aten::topk", Constraints(), Constraints(max_rank=3))
    errors = [find_overlaps(pair)[0].conflict().error() for pair in ((one, other), (other, one))]
    assert {(str(error), error.facts) for error in errors} == {
        (
            "registry: aten::topk: two implementations have rank 100 in namespace base, and both take one call",
            (
                "aten::topk@1 base:a==1.0 from a.py:1  sha256:1",
                "aten::topk@1 base:b==1.0 from b.py:1  sha256:1",
                "such a call: aten::topk(self=float32[1], k=1) on cpu",
            ),
        )
    }


def test_nothing_that_ships_overlaps() -> None:
    assert find_overlaps(collect()) == ()
