"""PyTorch's own operator samples (OpInfo), run on the simulated device and compared with the CPU.

They were written by other people for other devices, so they try what we did not think of: shapes, views, dtypes,
keyword arguments. `sim` borrows the CPU's kernels, so nothing may differ but for another path through a composite.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from day0.devices.sim.state import STATE
from day0.devices.sim.wrap import on_device
from day0.errors import Day0Error
from day0.reference_ops.signatures import dtype_name

__all__ = ["DTYPES", "Outcome", "judge_operators", "operator_samples", "run_operator", "samples_of"]

Variant = Literal["call", "noncontiguous", "inplace", "out", "backward"]
Status = Literal["agrees", "differs", "refused", "not_run"]

DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16)

_FRESH = frozenset(
    [
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    ]
)
"""What they return has no values yet."""

_HOST_ARGUMENTS = frozenset({"tensor_split"})
"""Operators that take their arguments on the host, whatever the device of the input."""

_SEED = 7


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One sample of one operator."""

    operator: str
    """PyTorch's name of the samples: `nn_functional_linear`, `add`."""
    names: frozenset[str]
    """The operators of aten that the samples are of, without overload."""
    dtype: str
    variant: Variant
    number: int
    status: Status
    """`not_run`: the CPU refuses the sample too, or its layout is none that the device has."""
    detail: str = ""
    reached: frozenset[str] = frozenset()
    """The overloads that the device was asked for."""

    @property
    def label(self) -> str:
        """Return operator, variant, dtype and number of the sample."""
        return f"{self.operator} {self.variant} {self.dtype} {self.number}"


def operator_samples() -> tuple[Any, ...]:
    """Return PyTorch's OpInfo entries. The import takes seconds and 300 MB, so it happens here.

    Raises Day0Error if a package that PyTorch's own tests need is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.testing._internal.common_methods_invocations import op_db
    except ModuleNotFoundError as error:
        raise Day0Error(
            "OpInfo",
            f"PyTorch's test samples need the package '{error.name}'",
            hint=f"python -m pip install {error.name} (it is in the extra `dev`)",
        ) from None
    return tuple(op_db)


def samples_of(info: Any, dtype: torch.dtype, *, gradients: bool = False) -> Iterator[Any]:
    """Yield the samples of an operator on the CPU, the same ones each time."""
    torch.manual_seed(_SEED)
    yield from info.sample_inputs("cpu", dtype, requires_grad=gradients)


def run_operator(info: Any, *, seconds: float = 10.0, most: int | None = None) -> Iterator[Outcome]:
    """Run an operator's samples in every dtype and variant on the open device, at most `most` of each.

    Stops after the given processor time, between two samples.
    """
    end = time.process_time() + seconds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # operators say what they think of their samples
        for dtype in DTYPES:
            if dtype not in info.supported_dtypes("cpu"):
                continue
            for number, (variant, call, sample) in enumerate(_cases(info, dtype, most)):
                if time.process_time() > end:
                    return
                yield _run(info, dtype, variant, number, call, sample)


def _cases(info: Any, dtype: torch.dtype, most: int | None) -> Iterator[tuple[Variant, Callable[..., Any], Any]]:
    inplace = info.get_inplace()
    for sample in islice(samples_of(info, dtype), most):
        if info.is_factory_function:
            sample.kwargs["device"] = "cpu"
        yield "call", info.op, sample
        if dtype == torch.float32 and _strided(_given(sample)):
            yield "noncontiguous", info.op, sample.noncontiguous()
        if inplace is not None and not sample.broadcasts_input:
            yield "inplace", inplace, sample
        if info.supports_out:
            yield "out", info.op, sample
    if dtype == torch.float32 and info.supports_autograd:
        for sample in islice(samples_of(info, dtype, gradients=True), most):
            yield "backward", info.op, sample


def _given(sample: Any) -> Any:
    return sample.input, sample.args, sample.kwargs


def _strided(values: Any) -> bool:
    return all(one.layout == torch.strided for one in _tensors(values))


def _run(
    info: Any, dtype: torch.dtype, variant: Variant, number: int, call: Callable[..., Any], sample: Any
) -> Outcome:
    names = frozenset(f"aten::{name}" for name in (info.name, info.aten_name, *(one.name for one in info.aliases)))

    def outcome(status: Status, detail: str = "", reached: frozenset[str] = frozenset()) -> Outcome:
        return Outcome(
            operator=info.formatted_name,
            names=names,
            dtype=dtype_name(dtype),
            variant=variant,
            number=number,
            status=status,
            detail=detail,
            reached=reached,
        )

    given = _given(sample)
    if not _strided(given):
        return outcome("not_run", "another layout than strided")
    try:
        expected = _compute(call, variant, _copied(given, "cpu"))
    except _ERRORS as error:
        return outcome("not_run", _first_line(error))
    if not _strided(expected):
        return outcome("not_run", "another layout than strided")
    before, watch = STATE.counters.calls.copy(), _Watch()
    try:
        with watch:
            got = _compute(call, variant, _on_sim(info, given))
    except _ERRORS as error:
        return outcome("refused", _first_line(error), watch.seen | (STATE.counters.calls - before).keys())
    reached = watch.seen | (STATE.counters.calls - before).keys()
    strides = variant != "backward"  # gradients come laid out as their formula likes, on every device
    layout = _difference(got, expected, values=False, strides=strides)
    difference = layout or _difference(got, expected, values=info.name not in _FRESH, strides=strides)
    if difference and not layout and dtype.is_floating_point and variant in ("call", "noncontiguous", "backward"):
        difference = "" if _as_exact(got, expected, _golden(call, variant, given)) else difference
    return outcome("differs" if difference else "agrees", difference, reached)


_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, AttributeError, AssertionError, LookupError)
"""What torch raises; NotImplementedError is a RuntimeError, OutOfMemoryError too."""


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"


class _Watch(TorchDispatchMode):
    """Sees what makes tensors from nothing too; what composites call below, the device counts itself."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        self.seen: frozenset[str] = frozenset()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen |= {func.name()}
        return func(*args, **(kwargs or {}))


def _compute(call: Callable[..., Any], variant: Variant, given: Any) -> Any:
    first, args, kwargs = given
    torch.manual_seed(_SEED)
    if variant == "out":
        return _into(call, first, args, kwargs)
    if variant == "backward":
        return _with_gradients(call, first, args, kwargs)
    result = call(first, *args, **kwargs)
    return (result, given) if variant == "inplace" else result


def _into(call: Callable[..., Any], first: Any, args: Any, kwargs: Any) -> Any:
    """Write into tensors of the right shape, which must come back as the same objects."""
    shapes = call(first, *args, **kwargs)
    torch.manual_seed(_SEED)
    out = tree_map(lambda one: torch.zeros_like(one) if isinstance(one, torch.Tensor) else one, shapes)
    result = call(first, *args, **kwargs, out=out)
    same = all(one is two for one, two in zip(_tensors(result), _tensors(out), strict=True))
    return result, same


def _with_gradients(call: Callable[..., Any], first: Any, args: Any, kwargs: Any) -> Any:
    leaves = [one for one in _tensors((first, args, kwargs)) if one.requires_grad]
    result = call(first, *args, **kwargs)
    outputs = [one for one in _tensors(result) if one.requires_grad]
    if not outputs:
        return result
    torch.manual_seed(_SEED)
    seeds = [torch.ones_like(one) for one in outputs]
    return result, torch.autograd.grad(outputs, leaves, seeds, allow_unused=True)


def _on_sim(info: Any, given: Any) -> Any:
    if info.name in _HOST_ARGUMENTS:
        return (_copied(given[0], "sim"), *_copied(given[1:], "cpu"))
    return _copied(given, "sim")


def _golden(call: Callable[..., Any], variant: Variant, given: Any) -> Any:
    """Compute in float64, or return None where the operator cannot."""

    def widened(value: Any) -> Any:
        floats = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.detach().double().requires_grad_(value.requires_grad) if floats else value

    try:
        return _compute(call, variant, tree_map(widened, _copied(given, "cpu")))
    except _ERRORS:
        return None


def _as_exact(got: Any, expected: Any, golden: Any) -> bool:
    """Say whether the device, on another path than the CPU, is about as near to float64 as the CPU is: within thrice its error."""
    ours, theirs, exact = _tensors(got), _tensors(expected), _tensors(golden)
    if not len(ours) == len(theirs) == len(exact):
        return False
    for one, two, true in zip(ours, theirs, exact, strict=True):
        if not one.shape == two.shape == true.shape or one.dtype != two.dtype:
            return False
        error = (one.detach().cpu().double() - true.detach()).norm()
        if not error <= 3 * (two.detach().double() - true.detach()).norm():
            return False
    return True


def _tensors(values: Any) -> list[torch.Tensor]:
    return [one for one in tree_flatten(values)[0] if isinstance(one, torch.Tensor)]


def _copied(values: Any, device: str) -> Any:
    """Copy with strides, offsets and shared storages as they are."""
    storages: dict[int, torch.UntypedStorage] = {}

    def copied(value: Any) -> Any:
        if isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu"):
            return torch.device(device) if isinstance(value, torch.device) else device
        if not isinstance(value, torch.Tensor):
            return value
        learns, value = value.requires_grad, value.detach().resolve_conj().resolve_neg()
        storage = value.untyped_storage()
        mine = storages.setdefault(storage._cdata, storage.clone())
        fresh = torch.empty(0, dtype=value.dtype)
        fresh.set_(mine, value.storage_offset(), value.size(), value.stride())  # type: ignore[arg-type, unused-ignore]
        return (on_device(fresh) if device == "sim" else fresh).requires_grad_(learns)

    return tree_map(copied, values)


def _difference(got: Any, expected: Any, *, values: bool, strides: bool) -> str:
    """Say what differs between two results, or nothing."""
    (flat, shape), (flat_expected, shape_expected) = tree_flatten(got), tree_flatten(expected)
    if shape != shape_expected:
        return f"result is {shape}, expected {shape_expected}"
    for one, two in zip(flat, flat_expected, strict=True):
        found = _difference_of(one, two, values=values, strides=strides)
        if found:
            return found
    return ""


def _both_nan(got: Any, expected: Any) -> bool:
    return isinstance(got, float) and isinstance(expected, float) and math.isnan(got) and math.isnan(expected)


def _difference_of(got: Any, expected: Any, *, values: bool, strides: bool) -> str:
    if not isinstance(expected, torch.Tensor):
        same = got == expected or _both_nan(got, expected) or isinstance(expected, torch.device)
        return "" if same else f"result {got!r}, expected {expected!r}"
    if not isinstance(got, torch.Tensor):
        return f"result is a {type(got).__name__}, expected a tensor"
    facts = ("dtype", "shape", "requires_grad")
    for fact in facts:
        if getattr(got, fact) != getattr(expected, fact):
            return f"{fact} {getattr(got, fact)}, expected {getattr(expected, fact)}"
    if got.device.type != "sim":
        return f"result is on {got.device}"
    if strides and got.stride() != expected.stride():
        return f"strides {got.stride()}, expected {expected.stride()}"
    if not values:
        return ""
    try:
        torch.testing.assert_close(got.detach().cpu(), expected.detach(), equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return ""


def judge_operators(operators: Iterable[str], outcomes: Iterable[Outcome]) -> dict[str, str]:
    """Say of each `aten::name.overload` why it does not pass: nothing if all its samples agree.

    Its samples are those of its own entry in which the device was asked for it; without an entry, all others in
    which it was. An operator that no sample asks for has not been tried, so it does not pass either.
    """
    found: dict[str, list[Outcome]] = {name: [] for name in operators}
    for outcome in outcomes:
        for name in outcome.reached & found.keys():
            found[name].append(outcome)
    return {name: _judge(name.partition(".")[0], many) for name, many in found.items()}


def _judge(base: str, reaching: list[Outcome]) -> str:
    samples = [one for one in reaching if base in one.names or base.removesuffix("_") in one.names] or reaching
    wrong = next((one for one in samples if one.status != "agrees"), None)
    if wrong is not None:
        return f"{wrong.label}: {wrong.detail}"
    return "" if samples else "no sample asks for it"
