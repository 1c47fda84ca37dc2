"""A dispatch mode that records every operator call, deduplicated by signature."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from day0.analyzers.sites import SiteBook, SiteTally
from day0.devices.leaves import is_metadata_view, syncs
from day0.records import ListValue, Signature, TensorValue, TraceEntry, Value
from day0.reference_ops._spec import Operator
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import describe, describe_value, signature_id, tensors_in

__all__ = ["Recorder", "count_bytes", "count_flops", "watch_modules"]

# Both spellings: the folder can be reached through the link in `day0/` too.
_SKIPPED = (
    str(Path(__file__).parent),
    str(Path(__file__).resolve().parent),
    str(Path(torch.__file__).resolve().parent),
    "<",
)


@dataclass(kw_only=True, slots=True)
class _Row:
    signature: Signature
    outputs: tuple[Value, ...]
    mutates: tuple[str, ...]
    host_sync: bool
    flops: int
    bytes: int
    source: str
    module: str
    module_class: str
    modules: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)
    sites: dict[str, SiteTally] = field(default_factory=dict)


class Recorder(TorchDispatchMode):
    """Records calls while it is active. `phase` and the module stack are set by the caller.

    A call is described before it runs, so that in-place operators show what they were given.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        self.phase = ""
        self.recording = True
        """False while a cache is filled for a later phase: calls run, but are not part of the trace."""
        self.modules: list[tuple[str, str]] = []
        self.calls = 0
        self.last_module = ("", "")
        """Where the latest call was made: on an error the stack is already unwound."""
        self._rows: dict[Any, _Row] = {}
        self._sites = SiteBook()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.recording:
            return _run(func, args, kwargs)
        self.last_module = self.modules[-1] if self.modules else ("", "")
        key = (func, _fingerprint(args), _fingerprint(kwargs))
        row = self._rows.get(key)
        signature = describe(func.name(), args, kwargs) if row is None or _has_ranges(row) else None
        result = _run(func, args, kwargs)
        if row is None:
            assert signature is not None  # noqa: S101 - described above for every new row
            row = self._rows[key] = self._new_row(func, signature, args, kwargs, result)
        elif signature is not None:
            row.signature = _widen(row.signature, signature)
        self.calls += 1
        row.counts[self.phase] = row.counts.get(self.phase, 0) + 1
        self._sites.note(row.sites, self.phase, self.modules, (func, args, kwargs, result), _source_line)
        if self.modules:
            row.modules.add(self.modules[-1][0])
        return result

    def _new_row(self, func: Any, signature: Signature, args: Any, kwargs: Any, result: Any) -> _Row:
        module, module_class = self.last_module
        arguments = func._schema.arguments
        written = tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)
        # An operator that only writes returns nothing, and a trace shows no result for it.
        results = () if result is None else result if isinstance(result, (list, tuple)) else (result,)
        return _Row(
            signature=signature,
            outputs=tuple(_without_range(describe_value(item)) for item in results),
            mutates=written,
            host_sync=syncs(func.name()),
            flops=count_flops(func, args, kwargs, result),
            bytes=count_bytes(func, args, kwargs, results),
            source=_source_line(),
            module=module,
            module_class=module_class,
        )

    def entries(self) -> tuple[TraceEntry, ...]:
        """Return what was recorded, most often called first, then by name and id."""
        entries = [_entry(row) for row in self._rows.values()]
        return tuple(sorted(entries, key=lambda e: (-sum(e.counts.values()), e.signature.op, e.id)))


@contextmanager
def watch_modules(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Keep the recorder's module stack right while the model runs."""
    handles = []
    for path, module in model.named_modules():
        entry = (path, type(module).__name__)
        handles.append(module.register_forward_pre_hook(_pusher(recorder, entry)))
        handles.append(module.register_forward_hook(_popper(recorder), always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator. On meta, a contract of ours knows the shapes where torch's own meta kernel refuses a dtype."""
    try:
        return func(*args, **kwargs)
    except (RuntimeError, NotImplementedError):
        contract = _contract(func)
        on_meta = all(tensor.device.type == "meta" for tensor in tensors_in((args, kwargs)))
        if contract is None or contract.fake is None or not on_meta:
            raise
        return contract.fake(*args, **kwargs)


def _contract(func: Any) -> Operator | None:
    return load_operators().get(func.name().partition(".")[0])


def count_flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Count by the operator's contract, else as torch counts; 0 where nobody does."""
    contract = _contract(func)
    if contract is not None and contract.flops is not None:
        return int(contract.flops(*args, **kwargs))
    count = flop_registry.get(func._overloadpacket)
    return int(count(*args, **kwargs, out_val=result)) if count else 0


def count_bytes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: Any) -> int:
    """Count what has to move: as the contract says, else each argument and each result once; views move nothing."""
    if func.is_view or is_metadata_view(func.name()):
        return 0
    contract = _contract(func)
    if contract is not None and contract.bytes is not None:
        return int(contract.bytes(*args, **kwargs))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in((args, kwargs, results)))


def _pusher(recorder: Recorder, entry: tuple[str, str]) -> Any:
    def push(module: nn.Module, args: object) -> None:
        recorder.modules.append(entry)

    return push


def _popper(recorder: Recorder) -> Any:
    def pop(module: nn.Module, args: object, output: object) -> None:
        recorder.modules.pop()

    return pop


def _fingerprint(value: Any) -> Any:
    """Return a hashable key that is cheap: describing every call as a record would triple the time of a trace."""
    if isinstance(value, torch.Tensor):
        return (
            value.shape,
            value.dtype,
            value.stride(),
            value.storage_offset(),
        )
    if isinstance(value, (list, tuple)):
        return tuple(_fingerprint(item) for item in value)
    if isinstance(value, dict):
        return tuple((name, _fingerprint(item)) for name, item in value.items())
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return str(value)
    return (type(value), value)


def _has_ranges(row: _Row) -> bool:
    values = (*row.signature.args, *row.signature.kwargs.values())
    return any(isinstance(v, TensorValue) and v.range is not None for v in values)


def _widen(old: Signature, new: Signature) -> Signature:
    """Let the value ranges of a signature cover one more call."""
    return Signature(
        op=old.op,
        args=tuple(_widen_value(a, b) for a, b in zip(old.args, new.args, strict=True)),
        kwargs={name: _widen_value(value, new.kwargs[name]) for name, value in old.kwargs.items()},
    )


def _widen_value(old: Value, new: Value) -> Value:
    if isinstance(old, ListValue) and isinstance(new, ListValue):
        return ListValue(items=tuple(_widen_value(a, b) for a, b in zip(old.items, new.items, strict=True)))
    if isinstance(old, TensorValue) and isinstance(new, TensorValue) and old.range and new.range:
        low, high = min(old.range[0], new.range[0]), max(old.range[1], new.range[1])
        return old.model_copy(update={"range": (low, high)})
    return old


def _without_range(value: Value) -> Value:
    return value.model_copy(update={"range": None}) if isinstance(value, TensorValue) else value


def _entry(row: _Row) -> TraceEntry:
    return TraceEntry(
        id=signature_id(row.signature),
        signature=row.signature,
        outputs=row.outputs,
        counts=dict(sorted(row.counts.items())),
        mutates=row.mutates,
        module=row.module,
        module_class=row.module_class,
        modules=max(1, len(row.modules)),
        source=row.source,
        host_sync=row.host_sync,
        flops=row.flops,
        bytes=row.bytes,
        sites=tuple(site.record() for site in row.sites.values()),
    )


def _source_line() -> str:
    """Return `file:line` of the nearest frame that is neither torch's nor the recorder's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_SKIPPED):
            return f"{_short_path(name)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _short_path(name: str) -> str:
    for marker in ("site-packages/", "dist-packages/"):
        _, found, rest = name.partition(marker)
        if found:
            return rest
    path = Path(name)
    return "/".join(path.parts[-2:])
