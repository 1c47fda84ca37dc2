"""Run Triton kernels on small calls and nothing else: for a tool that watches every access of a GPU's memory.

`PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --error-exitcode 9 python benchmarks/gpu/sanitize.py rms_norm ...`;
without names, all. Without the caching each tensor is an allocation of its own, so that a step beyond it is seen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from kernel_cases import CASES, kernel_of

from day0.analyzers.kernel_check import calls_of
from day0.devices.profile import load_profile
from day0.reference_ops.signatures import describe
from day0.reference_ops.torch_ops import register_operators
from day0.registry.resolve import judge


def main() -> None:
    """Run what is named, and say how many calls each kernel took."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.kernels.hard_calls import hard_calls

    register_operators()
    for name in sys.argv[1:] or CASES:
        print(f"{name}: {runs(name, hard_calls)} calls", flush=True)


def runs(name: str, more: Callable[[str], list[Any]]) -> int:
    """Run all calls that a kernel takes; return how many."""
    one, profile, taken = kernel_of(name), load_profile("cuda"), 0
    for args, kwargs in (*calls_of(one.operator), *more(one.operator)):
        if judge(one, describe(one.operator, args, kwargs), profile).accepted:
            one.run(*(there(value) for value in args), **{key: there(value) for key, value in kwargs.items()})
            torch.cuda.synchronize()
            taken += 1
    return taken


def there(value: Any) -> Any:
    """Return a tensor, or a list of them, on the GPU."""
    if isinstance(value, torch.Tensor):
        return value.cuda()
    return [there(one) for one in value] if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    main()
