"""Which parts make a check fail: alone, together, several, none; and when nothing may be blamed."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from day0.analyzers.modules.bisect import Answer, Sample, agree, bisect_sample


def check(*bad: set[int]) -> Callable[[frozenset[int]], Answer]:
    """A check that fails where all of one of these sets are on."""
    return lambda on: "bad" if any(one <= on for one in bad) else "good"


@pytest.mark.parametrize("parts", [1, 2, 7, 20])
def test_one_part_is_found_wherever_it_stands(parts: int) -> None:
    for place in range(parts):
        found = bisect_sample(parts, 0, check({place}))
        assert (found.outcome, found.causes) == ("found", (frozenset({place}),))


def test_two_parts_that_are_only_bad_together() -> None:
    for pair in itertools.combinations(range(9), 2):
        found = bisect_sample(9, 0, check(set(pair)))
        assert found.causes == (frozenset(pair),)


def test_three_together_and_two_causes() -> None:
    assert bisect_sample(11, 0, check({0, 5, 10})).causes == (frozenset({0, 5, 10}),)
    found = bisect_sample(11, 0, check({2}, {6, 7}))
    assert set(found.causes) == {frozenset({2}), frozenset({6, 7})}


def test_it_takes_far_fewer_runs_than_subsets() -> None:
    assert bisect_sample(64, 0, check({17})).runs <= 30


def test_a_check_that_fails_with_nothing_on_blames_nothing() -> None:
    found = bisect_sample(4, 3, lambda _: "bad")
    assert found.outcome == "fails_without" and not found.causes
    assert agree([found]).reason == "sample 3: it fails with all of them off, so none of them is the cause"


def test_a_flaky_check_blames_nothing() -> None:
    both: tuple[Answer, ...] = ("bad", "good")
    answers = itertools.cycle(both)
    assert bisect_sample(4, 0, lambda _: next(answers)).outcome == "flaky"
    calls = itertools.count()
    late = bisect_sample(1, 0, lambda on: "bad" if on and next(calls) < 2 else "good")
    assert late.outcome == "flaky", "what was found is asked once more"


def test_a_check_that_cannot_tell_is_no_failure() -> None:
    assert bisect_sample(4, 0, lambda _: "unknown").outcome == "unknown"
    assert bisect_sample(4, 0, lambda on: "bad" if on else "unknown").outcome == "unknown"
    # Undecided subsets are passed by: the cause is found among the others.
    found = bisect_sample(4, 0, lambda on: "unknown" if len(on) == 2 else check({1})(on))
    assert found.causes == (frozenset({1}),)


def test_agreement_needs_two_samples() -> None:
    one, other = (Sample(seed=n, outcome="found", reason="", causes=(frozenset({1}),)) for n in range(2))
    passing = Sample(seed=2, outcome="passes", reason="it does not fail")
    wrong = Sample(seed=3, outcome="found", reason="", causes=(frozenset({0}),))
    assert agree([one, passing]).verdict == "suspected"
    assert agree([one, other, passing]).verdict == "agreed"
    assert agree([one, other, wrong]).verdict == "disagreed"
    assert agree([one, other, wrong]).causes == ((frozenset({1}), 2), (frozenset({0}), 1))
    assert agree([passing]).verdict == "not_found"


def test_a_fault_that_shows_for_one_input_of_four() -> None:
    """TensorRT 4607: from one sample alone another part would be blamed."""

    def run(seed: int) -> Callable[[frozenset[int]], Answer]:
        return check({2}) if seed % 4 == 1 else check()

    samples = [bisect_sample(5, seed, run(seed)) for seed in range(8)]
    assert [one.outcome for one in samples].count("passes") == 6
    assert agree(samples).causes == ((frozenset({2}), 2),)
    assert agree(samples[:4]).verdict == "suspected"
