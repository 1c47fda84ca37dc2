"""What torch's dispatcher says of an operator: who registered which kernel, and where."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import day0

__all__ = ["Registration", "foreign_kernels", "registrations"]

_LINE = re.compile(
    r"^(?P<key>\w+)(?:\[alias\])?(?P<inactive> \(inactive\))?: (?:fallthrough )?registered at (?P<where>.+?) ::"
)
_CUSTOM_OPS = "custom_ops.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """One kernel of one operator in torch's dispatcher."""

    key: str
    where: str
    """`file:line` as torch knows it: of the library's definition, of C++ where it was compiled."""
    active: bool
    """False where another one stands over it."""

    @property
    def what(self) -> str:
        """The side of a conflict that it is."""
        return f"a kernel at {self.key}" + ("" if self.active else " that is hidden by another")


def registrations(op: str) -> tuple[Registration, ...]:
    """Return all kernels that an operator has, the hidden ones too; none for an operator that torch does not know."""
    try:
        dump = str(torch._C._dispatch_dump(op))
    except RuntimeError:
        return ()
    found = (match for line in dump.splitlines() if (match := _LINE.match(line)))
    return tuple(
        Registration(key=match["key"], where=_better(op, match["where"]), active=not match["inactive"])
        for match in found
    )


def foreign_kernels(op: str, key: str) -> tuple[Registration, ...]:
    """Return the kernels at a dispatch key that neither torch nor day0 put there."""
    return tuple(one for one in registrations(op) if one.key == key and not _is_ours(one.where))


def _better(op: str, where: str) -> str:
    """Name the function of a `custom_op`, of which the dispatcher knows only torch's own wrapper."""
    path, _, _ = where.rpartition(":")
    if Path(path).name != _CUSTOM_OPS or not path.startswith(_torch_folder()):
        return where
    from torch._library import custom_ops

    found: Any = custom_ops.OPDEFS.get(op.removesuffix(".default"))
    code = getattr(getattr(found, "_init_fn", None), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else where


def _is_ours(where: str) -> bool:
    path = where.rpartition(":")[0]
    if path == f"{_torch_folder()}library.py":
        return False  # somebody's, by a function of torch.library: the line is torch's, the owner unknown
    return path.startswith((_torch_folder(), _torch_sources(), *_own_folders()))


@cache
def _torch_folder() -> str:
    return f"{Path(torch.__file__).parent}/"


@cache
def _torch_sources() -> str:
    """Return the folder in which this torch was compiled, by an operator that is certainly torch's."""
    dump = str(torch._C._dispatch_dump("aten::add.Tensor"))
    found = re.search(r"^debug: registered at (.+?)build/aten/", dump, re.MULTILINE)
    return found[1] if found else _torch_folder()


@cache
def _own_folders() -> tuple[str, ...]:
    """Return the folders that day0 is imported from: in a checkout each part is a link to another one."""
    root = Path(day0.__file__).parent
    folders = {root, root.resolve(), *(path.resolve() for path in root.iterdir() if path.is_dir())}
    return tuple(sorted(f"{folder}/" for folder in folders))
