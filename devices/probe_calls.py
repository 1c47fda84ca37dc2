"""One call, tried: values for a signature, the same call on the CPU and on the device, and a rough comparison.

Rough is enough here: probing asks whether a kernel is there and computes what its name says. How exactly it does is
what `day0 check` asks.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from day0.devices.leaves import composite_kind, expand, is_metadata_view, syncs
from day0.devices.open import synchronize
from day0.devices.probe_record import Tried, Way
from day0.errors import USER_ERRORS, Day0Error
from day0.records import ListValue, Signature, TensorValue, Value
from day0.reference_ops.load import contract_of
from day0.reference_ops.signatures import dtype_name, materialise, resolve, tensor_values, tensors_in

__all__ = ["RUN_ERRORS", "fill_arguments", "holds_dtype", "moved_to", "try_call"]

RUN_ERRORS: tuple[type[BaseException], ...] = (*USER_ERRORS, Day0Error)
"""What torch, a kernel or a contract raises for one call."""

_LIMITS = {"float64": 1e-6, "float32": 1e-2, "float16": 3e-2, "bfloat16": 1e-1}
"""Largest relative error by dtype of the result. TF32 and reduced accumulation are differences, not faults."""
_OTHER_LIMIT = 3e-1

MAX_DEPTH = 6
"""Composites of composites: deeper than any in torch."""

_VALUELESS = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"})
_CHOOSE = frozenset({"max", "max_pool2d_with_indices", "median", "min", "mode", "sort", "topk"})
"""Results after the first are places: equal values may come in any order."""
_PLACES = frozenset({"argmax", "argmin", "argsort", "multinomial"})
_DIVIDES = frozenset({"div", "floor_divide", "fmod", "remainder", "div_", "floor_divide_"})
_BYTES_ONLY = ("float4_e2m1fn_x2", "float8_e8m0fnu")
_MISSING = re.compile(r"Could not run '(\w+::\w+)(?:\.\w+)?' with arguments from")

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def try_call(signature: Signature, device: torch.device, *, max_bytes: int) -> Tried:
    """Run one call on the device and on the CPU. Whatever it raises becomes part of the answer."""
    size = sum(_elements(value) * getattr(torch, value.dtype).itemsize for value in tensor_values(signature))
    if size > max_bytes:
        return Tried(status="skipped", reason=f"its tensors take {size >> 20:,} MiB, more than {max_bytes >> 20:,}")
    try:
        op, given = resolve(signature.op), fill_arguments(signature)
    except RUN_ERRORS as error:
        return Tried(status="skipped", reason=_first_line(error))
    expected = _reference(signature, op, given)
    if isinstance(expected, str):
        return Tried(status="skipped", reason=f"the CPU refuses it too, so there is nothing to compare: {expected}")
    try:
        with torch.no_grad():
            got = _results(op, moved_to(given, device))
            synchronize(device)
            back = [tensor.cpu() for tensor in got]
    except torch.OutOfMemoryError as error:
        return Tried(status="skipped", reason=_first_line(error))
    except RUN_ERRORS as error:
        missing = _MISSING.search(str(error))
        return Tried(status="refused", reason=_first_line(error), leaf=missing.group(1) if missing else "")
    way, note, missing_op = _way(signature, device)
    leaf = missing_op.partition(".")[0]
    elsewhere = next((tensor.device for tensor in got if tensor.device.type != device.type), None)
    wrong = f"a result came back on {elsewhere}" if elsewhere else ""
    if (dim := _free_order(op, given)) is not None:
        back, expected = _sorted_values(back, dim), _sorted_values(expected, dim)
    error_found, fault = _compare(op, back, expected)
    if wrong or fault:
        return Tried(status="wrong", way=way, reason=wrong or fault, error=error_found, leaf=leaf)
    return Tried(status="ran", way=way, reason=note, error=error_found, leaf=leaf)


def holds_dtype(name: str, device: torch.device) -> Tried:
    """Say whether the device holds a dtype (copies there and back without a changed bit) and computes with it."""
    dtype = getattr(torch, name)
    bits = torch.arange(64, dtype=torch.uint8)
    host = (bits % 2).bool() if dtype == torch.bool else bits.view(dtype)
    try:
        there = host.to(device)
        synchronize(device)
        back = there.cpu()
    except RUN_ERRORS as error:
        return Tried(status="refused", reason=_first_line(error))
    if not torch.equal(back.view(torch.uint8), host.view(torch.uint8)):
        return Tried(status="wrong", reason="a copy there and back changed bits")
    refusals = []
    for compute, given in ((torch.add, (there, there)), (torch.sum, (there,))):
        try:
            compute(*given)
            synchronize(device)
        except RUN_ERRORS as error:
            refusals.append(_first_line(error))
    return Tried(status="ran", way="storage" if len(refusals) == 2 else "native", reason=(refusals or [""])[0])


def _way(signature: Signature, device: torch.device) -> tuple[Way, str, str]:
    """Say by which kernel a call ran, as the dispatcher has it registered, why, and whose kernel is missing."""
    key = torch._C._dispatch_key_for_device(device.type)
    if torch._C._dispatch_has_kernel_for_dispatch_key(signature.op, key):
        return "native", "", ""
    missing = _without_kernel(signature, key)
    if missing:
        return (
            "fallback",
            f"no {key} kernel of {missing} and no composite one, and yet it ran: by a fallback to the CPU",
            missing,
        )
    expansion = expand(signature)
    waits = sorted({leaf.op for leaf in expansion.leaves if syncs(leaf.op)}) if expansion else []
    if waits:
        return "composite_with_sync", f"its composite kernel runs, but waits for the host in {', '.join(waits)}", ""
    return "composite", "", ""


def _without_kernel(signature: Signature, key: str, depth: int = 0) -> str:
    """Return the first operator, this one or one below it, that nothing but a fallback of the device can have run."""
    if torch._C._dispatch_has_kernel_for_dispatch_key(signature.op, key) or is_metadata_view(signature.op):
        return ""
    expansion = expand(signature) if depth < MAX_DEPTH else None
    if expansion is None:
        return signature.op if composite_kind(signature.op) is None else ""
    below = (leaf for leaf in expansion.leaves if leaf.op != signature.op)
    return next((name for leaf in below if (name := _without_kernel(leaf, key, depth + 1))), "")


def _elements(value: TensorValue) -> int:
    count = 1
    for size in value.shape:
        count *= size
    return count


def fill_arguments(signature: Signature) -> Arguments:
    """Make arguments on the CPU: random floats, integers from the traced range, else ones that are always valid."""
    args, kwargs = materialise(signature, "cpu")
    generator = torch.Generator().manual_seed(0)
    for tensor in tensors_in((args, kwargs)):
        _fill_values(tensor, generator)
    contract = contract_of(signature.op)
    if contract is not None and contract.fill is not None:
        contract.fill(args, kwargs, generator)
        return args, kwargs
    values = (*signature.args, *(signature.kwargs[name] for name in kwargs))
    name = signature.op.partition("::")[2].partition(".")[0]
    for value, made in zip(values, (*args, *kwargs.values()), strict=True):
        _fill_integers(value, made, 1 if name in _DIVIDES else 0, generator)
    return args, kwargs


def _fill_integers(value: Value, made: Any, unknown: int, generator: torch.Generator) -> None:
    if isinstance(value, ListValue):
        for item, inner in zip(value.items, made, strict=True):
            _fill_integers(item, inner, unknown, generator)
    elif isinstance(value, TensorValue) and _is_integer(made):
        low, high = value.range or (unknown, unknown)
        base = _base(made)
        base.copy_(torch.randint(low, high + 1, base.shape, generator=generator))


def _is_integer(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _fill_values(tensor: torch.Tensor, generator: torch.Generator) -> None:
    base = _base(tensor)
    if tensor.dtype == torch.bool:
        base.copy_(torch.rand(base.shape, generator=generator) < 0.5)
    elif dtype_name(tensor.dtype) in _BYTES_ONLY:
        bytes_ = base.view(torch.uint8)
        bytes_.copy_(torch.randint(120, 132, bytes_.shape, generator=generator))
    elif not _is_integer(tensor):
        parts = torch.view_as_real(base) if tensor.is_complex() else base
        parts.copy_(torch.randn(parts.shape, generator=generator))


def _base(tensor: torch.Tensor) -> torch.Tensor:
    """Return all elements of the storage as one row: filling a view with stride 0 or overlap needs that."""
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)


def moved_to(given: Arguments, device: torch.device) -> Arguments:
    """Copy the arguments to a device with their strides, offsets and shared storage kept."""
    storages: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            key = (value.untyped_storage()._cdata, value.dtype)
            if key not in storages:
                storages[key] = _base(value).clone().to(device)
            return storages[key].as_strided(value.shape, value.stride(), value.storage_offset())
        if isinstance(value, torch.device):
            return device
        return [move(item) for item in value] if isinstance(value, list) else value

    return tuple(move(value) for value in given[0]), {name: move(value) for name, value in given[1].items()}


def _reference(signature: Signature, op: Any, given: Arguments) -> list[torch.Tensor] | str:
    """Run the call on the CPU: the contract's reference, torch's kernel, or that one in float64; else say why not."""
    contract = contract_of(signature.op)
    own = moved_to(given, torch.device("cpu"))
    try:
        with torch.no_grad():
            if contract is None:
                return _results(op, own)
            output = contract.reference(*own[0], **own[1])
            return [*tensors_in(output), *_written(op, own)]
    except RUN_ERRORS as error:
        first = _first_line(error)
    try:
        with torch.no_grad():
            return _results(op, _widened(given))
    except RUN_ERRORS:
        return first


def _widened(given: Arguments) -> Arguments:
    def widen(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.double() if not value.is_complex() and value.dtype != torch.bool else value.clone()
        return [widen(item) for item in value] if isinstance(value, list) else value

    return tuple(widen(value) for value in given[0]), {name: widen(value) for name, value in given[1].items()}


def _results(op: Any, given: Arguments) -> list[torch.Tensor]:
    return [*tensors_in(op(*given[0], **given[1])), *_written(op, given)]


def _written(op: Any, given: Arguments) -> list[torch.Tensor]:
    """Return the arguments that the schema says are written to."""
    found: list[torch.Tensor] = []
    for place, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = given[1].get(argument.name, given[0][place] if place < len(given[0]) else None)
            found += tensors_in(value)
    return found


def _free_order(op: Any, given: Arguments) -> int | None:
    """Return the dimension along which the caller leaves the order open: `topk` with `sorted=False`, as routers do."""
    if not op.name().startswith("aten::topk"):
        return None
    named = {**dict(zip((one.name for one in op._schema.arguments), given[0], strict=False)), **given[1]}
    return int(named.get("dim", -1)) if named.get("sorted") is False else None


def _sorted_values(results: list[torch.Tensor], dim: int) -> list[torch.Tensor]:
    return [results[0].sort(dim=dim).values, *results[1:]]


def _compare(op: Any, got: list[torch.Tensor], expected: list[torch.Tensor]) -> tuple[float | None, str]:
    """Return the largest relative error and, if something is wrong, what."""
    if len(got) != len(expected):
        return None, f"{len(got)} results instead of {len(expected)}"
    name = op.name().partition("::")[2].partition(".")[0]
    random = torch.Tag.nondeterministic_seeded in op.tags or name in _VALUELESS
    contract = contract_of(op.name())
    free = contract.free_dtypes if contract is not None else ()
    worst = 0.0
    for place, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        if ours.shape != theirs.shape:
            return None, f"a result of shape {list(ours.shape)} instead of {list(theirs.shape)}"
        widened = theirs.dtype == torch.float64
        if ours.dtype != theirs.dtype and not widened and place not in free:
            return None, f"a result in {dtype_name(ours.dtype)} instead of {dtype_name(theirs.dtype)}"
        is_place = name in _PLACES or (place > 0 and (name in _CHOOSE or _is_integer(ours)))
        if random or ours.numel() == 0 or (is_place and _is_integer(ours)):
            continue
        error, fault = _difference(ours, theirs)
        worst = max(worst, error)
        if fault:
            return worst, fault
    return worst, ""


def _difference(ours: torch.Tensor, theirs: torch.Tensor) -> tuple[float, str]:
    if not ours.is_floating_point() and not ours.is_complex() and ours.dtype == theirs.dtype:
        different = int((ours != theirs).sum())
        return float(different) / ours.numel(), f"{different} of {ours.numel()} values differ" if different else ""
    if dtype_name(ours.dtype) in _BYTES_ONLY:
        same = torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
        return 0.0, "" if same else "the bytes differ"
    wide = torch.complex128 if ours.is_complex() else torch.float64
    left, right = ours.to(wide), theirs.to(wide)
    finite = torch.isfinite(right)
    if not bool(torch.equal(torch.isfinite(left), finite)):
        return float("inf"), "infinities or NaN where the CPU has none, or the other way round"
    left, right = left[finite], right[finite]
    size = float(torch.linalg.vector_norm(right))
    error = float(torch.linalg.vector_norm(left - right)) / size if size else float(torch.linalg.vector_norm(left))
    limit = _LIMITS.get(dtype_name(ours.dtype), _OTHER_LIMIT)
    return error, f"relative error {error:.2g}, and {limit:g} would pass" if error > limit else ""


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
