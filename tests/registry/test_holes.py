from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from day0.devices.profile import load_profile
from day0.implementation import Call, Constraints, Limit, Rejected, TensorLimit
from day0.records import ScalarValue, Signature, TensorValue
from day0.registry.holes import find_holes
from day0.registry.resolve import judge
from tests.registry.sampling import OPERATORS, constraints_that_take, implementation, random_call

FLOATS = frozenset({"float16", "bfloat16", "float32"})
CPU = load_profile("cpu")


def _topk(width: int = 128, k: int = 16, dtype: str = "float32") -> Signature:
    tensor = TensorValue(shape=(2, width), dtype=dtype, stride=(width, 1))
    return Signature(op="aten::topk", args=(tensor, ScalarValue(type="int", value=str(k))))


def test_one_token_more_than_a_kernel_divides() -> None:
    one = implementation("aten::topk", limits=Constraints(multiple_of={0: 16}))
    holes = find_holes([_topk()], [one], "cpu")
    assert [(hole.witness, hole.change) for hole in holes] == [
        ("aten::topk(self=float32[2, 127], k=16)", "dimension -1 of self is 127 instead of 128"),
        ("aten::topk(self=float32[2, 129], k=16)", "dimension -1 of self is 129 instead of 128"),
    ]
    assert "multiple of 16, not 127" in holes[0].refusals[0][1]
    # Another candidate, of whatever rank, covers it; a reference does not count.
    assert not find_holes([_topk()], [one, implementation("aten::topk", id="b")], "cpu")
    assert find_holes([_topk()], [one, replace(implementation("aten::topk", id="b"), kind="reference")], "cpu")


def test_every_kind_of_constraint_has_its_edge() -> None:
    limits = Constraints(
        dtypes=frozenset({"float32"}),
        max_rank=2,
        contiguous=True,
        arguments={
            "self": TensorLimit(sizes={-1: Limit(at_most=512)}),
            "k": Limit(at_most=64),
            3: Limit(one_of=(True,)),
        },
    )
    changes = {hole.change for hole in find_holes([_topk()], [implementation("aten::topk", limits=limits)], "cpu")}
    assert changes == {
        "the floating-point tensors are bfloat16",
        "the floating-point tensors are float16",
        "there are 3 dimensions",
        "a tensor is not contiguous",
        "dimension -1 of self is 513 instead of 128",
        "k is 65 instead of 16",
        "largest is False",
    }


def test_two_that_cover_each_others_edges_leave_the_gap_between_them() -> None:
    short = implementation("aten::topk", id="short", limits=Constraints(arguments={"k": Limit(at_most=64)}))
    long = implementation("aten::topk", id="long", limits=Constraints(arguments={"k": Limit(at_least=66)}))
    assert [hole.change for hole in find_holes([_topk()], [short, long], "cpu")] == ["k is 65 instead of 16"]
    longer = replace(long, constraints=Constraints(arguments={"k": Limit(at_least=65)}))
    assert not find_holes([_topk()], [short, longer], "cpu")


def test_a_traced_call_that_nobody_takes_comes_first_and_a_traced_neighbour_is_no_news() -> None:
    one = implementation("aten::topk", limits=Constraints(multiple_of={0: 16}))
    holes = find_holes([_topk(), _topk(129)], [one], "cpu")
    assert holes[0].change == ""
    assert holes[0].witness == holes[0].near == "aten::topk(self=float32[2, 129], k=16)"
    assert "dimension -1 of self is 129 instead of 128" not in {hole.change for hole in holes}


def test_a_predicate_makes_holes_too() -> None:
    def none_at_all(call: Call) -> Rejected:
        return Rejected(f"not {call.arguments['k']}")

    one = replace(implementation("aten::topk"), predicate=none_at_all)
    assert [hole.refusals[0][1] for hole in find_holes([_topk()], [one], "cpu")] == ["not 16"]
    assert not find_holes([_topk()], [], "cpu")


@settings(max_examples=40)
@given(op=st.sampled_from(OPERATORS), seed=st.integers(0, 1 << 32))
def test_a_witness_is_refused_by_every_candidate(op: str, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  # no secret
    call = random_call(op, rng)
    known = [implementation(op, id=name, limits=constraints_that_take(call, rng)) for name in "abc"]
    for hole in find_holes([call], known, "cpu"):
        assert hole.change, "the traced call is taken"
        assert not any(judge(one, hole.signature, CPU).accepted for one in known)
