"""An out-of-tree platform of SGLang that computes on the CPU: a simulated accelerator for testing exports.

SGLang runs on it without the kernel package that its own CPU engine needs. It is never chosen by itself: only
`SGLANG_PLATFORM=day0_cpu` activates it.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

__all__ = ["DISPATCH_KEY", "NAME", "activate"]

NAME = "day0_cpu"
DISPATCH_KEY = "day0"


def activate() -> str | None:
    """Entry point of `sglang.srt.platforms`: return where the class is, or None where nobody asked for it by name."""
    return f"{__name__}:Platform" if os.environ.get("SGLANG_PLATFORM") == NAME else None


def __getattr__(name: str) -> Any:
    # The class stands on one of SGLang's, which only an engine's process has.
    if name == "Platform":
        return _platform()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _platform() -> type:
    cpu = importlib.import_module("sglang.srt.platforms.cpu").CpuSRTPlatform
    kinds = importlib.import_module("sglang.srt.platforms.device_mixin").PlatformEnum
    own = {
        "__module__": __name__,
        "__doc__": "SGLang's CPU, from outside of its tree.",
        "_enum": kinds.OOT,
        "get_dispatch_key_name": lambda self: DISPATCH_KEY,
        "get_default_attention_backend": lambda self: "torch_native",
    }
    return type("Platform", (cpu,), own)
