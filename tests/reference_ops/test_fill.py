"""Makers of values: whatever shapes and strides a trace gives, the values have to be valid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from day0.reference_ops.load import load_operators

INTS = torch.int64


def filled(name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    fill = load_operators()[name].fill
    assert fill is not None
    fill(args, kwargs, torch.Generator().manual_seed(5))
    return args


def zeros(*shape: int, dtype: torch.dtype = INTS) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def in_range(index: torch.Tensor, size: int) -> bool:
    return bool((index >= 0).all()) and bool((index < size).all()) and int(index.max()) > 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: filled("aten::embedding", torch.ones(7, 2), zeros(3, 30)),
        lambda: (torch.ones(7), filled("aten::index_select", torch.ones(2, 7), 1, zeros(30))[2]),
        lambda: (torch.ones(7), filled("aten::gather", torch.ones(2, 7), -1, zeros(2, 30))[2]),
        lambda: (torch.ones(7), filled("aten::gather", torch.ones(7, 5), 0, zeros(30, 1).expand(30, 5))[2]),
        lambda: (torch.ones(7), filled("aten::index", torch.ones(2, 7), [None, zeros(30)])[1][1]),
    ],
)
def test_positions_are_in_range(make: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> None:
    table, index = make()
    assert in_range(index, table.shape[0])


@pytest.mark.parametrize("name", ["aten::scatter", "aten::scatter_"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_scatter_names_no_place_twice(name: str, dim: int) -> None:
    index = filled(name, torch.zeros(6, 6), dim, zeros(4, 4), 1.0)[2]
    for row in index.movedim(dim, -1).tolist():
        assert len(set(row)) == 4 and max(row) < 6


def test_expanded_indices_are_written_where_they_have_memory() -> None:
    index = filled("aten::scatter", torch.zeros(4, 6), 0, zeros(3, 1).expand(3, 5), 1.0)[2]
    assert len(set(index[:, 0].tolist())) == 3
    index = filled("aten::index", torch.zeros(9, 2), [zeros(1, 30).expand(4, 30)])[1][0]
    assert in_range(index, 9) and bool((index == index[:1]).all())


def test_index_put_names_no_place_twice() -> None:
    index = filled("aten::index_put_", torch.zeros(6, 2), [zeros(5)], torch.ones(5, 2))[1][0]
    assert len(set(index.tolist())) == 5 and in_range(index, 6)


@pytest.mark.parametrize("place", ["positional", "keyword"])
def test_group_ends_rise_to_the_number_of_rows(place: str) -> None:
    offs = zeros(5, dtype=torch.int32)
    args = (torch.ones(9, 4), torch.ones(5, 4, 3))
    filled("aten::_grouped_mm", *args, offs) if place == "positional" else filled("aten::_grouped_mm", *args, offs=offs)
    ends = offs.tolist()
    assert ends == sorted(ends) and ends[-1] == 9 and ends[0] >= 0


def test_sparse_rows_are_distinct_and_some_are_none() -> None:
    indices = filled(
        "day0::sparse_mla_prefill",
        torch.ones(2, 3, 1, 4),
        torch.ones(2, 5, 4),
        zeros(2, 3, 8, dtype=torch.int32),
        2,
        1.0,
    )[2]
    rows = indices.flatten(0, 1).tolist()
    for number, row in enumerate(rows):
        valid = [one for one in row if one >= 0]
        nothing = [-1] * (8 - len(valid))
        assert len(set(valid)) == len(valid) and all(0 <= one < 5 for one in valid)
        assert row == (valid + nothing if number % 2 else nothing + valid), "at the end of every second list"
        assert number % 2 or len(valid) <= 4, "the first half of such a list is empty"
    assert rows[-1] == [-1] * 8, "one query chooses nothing"
    assert len({row.count(-1) for row in rows}) > 1


def test_decays_are_at_most_one_and_strengths_between_0_and_1() -> None:
    q = torch.ones(1, 4, 2, 8)
    _, _, _, g, beta, _ = filled("day0::kda_recurrent", q, q, q, q.clone(), torch.ones(1, 4, 2), torch.ones(1, 2, 8, 8))
    assert bool((g <= 0).all()) and float(g.min()) < -1
    assert bool((beta >= 0).all()) and bool((beta <= 1).all()) and float(beta.std()) > 0


def test_a_single_query_has_as_many_rows_as_there_are() -> None:
    indices = filled(
        "day0::sparse_mla_prefill",
        torch.ones(1, 1, 1, 4),
        torch.ones(1, 5, 4),
        zeros(1, 1, 8, dtype=torch.int32),
        2,
        1.0,
    )[2]
    assert sorted(indices.flatten().tolist()) == [-1, -1, -1, 0, 1, 2, 3, 4]
    assert indices.flatten().tolist()[5:] == [-1, -1, -1]


@pytest.mark.parametrize("groups", [1, 4])
def test_router_biases_stay_large_where_they_were(groups: int) -> None:
    logits, bias = filled("day0::moe_router", torch.ones(6, 16), torch.full((16,), 500.0), 4, 1.0, groups, 1)[:2]
    assert float(bias.min()) > 1e4 and len(set(bias.tolist())) == 16
    pairs = bias.reshape(groups, -1).sort(descending=True).values[:, :2].sum(-1)
    assert len(set(pairs.tolist())) == groups, "no two groups are tied"
    lost = (torch.sigmoid(logits) + bias) - bias
    assert float((lost - torch.sigmoid(logits)).abs().max()) > 1e-3, "a score does not survive the sum"


def test_router_scores_stand_apart_in_half_precision() -> None:
    logits, bias = filled("day0::moe_router", torch.zeros(6, 10, dtype=torch.bfloat16), torch.zeros(10), 3, 1.0)[:2]
    choice = torch.sigmoid(logits.float()) + bias
    gaps = choice.sort(dim=-1).values.diff(dim=-1)
    assert float(gaps.min()) > 1e-3
    assert {-1.0, 1.0} == set(bias.tolist())


def test_logits_close_the_future() -> None:
    logits = filled("day0::topk_tokens", torch.ones(1, 2, 5), 3)[0]
    assert torch.isneginf(logits).tolist() == [[[False] * 4 + [True], [False] * 5]]


def test_packed_weights_have_the_extreme_scales_and_every_code() -> None:
    codes, scales = filled(
        "day0::mxfp4_decode", zeros(4, 64, dtype=torch.uint8), zeros(4, 4, dtype=torch.uint8), torch.float16
    )[:2]
    assert scales.flatten()[:4].tolist() == [0, 1, 254, 255]
    decoded = load_operators()["day0::mxfp4_decode"].reference(codes, scales, torch.float16)
    assert bool(torch.isfinite(decoded[1:]).all()) and len(codes.unique()) > 50
