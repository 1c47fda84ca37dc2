"""Find implementations by file name, and load a user's own file."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from day0.errors import Day0Error
from day0.hashing import hash_file
from day0.implementation import Implementation
from day0.kernels import torch as torch_kernels

__all__ = ["load_implementation_file", "load_implementations"]


_USER_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""What a user's file may raise while it is imported."""


def load_implementations() -> tuple[Implementation, ...]:
    """Return every implementation that ships with day0, in the order of the file names."""
    found: list[Implementation] = []
    for info in sorted(pkgutil.iter_modules(torch_kernels.__path__), key=lambda one: one.name):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"day0.kernels.torch.{info.name}")
            path = Path(str(module.__file__))
            found += _of_module(module, path, f"kernels/torch/{path.name}")
    return tuple(found)


def load_implementation_file(path: Path) -> tuple[Implementation, ...]:
    """Run a user's Python file and return its `IMPLEMENTATIONS`.

    Raises Day0Error: no such file, the file does not run, it has no IMPLEMENTATIONS or they are something else.
    """
    if not path.is_file():
        raise Day0Error(str(path), "there is no such file", hint="give the path of a Python file to --with")
    name = f"_day0_with_{hash_file(path)[7:19]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Day0Error(str(path), "this is not a Python file", hint="its name has to end in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except _USER_ERRORS as error:
        line = getattr(error, "lineno", None) or _line_in(error, path)
        raise Day0Error(
            f"{path}:{line}", f"it does not run: {type(error).__name__}: {error}", hint="run it with python to see more"
        ) from None
    return tuple(_of_module(module, path, str(path)))


def _of_module(module: ModuleType, path: Path, origin: str) -> list[Implementation]:
    listed = getattr(module, "IMPLEMENTATIONS", None)
    if not isinstance(listed, (tuple, list)) or not all(isinstance(one, Implementation) for one in listed):
        raise Day0Error(
            origin,
            "it has no IMPLEMENTATIONS, a tuple of day0.implementation.Implementation",
            hint="see kernels/torch/topk.py for a small example",
        )
    digest = hash_file(path)
    return [replace(one, origin=origin, source_hash=digest) for one in listed]


def _line_in(error: BaseException, path: Path) -> int:
    line, traceback = 0, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == str(path):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
