"""Which line of the model's own code made a call."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from types import FrameType

import torch

__all__ = ["source_line"]

_OURS = Path(__file__).parent.parent
# Both spellings: the folder can be reached through the link in `day0/` too.
_SKIPPED = (str(_OURS), str(_OURS.resolve()), str(Path(torch.__file__).resolve().parent), "<")


def source_line() -> str:
    """Return `file:line` of the nearest frame that is neither torch's nor the recorder's; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = _short_path(frame.f_code.co_filename)
        if name:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@lru_cache(maxsize=4096)
def _short_path(name: str) -> str:
    """Return the path inside the package that it belongs to; empty for frames that are passed over."""
    if name.startswith(_SKIPPED):
        return ""
    for marker in ("site-packages/", "dist-packages/"):
        _, found, rest = name.partition(marker)
        if found:
            return rest
    return "/".join(Path(name).parts[-2:])
