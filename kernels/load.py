"""Find implementations by file name, and load a user's own file."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from day0 import reference_ops
from day0.errors import USER_ERRORS, Day0Error
from day0.hashing import hash_file, hash_json
from day0.implementation import Constraints, Implementation
from day0.kernels import torch as torch_kernels
from day0.sources import sources

__all__ = ["load_implementation_file", "load_implementations"]


def load_implementations() -> tuple[Implementation, ...]:
    """Return every implementation that ships with day0, in the order of the file names."""
    found: list[Implementation] = []
    for info in sorted(pkgutil.iter_modules(torch_kernels.__path__), key=lambda one: one.name):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"day0.kernels.torch.{info.name}")
            path = Path(str(module.__file__))
            parts = sources(path, (torch_kernels, reference_ops))
            digest = hash_json([[part.parent.name, part.name, hash_file(part)] for part in parts])
            found += _of_module(module, digest, f"kernels/torch/{path.name}")
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
    except USER_ERRORS as error:
        line = getattr(error, "lineno", None) or _line_in(error, path)
        raise Day0Error(
            f"{path}:{line}", f"it does not run: {type(error).__name__}: {error}", hint="run it with python to see more"
        ) from None
    return tuple(_of_module(module, hash_file(path), str(path)))


def _of_module(module: ModuleType, digest: str, origin: str) -> list[Implementation]:
    listed = getattr(module, "IMPLEMENTATIONS", None)
    if not isinstance(listed, (tuple, list)) or not all(isinstance(one, Implementation) for one in listed):
        raise Day0Error(
            origin,
            "it has no IMPLEMENTATIONS, a tuple of day0.implementation.Implementation",
            hint="see kernels/torch/topk.py for a small example",
        )
    for one in listed:
        _check_entry(one, origin)
    names = [str(one.identity) for one in listed]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Day0Error(origin, f"{twice} stands in it twice", hint="give one of them another id, version or namespace")
    return [replace(one, origin=origin, source_hash=digest) for one in listed]


def _check_entry(one: Implementation, origin: str) -> None:
    """Refuse fields of the wrong type: a user's file is not type-checked."""
    kinds = ("kernel", "decomposition", "reference")
    faults = {
        "operator": isinstance(one.operator, str) and "::" in one.operator,
        "contract": isinstance(one.contract, int),
        "namespace": isinstance(one.namespace, str),
        "id": isinstance(one.id, str) and bool(one.id),
        "version": isinstance(one.version, str) and bool(re.fullmatch(r"[0-9][0-9A-Za-z.+-]*", one.version)),
        "kind": one.kind in kinds,
        "run": callable(one.run),
        "why": isinstance(one.why, str),
        "rank": isinstance(one.rank, int),
        "devices": isinstance(one.devices, tuple) and all(isinstance(name, str) for name in one.devices),
        "constraints": isinstance(one.constraints, Constraints) and _sound(one.constraints),
    }
    for name, right in faults.items():
        if not right:
            value = f"the {type(getattr(one, name)).__name__} {getattr(one, name)!r}"
            raise Day0Error(
                origin, f"{name} of {one.operator!r}: {value} cannot be used", hint="see day0/implementation.py"
            )


def _sound(limits: Constraints) -> bool:
    dtypes = (*limits.dtypes, *limits.first_dtype)
    return all(isinstance(name, str) for name in dtypes) and all(
        isinstance(divisor, int) and divisor > 0 for divisor in limits.multiple_of.values()
    )


def _line_in(error: BaseException, path: Path) -> int:
    line, traceback = 0, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == str(path):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
