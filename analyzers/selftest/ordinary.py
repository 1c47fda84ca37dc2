"""Ordinary calls of operators that neither the toy nor the probe suite makes: small, contiguous, nothing special.

They say what a model might ask for, and nothing about faults: what makes a fault show is for the cases to find.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.records import Signature
from day0.reference_ops.signatures import describe

__all__ = ["ordinary_calls"]

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def ordinary_calls() -> Iterator[Signature]:
    """Yield the calls."""
    for dtype in FLOATS:
        x = torch.ones(4, 8, dtype=dtype)
        yield from _element_by_element(x)
        yield from _indexed(x)
        yield from _layers(x)
        yield from _random(x)
    yield from _integers()


def _call(op: str, *args: Any, **kwargs: Any) -> Signature:
    return describe(f"aten::{op}", args, kwargs)


def _element_by_element(x: torch.Tensor) -> Iterator[Signature]:
    yield _call("erfinv", x)
    yield _call("clamp_", x, -0.5, 0.5)
    yield _call("clamp_min_", x, 0.0)
    yield _call("clamp_max_", x, 0.0)
    yield _call("masked_fill_.Scalar", x, x > 0, 0.0)
    yield _call("copy_", x, torch.ones_like(x))
    yield _call("std.correction", x, [-1])
    yield _call("where.ScalarSelf", x > 0, 0.0, x)
    yield _call("where.ScalarOther", x > 0, x, 0.0)
    yield _call("where.Scalar", x > 0, 1.0, 0.0)
    yield _call("rsub.Scalar", x, 1.0)
    yield _call("floor_divide", x, x)


def _indexed(x: torch.Tensor) -> Iterator[Signature]:
    rows = torch.tensor([0, 3])
    yield _call("select.int", x, 0, 1)
    yield _call("index_copy_", x, 0, rows, x[:2].clone())
    yield _call("index_add", x, 0, rows, x[:2].clone())
    yield _call("index_put", x, [rows], x[:2].clone())
    yield _call("index_put", x, [rows], x[:2].clone(), True)
    yield _call("scatter.value", x, 1, torch.zeros(4, 2, dtype=torch.int64), 1.0)
    yield _call("scatter_add", x, 1, torch.zeros(4, 8, dtype=torch.int64), x)
    yield _call("isin.Tensor_Tensor", x, x[0].clone())
    yield _call("isin.Tensor_Tensor_out", x, x[0].clone(), out=torch.zeros(4, 8, dtype=torch.bool))


def _layers(x: torch.Tensor) -> Iterator[Signature]:
    heads = x.new_ones(1, 2, 4, 8)
    yield _call("_safe_softmax", x, -1)
    mask = torch.ones(4, 4, dtype=torch.bool)
    yield _call("scaled_dot_product_attention", heads, heads, heads, mask)
    yield _call("scaled_dot_product_attention", heads, heads, heads)
    yield _call("convolution", x.new_ones(1, 3, 9), x.new_ones(2, 3, 4), x.new_ones(2), [1], [0], [1], False, [0], 1)
    yield _call("linear", x, x.new_ones(3, 8), x.new_ones(3))
    yield _call("matmul", x, x.new_ones(8, 3))


def _random(x: torch.Tensor) -> Iterator[Signature]:
    yield _call("native_dropout", x, 0.5, True)
    yield _call("uniform_", x)
    yield _call("normal_", x)
    yield _call("exponential_", x)
    yield _call("bernoulli_.float", x)
    yield _call("multinomial", x, 2)


def _integers() -> Iterator[Signature]:
    numbers = torch.tensor([[5, 3, 3, 1], [2, 2, 7, 0]])
    for dtype in (torch.int64, torch.int32):
        n = numbers.to(dtype)
        yield _call("_unique2", n, True, True, True)
        yield _call("bitwise_right_shift.Tensor", n, torch.ones((), dtype=dtype))
        yield _call("bitwise_left_shift.Tensor", n, torch.ones_like(n))
        yield _call("remainder.Tensor", n, torch.full_like(n, 3))
        yield _call("floor_divide", n, torch.full_like(n, 3))
        yield _call("random_", n)
    yield _call("cumsum", numbers > 2, -1)
    yield _call("sum", torch.ones(16, dtype=torch.uint8), dtype=torch.uint8)
    yield _call("sum", torch.ones(16, dtype=torch.uint8))
    yield _call("nonzero", numbers > 2)
    yield _call("_local_scalar_dense", torch.ones((), dtype=torch.int64))
