"""day0::rms_norm in CUDA C, compiled by NVRTC, which torch brings: no nvcc is needed.

The kernel is compiled at the first call. bfloat16 is read and written by its bits, so that no header is needed either.
Shape suffixes: X any leading dimensions, D features.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

import torch

from day0.errors import Day0Error
from day0.implementation import Accepted, Call, Constraints, Implementation, Rejected
from day0.reference_ops.rms_norm import validate

__all__ = ["IMPLEMENTATIONS"]

THREADS = 256

SOURCE = r"""
__device__ float widen(unsigned short bits) { return __uint_as_float(((unsigned int)bits) << 16); }

__device__ unsigned short narrow(float value) {  // to the nearest bfloat16, ties to even
    unsigned int bits = __float_as_uint(value);
    if (value != value) return (unsigned short)((bits >> 16) | 64u);
    return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

__device__ float get(const void* data, long long i, int half) {
    return half ? widen(((const unsigned short*)data)[i]) : ((const float*)data)[i];
}

extern "C" __global__ void rms_norm(const void* x, const void* weight, void* out, int features, int eps_bits, int half,
                                    int half_weight, int round_first) {
    __shared__ float parts[256];
    const long long start = (long long)blockIdx.x * features;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < features; i += 256) {
        const float value = get(x, start + i, half);
        sum += value * value;
    }
    parts[threadIdx.x] = sum;
    __syncthreads();
    for (int step = 128; step > 0; step /= 2) {
        if (threadIdx.x < step) parts[threadIdx.x] += parts[threadIdx.x + step];
        __syncthreads();
    }
    const float scale = 1.0f / sqrtf(parts[0] / features + __int_as_float(eps_bits));
    for (int i = threadIdx.x; i < features; i += 256) {
        float value = get(x, start + i, half) * scale;
        if (half && round_first) value = widen(narrow(value));
        value *= get(weight, i, half_weight);
        if (half) ((unsigned short*)out)[start + i] = narrow(value);
        else ((float*)out)[start + i] = value;
    }
}
"""


def has_nvrtc(call: Call) -> Accepted | Rejected:
    """Torch can compile CUDA C while it runs."""
    if not torch.version.cuda:
        return Rejected("this torch was built without CUDA")
    found = hasattr(torch.cuda, "_compile_kernel")
    return Accepted() if found else Rejected(f"torch {torch.__version__} has no torch.cuda._compile_kernel")


@cache
def _kernel(device: int) -> Any:
    """Compile once for each device. Raises Day0Error with NVRTC's words if it refuses."""
    try:
        with torch.cuda.device(device):
            return torch.cuda._compile_kernel(SOURCE, "rms_norm")
    except (RuntimeError, OSError, ValueError) as error:
        raise Day0Error("cuda_c_rms_norm.py", f"it does not compile: {str(error)[:300]}") from None


def rms_norm(x_XD: torch.Tensor, weight_D: torch.Tensor, eps: float, round_first: bool = True) -> torch.Tensor:
    """Return [..., D] in the dtype of x."""
    validate(x_XD, weight_D, eps, round_first)
    x_XD, weight_D = x_XD.contiguous(), weight_D.contiguous()
    out_XD = torch.empty_like(x_XD)
    features = x_XD.shape[-1]
    half, half_weight = (int(one.dtype == torch.bfloat16) for one in (x_XD, weight_D))
    if rows := x_XD.numel() // features:
        # torch releases differ in whether they pass a float as 4 bytes or as 8; an int has always had 4.
        (eps_bits,) = struct.unpack("i", struct.pack("f", eps))
        given = [x_XD, weight_D, out_XD, features, eps_bits, half, half_weight, int(round_first)]
        with torch.cuda.device(x_XD.device):
            _kernel(x_XD.device.index or 0)(grid=(rows, 1, 1), block=(THREADS, 1, 1), args=given)
    return out_XD


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::rms_norm",
        contract=1,
        id="cuda_c",
        version="1.0",
        kind="kernel",
        run=rms_norm,
        why="one block for each row; needs no compiler beside torch",
        devices=("cuda",),
        constraints=Constraints(dtypes=frozenset({"float32", "bfloat16"})),
        predicate=has_nvrtc,
    ),
)
