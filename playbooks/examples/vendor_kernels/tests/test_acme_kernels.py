"""Is everything right that this package brings? day0 knows sample calls of each operator and how to judge them."""

from __future__ import annotations

import pytest
from acme_kernels.registered import IMPLEMENTATIONS

from day0.analyzers.kernel_check import check_kernel
from day0.implementation import Implementation


@pytest.mark.parametrize("one", IMPLEMENTATIONS, ids=lambda one: str(one.identity))
def test_it_is_right(one: Implementation) -> None:
    wrong = [check for check in check_kernel(one, "cpu") if check.status in ("fail", "crashed")]
    assert not wrong, wrong[0]
