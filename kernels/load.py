"""Find implementations by file name, and load a user's own file."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

from packaging.version import InvalidVersion, Version

from day0 import reference_ops
from day0.errors import USER_ERRORS, Day0Error
from day0.hashing import hash_file, hash_json
from day0.implementation import Implementation
from day0.kernels import torch as torch_kernels
from day0.kernels import triton as triton_kernels
from day0.kernels.limits import constraint_fault
from day0.kernels.triton._tiles import FOLDER
from day0.sources import sources

__all__ = [
    "implementations_in",
    "line_in_traceback",
    "load_implementation_file",
    "load_implementations",
    "load_parents_file",
    "parents_in",
]

PACKAGES = (torch_kernels, triton_kernels)
"""Where the implementations lie that ship with day0."""


def load_implementations() -> tuple[Implementation, ...]:
    """Return every implementation that ships with day0, in the order of the file names."""
    found: list[Implementation] = []
    for package in PACKAGES:
        for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda one: one.name):
            if not info.name.startswith("_"):
                module = importlib.import_module(f"{package.__name__}.{info.name}")
                path = Path(str(module.__file__))
                parts = sources(path, (*PACKAGES, reference_ops))
                # Measured sizes of tiles change the order of sums.
                tuned = sorted(FOLDER.glob("*.yaml")) if package is triton_kernels else ()
                digest = hash_json([[part.parent.name, part.name, hash_file(part)] for part in (*parts, *tuned)])
                found += implementations_in(module, digest, f"kernels/{path.parent.name}/{path.name}")
    return tuple(found)


def load_implementation_file(path: Path) -> tuple[Implementation, ...]:
    """Run a user's Python file and return its `IMPLEMENTATIONS`.

    Raises Day0Error: no such file, the file does not run, it has no IMPLEMENTATIONS or they are something else.
    """
    module = _run_file(path)
    return tuple(implementations_in(module, hash_file(path), str(path)))


def load_parents_file(path: Path) -> dict[str, str]:
    """Return the parents of namespaces that a user's file declares: its `NAMESPACES`, or none."""
    return parents_in(_run_file(path), str(path))


def _run_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise Day0Error(str(path), "there is no such file", hint="give the path of a Python file to --with")
    return _module_of(path, hash_file(path))


@cache
def _module_of(path: Path, digest: str) -> ModuleType:
    """Run a file once for one content: what it defines in torch could not be defined twice."""
    spec = importlib.util.spec_from_file_location(f"_day0_with_{digest[7:19]}", path)
    if spec is None or spec.loader is None:
        raise Day0Error(str(path), "this is not a Python file", hint="its name has to end in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Day0Error:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a file of a user's raises errors of its own too
        # Python gives the file its absolute path, whatever path was asked for.
        line = getattr(error, "lineno", None) or line_in_traceback(error, path.absolute())
        where = f"{path}:{line}" if line else str(path)
        raise Day0Error(
            where, f"it does not run: {type(error).__name__}: {error}", hint="run it with python to see more"
        ) from None
    return module


def implementations_in(module: ModuleType, digest: str, origin: str, distribution: str = "") -> list[Implementation]:
    """Return a module's `IMPLEMENTATIONS` with what the loader knows: origin with line, hash, distribution.

    Raises Day0Error for a module without them, for fields that cannot be used, and for an identity that stands twice.
    """
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
    file = str(module.__file__)
    return [
        replace(one, origin=origin + _line_of(one.run, file), source_hash=digest, distribution=distribution)
        for one in listed
    ]


def _line_of(run: Callable[..., object], file: str) -> str:
    """Return `:line` where a function begins, or of IMPLEMENTATIONS where it stands in another file."""
    try:
        code = getattr(inspect.unwrap(run), "__code__", None)
    except USER_ERRORS:
        code = None  # an object whose attributes raise, or that wraps itself
    if code is not None and code.co_filename == file:
        return f":{code.co_firstlineno}"
    lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    line = next((number for number, text in enumerate(lines, 1) if text.startswith("IMPLEMENTATIONS")), 0)
    return f":{line}" if line else ""


def parents_in(module: ModuleType, origin: str) -> dict[str, str]:
    """Return the parents of namespaces that a module declares, child to parent: its `NAMESPACES`, or none."""
    declared = getattr(module, "NAMESPACES", {})
    plain = isinstance(declared, dict) and all(
        isinstance(name, str) and re.fullmatch(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*", name)
        for pair in declared.items()
        for name in pair
    )
    if not plain or "base" in declared:
        raise Day0Error(
            origin,
            f"NAMESPACES is {declared!r:.120}, and not a dict from a namespace to its parent",
            hint='write it like {"acme/v2": "acme/v1", "acme/v1": "base"}; `base` has no parent',
        )
    return dict(declared)


def _check_entry(one: Implementation, origin: str) -> None:
    """Refuse fields of the wrong type: a user's file is not type-checked."""
    kinds = ("kernel", "decomposition", "reference")
    faults = {
        "operator": isinstance(one.operator, str) and "::" in one.operator,
        "contract": isinstance(one.contract, int) and not isinstance(one.contract, bool),
        "namespace": isinstance(one.namespace, str),
        "id": isinstance(one.id, str) and bool(one.id) and one.id.isprintable(),
        "version": isinstance(one.version, str) and _is_version(one.version),
        "kind": one.kind in kinds,
        "run": callable(one.run),
        "why": isinstance(one.why, str) and _is_unicode(one.why),
        "rank": isinstance(one.rank, int) and not isinstance(one.rank, bool),
        "devices": isinstance(one.devices, tuple) and all(isinstance(name, str) for name in one.devices),
        "predicate": one.predicate is None or callable(one.predicate),
    }
    for name, right in faults.items():
        if not right:
            value = f"the {type(getattr(one, name)).__name__} {getattr(one, name)!r}"
            raise Day0Error(
                origin, f"{name} of {one.operator!r}: {value} cannot be used", hint="see day0/implementation.py"
            )
    fault = constraint_fault(one.constraints)
    if fault:
        what = f"constraints of {one.operator} {one.id}: {fault}"
        raise Day0Error(origin, what, hint="see Constraints in day0/implementation.py")


def _is_unicode(text: str) -> bool:
    """Say whether a text can be written: half of a surrogate pair cannot, and it goes into locks."""
    return text == text.encode("utf-8", "replace").decode("utf-8")


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return re.fullmatch(r"[0-9][0-9A-Za-z.+-]*", text) is not None


def line_in_traceback(error: BaseException, path: Path) -> int:
    """Return the line of a file at which an error passed through it, the innermost one; 0 if it did not."""
    line, traceback = 0, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == str(path):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
