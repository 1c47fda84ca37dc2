"""Plans of memory against cases worked out by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from day0.analyzers.fit.plan import ALIGNMENT, Lifetime, largest_live, plan_memory

K = ALIGNMENT


def test_disjoint_lifetimes_share_addresses() -> None:
    plan = plan_memory([Lifetime(0, 2, 3 * K), Lifetime(2, 4, 2 * K), Lifetime(4, 5, 3 * K)])
    assert plan.offsets == (0, 0, 0)
    assert (plan.planned, plan.unplanned, plan.bound) == (3 * K, 8 * K, 3 * K)


def test_lifetimes_that_meet_do_not() -> None:
    plan = plan_memory([Lifetime(0, 3, K), Lifetime(1, 4, K), Lifetime(2, 5, K)])
    assert sorted(plan.offsets) == [0, K, 2 * K]
    assert plan.planned == plan.bound == plan.unplanned == 3 * K


def test_sizes_are_rounded_up_to_the_alignment() -> None:
    assert plan_memory([Lifetime(0, 1, 1)]).planned == K
    assert plan_memory([]).planned == 0


def test_a_case_in_which_first_fit_in_time_wastes_and_largest_first_does_not() -> None:
    # a dies before c is born, and leaves a gap below b into which c does not go
    lives = [Lifetime(0, 2, K), Lifetime(1, 9, K), Lifetime(3, 9, 2 * K)]
    plan = plan_memory(lives)
    assert largest_live(lives) == 3 * K
    assert plan.planned == 3 * K
    assert plan.strategy == "largest first"


LIVES = st.lists(
    st.builds(
        lambda begin, length, size: Lifetime(begin, begin + length, size),
        st.integers(0, 30),
        st.integers(1, 12),
        st.integers(1, 9000),
    ),
    max_size=25,
)


@given(LIVES)
def test_no_two_tensors_overlap_in_time_and_place(lives: list[Lifetime]) -> None:
    plan = plan_memory(lives)
    assert plan.bound <= plan.planned <= plan.unplanned
    for number, (one, at) in enumerate(zip(lives, plan.offsets, strict=True)):
        for other, there in list(zip(lives, plan.offsets, strict=True))[:number]:
            meet = one.begin < other.end and other.begin < one.end
            assert not meet or at + one.bytes <= there or there + other.bytes <= at
