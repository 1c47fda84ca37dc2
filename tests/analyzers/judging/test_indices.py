"""Chosen indices: sets, orders, single places, pairs of values and places, experts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.judging.choices import choice_of, judge_choice
from day0.analyzers.judging.index_sets import index_sets, values_at
from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.routes import routes
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import resolve

SCORES = torch.tensor([[5.0, 3.0, 3.0, 1.0, float("-inf")]])


@pytest.mark.parametrize(
    ("got", "ordered", "passes"),
    [
        ([0, 1], False, True),
        ([1, 0], False, True),
        ([1, 0], True, False),
        ([0, 2], True, True),  # a tie at the cut may fall either way
        ([0, 3], False, False),
        ([0, 0], False, False),  # twice the same
        ([0, 7], False, False),  # out of range
        ([0, -1], False, False),  # one too few
        ([0, -2], False, False),
    ],
)
def test_index_sets(got: list[int], ordered: bool, passes: bool) -> None:
    found = index_sets(torch.tensor([got]), SCORES, torch.tensor([[0, 1]]), margin=0.0, ordered=ordered)
    assert found.passed is passes


def test_the_margin_at_the_cut_is_what_would_have_been_needed() -> None:
    found = index_sets(torch.tensor([[0, 3]]), SCORES, torch.tensor([[0, 1]]), margin=0.5)
    assert not found.passed
    assert found.needed == 2.0
    assert index_sets(torch.tensor([[0, 3]]), SCORES, torch.tensor([[0, 1]]), margin=2.0).passed


def test_closed_places_are_not_chosen() -> None:
    expected = torch.tensor([[0, -1]])
    assert index_sets(torch.tensor([[0, -1]]), SCORES, expected, margin=0.0).passed
    assert not index_sets(torch.tensor([[0, 4]]), SCORES, expected, margin=0.0).passed


def test_nan_among_the_scores() -> None:
    scores = torch.tensor([[float("nan"), 2.0, 1.0]])
    assert index_sets(torch.tensor([[0, 1]]), scores, torch.tensor([[0, 1]]), margin=0.0, ordered=True).passed
    assert not index_sets(torch.tensor([[1, 2]]), scores, torch.tensor([[0, 1]]), margin=0.0).passed


def test_integers_that_float64_cannot_tell_apart() -> None:
    scores = torch.tensor([[2**60 + 1, 2**60, 0]])
    assert not index_sets(torch.tensor([[1]]), scores, torch.tensor([[0]]), margin=0.0).passed


def test_values_belong_to_the_indices_beside_them() -> None:
    source = torch.tensor([[4.0, 7.0, 4.0]])
    assert values_at(torch.tensor([[7.0, 4.0]]), torch.tensor([[1, 2]]), source).passed
    found = values_at(torch.tensor([[7.0, 4.0]]), torch.tensor([[0, 1]]), source)
    assert not found.passed
    assert found.rule == "pairs"


def judge(op: str, *args: Any, change: Any = lambda out: out, **kwargs: Any) -> list[Judgement]:
    """Run an operator on the CPU, change its results, judge each."""
    out = resolve(op)(*args, **kwargs)
    golden = out if isinstance(out, tuple) else (out,)
    got = change(tuple(one.clone() for one in golden))
    inputs = CaseInputs(args=args, kwargs=kwargs)
    choice = choice_of(op, inputs, got, load_operators().get(op.partition(".")[0]))
    assert choice is not None
    return [judge_choice(choice, got, golden, number) for number in range(len(got))]


TIED = torch.tensor([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0]])

CALLS = [
    ("aten::argmax", (TIED, 1), {}),
    ("aten::argmax", (TIED,), {}),
    ("aten::argmin", (TIED, 0, True), {}),
    ("aten::max.dim", (TIED, 1), {}),
    ("aten::min.dim", (TIED, -1, True), {}),
    ("aten::median.dim", (TIED, 1), {}),
    ("aten::mode", (TIED, 1), {}),
    ("aten::kthvalue", (TIED, 2, 1), {}),
    ("aten::cummax", (TIED, 1), {}),
    ("aten::cummin", (TIED, 0), {}),
    ("aten::topk", (TIED, 2), {}),
    ("aten::topk", (TIED, 2, 0, False, False), {}),
    ("aten::sort", (TIED,), {}),
    ("aten::sort.stable", (TIED,), {"stable": True, "descending": True}),
    ("aten::argsort", (TIED, 1, True), {}),
]


@pytest.mark.parametrize(("op", "args", "kwargs"), CALLS)
def test_right_choices_pass(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for found in judge(op, *args, **kwargs):
        assert found.passed, found


def _bad_index(out: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (*out[:-1], torch.full_like(out[-1], 9))


def _zero_index(out: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (*out[:-1], torch.where(out[-1] == 3, 0, 3))


@pytest.mark.parametrize(("op", "args", "kwargs"), CALLS)
@pytest.mark.parametrize("fault", [_bad_index, _zero_index])
def test_wrong_places_fail(op: str, args: tuple[Any, ...], kwargs: dict[str, Any], fault: Any) -> None:
    assert not all(found.passed for found in judge(op, *args, change=fault, **kwargs))


@pytest.mark.parametrize("op", ["aten::max.dim", "aten::min.dim", "aten::median.dim", "aten::kthvalue"])
def test_another_of_equal_values_passes(op: str) -> None:
    args = (torch.full((2, 4), 3.0), *((2,) if op == "aten::kthvalue" else ()), 1)

    def other(out: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return out[0], (out[1] + 1) % 4

    assert all(found.passed for found in judge(op, *args, change=other))


def test_values_and_places_that_are_each_right_but_not_together_fail() -> None:
    def swapped(out: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return out[0].flip(-1), out[1]

    found = judge("aten::topk", torch.tensor([[1.0, 5.0, 3.0]]), 2, -1, True, False, change=swapped)
    assert [one.rule for one in found if not one.passed] == ["pairs"]


def test_a_stable_sort_keeps_the_order_of_equal_values() -> None:
    def reversed_runs(out: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return out[0], out[1].flip(-1)

    equal = torch.zeros(1, 5)
    assert all(one.passed for one in judge("aten::sort", equal, change=reversed_runs))
    assert not all(one.passed for one in judge("aten::sort.stable", equal, stable=True, change=reversed_runs))


def test_a_running_maximum_never_points_ahead() -> None:
    def ahead(out: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return out[0], torch.full_like(out[1], 3)

    assert not all(one.passed for one in judge("aten::cummax", torch.zeros(1, 4), 1, change=ahead))


def test_argmax_of_nan_is_the_place_of_nan() -> None:
    x = torch.tensor([[1.0, float("nan"), 3.0]])
    assert judge("aten::argmax", x, 1)[0].passed
    assert not judge("aten::argmax", x, 1, change=lambda out: (torch.tensor([2]),))[0].passed


# --- routers


ROUTER = load_operators()["day0::moe_router"]


def route(logits: torch.Tensor, bias: torch.Tensor, *rest: Any, change: Any = lambda w, e: (w, e)) -> list[Judgement]:
    """Route in float32, change weights and experts, judge both."""
    args = (logits, bias, *rest)
    golden = ROUTER.reference(logits.double(), bias.double(), *rest)
    got = change(*ROUTER.reference(*args))
    assert ROUTER.routing is not None
    return [
        routes(got, golden, CaseInputs(args=args, kwargs={}), ROUTER, ROUTER.routing, number) for number in range(2)
    ]


LOGITS = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
BIAS = torch.randn(16, generator=torch.Generator().manual_seed(1))
SETTINGS = [
    (3, 2.5),
    (3, 2.5, 4, 2, "sigmoid", True),
    (4, 1.0, 1, 1, "sqrtsoftplus", False),
    (4, 1.0, 1, 1, "softmax_topk", True),
]


@pytest.mark.parametrize("rest", SETTINGS)
def test_right_routes_pass(rest: tuple[Any, ...]) -> None:
    assert all(one.passed for one in route(LOGITS, BIAS, *rest))


@pytest.mark.parametrize("rest", SETTINGS)
@pytest.mark.parametrize(
    "fault",
    [
        lambda w, e: (w.flip(-1), e),  # weights of other experts
        lambda w, e: (w, e.flip(-1)),  # another order
        lambda w, e: (w, (e + 1) % 16),
        lambda w, e: (w, e.clamp(max=14) * 0 + e[:, :1]),  # one expert several times
        lambda w, e: (w * 1.001, e),
        lambda w, e: (w, e.masked_fill(e == e[0, 0], 16)),
    ],
)
def test_wrong_routes_fail(rest: tuple[Any, ...], fault: Any) -> None:
    assert not all(one.passed for one in route(LOGITS, BIAS, *rest, change=fault))


def test_experts_that_tie_in_float32_may_change_places() -> None:
    logits = torch.zeros(1, 4)
    logits[0, 2] = 3e-8  # float32's sigmoid is the same

    def other(w: torch.Tensor, e: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return w, torch.tensor([[0, 1]])

    assert all(one.passed for one in route(logits, torch.zeros(4), 2, 1.0, change=other))
    logits[0, 2] = 3e-4
    assert not all(one.passed for one in route(logits, torch.zeros(4), 2, 1.0, change=other))


@pytest.mark.parametrize("rest", [(2, 1.0), (2, 1.0, 1, 1, "softmax_topk", True), (2, 1.0, 2, 2, "sigmoid", True)])
def test_experts_that_tie_exactly_come_by_their_number(rest: tuple[Any, ...]) -> None:
    logits, bias = torch.zeros(2, 4), torch.zeros(4)
    logits[1] = torch.tensor([-1.0, 0.0, 0.0, 0.0])

    def chosen(*rows: list[int]) -> Any:
        return lambda w, e: (w, torch.tensor(rows))

    assert all(one.passed for one in route(logits, bias, *rest))
    for rows in (
        ([[1, 0], [1, 2]], [[0, 1], [3, 2]], [[1, 2], [1, 2]]) if len(rest) < 6 or rest[2] == 1 else ([[1, 0], [1, 2]],)
    ):
        judged = route(logits, bias, *rest, change=chosen(*rows))
        assert not all(one.passed for one in judged), rows
        assert "ties go to the lower" in judged[1].reason
    bias[1] = 1e-3
    if "softmax_topk" not in rest:
        assert all(one.passed for one in route(logits, bias, *rest, change=chosen([1, 0], [1, 2]))), "no tie any more"


def test_groups_that_tie_may_change_places_and_others_may_not() -> None:
    logits = torch.tensor([[1.0, 0.5, 1.0, 0.5, 1.0, 0.5]])
    rest = (2, 1.0, 3, 1, "sigmoid", True)

    def group(number: int) -> Any:
        return lambda w, e: (w, torch.tensor([[2 * number, 2 * number + 1]]))

    for number in range(3):
        assert all(one.passed for one in route(logits, torch.zeros(6), *rest, change=group(number)))
    logits[0, :2] += 0.1
    assert all(one.passed for one in route(logits, torch.zeros(6), *rest, change=group(0)))
    assert not all(one.passed for one in route(logits, torch.zeros(6), *rest, change=group(1)))
    mixed = lambda w, e: (w, torch.tensor([[0, 2]]))
    assert not all(one.passed for one in route(logits, torch.zeros(6), *rest, change=mixed))
