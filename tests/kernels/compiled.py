"""Compile kernels for a Hopper GPU without one, on the contracts' samples: run as a script.

Triton compiles for any target; what it needs of a driver is a target and two numbers. Nothing is launched, so results
mean nothing; what is proven is that each kernel compiles to machine code and fits the shared memory.
`python compiled.py NAME...` prints a line of JSON for each kernel and signature.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from day0.analyzers.kernel_check import Call, calls_of
from day0.devices.profile import load_profile
from day0.kernels.load import load_implementations
from day0.kernels.triton._tiles import trying
from day0.reference_ops.signatures import describe, tensors_in
from day0.reference_ops.torch_ops import register_operators
from day0.registry.resolve import judge
from tests.kernels.hard_calls import OTHERWISE, hard_calls

SHARED = 232448
"""Bytes of shared memory that a program of an H200 can have."""


# By name: where types are checked there is no Triton.
GPUTarget: Any = import_module("triton.backends.compiler").GPUTarget
JITFunction: Any = import_module("triton.runtime.jit").JITFunction


class Target:
    """What the compiler asks of a driver."""

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


LONG_TO_COMPILE = ("kda_chunked",)
"""Kernels of which only the largest call in each dtype is compiled: a quarter of a minute each."""


def widest(calls: list[Call]) -> list[Call]:
    """Return the largest call in each dtype of the first tensor."""
    found: dict[Any, tuple[int, Call]] = {}
    for call in calls:
        tensors = list(tensors_in(call))
        size = sum(one.numel() for one in tensors)
        if size > found.get(tensors[0].dtype, (0, call))[0]:
            found[tensors[0].dtype] = (size, call)
    return [call for _, call in found.values()]


def compile_call(run: Any, call: Call, seen: set[str]) -> list[dict[str, Any]]:
    """Compile what one call would launch; return name, registers of shared memory and what went wrong."""
    found: list[dict[str, Any]] = []

    def launch(kernel: Any, *args: Any, grid: Any, **named: Any) -> None:
        compiled = kernel.run(*args, grid=grid, warmup=True, **named)
        if compiled.hash not in seen:
            seen.add(compiled.hash)
            found.append({"kernel": kernel.__name__, "shared": compiled.metadata.shared, "warps": named["num_warps"]})

    JITFunction.__getitem__ = lambda self, grid: partial(launch, self, grid=grid)
    args, kwargs = call
    run(*args, **kwargs)
    return found


def main() -> None:
    """Compile the kernels that are named."""
    import_module("triton.runtime.driver").driver.set_active(Target())
    import_module("triton").knobs.cache.dir = tempfile.mkdtemp()
    register_operators()
    for name in sys.argv[1:]:
        found = [one for one in load_implementations() if one.origin.startswith("kernels/triton/")]
        one = next(one for one in found if one.operator == f"day0::{name}")
        seen: set[str] = set()
        calls = [*calls_of(one.operator), *hard_calls(one.operator)]
        calls = widest(calls) if name in LONG_TO_COMPILE else calls
        chosen: list[tuple[dict[str, int], Call]] = [({}, call) for call in calls]
        if name in OTHERWISE:
            chosen.append((OTHERWISE[name], calls[-1]))
        for tiles, call in chosen:
            signature = describe(one.operator, *call)
            if judge(replace(one, devices=("cpu",)), signature, load_profile("cpu")).accepted:
                with trying({name: tiles}):
                    lines = compile_call(one.run, call, seen)
                for line in lines:
                    line["status"] = "pass" if line["shared"] <= SHARED else "fail"
                    sys.stdout.write(json.dumps({"operator": name, **line}) + "\n")


if __name__ == "__main__":
    main()
