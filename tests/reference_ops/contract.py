"""What every contract has to hold: one function for each promise, each of which asserts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from day0.analyzers.judging.exact import exact
from day0.analyzers.judging.floats import floats, relative_l2
from day0.analyzers.judging.index_sets import index_sets
from day0.analyzers.judging.non_finite import non_finite
from day0.errors import Day0Error
from day0.reference_ops._spec import Operator, Sample
from day0.reference_ops.signatures import tensors_in

Change = Callable[[torch.Tensor], torch.Tensor]
HALF = (torch.bfloat16, torch.float16)
ROUNDED = ("floats", "routes", "quantised")
"""Comparisons of results that rounding moves."""

CONDITION = {"day0::rope_2d": 20.0}
"""How much more than a plain sum an operator may lose: angles of 511 radians leave float32 3e-5 of a turn."""

ROUNDS_INSIDE = frozenset({"day0::rms_norm_quantise"})
"""Contracts that round to a half type before the end: a rounding there moves a power of two, and every code with it.
Those are the same bits as their parts one after the other, which their own tests say.
"""


def schemas(operator: Operator) -> list[torch.FunctionSchema]:
    """Our own schema, or those of all of torch's overloads that return new tensors or write to `self`."""
    if operator.schema:
        return [torch._C.parse_schema(f"{operator.name}{operator.schema}")]
    packet = getattr(torch.ops.aten, operator.name.removeprefix("aten::"))
    found = [getattr(packet, name)._schema for name in packet.overloads() if "out" not in name]
    return [one for one in found if not any(argument.is_out for argument in one.arguments)]


def written(operator: Operator) -> set[str]:
    """Names of the arguments that the schema says are written to."""
    return {
        argument.name
        for one in schemas(operator)
        for argument in one.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    }


def written_positions(operator: Operator) -> set[int]:
    """Places of those arguments."""
    names = written(operator)
    return {place for one in schemas(operator) for place, a in enumerate(one.arguments) if a.name in names}


def change(value: Any, how: Change, dtype: torch.dtype | None = None) -> Any:
    """Return arguments with every tensor changed, and every floating dtype argument replaced where `dtype` is given."""
    if isinstance(value, torch.Tensor):
        return how(value)
    if isinstance(value, torch.dtype) and value.is_floating_point and dtype is not None:
        return dtype
    if isinstance(value, (list, tuple)):
        return type(value)(change(item, how, dtype) for item in value)
    if isinstance(value, dict):
        return {name: change(item, how, dtype) for name, item in value.items()}
    return value


def copied(sample: Sample) -> Sample:
    """The same arguments in memory of their own, strides and shared storage kept."""
    made: dict[int, torch.Tensor] = {}

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        base = made.setdefault(storage.data_ptr(), torch.empty(0, dtype=tensor.dtype).set_(storage.clone()))
        return base.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    return replace(sample, args=change(sample.args, copy), kwargs=change(sample.kwargs, copy))


def results(operator: Operator, sample: Sample) -> list[torch.Tensor]:
    """Call the reference; return its results and the arguments it was told to write to."""
    with torch.no_grad():
        out = operator.reference(*sample.args, **sample.kwargs)
    return [*tensors_in(out), *(sample.args[place] for place in sorted(written_positions(operator)))]


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Shape, dtype and every bit; one NaN is as good as another."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.is_floating_point() and left.element_size() > 1:
        return bool(((left == right) & (left.signbit() == right.signbit()) | (left.isnan() & right.isnan())).all())
    if left.is_floating_point():
        left, right = left.view(torch.uint8), right.view(torch.uint8)
    return torch.equal(left, right)


# --- (b) the reference agrees with itself in other dtypes


def in_dtype(operator: Operator, sample: Sample, dtype: torch.dtype) -> Sample | None:
    """The sample with its floats in another dtype; None where the contract does not take that.

    Some arguments are of one dtype whatever the others are, so the dtype of the first float goes first alone.
    """
    floats = [one for one in tensors_in((sample.args, sample.kwargs)) if one.is_floating_point() and one.itemsize > 1]
    if not floats:
        return sample if dtype == torch.float32 else None
    for chosen in ({floats[0].dtype}, {one.dtype for one in floats}):

        def cast(tensor: torch.Tensor, chosen: set[torch.dtype] = chosen) -> torch.Tensor:
            return tensor.to(dtype, copy=True) if tensor.dtype in chosen else tensor.clone()

        made = replace(sample, args=change(sample.args, cast, dtype), kwargs=change(sample.kwargs, cast, dtype))
        try:
            with torch.no_grad():
                operator.reference(*copied(made).args, **copied(made).kwargs)
        except (Day0Error, NotImplementedError, RuntimeError):
            continue
        return made
    return None


def widened(sample: Sample) -> Sample:
    """The sample in float64, eight-bit floats apart: those are codes."""

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.double() if tensor.is_floating_point() and tensor.itemsize > 1 else tensor.clone()

    return replace(
        sample,
        args=change(sample.args, widen, torch.float64),
        kwargs=change(sample.kwargs, widen, torch.float64),
    )


def check_precision(operator: Operator, sample: Sample, dtype: torch.dtype) -> bool:
    """Compare a result in one dtype with the one in float64; return whether the contract takes that dtype."""
    made = in_dtype(operator, sample, dtype)
    if made is None:
        return False
    if operator.name in ROUNDS_INSIDE and dtype in HALF:
        return True
    golden = results(operator, widened(made))
    got = results(operator, copied(made))
    terms = max((max(one.shape, default=1) for one in tensors_in((made.args, made.kwargs))), default=1)
    for place, (mine, gold) in enumerate(zip(got, golden, strict=True)):
        where = f"{operator.name} {sample.kind} {dtype}, result {place}"
        assert mine.shape == gold.shape, where
        if operator.comparison.startswith("index") and place == operator.index_output:
            _check_choice(operator, made, mine, gold, where)
        elif operator.comparison not in ROUNDED or not mine.is_floating_point():
            verdict = exact(mine, gold.to(mine.dtype))
            assert verdict.passed, f"{where}: {verdict}"
        else:
            _check_floats(operator, mine, gold, terms, where)
    return True


def _check_choice(operator: Operator, sample: Sample, mine: torch.Tensor, gold: torch.Tensor, where: str) -> None:
    dim = operator.choice_dim(sample.args, sample.kwargs) if operator.choice_dim else -1
    scores = sample.args[0].movedim(dim, -1).double()
    verdict = index_sets(mine.movedim(dim, -1), scores, gold.movedim(dim, -1), margin=0.0)
    assert verdict.passed, f"{where}: {verdict}"


def _check_floats(operator: Operator, mine: torch.Tensor, gold: torch.Tensor, terms: int, where: str) -> None:
    verdict = non_finite(mine, gold.to(mine.dtype))
    assert verdict.passed, f"{where}: {verdict}"
    # Without a yardstick the ceiling would be the limit; without a ceiling the floor is: rounding, ULPs, the sum.
    tight = replace(operator.tolerance, ceiling=0.0)
    condition = CONDITION.get(operator.name, 1.0)
    verdict = floats(mine, gold.double(), None, tight, terms=max(1, terms), condition=condition)
    assert verdict.passed, f"{where}: {verdict}"


# --- (c) what is promised without values


def check_fake(operator: Operator, sample: Sample) -> None:
    """Shapes, dtypes and strides on meta are those of the real results."""
    real = operator.reference(*copied(sample).args, **copied(sample).kwargs)
    on_meta = [change(part, lambda one: one.to("meta")) for part in (sample.args, sample.kwargs)]
    call = operator.fake or getattr(torch.ops.aten, operator.name.removeprefix("aten::"))
    try:
        told = call(*on_meta[0], **on_meta[1])
    except NotImplementedError:  # how many places a mask keeps is a matter of its values: torch refuses to guess
        assert not operator.schema, operator.name
        return
    assert type(told) is type(real) or isinstance(told, (list, tuple)) == isinstance(real, (list, tuple))
    pairs = list(zip(tensors_in(told), tensors_in(real), strict=True))
    for place, (promise, result) in enumerate(pairs):
        where = f"{operator.name} {sample.kind}, result {place}"
        free = place in operator.free_dtypes
        assert promise.device.type == "meta", where
        assert (promise.shape, promise.dtype) == (result.shape, promise.dtype if free else result.dtype), where
        if operator.schema:
            assert result.is_contiguous() and promise.is_contiguous(), f"{where}: {result.stride()}"


def check_leading(operator: Operator, sample: Sample) -> bool:
    """One more dimension in front, of any of the tensors: refused by the contract, or a batch of one.

    Return whether some of them may have it.
    """
    places = [place for place, value in enumerate(sample.args) if isinstance(value, torch.Tensor)]
    taken = False
    for count in range(1, len(places) + 1):
        for chosen in itertools.combinations(places, count):
            args = [value[None] if place in chosen else value for place, value in enumerate(sample.args)]
            try:
                got = tensors_in(operator.reference(*args, **sample.kwargs))
            except Day0Error as error:
                assert "expected " in error.what, operator.name
                continue
            for mine, plain in zip(got, results(operator, copied(sample)), strict=True):
                where = f"{operator.name} with one more dimension for {chosen}"
                assert mine.shape == (1, *plain.shape), where
                assert same_bits(mine[0], plain), where
            taken = True
    return taken


# --- (d) memory


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill uninitialised memory: NaN for floats, the largest number for integers."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]  # set on the module
    )
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]  # set on the module
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = before[2]  # type: ignore[attr-defined]  # see above


def check_memory(operator: Operator, sample: Sample) -> None:
    """Poison stays out, arguments stay as they are, results have memory of their own, and a second call says the same.

    What the schema says is written to may change.
    """
    clean = copied(sample)
    first = results(operator, clean)
    again = results(operator, copied(sample))
    with poisoned():
        dirty = results(operator, copied(sample))
    for place, (one, two, three) in enumerate(zip(first, again, dirty, strict=True)):
        assert same_bits(one, two), f"{operator.name} {sample.kind}, result {place}: another result at the second call"
        assert same_bits(one, three), f"{operator.name} {sample.kind}, result {place}: poison came through"
    for place, (before, after) in enumerate(zip(sample.args, clean.args, strict=True)):
        if place not in written_positions(operator):
            for left, right in zip(tensors_in(before), tensors_in(after), strict=True):
                assert same_bits(left, right), f"{operator.name} {sample.kind}: argument {place} was written to"
    _check_storage(operator, clean, first)


def _check_storage(operator: Operator, sample: Sample, returned: list[torch.Tensor]) -> None:
    places = written_positions(operator)
    seen = {one.untyped_storage().data_ptr() for one in tensors_in((sample.args, sample.kwargs)) if one.numel()}
    if places:  # these return what they wrote to, or nothing
        return
    for place, result in enumerate(returned):
        if result.numel():
            address = result.untyped_storage().data_ptr()
            assert address not in seen, f"{operator.name} {sample.kind}: result {place} shares its memory"
            seen.add(address)


GUARD = 5


def _guarded(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a view with offset and turned strides, every other element of a poisoned row; the row; and a mask of it."""
    row = torch.zeros(2 * tensor.numel() + 2 * GUARD, dtype=tensor.dtype)
    if tensor.dtype != torch.bool:
        row.view(torch.uint8).fill_(255 if tensor.is_floating_point() else 0x6B)
    strides = [0] * tensor.dim()
    step = 2
    for dim, size in enumerate(tensor.shape):
        strides[dim] = step
        step *= max(1, size)
    view = row.as_strided(tensor.shape, strides, GUARD)
    view.copy_(tensor)
    own = torch.zeros(row.shape, dtype=torch.bool)
    own.as_strided(tensor.shape, strides, GUARD).fill_(True)
    return view, row, own


def check_guards(operator: Operator, sample: Sample) -> None:
    """Inputs inside larger poisoned memory, with other strides and an offset: same results, guards untouched."""
    expected = results(operator, copied(sample))
    rows: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def guard(tensor: torch.Tensor) -> torch.Tensor:
        view, row, own = _guarded(tensor)
        rows.append((row, row.clone(), own))
        return view

    made = replace(sample, args=change(sample.args, guard), kwargs=change(sample.kwargs, guard))
    got = results(operator, made)
    for place, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        where = f"{operator.name} {sample.kind}, result {place} of inputs with other strides"
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype, where
        assert mine.is_contiguous() or not operator.schema or "!" in operator.schema, (
            f"{where}: strides {mine.stride()} are not those of meta"
        )
        if operator.comparison in ROUNDED and mine.is_floating_point():
            terms = max((max(one.shape, default=1) for one in tensors_in((sample.args, sample.kwargs))), default=1)
            _check_floats(operator, mine, theirs, max(1, terms), where)
        else:
            assert same_bits(mine.contiguous(), theirs.contiguous()), where
    for row, before, own in rows:
        assert same_bits(row[~own], before[~own]), f"{operator.name} {sample.kind}: guard bytes were written to"


# --- (f) what people and the trace read


def check_words(operator: Operator) -> None:
    """Nothing that people read is empty."""
    for name in ("summary", "mathematics", "source", "verified_against"):
        assert getattr(operator, name).strip(), f"{operator.name}: {name} is empty"
    assert operator.tolerance.reason.strip(), operator.name
    if operator.schema:  # torch's own have their attributes in torch's documentation
        assert operator.attributes, f"{operator.name}: no attributes"
    for attribute in operator.attributes:
        assert attribute.name.strip() and attribute.meaning.strip(), operator.name


# --- (g) the quantised reference


def check_quantised(operator: Operator, sample: Sample) -> None:
    """It gives results of the same kind, near the reference, and on real shapes not the same."""
    if operator.quantised is None:
        return
    plain = tensors_in(operator.reference(*copied(sample).args, **copied(sample).kwargs))
    stored = tensors_in(operator.quantised(*copied(sample).args, **copied(sample).kwargs))
    changed = False
    for place, (one, other) in enumerate(zip(plain, stored, strict=True)):
        where = f"{operator.name} {sample.kind}, quantised result {place}"
        assert (one.shape, one.dtype) == (other.shape, other.dtype), where
        changed = changed or not same_bits(one, other)
        finite = one.isfinite()
        assert torch.equal(finite, other.isfinite()), where
        error = relative_l2(other[finite].double(), one[finite].double())
        assert error < 0.2 and not math.isnan(error), f"{where}: {error:.3g}"
    assert changed or sample.kind != "traced", f"{operator.name}: quantised changes nothing"
