"""Task scores: intervals by the book, and the three answers."""

from __future__ import annotations

import pytest
import torch

from day0.analyzers.modules.scores import Answers, compare_scores, wilson


def answers(right: int, questions: int) -> Answers:
    return {str(number): number < right for number in range(questions)}


def test_wilson_gives_what_the_literature_gives() -> None:
    """Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    for right, questions, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        assert list(wilson(right, questions)) == pytest.approx([low, high], abs=1e-4)


def test_the_difference_of_independent_scores_is_newcombes() -> None:
    """Newcombe (1998), interval estimation for the difference, table II: 56 of 70 less 48 of 80."""
    found = compare_scores(answers(48, 80), answers(56, 70), paired=False)
    assert list(found.interval) == pytest.approx([0.0524, 0.3339], abs=1e-4)


def test_fifty_questions_decide_nothing() -> None:
    """FlagGems 4825: operators were blamed for 20 % after 27 %."""
    found = compare_scores(answers(27, 100), answers(10, 50), paired=False)
    assert found.answer == "cannot tell"
    assert "ask more questions" in found.reason


def test_many_questions_do() -> None:
    assert compare_scores(answers(2700, 10000), answers(2000, 10000), paired=False).answer == "fail"
    assert compare_scores(answers(2700, 10000), answers(2695, 10000), paired=False).answer == "pass"
    assert compare_scores(answers(2700, 10000), answers(4000, 10000), paired=False).answer == "pass"


def test_the_same_questions_tell_more() -> None:
    before = answers(100, 200)
    after = {name: right and name != "7" for name, right in before.items()}
    assert compare_scores(before, after, paired=True).answer == "pass"
    assert compare_scores(before, after, paired=False).answer == "cannot tell"


def test_equal_answers_pass_and_opposite_ones_do_not() -> None:
    same = answers(25, 50)
    assert compare_scores(same, same, paired=True).interval == (0.0, 0.0)
    swapped = {name: not right for name, right in same.items()}
    assert compare_scores(same, swapped, paired=True).answer == "cannot tell"


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Two scores of one truth: a worse one is claimed in 5 of 100 draws at most."""
    draws = torch.rand(400, 2, 50, generator=torch.Generator().manual_seed(0)) < 0.3
    claimed = 0
    for pair in draws.tolist():
        one, other = ({str(n): right for n, right in enumerate(row)} for row in pair)
        claimed += compare_scores(one, other, paired=False).answer == "fail"
    assert claimed <= 20
