"""torch.compile and locks: what of a compiled model still goes through the dispatcher, and what does not."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

from day0.reference_ops import hadamard
from day0.reference_ops.torch_ops import register_operators
from day0.registry.dispatch import ActiveLock, activate
from day0.registry.receipts import silent
from tests.registry.locking import implementation, lock_of

CPU = torch.device("cpu")
X_RD = torch.linspace(-1, 1, 8).reshape(2, 4)

ATEN = implementation("aten::erfinv", lambda x: torch.full_like(x, 3.0))
OWN = implementation("day0::hadamard", lambda x: hadamard.reference(x) * 2)
LOCK = lock_of((ATEN, ("float32",)), (OWN, ("float32",)))
COMPILER = shutil.which("g++") or shutil.which("clang++")

BACKENDS = (
    "eager",
    "aot_eager",
    pytest.param("inductor", marks=[pytest.mark.slow, pytest.mark.skipif(not COMPILER, reason="no C++ compiler")]),
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Let no compiled code of one test be used by another one."""
    register_operators()
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own, about its caches and about torch's deprecations
        yield
    torch._dynamo.reset()


def _aten(x_RD: torch.Tensor) -> torch.Tensor:
    return torch.erfinv(x_RD) + 1.0


def _own(x_RD: torch.Tensor) -> torch.Tensor:
    y_RD: torch.Tensor = torch.ops.day0.hadamard(x_RD) + 1.0
    return y_RD


def _compiled(function: Callable[[torch.Tensor], torch.Tensor], backend: str) -> tuple[torch.Tensor, ActiveLock]:
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    with activate(LOCK, CPU, [ATEN, OWN]) as active:
        compiled(X_RD)
        return compiled(X_RD), active


@pytest.mark.parametrize("backend", BACKENDS)
def test_our_operators_are_opaque_to_every_backend_and_every_run_counts(backend: str) -> None:
    result, active = _compiled(_own, backend)
    assert torch.allclose(result, hadamard.reference(X_RD) * 2 + 1)
    assert active.receipts()[1].calls == 2, "compiling does not count"


@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_operators_of_torch_are_routed_where_the_backend_calls_them(backend: str) -> None:
    result, active = _compiled(_aten, backend)
    assert torch.equal(result, torch.full_like(X_RD, 4.0))
    assert active.receipts()[0].calls == 2


@pytest.mark.slow
@pytest.mark.skipif(not COMPILER, reason="no C++ compiler")
def test_inductor_writes_operators_of_torch_itself_so_that_the_implementation_is_inert_and_said_to_be() -> None:
    result, active = _compiled(_aten, "inductor")
    assert torch.allclose(result, torch.erfinv(X_RD) + 1, equal_nan=True)
    assert silent(active.receipts(), LOCK.entries)[0].startswith("aten::erfinv@1 base:test==1.0")


def test_a_function_compiled_without_a_lock_is_routed_once_there_is_one_and_not_after() -> None:
    compiled = torch.compile(_own, backend="aot_eager", fullgraph=True)
    plain = compiled(X_RD)
    with activate(LOCK, CPU, [ATEN, OWN]) as active:
        assert not torch.allclose(compiled(X_RD), plain)
        assert active.receipts()[1].calls == 1
    assert torch.equal(compiled(X_RD), plain)


def test_the_tracer_stays_out_of_routers_and_implementations() -> None:
    seen: list[bool] = []

    def run(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.compiler.is_compiling())
        return x.clone()

    one = implementation("aten::erfinv", run)

    def broken(x_RD: torch.Tensor) -> torch.Tensor | None:
        # torch cannot resume within `try`: it runs this function as it is, and looks at each function that it enters.
        try:
            torch._dynamo.graph_break()
            return torch.erfinv(x_RD)
        except ValueError:
            return None

    compiled = torch.compile(broken, backend="eager")
    torch._dynamo.utils.counters.clear()
    with activate(lock_of((one, ("float32",))), CPU, [one]) as active:
        for _ in range(3):
            compiled(X_RD)
        assert active.receipts()[0].calls == 3
    assert seen == [False] * 3
