"""The usual rules say what people's test files say: planted errors that they see, and those that they are known not to."""

from __future__ import annotations

import pytest
import torch

from day0.analyzers.selftest.usual.load import load_usual

RULES = load_usual()
X = torch.linspace(-2.0, 2.0, 64)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_the_same_passes_in_every_dtype_also_with_nan(name: str, dtype: torch.dtype) -> None:
    values = X.to(dtype)
    assert RULES[name](values, values.clone())
    if dtype.is_floating_point:
        spoilt = values.clone()
        spoilt[3] = float("nan")
        assert RULES[name](spoilt, spoilt.clone())
        assert not RULES[name](spoilt, values)


@pytest.mark.parametrize("name", RULES)
def test_another_shape_or_dtype_fails(name: str) -> None:
    assert not RULES[name](X[:-1], X)
    assert not RULES[name](X.double(), X)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("empty", [torch.zeros(0), torch.zeros(5)])
def test_nothing_and_zeros_pass(name: str, empty: torch.Tensor) -> None:
    assert RULES[name](empty, empty.clone())


def test_each_has_its_own_blind_spot() -> None:
    seen = {name: (agrees(X * 1.5, X), agrees(X + 1e-3, X), agrees(X.flip(0), X)) for name, agrees in RULES.items()}
    assert seen == {
        "allclose 1e-2": (False, True, False),
        "assert_close": (False, False, False),
        "cosine 0.99": (True, True, False),
    }
