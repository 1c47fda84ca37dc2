"""Random numbers on the simulated device: a generator of its own for each index, and torch.Generator(device="sim").

Kernels are borrowed from the CPU, so the generators are of the CPU's kind: the same seed gives the same numbers there
and here, and what is drawn here does not move the CPU's own generator on.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Self

import torch

from day0.devices.sim.indices import index_of

__all__ = ["SimGenerator", "default_generator", "draw", "is_random", "know_generators"]

_PLAIN: Any = torch._C.Generator
_LOCK = threading.RLock()
_DEFAULTS: dict[int, SimGenerator] = {}
_INDICES: dict[int, int] = {}
"""The device of each living generator: torch hands kernels the C++ object within, without our class around it."""


class SimGenerator(torch._C.Generator):
    """A generator of one simulated device. `manual_seed`, `seed`, `get_state`, `set_state` are torch's own."""

    index: int

    def __new__(cls, device: object = "sim") -> Self:
        """Make a generator with torch's default seed. Raises RuntimeError for an index that no device has."""
        index, made = index_of(device), _PLAIN.__new__(cls, "cpu")
        made.index = _INDICES[made._cdata] = index
        weakref.finalize(made, _INDICES.pop, made._cdata, None).atexit = False
        own: Self = made
        return own

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch's stub has a field
        """The device for which it draws."""
        return torch.device("sim", self.index)

    def clone_state(self) -> SimGenerator:
        """Return a new generator of the same device that goes on as this one would."""
        return _restored(self.index, self.get_state())

    def __reduce__(self) -> Any:
        return _restored, (self.index, self.get_state())


def _restored(index: int, state: torch.Tensor) -> SimGenerator:
    made = SimGenerator(torch.device("sim", index))
    made.set_state(state)
    return made


class _AnyGenerator(type):
    """Every generator is one, as before."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _PLAIN)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _PLAIN)

    def __call__(cls, device: Any = None) -> Any:
        if device is not None and torch.device(device).type == "sim":
            return SimGenerator(device)
        return _PLAIN(device)

    def __getattr__(cls, name: str) -> Any:
        """Return what torch's own class has: `torch.Generator.manual_seed` is a function as before."""
        return getattr(_PLAIN, name)


class _Generator(metaclass=_AnyGenerator):
    """Stands for torch.Generator, whose C++ has no way to make one for a backend written in Python."""


def know_generators() -> None:
    """Let torch.Generator(device="sim") make a generator; all other devices get torch's own, as before."""
    replaced: Any = _Generator
    torch.Generator = replaced  # type: ignore[misc]  # a class that stands for another one


def default_generator(index: int) -> SimGenerator:
    """Return the generator from which a device draws when none is given. It begins with the seed that torch has."""
    with _LOCK:
        if index not in _DEFAULTS:
            _DEFAULTS[index] = SimGenerator(torch.device("sim", index))
            _DEFAULTS[index].manual_seed(torch.initial_seed())
        return _DEFAULTS[index]


def is_random(func: Any) -> bool:
    """Say whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in func.tags


def draw(index: int, run: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Run a CPU kernel that draws, with the device's default generator where none is given.

    Raises RuntimeError for a generator of another device.
    """
    given = next((one for one in (*args, *kwargs.values()) if isinstance(one, _PLAIN)), None)
    if given is not None:
        _refuse_foreign(given, index)
        return run(*args, **kwargs)
    own = default_generator(index)
    with _LOCK:
        # Not every such kernel takes a generator, but all of them fall back on the CPU's default one.
        kept = torch.default_generator.get_state()
        torch.default_generator.set_state(own.get_state())
        try:
            return run(*args, **kwargs)
        finally:
            own.set_state(torch.default_generator.get_state())
            torch.default_generator.set_state(kept)


def _refuse_foreign(given: Any, index: int) -> None:
    found = _INDICES.get(given._cdata)
    if found is None:
        raise RuntimeError(f"Expected a 'sim' device type for generator but found '{given.device.type}'")
    if found != index:
        raise RuntimeError(f"Expected a generator of device sim:{index} but found one of sim:{found}")
