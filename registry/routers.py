"""The routers in torch's dispatcher: one for each operator and dispatch key that any active lock needs.

A router looks into the table of its context and calls the implementation that stands there, or the kernel below. It is
called for every call of its operator, so what is rare stands in functions of its own.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch._C._dynamo import eval_frame

from day0.devices.leaves import call_at, composite_key, composite_kind
from day0.devices.numbers import numbers_as_tensors
from day0.devices.sim.device import native_kernel
from day0.reference_ops.signatures import resolve, tensors_in
from day0.registry.choices import CURRENT, NOTHING, Slot, place_of
from day0.registry.results import expect, refuse_wrong_result

__all__ = ["ROUTERS"]

Kernel = Callable[..., Any]
Style = Literal["one", "several", "mixed"]

CHECKED_CALLS = 1024
"""So many calls of each entry have their results held against the contract, and after them one of CHECKED_EACH."""
CHECKED_EACH = 256


class _Routers:
    """The routers that are installed, with the number of contexts that need each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._installed: dict[tuple[str, str], tuple[torch.library.Library, int]] = {}

    def enter(self, op: str, key: str) -> None:
        """Install the router of a place, or count one more context that needs it."""
        with self._lock:
            library, users = self._installed.get((op, key), (None, 0))
            if library is None:
                library = _install(op, key)
            self._installed[(op, key)] = (library, users + 1)

    def leave(self, op: str, key: str) -> None:
        """Count one context less; the last one takes the router away."""
        with self._lock:
            library, users = self._installed.pop((op, key))
            if users > 1:
                self._installed[(op, key)] = (library, users - 1)
            else:
                library._destroy()

    def places(self) -> tuple[tuple[str, str], ...]:
        """Return the operators and dispatch keys at which a router stands now."""
        with self._lock:
            return tuple(sorted(self._installed))


ROUTERS = _Routers()


def _install(op: str, key: str) -> torch.library.Library:
    namespace, _, name = op.partition("::")
    route = _Router(op, key).route()
    _stay_out_of_tracing(route)
    library = torch.library.Library(namespace, "IMPL")
    with warnings.catch_warnings():
        # torch warns of every overridden kernel; here that is the purpose, and it is undone on exit.
        warnings.filterwarnings("ignore", message="Warning only once for all operators", category=UserWarning)
        library.impl(name, route, key, allow_override=True)
    return library


def _stay_out_of_tracing(route: Kernel) -> None:
    """Keep torch.compile's tracer out of a router and of all that it calls: it would count while compiling."""
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(route.__code__, eval_frame._FrameExecStrategy(skip, skip))


class _Router:
    """What a router knows of its place, and what it does when it has to look closer."""

    def __init__(self, op: str, key: str) -> None:
        self.op, self.key, self.place = op, key, place_of(op, key)
        self.overload = resolve(op)
        self.below = _kernel_below(op, key)
        self.style, self.tensor_places = _style(self.overload)
        self.memo: dict[Any, Any] = {}
        self.capturing = torch.cuda.is_current_stream_capturing if key == "CUDA" else None

    def route(self) -> Kernel:
        """Return the function that stands in the dispatcher."""
        return {"one": self._of_one, "several": self._of_several, "mixed": self._of_any}[self.style]()

    def _of_one(self) -> Kernel:
        """Make the router of an operator with one tensor, the first argument.

        This and the next are what every call pays for: what they need is in their closures, and their lines are alike.
        """
        place, slow, closer, capturing = self.place, self.slow, self.closer, self.capturing
        current, enter, leave = CURRENT.get, CURRENT.set, CURRENT.reset

        def route(*args: Any, **kwargs: Any) -> Any:
            chooser = current().get(place)
            if chooser is None or kwargs or (capturing is not None and capturing()):
                return slow(args, kwargs)
            try:
                slot = chooser[args[0].dtype]
            except (KeyError, AttributeError, IndexError):  # no choice, or a number where a tensor may stand
                return slow(args, kwargs)
            number = slot.tick()
            if number >= slot.next_check:
                return closer(slot, number, args, kwargs)
            token = enter(slot.inner)
            try:
                return slot.run(*args)
            except BaseException:
                slot.tally.failed.tick()
                raise
            finally:
                leave(token)

        return route

    def _of_several(self) -> Kernel:
        """Make the router of an operator with several tensors, none of them in a list."""
        place, slow, closer, capturing = self.place, self.slow, self.closer, self.capturing
        current, enter, leave = CURRENT.get, CURRENT.set, CURRENT.reset
        # The last tensors may be left out: the places by the number of arguments.
        length = len(self.overload._schema.arguments) + 1
        places = [tuple(one for one in self.tensor_places if one < given) for given in range(length)]

        def route(*args: Any, **kwargs: Any) -> Any:
            chooser = current().get(place)
            if chooser is None or kwargs or (capturing is not None and capturing()):
                return slow(args, kwargs)
            wanted = places[len(args)]
            try:
                slot = chooser.trees[len(wanted)]
                for one in wanted:
                    slot = slot[args[one].dtype]
            except (KeyError, AttributeError):  # no choice, or a number or nothing where a tensor may stand
                return slow(args, kwargs)
            number = slot.tick()
            if number >= slot.next_check:
                return closer(slot, number, args, kwargs)
            token = enter(slot.inner)
            try:
                return slot.run(*args)
            except BaseException:
                slot.tally.failed.tick()
                raise
            finally:
                leave(token)

        return route

    def _of_any(self) -> Kernel:
        slow = self.slow

        def route(*args: Any, **kwargs: Any) -> Any:
            return slow(args, kwargs)

        return route

    def slow(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Route a call of any kind: with numbers for tensors, lists of tensors, dtypes, or arguments by name."""
        chooser = CURRENT.get().get(self.place)
        # The lock knows the call as the trace saw it, before numbers become tensors.
        slot = chooser.get(_dtypes(args, kwargs)) if chooser is not None else None
        given = len(args)
        for position in self.tensor_places:
            if position < given and not isinstance(args[position], torch.Tensor):
                args = numbers_as_tensors(self.overload, args, always=True)
                break
        if slot is None:
            return self.below(*args, **kwargs)
        return self.closer(slot, slot.tick(), args, kwargs)

    def closer(self, slot: Slot, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an implementation for a call that is already counted, with all that is not done for every call."""
        table = CURRENT.get()
        owner = table.owner
        if slot.inner is NOTHING:
            slot.inner = table.without(self.op)
        expected = None
        if number >= slot.next_result:
            expected = self._expected(slot, args, kwargs, owner.device)
            slot.next_result = 0 if owner.watched else number + (1 if number < CHECKED_CALLS else CHECKED_EACH)
            slot.next_check = 0 if slot.guard is not None else slot.next_result
        token = CURRENT.set(slot.inner)
        try:
            if slot.guard is not None:
                slot.guard.refuse(args, kwargs)
            result = slot.run(*args, **kwargs)
            if expected is not None:
                refuse_wrong_result(slot, expected, result, args, kwargs)
        except BaseException:
            slot.tally.failed.tick()
            raise
        finally:
            CURRENT.reset(token)
        if owner.watched:
            slot.tally.at(owner.running_module()).tick()
        if self.capturing is not None and self.capturing():
            slot.tally.captured.tick()
        return result

    def _expected(self, slot: Slot, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> Any:
        if slot.entry.kind == "cpu_fallback":
            return None  # what torch's own kernel returned
        return expect(self.overload, args, kwargs, device, self.memo)


def _style(overload: torch._ops.OpOverload) -> tuple[Style, tuple[int, ...]]:
    """Say how the dtypes of a call are found, and at which positions single tensors stand."""
    positional = [argument for argument in overload._schema.arguments if not argument.kwarg_only]
    kinds = [str(argument.type) for argument in positional]
    places = tuple(place for place, kind in enumerate(kinds) if kind in ("Tensor", "Optional[Tensor]"))
    others = [kind for place, kind in enumerate(kinds) if place not in places]
    # torch calls dtypes `int` in some schemas: the real type tells them.
    if any("Tensor" in kind for kind in others) or any(_is_dtype(argument) for argument in positional):
        return "mixed", places
    return "one" if places == (0,) else "several", places


def _is_dtype(argument: Any) -> bool:
    return "ScalarType" in str(argument.real_type)


def _dtypes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.dtype, ...]:
    """Return the dtypes of the tensors, then those that are asked for, as `leaf_dtypes` does for a signature."""
    values = (*args, *(kwargs[name] for name in sorted(kwargs))) if kwargs else args
    found: list[torch.dtype] = []
    asked: list[torch.dtype] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value.dtype)
        elif isinstance(value, torch.dtype):
            asked.append(value)
        elif isinstance(value, (list, tuple)):
            found += [tensor.dtype for tensor in tensors_in(value)]
    return (*found, *asked)


def _kernel_below(op: str, key: str) -> Kernel:
    """Return what torch would have run without the router: the device's kernel, a composite, or its refusal."""
    overload = resolve(op)
    native = native_kernel(op) if key == "PrivateUse1" else None
    if native is not None:
        # For a tensor subclass torch takes the Python kernel registered last, which would be the router again.
        return native
    if torch._C._dispatch_has_kernel_for_dispatch_key(op, key):
        kernel = torch.library.get_kernel(overload, key)
        return partial(kernel.call_boxed, torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)))
    kind = composite_kind(op)
    if kind is not None:
        composite = getattr(torch._C.DispatchKey, composite_key(kind))
        return lambda *args, **kwargs: call_at(overload, composite, args, kwargs)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"Could not run '{op}' with arguments from the '{key}' backend: no kernel is registered for it, "
            "and no implementation is active for these dtypes"
        )

    return refuse
