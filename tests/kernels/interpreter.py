"""Triton's interpreter as a device for tests: run as a script, with TRITON_INTERPRET=1, on tensors of the CPU.

Where the interpreter does something else than a GPU, it is put right here, and never in a kernel: it cuts float32 off
where hardware rounds to the nearest, and NumPy 2.4 no longer makes whole numbers of arrays with one element.
`python -m tests.kernels.interpreter NAME...` prints one line of JSON for each call that was judged; `plant:NAME` judges a
kernel with a planted fault, and `tiles:NAME` one whose other tiles are other code.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from day0.analyzers.kernel_check import Call, calls_of, check_kernel
from day0.implementation import Implementation
from day0.kernels.load import load_implementation_file, load_implementations
from day0.kernels.triton import _tiles
from day0.kernels.triton._tiles import trying
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import tensors_in
from day0.reference_ops.torch_ops import register_operators
from tests.kernels.hard_calls import OTHERWISE, hard_calls
from tests.kernels.planted import PLANTED

# By name: where types are checked there is no Triton.
tl: Any = import_module("triton.language")
interpreter: Any = import_module("triton.runtime.interpreter")

DTYPES: dict[Any, torch.dtype] = {
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float32: torch.float32,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
}
WORDS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def convert(values: Any, old: Any, new: Any, rounding: Any) -> Any:
    """Convert floats as hardware does: to the nearest, ties to even."""
    source = torch.from_numpy(np.ascontiguousarray(values).view(np.uint8).copy()).view(DTYPES[old.scalar])
    size = DTYPES[new.scalar].itemsize
    found = source.to(torch.float32).to(DTYPES[new.scalar]).view(torch.uint8).numpy()
    return found.view(WORDS[size]).reshape(values.shape)


def cast(builder: Any, source: Any, to: Any) -> Any:
    """Convert between any two dtypes."""
    if source.dtype.scalar in DTYPES and to.scalar in DTYPES:
        data = convert(source.data, source.dtype.scalar, to.scalar, None).view(interpreter._get_np_dtype(to))
        return interpreter.TensorHandle(data, to.scalar)
    return interpreter.TensorHandle(source.data.astype(interpreter._get_np_dtype(to)), to.scalar)


def dot(builder: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
    """Multiply matrices in the dtype of the accumulator, float32 with the digits that a matrix unit takes of it."""
    left, right = (convert(one.data, one.dtype, tl.float32, None).view(np.float32) for one in (a, b))
    if a.dtype.scalar == b.dtype.scalar == tl.float32 and precision.name in ("TF32", "TF32x3"):
        coarse = [tf32(one) for one in (left, right)]
        found = np.matmul(*coarse)
        if precision.name == "TF32x3":
            rest = [tf32(one - large) for one, large in zip((left, right), coarse, strict=True)]
            found += np.nan_to_num(np.matmul(rest[0], coarse[1]) + np.matmul(coarse[0], rest[1]))
    else:
        found = np.matmul(left, right)
    return interpreter.TensorHandle(found + d.data, d.dtype.scalar)


def tf32(values: Any) -> Any:
    """Round float32 to eleven bits, as TF32 keeps them; what is not finite stays."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)


def all_ones(builder: Any, dtype: Any) -> Any:
    """Return -1, also as a number without a sign."""
    return interpreter.TensorHandle(np.full(1, -1).astype(interpreter._get_np_dtype(dtype)), dtype.scalar)


def put_right() -> None:
    """Let the interpreter do what a GPU does."""
    interpreter._convert_float = convert
    interpreter.InterpreterBuilder.cast_impl = cast
    interpreter.InterpreterBuilder.create_dot = dot
    interpreter.InterpreterBuilder.get_all_ones_value = all_ones
    patched = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        patched(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch


def implementation(name: str) -> Implementation:
    """Return a Triton kernel by the name of its operator, as one for the CPU: the interpreter is there."""
    found = (one for one in load_implementations() if one.origin.startswith("kernels/triton/"))
    return replace(next(one for one in found if one.operator == f"day0::{name}"), devices=("cpu",))


def planted(name: str, folder: Path) -> Implementation:
    """Return a kernel with a planted fault, as a user's file."""
    fault = PLANTED[name]
    text = (Path(_tiles.__file__).parent / f"{fault.operator}.py").read_text()
    for right, wrong in ((fault.right, fault.wrong), *fault.also):
        assert right in text, f"{fault.operator} no longer has: {right}"
        text = text.replace(right, wrong)
    path = folder / f"{name}.py"
    path.write_text(text)
    return replace(load_implementation_file(path)[0], devices=("cpu",))


LARGE = 300_000
LARGE_OF = {"day0::topk_tokens": 6000}
"""Elements of all tensors of a call from which it is left out: interpreted, it takes minutes."""
WIDE = {
    "kda_recurrent": {"values": 128},
    "kda_chunked": {"values": 128, "chunks": 2},
    "fused_experts_few": {"features": 64, "columns": 64},
}
"""Fewer and larger programs, of which the interpreter runs one after the other; long sequences in parts."""


def small_calls(operator: str) -> list[Call]:
    """Return the contract's samples but the largest, and the hard calls."""
    calls = [*calls_of(operator), *hard_calls(operator)]
    large = LARGE_OF.get(operator, LARGE)
    return [one for one in calls if sum(tensor.numel() for tensor in tensors_in(one)) < large]


def other_experts(one: Implementation) -> str:
    """Say where a router takes other experts than the contract, or return an empty text.

    The check takes either of two equal ones for right; the contract, and ranks that have to agree, take the lower.
    """
    for args, kwargs in hard_calls(one.operator):
        got: Any = one.run(*args, **kwargs)
        right: Any = load_operators()[one.operator].reference(*args, **kwargs)
        if not torch.equal(got[1], right[1]):
            return f"{got[1].tolist()} instead of {right[1].tolist()}"
    return ""


def say(line: dict[str, Any]) -> None:
    """Write a line of JSON."""
    sys.stdout.write(json.dumps(line) + "\n")


def main() -> None:
    """Judge the kernels that are named."""
    put_right()
    register_operators()
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:]:
            _, plant, fault = name.partition("plant:")
            _, tiles, otherwise = name.partition("tiles:")
            one = planted(fault, Path(folder)) if plant else implementation(otherwise or name)
            with trying(OTHERWISE if tiles else WIDE):
                for found in check_kernel(one, "cpu", calls=small_calls(one.operator)):
                    say({"operator": name, **asdict(found)})
            if one.operator == "day0::moe_router" and (reason := other_experts(one)):
                say({"operator": name, "shapes": "ties", "status": "fail", "reason": reason})


if __name__ == "__main__":
    main()
