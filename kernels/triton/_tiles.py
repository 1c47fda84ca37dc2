"""Sizes of tiles: what a kernel's file names, and what was measured to be quicker on a device, by its name.

`tuned/<device>.yaml` is written by `benchmarks/gpu/kernels.py --tune` and committed. Sizes change speed, and the order
of sums within the tolerance; they never change what a kernel takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml

from day0.errors import Day0Error

__all__ = ["FOLDER", "SCHEMA", "Sizes", "processors", "read_tuned", "sizes", "trying"]

Sizes = Mapping[str, int]

FOLDER = Path(__file__).parent / "tuned"
SCHEMA = "day0.tuned/1"
LARGEST_FILE = 1 << 20
LARGEST_SIZE = 1 << 16

_trying: ContextVar[Mapping[str, Sizes]] = ContextVar("_trying", default={})  # noqa: B039 - never written to


def sizes(kernel: str, defaults: Sizes, device: torch.device) -> dict[str, int]:
    """Return the sizes of a kernel's tiles on a device; what is not measured there is as the kernel's file says."""
    found = dict(defaults)
    for layer in (_measured(_name(device)).get(kernel, {}), _trying.get().get(kernel, {})):
        found.update({name: size for name, size in layer.items() if name in defaults})
    return found


@contextmanager
def trying(chosen: Mapping[str, Sizes]) -> Iterator[None]:
    """Take other sizes by the name of a kernel, for what runs inside: how a benchmark tries them."""
    token = _trying.set(chosen)
    try:
        yield
    finally:
        _trying.reset(token)


@cache
def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@cache
def processors(device: torch.device) -> int:
    """Return how many programs a device runs at once; 4 where it does not say."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@cache
def _measured(name: str) -> Mapping[str, Sizes]:
    for path in sorted(FOLDER.glob("*.yaml")):
        device, found = read_tuned(path)
        if device == name:
            return found
    return {}


def read_tuned(path: Path) -> tuple[str, dict[str, dict[str, int]]]:
    """Return the device that a file is for, and the sizes by kernel. Raises Day0Error for a file that is none."""
    text = path.read_bytes()[: LARGEST_FILE + 1]
    try:
        data = yaml.safe_load(text) if len(text) <= LARGEST_FILE else None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _bad(path, f"it is no YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise _bad(path, f"it does not say `schema: {SCHEMA}`")
    device, kernels = data.get("device"), data.get("kernels")
    if not isinstance(device, str) or not isinstance(kernels, dict):
        raise _bad(path, "it needs `device`, a text, and `kernels`, a mapping")
    for name, one in kernels.items():
        if not isinstance(name, str) or not isinstance(one, dict) or not all(_sound(*pair) for pair in one.items()):
            raise _bad(path, f"kernels: {name!r:.80} must map names to whole numbers from 1 to {LARGEST_SIZE}")
    return device, kernels


def _sound(name: Any, size: Any) -> bool:
    return isinstance(name, str) and isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= LARGEST_SIZE


def _bad(path: Path, what: str) -> Day0Error:
    return Day0Error(str(path), what, hint="write it anew with benchmarks/gpu/kernels.py --tune, or delete it")
