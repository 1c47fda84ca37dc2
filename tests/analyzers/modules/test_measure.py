"""One module's results: what passes, what fails and by which rule, and what cannot be compared."""

from __future__ import annotations

import pytest
import torch

from day0.analyzers.modules.measure import measure, new_non_finite

GOLD = torch.randn(6, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SAME = GOLD.to(torch.bfloat16)


def judged(got: torch.Tensor, same: torch.Tensor = SAME, gold: torch.Tensor = GOLD) -> tuple[str, str]:
    found = measure([got], [same], [gold])
    return found.status, found.rule


def test_rounding_passes_and_so_does_what_is_better_than_the_yardstick() -> None:
    noisy = GOLD + 0.05 * torch.randn(GOLD.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert judged(SAME) == ("pass", "relative_l2")
    assert judged(SAME, same=noisy.to(torch.bfloat16)) == ("pass", "relative_l2")


@pytest.mark.parametrize("factor", [1.5, 1.02, 0.98, -1.0, 0.0])
def test_a_wrong_scale_fails(factor: float) -> None:
    assert judged((GOLD * factor).to(torch.bfloat16)) == ("fail", "relative_l2")


def test_one_wrong_row_of_many_fails() -> None:
    gold = torch.randn(400, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    got = gold.to(torch.bfloat16)
    got[7] *= 1.1
    assert judged(got, gold.to(torch.bfloat16), gold) == ("fail", "worst_row")


def test_other_shapes_dtypes_and_numbers_of_results_fail() -> None:
    assert judged(SAME[:5]) == ("fail", "shape")
    assert judged(SAME.float()) == ("fail", "dtype")
    assert measure([SAME, SAME], [SAME], [GOLD]).rule == "shape"


def test_nan_and_infinity_fail_where_the_golden_has_none() -> None:
    for value in (float("nan"), float("inf")):
        got = SAME.clone()
        got[2, 3] = value
        assert judged(got) == ("fail", "non_finite")
        assert new_non_finite([got], [GOLD]) == 1
    assert judged(torch.full_like(SAME, float("nan"))) == ("fail", "non_finite")


def test_a_number_where_the_golden_has_a_mask_fails() -> None:
    gold, same = GOLD.clone(), SAME.clone()
    gold[0, 0] = same[0, 0] = float("-inf")
    assert judged(same, same, gold) == ("pass", "relative_l2")
    assert judged(SAME, same, gold) == ("fail", "non_finite")


def test_what_overflows_in_the_dtype_itself_is_no_fault_of_the_device() -> None:
    same = SAME.clone()
    same[1, 1] = float("inf")
    assert judged(same, same) == ("pass", "relative_l2")
    assert judged(SAME, same) == ("pass", "relative_l2")


def test_whole_numbers_are_equal_or_the_same_in_another_order() -> None:
    gold = torch.tensor([[3, 1, 2], [4, 5, 6]])
    assert judged(gold[:, [2, 0, 1]], gold, gold)[0] == "pass"
    assert judged(gold + 1, gold, gold) == ("fail", "integers")
    assert judged(gold, gold + 1, gold)[0] == "pass"
    assert judged(gold + 2, gold + 1, gold) == ("not_comparable", "integers")


def test_after_a_choice_that_was_lost_a_difference_says_nothing() -> None:
    found = measure([(GOLD * 2).to(torch.bfloat16)], [SAME], [GOLD], lost=True)
    assert (found.status, found.rule) == ("not_comparable", "choice")
    assert measure([SAME], [SAME], [GOLD], lost=True).status == "pass"


def test_a_yardstick_that_is_far_off_judges_nothing_but_nonsense_still_fails() -> None:
    same = (GOLD * 0.3).to(torch.bfloat16)
    assert judged((GOLD * -1.9 + 0.0).to(torch.bfloat16), same)[0] == "fail"
    assert judged(torch.full_like(SAME, 1e6), same)[0] == "fail"


def test_an_all_zero_golden_wants_zeros() -> None:
    zeros = torch.zeros(2, 3)
    assert judged(zeros, zeros, zeros.double())[0] == "pass"
    assert judged(zeros + 1e-3, zeros, zeros.double())[0] == "fail"
