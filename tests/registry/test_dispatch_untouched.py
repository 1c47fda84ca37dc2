"""After a lock is left, torch's dispatch tables are those of before, whatever happened meanwhile."""

from __future__ import annotations

import contextlib
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

from day0.devices.open import open_torch_device
from day0.devices.profile import load_profile
from day0.errors import Day0Error
from day0.records import Lock
from day0.reference_ops.torch_ops import register_operators
from day0.registry.dispatch import activate
from day0.registry.dispatcher import foreign_kernels
from day0.registry.kernel_tables import changed_tables, snapshot
from tests.registry.locking import implementation, lock_of

CPU = torch.device("cpu")
X_N = torch.linspace(-0.5, 0.5, 4)
ERFINV = implementation("aten::erfinv", lambda x: x.clone())
HADAMARD = implementation("day0::hadamard", lambda x: x.clone())
OPS = ("aten::erfinv", "day0::hadamard")
LOCK = lock_of((ERFINV, ("float32",)), (HADAMARD, ("float32",)))
BOTH = [ERFINV, HADAMARD]


def _plain() -> None:
    with activate(LOCK, CPU, BOTH):
        torch.erfinv(X_N)
        assert set(changed_tables(snapshot(()) | _BEFORE)) == set(OPS), "the helper has to see a router"


def _exception() -> None:
    with contextlib.suppress(ZeroDivisionError), activate(LOCK, CPU, BOTH):
        raise ZeroDivisionError


def _exception_in_a_kernel() -> None:
    one = implementation("aten::erfinv", lambda x: 1 / 0)
    with contextlib.suppress(ZeroDivisionError), activate(lock_of((one, ("float32",))), CPU, [one]):
        torch.erfinv(X_N)


def _nested() -> None:
    with activate(LOCK, CPU, BOTH), activate(LOCK, CPU, BOTH):
        torch.erfinv(X_N)


def _threads() -> None:
    barrier = threading.Barrier(4, timeout=60)

    def work() -> None:
        with activate(LOCK, CPU, BOTH):
            barrier.wait()
            torch.erfinv(X_N)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _held() -> Iterator[None]:
    with activate(LOCK, CPU, BOTH):
        yield


def _closed_generator() -> None:
    generator = _held()
    next(generator)
    generator.close()  # type: ignore[attr-defined]  # an iterator that is a generator


def _generator_closed_in_another_thread() -> None:
    generator = _held()
    next(generator)
    thread = threading.Thread(target=generator.close)  # type: ignore[attr-defined]  # the same
    thread.start()
    thread.join()


def _left_in_the_wrong_order() -> None:
    first, second = activate(LOCK, CPU, BOTH), activate(LOCK, CPU, BOTH)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)


def _refused_on_the_way_in() -> None:
    strange = LOCK.entries[0].model_copy(update={"operator": "aten::no_such_operator"})
    with pytest.raises(Day0Error, match="has no operator of that name"):
        activate(Lock(**{**LOCK.__dict__, "entries": (*LOCK.entries, strange)}), CPU, BOTH).__enter__()


_BEFORE: dict[str, str] = {}
WAYS: tuple[Callable[[], None], ...] = (
    _plain,
    _exception,
    _exception_in_a_kernel,
    _nested,
    _threads,
    _closed_generator,
    _generator_closed_in_another_thread,
    _left_in_the_wrong_order,
    _refused_on_the_way_in,
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))
def test_torch_is_as_it_was(way: Callable[[], None]) -> None:
    register_operators()
    _BEFORE.update(snapshot(OPS))
    value = torch.erfinv(X_N)
    way()
    assert changed_tables(_BEFORE) == {}
    assert torch.equal(torch.erfinv(X_N), value)


def test_on_the_simulated_device_too() -> None:
    device = open_torch_device(load_profile("sim"))
    before = snapshot(OPS)
    with activate(LOCK, device, BOTH) as active:
        torch.erfinv(X_N.to(device))
        assert any("PrivateUse1" in line for line in changed_tables(before)["aten::erfinv"])
        assert active.receipts()[0].calls == 1
    assert changed_tables(before) == {}


def test_a_lock_left_early_is_over_and_the_later_one_goes_on() -> None:
    outer = implementation("aten::erfinv", lambda x: torch.full_like(x, 1.0), id="outer")
    inner = implementation("aten::erfinv", lambda x: torch.full_like(x, 2.0), id="inner")
    first = activate(lock_of((outer, ("float32",))), CPU, [outer])
    second = activate(lock_of((inner, ("float32",))), CPU, [inner])
    value = float(torch.erfinv(X_N)[0])
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert float(torch.erfinv(X_N)[0]) == 2.0
    second.__exit__(None, None, None)
    assert float(torch.erfinv(X_N)[0]) == value


@contextlib.contextmanager
def _another_library(name: str) -> Iterator[str]:
    """Override a CPU kernel as another package would, and return where from."""
    line, library = inspect.currentframe(), torch.library.Library("aten", "IMPL")
    place = f"{__file__}:{line.f_lineno - 1 if line else 0}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch says once in a process that a kernel was overridden
        library.impl(name, lambda x: torch.full_like(x, 9.0), "CPU", allow_override=True)
    try:
        yield place
    finally:
        library._destroy()


def test_one_that_was_registered_by_a_function_of_torch_has_no_known_owner() -> None:
    with torch.library._scoped_library("aten", "IMPL") as other, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the same
        other.impl("erfinv", lambda x: x.clone(), "CPU", allow_override=True)
        assert "torch/library.py:" in _foreign()


def test_a_kernel_of_another_library_is_named_and_comes_back() -> None:
    with _another_library("erfinv") as place:
        assert _foreign() == place
        before = snapshot(["aten::erfinv"])
        with activate(LOCK, CPU, BOTH) as active:
            assert torch.equal(torch.erfinv(X_N), X_N)
            assert float(torch.erfinv(X_N.double())[0]) == 9.0
            assert len(active.notes) == 1 and active.notes[0].startswith("aten::erfinv on CPU was already replaced by")
        assert changed_tables(before) == {}
        assert float(torch.erfinv(X_N)[0]) == 9.0
    assert _foreign() == ""
    with activate(LOCK, CPU, BOTH) as active:
        assert active.notes == ()


def _foreign() -> str:
    return " ".join(one.where for one in foreign_kernels("aten::erfinv", "CPU") if one.active)
