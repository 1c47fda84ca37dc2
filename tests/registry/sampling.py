"""Random constraints, calls and implementations, for the property tests of the registry."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import strategies as st

from day0.implementation import (
    Argument,
    Constraints,
    DtypeName,
    Implementation,
    Limit,
    TensorFacts,
    TensorLimit,
)
from day0.records import ListValue, ScalarValue, Signature, TensorValue, Value
from day0.registry.constraints import refuse_call
from day0.registry.contract import contract_version
from day0.registry.schemas import Parameter, call_of, parameters_of

OPERATORS = (
    "aten::topk",
    "aten::cat",
    "aten::histc",
    "day0::topk_tokens",
    "day0::attention_residual",
    "day0::mxfp4_decode",
    "day0::sparse_mla_decode",
)
DTYPES = ("float32", "bfloat16", "int32")
SIZES = (0, 1, 2, 3, 4, 6, 8)
TEXTS = ("low_first", "high_first", "plain")

dtype_sets = st.frozensets(st.sampled_from(DTYPES), max_size=2)
flags = st.sampled_from((None, None, None, True, False))


@st.composite
def size_limits(draw: st.DrawFn) -> Limit:
    low, high = sorted((draw(st.sampled_from(SIZES)), draw(st.sampled_from(SIZES))))
    return draw(
        st.sampled_from(
            (
                Limit(at_least=low),
                Limit(at_most=high),
                Limit(at_least=low, at_most=high),
                Limit(multiple_of=draw(st.sampled_from((2, 3, 4)))),
                Limit(multiple_of=2, at_least=low, at_most=high),
                Limit(one_of=(low, high)),
            )
        )
    )


@st.composite
def tensor_limits(draw: st.DrawFn, required: bool = True) -> TensorLimit:
    low = draw(st.integers(0, 2))
    return TensorLimit(
        dtypes=draw(dtype_sets),
        min_rank=low,
        max_rank=draw(st.sampled_from((None, low, low + 1))),
        sizes=draw(st.dictionaries(st.integers(-2, 1), size_limits(), max_size=2)),
        contiguous=draw(flags),
        required=required and draw(st.booleans()),
    )


@st.composite
def value_limits(draw: st.DrawFn, one: Parameter) -> Limit:
    if one.is_tensor:
        return Limit(one_of=(None,))
    if "bool" in one.type:
        return Limit(one_of=(draw(st.booleans()),))
    if "ScalarType" in one.type:
        return Limit(one_of=tuple(sorted(draw(st.frozensets(st.sampled_from(DTYPES), min_size=1)))))
    if "str" in one.type:
        return Limit(one_of=tuple(sorted(draw(st.frozensets(st.sampled_from(TEXTS), min_size=1)))))
    return draw(size_limits())


@st.composite
def constraints(draw: st.DrawFn, op: str, depth: int = 1) -> Constraints:
    parameters = parameters_of(op)
    names = [one.name for one in parameters if one.is_tensor]
    arguments: dict[str | int, Limit | TensorLimit] = {}
    for place, one in enumerate(parameters):
        if draw(st.integers(0, 2)):
            continue
        is_value = not one.is_tensor or (one.is_optional and draw(st.booleans()))
        key = one.name if draw(st.booleans()) else place
        arguments[key] = draw(value_limits(one)) if is_value else draw(tensor_limits())
    dims = st.tuples(st.sampled_from(names), st.integers(-2, 1))
    low = draw(st.sampled_from((0, 0, 0, 1, 2)))
    rarely = draw(st.integers(0, 3))
    return Constraints(
        dtypes=draw(dtype_sets) if rarely else frozenset(),
        first_dtype=draw(dtype_sets) if rarely == 1 else frozenset(),
        min_rank=low,
        max_rank=draw(st.sampled_from((None, None, low, low + 1))),
        contiguous=draw(flags),
        multiple_of=draw(st.dictionaries(st.integers(0, 2), st.sampled_from((2, 3)), max_size=1))
        if rarely == 2
        else {},
        arguments=arguments,
        equal=tuple(draw(st.lists(st.tuples(dims, dims), max_size=1))),
        any_of=tuple(draw(st.lists(constraints(op, depth - 1), max_size=2))) if depth else (),
    )


def implementation(
    op: str,
    *,
    id: str = "a",
    version: str = "1.0",
    namespace: str = "base",
    rank: int = 100,
    limits: Constraints | None = None,
    source_hash: str = "sha256:1",
    origin: str = "",
) -> Implementation:
    """Return an implementation that takes any arguments."""
    return Implementation(
        operator=op,
        contract=contract_version(op),
        namespace=namespace,
        id=id,
        version=version,
        kind="kernel",
        run=lambda *args, **kwargs: None,
        why="because",
        rank=rank,
        constraints=limits or Constraints(),
        origin=origin or f"{id}.py:1",
        source_hash=source_hash,
    )


def random_call(op: str, rng: random.Random) -> Signature:
    """Return a call of small sizes that torch's schema allows, whether or not the operator would take it."""
    args: list[Value] = []
    kwargs: dict[str, Value] = {}
    for one in parameters_of(op):
        value = _tensors(one, rng) if one.is_tensor else _plain(one, rng)
        if one.kwarg_only:
            kwargs[one.name] = value
        else:
            args.append(value)
    return Signature(op=op, args=tuple(args), kwargs=kwargs)


def _tensors(one: Parameter, rng: random.Random) -> Value:
    if one.is_optional and rng.random() < 0.5:
        return ScalarValue(type="none", value="None")
    if one.is_list:
        return ListValue(items=tuple(_tensor(rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))))
    return _tensor(rng)


def _tensor(rng: random.Random) -> TensorValue:
    shape = [rng.choice(SIZES) for _ in range(rng.choice((0, 1, 2, 2, 3)))]
    step, stride = rng.choice((1, 1, 2)), []
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return TensorValue(shape=tuple(shape), dtype=rng.choice(DTYPES), stride=tuple(reversed(stride)))


def _plain(one: Parameter, rng: random.Random) -> ScalarValue:
    if "bool" in one.type:
        return ScalarValue(type="bool", value=str(rng.random() < 0.5))
    if "ScalarType" in one.type:
        return ScalarValue(type="dtype", value=rng.choice(DTYPES))
    if "str" in one.type:
        return ScalarValue(type="str", value=rng.choice(TEXTS))
    if one.type in ("float", "number"):
        return ScalarValue(type="float", value=repr(rng.choice((0.0, 0.5, 1.0, 2.0, 3.5, 6.0))))
    return ScalarValue(type="int", value=str(rng.choice((-1, *SIZES))))


def constraints_that_take(call: Signature, rng: random.Random, depth: int = 1) -> Constraints:
    """Return random constraints, close around a call and satisfied by it."""
    named = call_of(call, "cpu")
    tensors = named.tensors
    arguments: dict[str | int, Limit | TensorLimit] = {}
    parameters = parameters_of(call.op)
    for place, one in enumerate(parameters):
        if rng.random() < 0.5:
            arguments[rng.choice((one.name, place))] = _limit_that_takes(one, named.arguments[one.name], rng)
    ranks = [len(tensor.shape) for tensor in tensors]
    layouts = {tensor.contiguous for tensor in tensors}
    ends = {place: tensor.shape[-1] for place, tensor in enumerate(tensors) if tensor.shape}
    dtypes = {tensor.dtype for tensor in tensors} | {
        str(value) for value in named.arguments.values() if isinstance(value, DtypeName)
    }
    below: tuple[Constraints, ...] = ()
    if depth and rng.random() < 0.3:
        below = tuple(constraints_that_take(one, rng, 0) for one in (random_call(call.op, rng), call))
    return Constraints(
        dtypes=frozenset(dtypes | {rng.choice(DTYPES)}) if rng.random() < 0.4 else frozenset(),
        first_dtype=frozenset({tensors[0].dtype}) if tensors and rng.random() < 0.2 else frozenset(),
        min_rank=rng.randint(0, min(ranks, default=2)),
        max_rank=rng.choice((None, max(ranks, default=0), max(ranks, default=0) + 1)),
        contiguous=layouts.pop() if len(layouts) == 1 and rng.random() < 0.3 else None,
        multiple_of={place: _divisor(size, rng) for place, size in ends.items() if rng.random() < 0.2},
        arguments=arguments,
        equal=_equal_pairs(call, rng),
        any_of=below,
    )


def _divisor(size: int, rng: random.Random) -> int:
    return rng.choice([one for one in (1, 2, 3, 4, 6, 8) if size % one == 0])


def _equal_pairs(call: Signature, rng: random.Random) -> tuple[tuple[tuple[str, int], tuple[str, int]], ...]:
    names = [one.name for one in parameters_of(call.op) if one.is_tensor]
    pairs = [((rng.choice(names), rng.randint(-2, 1)), (rng.choice(names), rng.randint(-2, 1))) for _ in range(3)]
    return tuple(pair for pair in pairs if not refuse_call(Constraints(equal=(pair,)), call_of(call, "cpu")))


def _limit_that_takes(one: Parameter, value: Argument, rng: random.Random) -> Limit | TensorLimit:
    tensors = [part for part in (value if isinstance(value, tuple) else (value,)) if isinstance(part, TensorFacts)]
    if one.is_tensor:
        if value is None and rng.random() < 0.5:
            return Limit(one_of=(None,))
        return _tensor_limit_that_takes(tensors, rng)
    plain = value  # no tensor goes there
    if isinstance(plain, (int, float)) and not isinstance(plain, bool) and rng.random() < 0.8:
        return _number_limit_that_takes(plain, rng)
    return Limit(one_of=(plain,))  # type: ignore[arg-type]  # as above


def _number_limit_that_takes(value: float, rng: random.Random) -> Limit:
    low = value - rng.randint(0, 2) if rng.random() < 0.6 else None
    high = value + rng.randint(0, 2) if rng.random() < 0.6 else None
    whole = int(value) if value == int(value) else 1
    return Limit(at_least=low, at_most=high, multiple_of=_divisor(whole, rng) if value == whole else 1)


def _tensor_limit_that_takes(tensors: list[TensorFacts], rng: random.Random) -> TensorLimit:
    ranks = [len(one.shape) for one in tensors]
    layouts = {one.contiguous for one in tensors}
    sizes: dict[int, Limit] = {}
    for dim in range(-min(ranks, default=0), min(ranks, default=0)):
        found = {one.shape[dim] for one in tensors}
        if rng.random() < 0.5:
            limit = _number_limit_that_takes(found.pop(), rng) if len(found) == 1 else Limit(one_of=tuple(found))
            sizes[dim] = replace(limit, at_least=max(limit.at_least or 0, 0))
    return TensorLimit(
        dtypes=frozenset({one.dtype for one in tensors} | {rng.choice(DTYPES)}) if rng.random() < 0.5 else frozenset(),
        min_rank=rng.randint(0, min(ranks, default=2)),
        max_rank=rng.choice((None, max(ranks, default=0))),
        sizes=sizes,
        contiguous=layouts.pop() if len(layouts) == 1 and rng.random() < 0.3 else None,
        required=bool(tensors) and rng.random() < 0.5,
    )
