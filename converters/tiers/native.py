"""The same look-ups in a few lines of C, built when they are first needed, where the machine has a compiler."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from day0.converters.tables import Table
from day0.converters.tiers._tier import Tier
from day0.errors import Day0Error

__all__ = ["TIER", "decode"]

SOURCE = Path(__file__).with_name("native.c")
_FUNCTIONS = {torch.int16: "look16", torch.int32: "look32", torch.int64: "look64"}
BUILD_SECONDS = 60


def decode(codes_GB: torch.Tensor, rows_G: torch.Tensor, table: Table, out_GB: torch.Tensor) -> None:
    """Look up on the CPU; see `Decode`. Other threads go on meanwhile."""
    for one in (codes_GB, rows_G, out_GB):
        if one.device.type != "cpu" or not one.is_contiguous():
            raise ValueError("native tier: tensors must be contiguous and on the CPU")
    function = getattr(_library(), _FUNCTIONS[table.pairs.dtype])
    function(codes_GB.data_ptr(), rows_G.data_ptr(), table.pairs.data_ptr(), out_GB.data_ptr(), codes_GB.shape[0])


@functools.lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    compiler = _compiler()
    if compiler is None:
        raise Day0Error("--tier native", "there is no C compiler on this machine", hint="use --tier eager")
    with tempfile.TemporaryDirectory(prefix="day0-native-") as folder:
        built = Path(folder) / "native.so"
        command = [compiler, "-O3", "-shared", "-fPIC", "-o", str(built), str(SOURCE)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)  # noqa: S603 - a compiler by its full path, on our own source
        except subprocess.TimeoutExpired:
            raise Day0Error("--tier native", f"{compiler} did not end", hint="use --tier eager") from None
        if done.returncode:
            said = tuple(done.stderr.strip().splitlines()[-3:])
            raise Day0Error("--tier native", f"{compiler} cannot build it", facts=said, hint="use --tier eager")
        library = ctypes.CDLL(str(built))
    for name in _FUNCTIONS.values():
        function = getattr(library, name)
        function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_size_t]
        function.restype = None
    return library


def _compiler() -> str | None:
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


def _missing(device: str) -> str:
    if device != "cpu":
        return f"it computes on the CPU, and the weights lie on {device}"
    if not SOURCE.exists():
        return "native.c is not installed"
    return "" if _compiler() else "there is no C compiler on this machine"


TIER = Tier(name="native", summary="tables in C, built on first use", missing=_missing, decode=decode)
