"""Random operators: right generators pass whatever their stream, wrong ones fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.judging.draws import draws, judge_draws
from day0.analyzers.judging.judgement import Judgement
from day0.reference_ops.signatures import resolve

ONES = torch.ones(64, 50)
WEIGHTS = torch.tensor([0.1, 0.0, 0.5, 0.4])


def drawn(
    op: str, *args: Any, change: Callable[[Any], Any] = lambda out: out, seed: int = 0, **kwargs: Any
) -> Judgement:
    torch.manual_seed(seed)
    copied = tuple(one.clone() if isinstance(one, torch.Tensor) else one for one in args)
    out = resolve(op)(*copied, **kwargs)
    got = change(out)
    return judge_draws(op, CaseInputs(args=args, kwargs=kwargs), got if isinstance(got, tuple) else (got,))


CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("aten::rand", ([64, 50],), {}),
    ("aten::rand", ([64, 50],), {"dtype": torch.bfloat16}),
    ("aten::rand", ([64, 50],), {"dtype": torch.float16}),
    ("aten::uniform_", (ONES, -2.0, 3.0), {}),
    ("aten::uniform_", (ONES, -1.0, 0.0), {}),
    ("aten::uniform_", (ONES, 0.5, 0.5), {}),
    ("aten::normal_", (ONES.to(torch.bfloat16), 0.1, 0.0), {}),
    ("aten::log_normal_", (ONES.to(torch.float16), 0.5, 0.3), {}),
    ("aten::bernoulli_.Tensor", (ONES, torch.full((64, 1), 0.2)), {}),
    ("aten::bernoulli.p", (ONES, 0.9), {}),
    ("aten::randint", (5, [64, 50]), {}),
    ("aten::dropout", (ONES, 0.3, True), {}),
    ("aten::randn", ([64, 50],), {}),
    ("aten::randn", ([64, 50],), {"dtype": torch.bfloat16}),
    ("aten::normal_", (ONES, 1.0, 0.02), {}),
    ("aten::normal.Tensor_float", (ONES, 2.0), {}),
    ("aten::bernoulli_.float", (ONES, 0.3), {}),
    ("aten::bernoulli", (0.7 * ONES,), {}),
    ("aten::native_dropout", (ONES, 0.4, True), {}),
    ("aten::randint.low", (3, 11, [64, 50]), {}),
    ("aten::random_.from", (ONES, 2, 9), {}),
    ("aten::randperm", (100,), {}),
    ("aten::multinomial", (WEIGHTS, 3000, True), {}),
    ("aten::multinomial", (WEIGHTS.expand(40, 4), 2, False), {}),
    ("aten::exponential_", (ONES, 2.0), {}),
    ("aten::log_normal_", (ONES, 0.5, 0.3), {}),
    ("aten::cauchy_", (ONES, 0.5, 2.0), {}),
    ("aten::poisson", (4.0 * ONES,), {}),
    ("aten::rand", ([0, 3],), {}),
    ("aten::rand", ([1],), {}),
    ("aten::randn", ([2, 1],), {}),
]


@pytest.mark.parametrize(("op", "args", "kwargs"), CALLS)
def test_right_generators_pass(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for seed in range(20):
        found = drawn(op, *args, seed=seed, **kwargs)
        assert found.passed, found


WRONG: dict[str, tuple[str, tuple[Any, ...], Callable[[Any], Any]]] = {
    "range too wide": ("aten::rand", ([64, 50],), lambda x: 2.0 * x),
    "range too narrow": ("aten::rand", ([64, 50],), lambda x: 0.8 * x),
    "NaN": ("aten::rand", ([64, 50],), lambda x: x.masked_fill(x > 0.9, float("nan"))),
    "a constant": ("aten::rand", ([64, 50],), lambda x: torch.full_like(x, 0.5)),
    "every row the same": ("aten::rand", ([64, 50],), lambda x: x[:1].expand(64, 50).clone()),
    "every row alike in a half type": ("aten::rand", ([64, 50],), lambda x: x[:1].expand(64, 50).to(torch.float16)),
    "pairs of equal neighbours": ("aten::rand", ([64, 50],), lambda x: x[:, ::2].repeat_interleave(2, dim=1)),
    "deviation doubled": ("aten::randn", ([64, 50],), lambda x: 2.0 * x),
    "mean moved": ("aten::randn", ([64, 50],), lambda x: x + 0.5),
    "uniform for normal": ("aten::randn", ([64, 50],), lambda x: torch.rand_like(x)),
    "variance for deviation": ("aten::normal_", (ONES, 1.0, 0.5), lambda x: 1.0 + (x - 1.0) * 0.5),
    "chance turned round": ("aten::bernoulli_.float", (ONES, 0.3), lambda x: 1.0 - x),
    "neither 0 nor 1": ("aten::bernoulli_.float", (ONES, 0.3), lambda x: x * 2.0),
    "scale forgotten": ("aten::native_dropout", (ONES, 0.4, True), lambda out: (out[0] * 0.6, out[1])),
    "mask turned round": ("aten::native_dropout", (ONES, 0.4, True), lambda out: (out[0], ~out[1])),
    "nothing dropped": ("aten::native_dropout", (ONES, 0.4, True), lambda out: (ONES / 0.6, torch.ones_like(out[1]))),
    "each row dropped alike": (
        "aten::native_dropout",
        (ONES, 0.4, True),
        lambda out: (out[0][:1].expand(64, 50).clone(), out[1][:1].expand(64, 50).clone()),
    ),
    "upper bound drawn": ("aten::randint.low", (3, 11, [64, 50]), lambda x: x + (x == 10)),
    "half of the range": ("aten::randint.low", (3, 11, [64, 50]), lambda x: x.clamp(max=6)),
    "a number twice": ("aten::randperm", (100,), lambda x: torch.where(x == 3, 4, x)),
    "not mixed": ("aten::randperm", (100,), lambda x: x.sort().values),
    "a weight of 0 drawn": ("aten::multinomial", (WEIGHTS, 3000, True), lambda x: x.masked_fill(x == 0, 1)),
    "as if all weights were equal": (
        "aten::multinomial",
        (WEIGHTS, 3000, True),
        lambda x: torch.tensor([0, 2, 3])[torch.randint(0, 3, x.shape)],
    ),
    "a place twice": ("aten::multinomial", (WEIGHTS.expand(40, 4), 2, False), lambda x: x[:, :1].expand(40, 2)),
    "rate for its reciprocal": ("aten::exponential_", (ONES, 2.0), lambda x: 4.0 * x),
    "half numbers": ("aten::poisson", (4.0 * ONES,), lambda x: x + 0.5),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_generators_fail(fault: str) -> None:
    op, args, change = WRONG[fault]
    for seed in range(3):
        found = drawn(op, *args, change=change, seed=seed)
        assert not found.passed
        assert found.reason


def test_what_draws_nothing_is_judged_like_any_operator() -> None:
    heads = torch.zeros(1, 1, 2, 4)
    for op, args, random in (
        ("aten::native_dropout", (ONES, 0.4, True), True),
        ("aten::native_dropout", (ONES, 0.4, False), False),
        ("aten::scaled_dot_product_attention", (heads, heads, heads), False),
        ("aten::scaled_dot_product_attention", (heads, heads, heads, None, 0.5), True),
        ("aten::add.Tensor", (ONES, ONES), False),
        ("aten::rrelu", (ONES,), False),
    ):
        assert draws(op, CaseInputs(args=args, kwargs={})) is random, op


def test_a_distribution_that_nobody_described_is_said() -> None:
    heads = torch.zeros(1, 1, 2, 4)
    found = judge_draws(
        "aten::scaled_dot_product_attention", CaseInputs(args=(heads, heads, heads, None, 0.5), kwargs={}), (heads,)
    )
    assert found.passed
    assert "only their layout was judged" in found.notes[0]
