"""Files that a plan names: in plan.json from the run folder on, so that later commands may start in another folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from day0.playbook import Playbook

__all__ = ["opened", "stored", "with_files"]


def with_files(plan: Playbook, folder: Path, name: Callable[[str, Path], str]) -> Playbook:
    """Return the plan with `name(file, folder)` in place of each of its files: those of `--with`, and a profile's."""
    load = tuple(name(one, folder) for one in plan.register_.load)
    device = name(plan.device, folder) if plan.device.endswith((".yaml", ".yml")) else plan.device
    if (load, device) == (plan.register_.load, plan.device):
        return plan
    return plan.model_copy(update={"register_": plan.register_.model_copy(update={"load": load}), "device": device})


def stored(file: str, folder: Path) -> str:
    """Return how plan.json names a file: relative to the run folder, unless its path is absolute."""
    return file if Path(file).is_absolute() else os.path.relpath(Path(file).absolute(), folder.resolve())


def opened(file: str, folder: Path) -> str:
    """Return where a file of plan.json is, short where it lies below the working folder.

    A name that leads nowhere from the run folder stays: earlier releases wrote names from the working folder on.
    """
    if Path(file).is_absolute():
        return file
    path = os.path.normpath(folder.resolve() / file)
    if not Path(path).exists():
        return file
    here = os.path.relpath(path)
    return path if here.startswith(os.pardir) else here
