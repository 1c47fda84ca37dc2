"""Choices: near ties follow the golden and are counted, others are wrong, and what cannot be followed is said."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from day0.analyzers.modules.choices import Choice, Choices, Place
from day0.models.toy.calls import dispatched

SCORES = torch.tensor([[1.0, 5.0, 4.0, 3.99, -2.0], [0.0, 1.0, 2.0, 3.0, 4.0]])


NOWHERE = nn.Module()
"""No module runs: all choices stand at one place."""


def made(scores: torch.Tensor) -> dict[Place, Choice]:
    with Choices(NOWHERE) as heard:
        scores.topk(2)
    found: dict[Place, Choice] = heard.made
    return found


def followed(scores: torch.Tensor, noise: torch.Tensor | None = None) -> tuple[Choices, torch.Tensor, torch.Tensor]:
    golden = SCORES.to(torch.float64)
    with Choices(NOWHERE, follow=made(golden), noise=made(golden if noise is None else noise)) as heard:
        values, chosen = scores.topk(2)
    return heard, values, chosen


def test_a_near_tie_follows_the_golden_and_its_values_are_the_runs_own() -> None:
    mine = SCORES.clone()
    mine[0, 3] = 4.02
    noise = SCORES.to(torch.float64).clone()
    noise[0, 2] += 0.01
    heard, values, chosen = followed(mine, noise.float())
    assert chosen.tolist() == [[1, 2], [4, 3]]
    assert values.tolist() == [[5.0, 4.0], [4.0, 3.0]]
    assert [(one.explained, one.wrong, one.rows) for one in heard.moved] == [(1, 0, 2)]
    assert not heard.lost


def test_a_choice_that_rounding_does_not_explain_is_kept_and_wrong() -> None:
    mine = SCORES.clone()
    mine[1, 0] = 9.0
    heard, _, chosen = followed(mine)
    assert chosen.tolist() == [[1, 2], [0, 4]]
    assert [(one.explained, one.wrong) for one in heard.moved] == [(0, 1)]
    assert heard.moved[0].shortfall == 3.0


def test_the_order_of_equal_sets_is_no_difference() -> None:
    mine = SCORES.clone()
    mine[0, 2] = 6.0
    heard, _, chosen = followed(mine)
    assert not heard.moved and chosen[0].tolist() == [2, 1]


def test_without_noise_every_choice_is_followed() -> None:
    with Choices(NOWHERE, follow=made(SCORES.to(torch.float64))) as heard:
        chosen = (-SCORES).topk(2).indices
    assert chosen.tolist() == [[1, 2], [4, 3]] and heard.moved[0].wrong == 0


def test_other_shapes_and_further_choices_are_lost_and_left_alone() -> None:
    with Choices(NOWHERE, follow=made(SCORES.to(torch.float64))) as heard:
        assert (-SCORES[:1]).topk(2).indices.tolist() == [[4, 0]]
    assert heard.lost
    with Choices(NOWHERE, follow={}) as heard:
        SCORES.topk(1)
    assert heard.lost


@pytest.mark.parametrize("chosen", [[7, 0], [2, 2], [-2, 1]])
def test_places_that_do_not_exist_are_wrong(chosen: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    golden = made(SCORES[:1].to(torch.float64))
    heard = Choices(NOWHERE, follow=golden, noise=golden)
    kept = Choice(op="aten::topk", scores=SCORES[:1], chosen=torch.tensor([chosen]))
    from day0.analyzers.modules import choices

    monkeypatch.setitem(
        choices._HEARD,
        "aten::topk",
        lambda result, *_, **__: choices._Heard(
            op=kept.op, scores=kept.scores, chosen=kept.chosen, put=lambda _: result
        ),
    )
    with heard:
        SCORES[:1].topk(2)
    assert heard.moved[0].wrong == 1


@pytest.mark.parametrize("score", ["sigmoid", "softmax_topk", "sqrtsoftplus"])
def test_a_router_that_follows_weighs_the_golden_experts_itself(score: str) -> None:
    logits = torch.tensor([[0.3, 0.30001, 2.0, -1.0]])
    golden = torch.tensor([[0.30001, 0.3, 2.0, -1.0]], dtype=torch.float64)
    bias, rest = torch.zeros(4), (2, 1.5, 1, 1, score, True)
    with Choices(NOWHERE) as right:
        dispatched().moe_router(golden, bias.double(), *rest)
    with Choices(NOWHERE, follow=right.made) as noise:
        dispatched().moe_router(logits, bias, *rest)
    with Choices(NOWHERE, follow=right.made, noise=noise.made) as heard:
        weights, chosen = dispatched().moe_router(logits, bias, *rest)
    assert chosen.tolist() == [[2, 0]] and heard.moved[0].explained == 1
    swapped = torch.tensor([[0.3, -9.0, 2.0, -1.0]])
    expected, _ = dispatched().moe_router(swapped, bias, *rest)
    torch.testing.assert_close(weights, expected, rtol=1e-6, atol=1e-6)


def test_chosen_tokens_follow_too() -> None:
    scores = torch.tensor([[[1.0, 2.0, 2.0001, float("-inf")]]])
    golden = torch.tensor([[[1.0, 2.0001, 2.0, float("-inf")]]], dtype=torch.float64)
    with Choices(NOWHERE) as right:
        dispatched().topk_tokens(golden, 1)
    with Choices(NOWHERE, follow=right.made) as noise:
        dispatched().topk_tokens(scores, 1)
    with Choices(NOWHERE, follow=right.made, noise=noise.made) as heard:
        assert dispatched().topk_tokens(scores, 1)[0].tolist() == [[[1]]]
    assert heard.moved[0].explained == 1


def test_a_near_tie_of_two_groups_moves_all_their_experts_and_a_clear_one_does_not() -> None:
    """Two of six experts, from one of three groups: the sums of groups 0 and 1 are a hair apart."""
    bias = torch.zeros(6)
    right = torch.tensor([[1.0, 1.0, 1.0001, 1.0, -2.0, -2.0]], dtype=torch.float64)
    mine = torch.tensor([[1.0002, 1.0, 1.0, 1.0, -2.0, -2.0]])
    arguments = (2, 1.0, 3, 1)
    with Choices(NOWHERE) as golden:
        dispatched().moe_router(right, bias.double(), *arguments)
    with Choices(NOWHERE, follow=golden.made) as noise:
        dispatched().moe_router(mine, bias, *arguments)
    with Choices(NOWHERE, follow=golden.made, noise=noise.made) as heard:
        assert dispatched().moe_router(mine, bias, *arguments)[1].tolist() == [[2, 3]]
    assert [(one.explained, one.wrong) for one in heard.moved] == [(1, 0)]
    far = torch.tensor([[1.0, 1.0, 1.0, 1.0, 3.0, 3.0]])
    with Choices(NOWHERE, follow=golden.made, noise=noise.made) as heard:
        dispatched().moe_router(far, bias, *arguments)
    assert [(one.explained, one.wrong) for one in heard.moved] == [(0, 1)]
