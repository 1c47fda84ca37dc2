"""Calls to probe where no trace says which ones matter: ordinary operators, by dtype and rank, small."""

from __future__ import annotations

from collections.abc import Iterator

from day0.records import ListValue, ScalarValue, Signature, TensorValue, Value
from day0.reference_ops.signatures import signature_id

__all__ = ["suite"]

FLOATS = ("float32", "bfloat16", "float16", "float64")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
NUMBERS = FLOATS + INTEGERS
ALL = (*NUMBERS, "bool")
COMPLEX = ("complex64",)

S2, S3 = (4, 8), (2, 4, 8)

# Name, dtypes, then arguments: `T` is a tensor of the dtype and of each rank, others stand as they are.
_ELEMENTWISE_FLOAT = [
    "exp",
    "log",
    "log1p",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tan",
    "tanh",
    "sigmoid",
    "silu",
    "gelu",
    "erf",
    "expm1",
    "exp2",
    "log2",
    "reciprocal",
    "atan",
    "sinh",
    "cosh",
    "hardswish",
    "hardsigmoid",
    "elu",
    "softplus",
    "mish",
    "celu",
    "selu",
    "relu6",
    "logit",
    "frac",
    "trunc",
]
_ELEMENTWISE = ["abs", "neg", "sign", "relu", "square"]
_BINARY = [
    "add.Tensor",
    "sub.Tensor",
    "mul.Tensor",
    "maximum",
    "minimum",
    "eq.Tensor",
    "ne.Tensor",
    "lt.Tensor",
    "ge.Tensor",
]
_BINARY_FLOAT = ["div.Tensor", "pow.Tensor_Tensor", "atan2", "fmod.Tensor"]
_BITWISE = ["bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_xor.Tensor"]


def suite() -> tuple[Signature, ...]:
    """Return the calls, each once."""
    return tuple({signature_id(one): one for one in _all()}.values())


def _all() -> Iterator[Signature]:
    for rank in (S2, S3):
        yield from _elementwise(rank)
        yield from _reductions(rank)
        yield from _moves(rank)
    yield from _selections()
    yield from _matmuls()
    yield from _layers()
    yield from _scans_and_counts()


def _elementwise(shape: tuple[int, ...]) -> Iterator[Signature]:
    for names, dtypes, count in (
        (_ELEMENTWISE_FLOAT, FLOATS, 1),
        (_ELEMENTWISE, FLOATS + INTEGERS[:4], 1),
        (_BINARY, NUMBERS, 2),
        (_BINARY_FLOAT, FLOATS, 2),
        (_BITWISE, (*INTEGERS, "bool"), 2),
        (["mul.Tensor", "add.Tensor"], COMPLEX, 2),
        (["floor", "ceil", "round", "isnan", "isinf"], FLOATS, 1),
        (["logical_not", "bitwise_not"], ("bool",), 1),
    ):
        for name in names:
            for dtype in dtypes:
                yield _call(name, *[_tensor(dtype, shape)] * count)
    for dtype in NUMBERS:
        yield _call("clamp", _tensor(dtype, shape), 1, 3)
        yield _call("where.self", _tensor("bool", shape), _tensor(dtype, shape), _tensor(dtype, shape))
        yield _call("masked_fill.Scalar", _tensor(dtype, shape), _tensor("bool", shape), 1)
        yield _call("add_.Tensor", _tensor(dtype, shape), _tensor(dtype, shape))
        yield _call("fill_.Scalar", _tensor(dtype, shape), 1)
    for dtype in FLOATS:
        yield _call("lerp.Scalar", _tensor(dtype, shape), _tensor(dtype, shape), 0.25)
        yield _call("addcmul", *[_tensor(dtype, shape)] * 3)


def _reductions(shape: tuple[int, ...]) -> Iterator[Signature]:
    for dtype in NUMBERS:
        value = _tensor(dtype, shape)
        yield _call("sum.dim_IntList", value, [-1], True)
        yield _call("amax", value, [-1], False)
        yield _call("max.dim", value, -1)
        yield _call("argmax", value, -1)
    for dtype in FLOATS:
        value = _tensor(dtype, shape)
        yield _call("mean.dim", value, [-1], True)
        yield _call("var.correction", value, [-1])
        yield _call("prod.dim_int", value, -1)
        yield _call("linalg_vector_norm", value, 2.0, [-1])
        yield _call("logsumexp", value, [-1])
        yield _call("_softmax", value, -1, False)
        yield _call("_log_softmax", value, -1, False)
    for name in ("any.dim", "all.dim"):
        yield _call(name, _tensor("bool", shape), -1)


def _moves(shape: tuple[int, ...]) -> Iterator[Signature]:
    for dtype in ALL:
        value = _tensor(dtype, shape)
        yield _call("clone", value)
        yield _call("cat", [value, value], 1)
        yield _call("flip", value, [-1])
        yield _call("roll", value, [1], [-1])
        yield _call("index_select", value, 0, _tensor("int64", (2,), (0, 1)))
        yield _call("gather", value, -1, _tensor("int64", shape, (0, 1)))
        yield _call("index.Tensor", value, [_tensor("int64", (3,), (0, 1))])
        yield _call("constant_pad_nd", value, [1, 1], 0)
        yield _call("eq.Scalar", value, 1)
    for dtype in NUMBERS:
        value = _tensor(dtype, shape)
        yield _call("scatter.src", value, -1, _tensor("int64", shape, (0, 0)), value)
        yield _call("tril", value)
        yield _call("repeat", value, [2] * len(shape))


def _selections() -> Iterator[Signature]:
    for dtype in NUMBERS:
        for shape in (S2, S3):
            value = _tensor(dtype, shape)
            yield _call("topk", value, 3)
            yield _call("sort", value)
            yield _call("sort.stable", value, stable=True)
        yield _call("nonzero", _tensor(dtype, S2))
        yield _call("masked_select", _tensor(dtype, S2), _tensor("bool", S2))
        yield _call("searchsorted.Tensor", _tensor(dtype, (8,), (3, 3)), _tensor(dtype, (4,), (3, 3)))
    yield _call("embedding", _tensor("bfloat16", (8, 4)), _tensor("int64", (2, 3), (0, 7)))
    yield _call("embedding", _tensor("float32", (8, 4)), _tensor("int64", (2, 3), (0, 7)))


def _matmuls() -> Iterator[Signature]:
    for dtype in FLOATS:
        yield _call("mm", _tensor(dtype, (16, 32)), _tensor(dtype, (32, 16)))
        yield _call("mm", _tensor(dtype, (16, 32)), _tensor(dtype, (32, 16), strides=(1, 32)))
        yield _call("mm", _tensor(dtype, (5, 7)), _tensor(dtype, (7, 3)))
        yield _call("addmm", _tensor(dtype, (16,)), _tensor(dtype, (16, 32)), _tensor(dtype, (32, 16)))
        yield _call("bmm", _tensor(dtype, (2, 16, 32)), _tensor(dtype, (2, 32, 16)))
        yield _call("baddbmm", _tensor(dtype, (2, 4, 4)), _tensor(dtype, (2, 4, 8)), _tensor(dtype, (2, 8, 4)))
        yield _call("mv", _tensor(dtype, (4, 8)), _tensor(dtype, (8,)))
        yield _call("dot", _tensor(dtype, (8,)), _tensor(dtype, (8,)))
    yield _call(
        "_grouped_mm",
        _tensor("bfloat16", (8, 16)),
        _tensor("bfloat16", (2, 16, 32), strides=(512, 1, 16)),
        offs=_tensor("int32", (2,), (4, 4)),
    )
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        yield _call(
            "_scaled_mm",
            _tensor(dtype, (16, 32)),
            _tensor("float8_e4m3fn", (32, 16), strides=(1, 32)),
            _tensor("float32", ()),
            _tensor("float32", ()),
            out_dtype=_dtype("bfloat16"),
        )


def _layers() -> Iterator[Signature]:
    for dtype in FLOATS:
        value, weight = _tensor(dtype, (2, 3, 8)), _tensor(dtype, (8,))
        yield _call("native_layer_norm", value, [8], weight, weight, 1e-5)
        yield _call("native_group_norm", _tensor(dtype, (2, 4, 8)), None, None, 2, 4, 8, 2, 1e-5)
        yield _call("glu", value)
        image = _tensor(dtype, (1, 3, 8, 8))
        yield _call("max_pool2d_with_indices", image, [2, 2])
        yield _call("avg_pool2d", image, [2, 2])
        yield _call("upsample_nearest2d", image, [16, 16])
        heads = _tensor(dtype, (1, 2, 4, 8))
        yield _call("_scaled_dot_product_attention_math", heads, heads, heads)


def _scans_and_counts() -> Iterator[Signature]:
    for dtype in NUMBERS:
        yield _call("cumsum", _tensor(dtype, S2), -1)
        yield _call("cumprod", _tensor(dtype, S2), -1)
        yield _call("histc", _tensor(dtype, (32,), (0, 7)), 8, 0, 7)
    yield _call("bincount", _tensor("int64", (32,), (0, 7)))
    yield _call("arange", 8, device=ScalarValue(type="device", value="device"))
    yield _call("full", [2, 3], 1.5, device=ScalarValue(type="device", value="device"))


def _call(name: str, *args: object, **kwargs: object) -> Signature:
    return Signature(
        op=f"aten::{name}",
        args=tuple(_value(one) for one in args),
        kwargs={key: _value(one) for key, one in kwargs.items()},
    )


def _value(value: object) -> Value:
    if isinstance(value, (TensorValue, ListValue, ScalarValue)):
        return value
    if isinstance(value, list):
        return ListValue(items=tuple(_value(one) for one in value))
    if value is None:
        return ScalarValue(type="none", value="None")
    if isinstance(value, bool):
        return ScalarValue(type="bool", value=str(value))
    if isinstance(value, int):
        return ScalarValue(type="int", value=str(value))
    return ScalarValue(type="float", value=repr(value))


def _dtype(name: str) -> ScalarValue:
    return ScalarValue(type="dtype", value=name)


def _tensor(
    dtype: str, shape: tuple[int, ...], range_: tuple[int, int] | None = None, *, strides: tuple[int, ...] | None = None
) -> TensorValue:
    rows = [1]
    for size in reversed(shape[1:]):
        rows.append(rows[-1] * size)
    whole = "int" in dtype
    return TensorValue(
        shape=shape,
        dtype=dtype,
        stride=strides or (tuple(reversed(rows)) if shape else ()),
        range=(range_ or (1, 5)) if whole else None,
    )
