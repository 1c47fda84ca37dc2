"""Rates and habits of a device, measured: in the worker, by the clock and by results that tell."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from day0.devices.open import synchronize
from day0.devices.probe_record import Measured
from day0.errors import USER_ERRORS
from day0.reference_ops.signatures import dtype_of

__all__ = ["habits", "rates"]

_MATMUL_DTYPES = ("float32", "bfloat16", "float16", "float64")
_LONG_ENOUGH_S = 0.02
_LARGEST = 8192
_ROUNDS = 5


def rates(device: torch.device, computes: tuple[str, ...]) -> Measured:
    """Measure memory and link bandwidth, launch and sync cost, and matmul rates. What fails is left out."""
    bandwidth = _try(lambda: _bandwidth(device, (64 if device.type == "cpu" else 512) << 20))
    host = torch.zeros(32 << 20, dtype=torch.uint8)
    link = None if device.type == "cpu" else host.numel() / _best(device, lambda: host.to(device)) / 1e9
    one = torch.zeros(1, device=device)
    launch = _best(device, lambda: [one.add_(1) for _ in range(200)]) / 200
    wait = _best(device, lambda: [one.add_(1).item() for _ in range(50)]) / 50
    tflops = {
        name: float(f"{rate:.3g}")
        for name in _MATMUL_DTYPES
        if name in computes and (rate := _matmul_rate(device, name))
    }
    return Measured(
        bandwidth_gb_s=_round(bandwidth),
        link_gb_s=_round(link),
        launch_us=_round(launch * 1e6),
        sync_us=_round(max(wait - launch, 0.0) * 1e6),
        tflops=tflops,
    )


def _bandwidth(device: torch.device, size: int) -> float:
    moved = torch.zeros(size, dtype=torch.uint8, device=device)
    return 2 * size / _best(device, moved.clone) / 1e9


def habits(device: torch.device, computes: tuple[str, ...]) -> Measured:
    """Find out whether subnormal results are flushed, and how matrices are multiplied."""
    return Measured(
        subnormals=_try(lambda: _subnormals(device)),
        matmul_inputs=_try(lambda: _inputs(device)) if "float32" in computes else None,
        accumulate={
            name: found
            for name in ("float16", "bfloat16")
            if name in computes and (found := _try(partial(_accumulate, device, name)))
        },
    )


def _subnormals(device: torch.device) -> str:
    small = torch.full((16,), 2.0**-127, dtype=torch.float32).to(device)
    return "flush" if bool((small * 1.0).cpu().eq(0).all()) else "keep"


def _inputs(device: torch.device) -> str:
    """Multiply numbers whose last bits a narrower dtype does not hold by one."""
    ones = torch.eye(32).to(device)

    def survives(bits: int) -> bool:
        value = torch.full((32, 32), 1.0 + 2.0**-bits)
        return bool(torch.equal(torch.mm(value.to(device), ones).cpu(), value))

    if survives(20):
        return "exact"
    return "tfloat32" if survives(10) else "bfloat16"


def _accumulate(device: torch.device, name: str) -> str:
    """Add ones until a narrow sum stands still: at 256 in bfloat16, at 2048 in float16."""
    dtype, count = dtype_of(name), 4096
    ones = torch.ones(16, count, dtype=dtype).to(device), torch.ones(count, 16, dtype=dtype).to(device)
    return "float32" if float(torch.mm(*ones)[0, 0].cpu()) == count else name


def _matmul_rate(device: torch.device, name: str) -> float | None:
    """Return tera-operations per second of the largest square product that does not take long."""
    size = 512
    while True:
        seconds: float | None = _try(partial(_matmul_seconds, device, dtype_of(name), size))
        if seconds is None:
            return None
        if seconds > _LONG_ENOUGH_S or size >= _LARGEST:
            return 2.0 * size**3 / seconds / 1e12
        size *= 2


def _matmul_seconds(device: torch.device, dtype: torch.dtype, size: int) -> float:
    factor = torch.ones(size, size, dtype=dtype, device=device)
    return _best(device, lambda: torch.mm(factor, factor))


def _best(device: torch.device, work: Callable[[], object]) -> float:
    """Return the shortest of some rounds, in seconds, after one to warm up."""
    work()
    took = []
    for _ in range(_ROUNDS):
        synchronize(device)
        began = time.perf_counter()
        work()
        synchronize(device)
        took.append(time.perf_counter() - began)
    return max(min(took), 1e-9)


def _try(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except USER_ERRORS:
        return None


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")
