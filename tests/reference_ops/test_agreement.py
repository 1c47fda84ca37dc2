"""Every comparison with other people's code, as far as it is installed."""

from __future__ import annotations

import pytest

from day0.reference_ops.agreement._comparison import Comparison
from day0.reference_ops.agreement._load import load_comparisons
from day0.reference_ops.agreement._verify import cells, choose, verify

COMPARISONS = load_comparisons()


def test_every_comparison_is_of_an_operator_and_stands_in_one_row_of_its_own() -> None:
    assert choose(None) == COMPARISONS
    rows = [(one.operator, one.variant, one.against) for one in COMPARISONS]
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("one", COMPARISONS, ids=lambda one: f"{one.operator}, {one.variant}, {one.against}")
def test_reference_agrees(one: Comparison) -> None:
    (done,) = verify((one,))
    if done.verdict == "not installed":
        pytest.skip(f"{done.reason} is not installed")
    assert done.verdict == "agrees", cells(done)
