"""The slope with its interval: right on lines and noise, silent where there are too few samples."""

from __future__ import annotations

import random

import pytest

from day0.analyzers.soak.trend import MOST, theil_sen


def test_a_line_has_its_own_slope_and_no_width() -> None:
    found = theil_sen(range(10), [3.0 * x + 1.0 for x in range(10)])
    assert found is not None
    assert (found.slope, found.low, found.high, found.samples) == (3.0, 3.0, 3.0, 10)


def test_outliers_do_not_move_it() -> None:
    values = [2.0 * x for x in range(30)]
    values[7] = 1e9
    values[20] = -1e9
    found = theil_sen(range(30), values)
    assert found is not None
    assert found.slope == pytest.approx(2.0)


def test_the_interval_holds_the_slope_about_as_often_as_it_says() -> None:
    dice, hits = random.Random(3), 0  # noqa: S311 - noise
    for _ in range(200):
        found = theil_sen(range(20), [0.5 * x + dice.gauss(0.0, 3.0) for x in range(20)])
        assert found is not None
        hits += found.low <= 0.5 <= found.high
    assert 182 <= hits <= 199


def test_noise_without_a_slope_is_not_called_one() -> None:
    dice = random.Random(5)  # noqa: S311 - noise
    found = theil_sen(range(60), [dice.gauss(0.0, 1.0) for _ in range(60)])
    assert found is not None
    assert found.low < 0.0 < found.high


def test_too_few_samples_have_no_interval() -> None:
    assert theil_sen(range(3), [1.0, 2.0, 3.0]) is None
    assert theil_sen([1.0] * 9, list(range(9))) is None, "all at one place"


def test_many_samples_cost_no_more() -> None:
    found = theil_sen(range(50_000), [float(x) for x in range(50_000)])
    assert found is not None
    assert found.slope == 1.0
    assert found.samples <= MOST


def test_lists_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 places and 1 values"):
        theil_sen([1.0, 2.0], [1.0])
