"""day0::rms_norm in C++ on the CPU, built with the system's compiler and called through ctypes.

Nothing is built before the first call. Without a compiler the registry is told so, and takes something else.
Shape suffixes: X any leading dimensions, D features.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from day0.errors import Day0Error
from day0.implementation import Accepted, Call, Constraints, Implementation, Rejected
from day0.reference_ops.rms_norm import validate

__all__ = ["IMPLEMENTATIONS"]

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>

static float widen(uint16_t bits) {
    uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

static uint16_t narrow(float value) {  // to the nearest bfloat16, ties to even
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 64);
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static float get(const void* data, long long i, int half) {
    return half ? widen(static_cast<const uint16_t*>(data)[i]) : static_cast<const float*>(data)[i];
}

extern "C" void rms_norm(const void* x, const void* weight, void* out, long long rows, long long features, float eps,
                         int half, int half_weight, int round_first) {
    for (long long row = 0; row < rows; ++row) {
        const long long start = row * features;
        double sum = 0.0;
        for (long long i = 0; i < features; ++i) {
            const double value = get(x, start + i, half);
            sum += value * value;
        }
        const float scale = 1.0f / std::sqrt(static_cast<float>(sum / features) + eps);
        for (long long i = 0; i < features; ++i) {
            float value = get(x, start + i, half) * scale;
            if (half && round_first) value = widen(narrow(value));
            value *= get(weight, i, half_weight);
            if (half) static_cast<uint16_t*>(out)[start + i] = narrow(value);
            else static_cast<float*>(out)[start + i] = value;
        }
    }
}
"""


def has_compiler(call: Call) -> Accepted | Rejected:
    """There is a C++ compiler, `c++`."""
    return Accepted() if shutil.which("c++") else Rejected("there is no C++ compiler, `c++`, on this machine")


@cache
def _library() -> ctypes.CDLL:
    """Build once in a process. Raises Day0Error with the compiler's first words if it refuses."""
    compiler = shutil.which("c++")
    if compiler is None:
        raise Day0Error("cpp_rms_norm.py", "there is no C++ compiler, `c++`", hint="install g++ or clang")
    with tempfile.TemporaryDirectory(prefix="day0-cpp-") as folder:
        source, built = Path(folder) / "rms_norm.cpp", Path(folder) / "rms_norm.so"
        source.write_text(SOURCE, encoding="utf-8")
        command = [compiler, "-O2", "-std=c++17", "-shared", "-fPIC", "-o", str(built), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own source
        if done.returncode:
            raise Day0Error("cpp_rms_norm.py", "it does not build", facts=tuple(done.stderr.splitlines()[:5]))
        library = ctypes.CDLL(str(built))  # it stays loaded when the folder is gone
    pointers, sizes = [ctypes.c_void_p] * 3, [ctypes.c_longlong] * 2
    library.rms_norm.argtypes = [*pointers, *sizes, ctypes.c_float, ctypes.c_int, ctypes.c_int, ctypes.c_int]
    library.rms_norm.restype = None
    return library


def rms_norm(x_XD: torch.Tensor, weight_D: torch.Tensor, eps: float, round_first: bool = True) -> torch.Tensor:
    """Return [..., D] in the dtype of x."""
    validate(x_XD, weight_D, eps, round_first)
    x_XD, weight_D = x_XD.contiguous(), weight_D.contiguous()
    out_XD = torch.empty_like(x_XD)
    features = x_XD.shape[-1]
    half, half_weight = x_XD.dtype == torch.bfloat16, weight_D.dtype == torch.bfloat16
    addresses = (x_XD.data_ptr(), weight_D.data_ptr(), out_XD.data_ptr())
    _library().rms_norm(*addresses, x_XD.numel() // features, features, eps, half, half_weight, round_first)
    return out_XD


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::rms_norm",
        contract=1,
        id="cpp",
        version="1.0",
        kind="kernel",
        run=rms_norm,
        why="one pass in C++ for the sum and one for the result, the sum in float64",
        devices=("cpu",),
        constraints=Constraints(dtypes=frozenset({"float32", "bfloat16"})),
        predicate=has_compiler,
    ),
)
