"""Records what a model calls, at two levels: functions as it called them, and the operators that came of them.

Both are deduplicated by signature. A call is described before it runs, so that in-place operators show what they were
given.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from day0.analyzers.recording.costs import collective, count_bytes, count_flops
from day0.analyzers.recording.fingerprint import call_key
from day0.analyzers.recording.frames import source_line
from day0.analyzers.recording.functions import Function, describe_function
from day0.analyzers.recording.keeping import KEEPER
from day0.analyzers.recording.memo import recipe_of
from day0.analyzers.recording.plain import (
    describe_plain,
    outputs_of,
    results_of,
    shared_arguments,
    widen,
    without_ranges,
)
from day0.analyzers.recording.rows import CallRow, OpRow, call_entries, op_entries
from day0.analyzers.recording.stats import add_stats
from day0.analyzers.recording.syncs import host_waits
from day0.analyzers.sites import SiteBook
from day0.records import CallEntry, ListValue, Signature, TensorValue, TraceEntry, Value
from day0.reference_ops.load import contract_of
from day0.reference_ops.signatures import tensors_in

__all__ = ["Recorder", "watch_modules"]


class Recorder(TorchDispatchMode):
    """Records operators while it is active, and through a function mode of its own the functions above them.

    `phase` and the module stack are set by the caller. With `stats`, the values of float tensors are measured at each
    call: meaningful, and worth its time, only where the weights are the model's own.
    """

    def __init__(self, *, stats: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        self.phase = ""
        self.recording = True
        """False while a cache is filled for a later phase: calls run, but are not part of the trace."""
        self.modules: list[tuple[str, str]] = []
        self.calls = 0
        self.last_module = ("", "")
        """Where the latest call was made: on an error the stack is already unwound."""
        self._stats = stats
        # None where nobody loaded it, and then nothing is sharded.
        self._sharded = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
        self._rows: dict[Any, OpRow] = {}
        self._keep = KEEPER.get()
        self._functions = _FunctionWatch(self)
        self._sites = SiteBook()
        self.below: list[OpRow] | None = None
        """Operators of the function that runs now; None between functions."""

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]  # as above
        self._functions.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        self._functions.__exit__(*error)  # type: ignore[no-untyped-call]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._sharded in types:
            return NotImplemented  # it turns the call into those of this rank, which come here again
        kwargs = kwargs or {}
        if not self.recording:
            return _run(func, args, kwargs)
        if self.below is None:
            # Not below a function, so its watch is active: what we and the kernel do here is no call of the model.
            self.below = []
            try:
                return self._record(func, types, args, kwargs)
            finally:
                self.below = None
        return self._record(func, types, args, kwargs)

    def _record(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.last_module = self.modules[-1] if self.modules else ("", "")
        key = call_key(func, args, kwargs)
        row = self._rows.get(key)
        signature = describe_plain(func.name(), args, kwargs) if row is None or row.ranged else None
        if row is None and self._keep is not None and signature is not None and not types:
            with self.paused():
                self._keep(signature, (args, kwargs))
        # Tensors of other classes may hold values, and then the layout is not all that a result is.
        made = row.recipe if row is not None and not types else None
        result = _run(func, args, kwargs) if made is None else made.make()
        if row is None:
            assert signature is not None  # noqa: S101 - described above for every new row
            row = self._rows[key] = self._new_row(func, signature, args, kwargs, result)
        elif signature is not None:
            row.signature = widen(row.signature, signature)
        self.calls += 1
        row.count(self.phase, self.last_module[0] if self.modules else None)
        self._sites.note(row.sites, self.phase, self.modules, (func, args, kwargs, result), source_line)
        if self.below is not None:
            self.below.append(row)
        if self._stats:
            results = ((f"output {number}", one) for number, one in enumerate(results_of(result)))
            add_stats(row.stats, (*_named(func, args, kwargs), *results))
        return result

    def _new_row(self, func: Any, signature: Signature, args: Any, kwargs: Any, result: Any) -> OpRow:
        module, module_class = self.last_module
        arguments = func._schema.arguments
        results = results_of(result)
        aliases = shared_arguments(_named(func, args, kwargs), results)
        return OpRow(
            signature=signature,
            outputs=outputs_of(results),
            output_aliases=aliases,
            recipe=recipe_of(func, result, aliases),
            mutates=tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write),
            host_sync=host_waits(func.name(), args, kwargs, result),
            flops=count_flops(func, args, kwargs, result),
            bytes=count_bytes(func, args, kwargs, results),
            collective=collective(func, args, kwargs),
            ranged=_has_ranges(signature),
            source=source_line(),
            module=module,
            module_class=module_class,
        )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let operators run unrecorded for a while: reading the range of an integer argument is one."""
        before, self.recording = self.recording, False
        try:
            yield
        finally:
            self.recording = before

    def entries(self) -> tuple[TraceEntry, ...]:
        """Return the operators, most often called first, then by name and id."""
        return op_entries(self._rows.values(), self._functions.rows.values())

    def call_entries(self) -> tuple[CallEntry, ...]:
        """Return the functions in the same order."""
        return call_entries(self._functions.rows.values())


class _FunctionWatch(TorchFunctionMode):
    """Notes each function that the model calls and that reaches the dispatcher, or reads values without it.

    What a function of torch calls in turn is not seen: only the outermost is the model's own call.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.rows: dict[Any, CallRow] = {}
        self._recorder = recorder
        self._known: dict[Any, Function] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        recorder = self._recorder
        kwargs = kwargs or {}
        if not recorder.recording or recorder.below is not None:
            return func(*args, **kwargs)
        known = self._known.get(func)
        if known is None:
            known = self._known[func] = describe_function(func)
        before = self._look(func, known, args, kwargs) if known.in_place else None
        below = recorder.below = []
        try:
            result = func(*args, **kwargs)
        finally:
            recorder.below = None
        if below or known.reads_values:
            self._note(known, before or self._look(func, known, args, kwargs), args, kwargs, result, below)
        return result

    def _look(self, func: Any, known: Function, args: Any, kwargs: Any) -> tuple[Any, Signature | None]:
        """Return the key of a call, and its signature if it is a new one."""
        key = call_key(func, args, kwargs)
        if key in self.rows:
            return key, None
        with self._recorder.paused():
            return key, without_ranges(describe_plain(known.name, args, kwargs))

    def _note(
        self,
        known: Function,
        seen: tuple[Any, Signature | None],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        below: list[OpRow],
    ) -> None:
        key, signature = seen
        row = self.rows.get(key)
        recorder = self._recorder
        if row is None:
            assert signature is not None  # noqa: S101 - made for every key that is new
            row = self.rows[key] = self._new_row(known, signature, args, kwargs, result)
        row.count(recorder.phase, recorder.modules[-1][0] if recorder.modules else None)
        counts = row.below
        for one in below:
            counts[one] = counts.get(one, 0) + 1

    def _new_row(self, known: Function, signature: Signature, args: Any, kwargs: Any, result: Any) -> CallRow:
        module, module_class = self._recorder.modules[-1] if self._recorder.modules else ("", "")
        named = [*((str(number), value) for number, value in enumerate(args)), *kwargs.items()]
        results = results_of(result) if known.name.rpartition(".")[2] not in _NOT_TENSORS else ()
        with self._recorder.paused():
            outputs = outputs_of(results)
        return CallRow(
            signature=signature,
            outputs=outputs,
            output_aliases=shared_arguments(named, results),
            host_sync=known.reads_values,
            source=source_line(),
            module=module,
            module_class=module_class,
        )


_NOT_TENSORS = frozenset({"tolist", "numpy", "__array__", "__repr__"})
"""Functions whose results are values of the run, not shapes."""


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
        contract = contract_of(func.name())
        on_meta = all(tensor.device.type == "meta" for tensor in tensors_in((args, kwargs)))
        if contract is None or contract.fake is None or not on_meta:
            raise
        return contract.fake(*args, **kwargs)


def _named(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    names = (argument.name for argument in func._schema.arguments)
    return [*zip(names, args, strict=False), *kwargs.items()]


def _has_ranges(signature: Signature) -> bool:
    return any(_is_ranged(value) for value in (*signature.args, *signature.kwargs.values()))


def _is_ranged(value: Value) -> bool:
    if isinstance(value, ListValue):
        return any(_is_ranged(item) for item in value.items)
    return isinstance(value, TensorValue) and value.range is not None


def _pusher(recorder: Recorder, entry: tuple[str, str]) -> Any:
    def push(module: nn.Module, args: object) -> None:
        recorder.modules.append(entry)

    return push


def _popper(recorder: Recorder) -> Any:
    def pop(module: nn.Module, args: object, output: object) -> None:
        recorder.modules.pop()

    return pop
