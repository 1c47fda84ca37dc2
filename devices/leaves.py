"""What a composite operator comes down to: run its own composite kernel and watch what it calls.

The dispatcher's "computed kernel" is no answer: on a device without any kernel it says yes for 72 % of aten,
so only raw registrations are asked, in torch's own order of precedence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from day0.devices.profile_parts import Details, layout_of
from day0.records import ScalarValue, Signature, TensorValue
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import describe, materialise, resolve, tensor_values, tensors_in

__all__ = [
    "HOST_SYNCS",
    "Expansion",
    "calls_below",
    "composite_key",
    "composite_kind",
    "details_of",
    "expand",
    "is_metadata_view",
    "leaf_dtypes",
    "leaf_ranks",
    "syncs",
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
        "aten::unique_consecutive",
        "aten::unique_dim",
    }
)
"""Operators after which the host has to wait for the device, since a size or a value goes back."""

MAX_EXPANSION_BYTES = 64 << 20
"""A composite that needs values is run on the CPU only below this size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expansion:
    """The calls one level below a composite, or the reason why they could not be found."""

    kind: CompositeKind
    leaves: tuple[Signature, ...]
    failure: str = ""


class _Watcher(TorchDispatchMode):
    """Records the calls below a composite kernel; they run as they are."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        self.seen: list[Signature] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen.append(describe(func.name(), args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def composite_kind(op: str) -> CompositeKind | None:
    """Return which composite kernel torch would take on a device without its own, or None."""
    for kind, key in _KEYS:
        if torch._C._dispatch_has_kernel_for_dispatch_key(op, key):
            return kind
    return None


def composite_key(kind: CompositeKind) -> str:
    """Return the dispatch key of a kind of composite kernel."""
    return dict(_KEYS)[kind]


def is_metadata_view(op: str) -> bool:
    """Say whether torch makes this view for every backend by itself, from sizes and strides, without a kernel.

    In-place ones are among them: `t_`, `squeeze_`, `as_strided_`.
    """
    kind = composite_kind(op)
    if kind in ("out_wrapper", "explicit") and torch.Tag.inplace_view in resolve(op).tags:
        return True
    if kind != "explicit":
        return False
    # `_unsafe_view` is a view that its schema does not call one.
    return op == "aten::_unsafe_view" or bool(resolve(op).is_view)


def expand(signature: Signature) -> Expansion | None:
    """Run the composite kernel of a call and return the calls below it; None if it has no composite kernel.

    Shapes alone are enough for most; a kernel that reads values is run on the CPU with valid ones.
    """
    kind = composite_kind(signature.op)
    if kind is None:
        return None
    first = _watch(signature, kind, "meta")
    if not first.failure or _bytes(signature) > MAX_EXPANSION_BYTES:
        return first
    return _watch(signature, kind, "cpu")


def _watch(signature: Signature, kind: CompositeKind, device: str) -> Expansion:
    op = resolve(signature.op)
    key = getattr(torch._C.DispatchKey, composite_key(kind))
    args, kwargs = materialise(signature, device)
    contract = load_operators().get(signature.op.partition(".")[0])
    if device == "cpu" and contract is not None and contract.fill is not None:
        contract.fill(args, kwargs, torch.Generator().manual_seed(0))
    watcher = _Watcher()
    try:
        with torch.no_grad(), watcher:
            op._op_dk(key, *args, **kwargs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Expansion(kind=kind, leaves=_unique(watcher.seen), failure=first[:200])
    return Expansion(kind=kind, leaves=_unique(watcher.seen))


def calls_below(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Signature, ...]:
    """Run a function and return the operator calls it makes, each combination of dtypes and ranks once.

    Whatever the function raises goes on to the caller.
    """
    watcher = _Watcher()
    with torch.no_grad(), watcher:
        function(*args, **kwargs)
    return _unique(watcher.seen)


def _unique(signatures: list[Signature]) -> tuple[Signature, ...]:
    kept: dict[str, Signature] = {}
    for signature in signatures:
        kept.setdefault(f"{signature.op} {leaf_dtypes(signature)} {leaf_ranks(signature)}", signature)
    return tuple(kept.values())


def _bytes(signature: Signature) -> int:
    args, kwargs = materialise(signature, "meta")
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in((args, kwargs)))


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
    return op.partition(".")[0] in HOST_SYNCS
