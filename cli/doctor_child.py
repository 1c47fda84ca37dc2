"""Things that `day0 doctor` tries, each in a process of its own: `python -m day0.cli.doctor_child PART ARGUMENT FILE`.

An answer goes into FILE as JSON. What raises, hangs or crashes here costs this process only.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import sys
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["PARTS", "main"]


def _core(argument: str) -> dict[str, Any]:
    """Import torch and compute on the CPU."""
    if find_spec("torch") is None:
        return {"missing": "torch is not installed"}
    import torch

    found = {"version": torch.__version__, "threads": torch.get_num_threads()}
    accelerator = torch.accelerator.current_accelerator()
    found["accelerator"] = accelerator.type if accelerator is not None and torch.accelerator.is_available() else ""
    _compute(torch.device("cpu"))
    return found


def _device(argument: str) -> dict[str, Any]:
    """Open the device of a profile, or one by its torch name, and compute on it."""
    import torch

    if argument.startswith("torch:"):
        device = torch.device(argument.removeprefix("torch:"))
        title = str(torch.get_device_module(device).get_device_name(device)) if device.type == "cuda" else device.type
    else:
        from day0.devices.open import device_title, open_torch_device
        from day0.devices.profile import load_profile
        from day0.errors import Day0Error

        profile = load_profile(argument)
        if profile.import_module is not None and find_spec(profile.import_module.partition(".")[0]) is None:
            return {"missing": f"{profile.import_module} is not installed"}
        try:
            device = open_torch_device(profile)
        except Day0Error as error:
            return {"broken" if profile.import_module or profile.torch_device == "sim" else "missing": error.what}
        title = device_title(device)
    _compute(device)
    return {"title": title}


def _compute(device: Any) -> None:
    """One operator and its backward pass, held against what they have to give."""
    import torch

    x_MN = torch.arange(6, dtype=torch.float32, device="cpu").reshape(2, 3).to(device).requires_grad_()
    y_MM = x_MN @ x_MN.T
    if y_MM.detach().cpu().tolist() != [[5.0, 14.0], [14.0, 50.0]]:
        raise RuntimeError(f"a product of matrices is wrong: {y_MM.detach().cpu().tolist()}")
    y_MM.sum().backward()
    grad = x_MN.grad.cpu().tolist() if x_MN.grad is not None else None
    if grad != [[6.0, 10.0, 14.0]] * 2:
        raise RuntimeError(f"a backward pass is wrong: {grad}")


def _extra(argument: str) -> dict[str, Any]:
    """Import a package and say its version."""
    distribution, _, module = argument.partition(":")
    if find_spec(module) is None:
        return {"missing": f"{distribution} is not installed"}
    importlib.import_module(module)
    with contextlib.suppress(metadata.PackageNotFoundError):
        return {"version": metadata.version(distribution)}
    return {"version": ""}


def _needed(argument: str) -> dict[str, Any]:
    """Import what day0 cannot do without, besides torch."""
    for module in argument.split(","):
        if find_spec(module) is None:
            return {"missing": f"{module} is not installed"}
        importlib.import_module(module)
    return {}


def _compiler(argument: str) -> dict[str, Any]:
    """Compile a function as `torch.compile` does, from nothing."""
    import torch

    def scaled(x: Any) -> Any:
        return (x * 2.0 + 1.0).sum()

    x_N = torch.arange(64, dtype=torch.float32)
    found = torch.compile(scaled, fullgraph=True)(x_N).item()
    if found != scaled(x_N).item():
        raise RuntimeError(f"compiled code computes {found}, and not {scaled(x_N).item()}")
    return {"version": torch.__version__}


def _plugins(argument: str) -> dict[str, Any]:
    """Name the distributions that bring implementations."""
    names = {point.dist.name for point in metadata.entry_points(group="day0.implementations") if point.dist is not None}
    return {"names": sorted(names)}


def _plugin(argument: str) -> dict[str, Any]:
    """Load what one distribution brings."""
    from day0.registry.entry_points import load_entry_points

    others = [name for name in _plugins("")["names"] if name != argument]
    brought = load_entry_points(without=others)
    return {"version": metadata.version(argument), "implementations": sum(len(one.implementations) for one in brought)}


PARTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "core": _core,
    "needed": _needed,
    "device": _device,
    "extra": _extra,
    "compiler": _compiler,
    "plugins": _plugins,
    "plugin": _plugin,
}


def main(part: str, argument: str, file: str) -> None:
    """Try one part and write the answer."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer = PARTS[part](argument)
    Path(file).write_text(json.dumps(answer), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # threads of a broken package may not let it end


if __name__ == "__main__":
    main(*sys.argv[1:4])
