"""What a composite operator comes down to: run its own composite kernel and watch what it calls.

The dispatcher's "computed kernel" is no answer: on a device without any kernel it says yes for 72 % of aten,
so only raw registrations are asked, in torch's own order of precedence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from day0.devices.numbers import numbers_as_tensors
from day0.devices.profile import ALWAYS_ON_DEVICE
from day0.devices.profile_parts import Details, layout_of
from day0.devices.smaller import smaller
from day0.errors import Day0Error
from day0.records import ListValue, ScalarValue, Signature, TensorValue, Value
from day0.reference_ops.load import contract_of
from day0.reference_ops.signatures import describe, dtype_name, materialise, resolve, tensor_values, tensors_in

__all__ = [
    "HOST_SYNCS",
    "MASKED",
    "Expansion",
    "call_at",
    "calls_below",
    "composite_key",
    "composite_kind",
    "details_of",
    "expand",
    "is_metadata_view",
    "is_plumbing",
    "leaf_dtypes",
    "leaf_ranks",
    "result_dtypes",
    "syncs",
    "wait_of",
    "writes_out",
]

CompositeKind = Literal["out_wrapper", "explicit", "implicit"]

_KEYS: tuple[tuple[CompositeKind, str], ...] = (
    ("out_wrapper", "CompositeExplicitAutogradNonFunctional"),
    ("explicit", "CompositeExplicitAutograd"),
    ("implicit", "CompositeImplicitAutograd"),
)

HOST_SYNCS = frozenset(
    {
        "aten::_local_scalar_dense",
        "aten::equal",
        "aten::is_nonzero",
        "aten::masked_select",
        "aten::nonzero",
        "aten::_unique2",
        "aten::bincount",
        "aten::_linalg_check_errors",
        "aten::masked_fill_.Tensor",
        "aten::index_fill_.int_Tensor",
        "aten::unique_consecutive",
        "aten::unique_dim",
    }
)
"""Operators, or overloads, after which the host has to wait for the device, since a size or a value goes back."""

WATCH_ERRORS: tuple[type[BaseException], ...] = (
    RuntimeError,
    NotImplementedError,
    TypeError,
    ValueError,
    IndexError,
    AttributeError,
    Day0Error,
)
"""What torch, a composite kernel or a shape function raises for a call that it does not take."""

MAX_SMALL_BYTES = 4 << 20
"""A composite that is run on the CPU is made smaller first if it is larger than this."""

MAX_EXPANSION_BYTES = 64 << 20
"""The same where sizes have to stay as they are: larger ones are not run."""

_READS = frozenset({"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero"})
_READ_NUMBERS = frozenset({"aten::masked_fill_.Tensor", "aten::index_fill_.int_Tensor"})
MASKED = frozenset({"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"})
"""Operators that wait for the host where they are given a mask: the number of its hits is a size."""

_ALLOCATES = ("empty", "new_empty", "resize_")

Wait = Literal["", "item", "nonzero"]
"""What the host waits for: nothing, a value, or a size that depends on values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expansion:
    """The calls one level below a composite, or the reason why they could not be found."""

    kind: CompositeKind
    leaves: tuple[Signature, ...]
    failure: str = ""


class _Watcher(TorchDispatchMode):
    """Records the calls below a composite kernel; they run as they are.

    What a composite does with tensors on the host, such as tables of indices, is not the device's to run.
    """

    def __init__(self, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        self.seen: list[Signature] = []
        self.device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        signature = describe(func.name(), args, kwargs)
        place = len(self.seen)
        self.seen.append(signature)  # at once, so that it is there if it raises
        result = _run(func, numbers_as_tensors(func, args), kwargs)
        tensors = list(tensors_in((args, kwargs, result)))
        if tensors and all(one.device.type != self.device for one in tensors):
            del self.seen[place]
        return result


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func is torch.ops.aten.convolution_overrideable.default:
        # What a device of its own is asked for. On meta nobody is, but the shapes are those of any convolution.
        func = torch.ops.aten.convolution.default
    return func(*args, **kwargs)


def composite_kind(op: str) -> CompositeKind | None:
    """Return which composite kernel torch would take on a device without its own, or None."""
    for kind, key in _KEYS:
        if torch._C._dispatch_has_kernel_for_dispatch_key(op, key):
            return kind
    return None


def call_at(op: Any, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the kernel that an overload has for a dispatch key.

    Under a function mode, such as `torch.set_default_device` leaves standing, torch would forget the key.
    """
    with torch._C.DisableTorchFunction():
        return op._op_dk(key, *args, **kwargs)


def composite_key(kind: CompositeKind) -> str:
    """Return the dispatch key of a kind of composite kernel."""
    return dict(_KEYS)[kind]


def is_metadata_view(op: str) -> bool:
    """Say whether torch makes this view for every backend by itself, from sizes and strides, without a kernel.

    In-place ones are among them: `t_`, `squeeze_`, `as_strided_`.
    """
    return _torchs_view(op) if op.startswith("aten::") else _is_view(op)  # others may come and go with a library


def _is_view(op: str) -> bool:
    kind = composite_kind(op)
    if kind in ("out_wrapper", "explicit") and torch.Tag.inplace_view in resolve(op).tags:
        return True
    if kind != "explicit":
        return False
    # `_unsafe_view` is a view that its schema does not call one.
    return op == "aten::_unsafe_view" or bool(resolve(op).is_view)


_torchs_view = cache(_is_view)
"""Torch's own stay what they are, and opening the simulated device asks for each of them several times."""


def is_plumbing(op: str) -> bool:
    """Say whether an operator only allocates, copies, or makes a view: what no device lacks that holds tensors."""
    base = op.partition(".")[0]
    if base in ALWAYS_ON_DEVICE or base.removeprefix("aten::").startswith(_ALLOCATES):
        return True
    return base in _READS or is_metadata_view(op) or bool(resolve(op).is_view)


def expand(
    signature: Signature, device: Literal["meta", "cpu"] = "meta", *, same_sizes: bool = False
) -> Expansion | None:
    """Run the composite kernel of a call and return the calls below it; None if it has no composite kernel.

    Shapes alone are enough for most; a kernel that reads values is run on the CPU with valid ones. Where the call is
    too large for that, it is made smaller, unless `same_sizes` forbids it. `device` is where to begin: composite
    kernels may look at the device, so the CPU's own are best watched there.
    """
    kind = composite_kind(signature.op)
    if kind is None:
        return None
    on_meta = None if device == "cpu" else _watch(signature, kind, "meta")
    if on_meta is not None and not on_meta.failure:
        return on_meta
    small = smaller(signature, MAX_EXPANSION_BYTES if same_sizes else MAX_SMALL_BYTES)
    if small is None or (same_sizes and small is not signature):
        return on_meta or _watch(signature, kind, "meta")
    return _watch(small, kind, "cpu")


def _watch(signature: Signature, kind: CompositeKind, device: str) -> Expansion:
    op = resolve(signature.op)
    key = getattr(torch._C.DispatchKey, composite_key(kind))
    watcher = _Watcher(device)
    try:
        args, kwargs = materialise(signature, device)
        contract = contract_of(signature.op)
        if device == "cpu" and contract is not None and contract.fill is not None:
            contract.fill(args, kwargs, torch.Generator().manual_seed(0))
        with torch.no_grad(), watcher:
            call_at(op, key, args, kwargs)
    except WATCH_ERRORS as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Expansion(kind=kind, leaves=_unique(watcher.seen), failure=first[:200])
    return Expansion(kind=kind, leaves=_unique(watcher.seen))


def result_dtypes(signature: Signature) -> tuple[str, ...]:
    """Return the dtypes of a call's results, from shape functions; empty where those do not know."""
    contract = contract_of(signature.op)
    run = contract.fake if contract is not None and contract.fake is not None else resolve(signature.op)
    try:
        args, kwargs = materialise(signature, "meta")
        with torch.no_grad():
            return tuple(dtype_name(one.dtype) for one in tensors_in(run(*args, **kwargs)))
    except WATCH_ERRORS:
        return ()


def writes_out(op: str) -> bool:
    """Say whether an overload writes into tensors that it is given for its results, as `out` forms do."""
    arguments = resolve(op)._schema.arguments
    return any(one.kwarg_only and one.alias_info is not None and one.alias_info.is_write for one in arguments)


def wait_of(signature: Signature) -> Wait:
    """Say for what the host waits after a call: by its operator, and by a mask among its arguments."""
    base = signature.op.partition(".")[0]
    if base in _READS or signature.op in _READ_NUMBERS:
        return "item"
    masked = base in MASKED and len(signature.args) > 1 and _has_mask(signature.args[1])
    counted = signature.op == "aten::repeat_interleave.Tensor" and not _is_given(signature.kwargs.get("output_size"))
    return "nonzero" if syncs(signature.op) or masked or counted else ""


def _has_mask(value: Value) -> bool:
    items = value.items if isinstance(value, ListValue) else ()
    return any(isinstance(one, TensorValue) and one.dtype in ("bool", "uint8") for one in items)


def _is_given(value: Value | None) -> bool:
    return isinstance(value, ScalarValue) and value.type == "int"


def calls_below(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Signature, ...]:
    """Run a function on meta and return the operator calls it makes, each combination of dtypes and ranks once.

    Whatever the function raises goes on to the caller.
    """
    watcher = _Watcher("meta")
    with torch.no_grad(), watcher:
        function(*args, **kwargs)
    return _unique(watcher.seen)


def _unique(signatures: list[Signature]) -> tuple[Signature, ...]:
    kept: dict[str, Signature] = {}
    for signature in signatures:
        kept.setdefault(f"{signature.op} {leaf_dtypes(signature)} {leaf_ranks(signature)}", signature)
    return tuple(kept.values())


def leaf_dtypes(signature: Signature) -> tuple[str, ...]:
    """Return the dtypes of the tensor arguments, then of dtype arguments: support depends on both."""
    asked = tuple(
        value.value
        for value in (*signature.args, *signature.kwargs.values())
        if value.kind == "scalar" and value.type == "dtype"
    )
    return tuple(value.dtype for value in tensor_values(signature)) + asked


def leaf_ranks(signature: Signature) -> tuple[int, ...]:
    """Return the ranks of the tensor arguments."""
    return tuple(len(value.shape) for value in tensor_values(signature))


def details_of(signature: Signature) -> Details:
    """Return layouts of the tensors, and sizes and whole numbers by the argument's name."""
    names = [argument.name for argument in resolve(signature.op)._schema.arguments]
    values = {**dict(zip(names, signature.args, strict=False)), **signature.kwargs}
    sizes: dict[str, tuple[int, ...] | int] = {}
    for name, value in values.items():
        if isinstance(value, TensorValue):
            sizes[name] = value.shape
        elif isinstance(value, ScalarValue) and value.type == "int":
            sizes[name] = int(value.value)
    layouts = tuple(layout_of(value.shape, value.stride) for value in tensor_values(signature))
    return Details(layouts=layouts, sizes=sizes)


def syncs(op: str) -> bool:
    """Say whether the host waits for the device after this operator."""
    return op in HOST_SYNCS or op.partition(".")[0] in HOST_SYNCS
