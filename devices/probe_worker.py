"""The process in which a device is probed: it opens the device, answers questions one by one, and may die.

Questions and answers are JSON, one message each.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import importlib.util
import json
import os
import platform
import re
import resource
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from day0.devices.probe_record import DeviceFacts
from day0.errors import USER_ERRORS, Day0Error

__all__ = ["serve"]


def serve(connection: Connection, settings: str) -> None:
    """Open the device and answer until the other side hangs up. `settings` is JSON: see `probe.Worker`."""
    asked = json.loads(settings)
    _talk_into(Path(asked["log"]))
    try:
        device = _open(asked)
    except Day0Error as error:
        _send(connection, {"where": error.where, "what": error.what, "hint": error.hint})
        return
    _send(connection, _facts(device).model_dump(mode="json"))
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            _send(connection, _answer(json.loads(connection.recv_bytes()), device, asked["max_bytes"]))


def _send(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


def _talk_into(log: Path) -> None:
    """Send all output to a file: a kernel's last words are evidence, and must not end up on the user's terminal."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    faulthandler.enable(file=2, all_threads=False)


def _open(asked: dict[str, Any]) -> Any:
    from day0.devices.open import open_torch_device
    from day0.devices.profile import DeviceProfile
    from day0.reference_ops.torch_ops import register_operators

    profile = DeviceProfile.model_validate(asked["profile"])
    register_operators()
    before = [name for name in asked["imports"] if profile.torch_device not in ("cpu", "cuda", "sim")]
    for name in before:  # such a module may be what registers the device
        _import(name)
    device = open_torch_device(profile)
    for name in asked["imports"]:
        if name not in before:
            _import(name)
    return device


def _import(name: str) -> None:
    """Import a module by name, or a Python file by path."""
    try:
        if not name.endswith(".py"):
            importlib.import_module(name)
            return
        spec = importlib.util.spec_from_file_location(f"_probed_{Path(name).stem}", name)
        if spec is None or spec.loader is None:
            raise ImportError("this is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    except USER_ERRORS as error:
        raise Day0Error(
            f"--import {name}", f"{type(error).__name__}: {error}", hint="give a module's name or a .py file"
        ) from None


def _facts(device: Any) -> DeviceFacts:
    import torch

    module = getattr(torch, device.type, None)

    def ask(name: str, *arguments: object) -> Any:
        function = getattr(module, name, None)
        try:
            return function(*arguments) if function is not None else None
        except USER_ERRORS:
            return None

    memory = ask("mem_get_info")
    total = int(memory[1]) if memory else _host_memory() if device.type == "cpu" else 0
    return DeviceFacts(
        name=str(ask("get_device_name", 0) or platform.processor() or platform.machine()),
        driver=_driver(device.type),
        devices=int(ask("device_count") or 1),
        memory_bytes=total,
        torch=str(torch.__version__),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
    )


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _driver(kind: str) -> str:
    """Return the versions of driver and runtime, as far as the system tells."""
    import torch

    if kind != "cuda":
        return ""
    said = Path("/proc/driver/nvidia/version")
    found = re.search(r"\d+\.[\d.]+", said.read_text(encoding="utf-8")) if said.is_file() else None
    return f"NVIDIA driver {found.group() if found else 'unknown'}, CUDA runtime {torch.version.cuda}"


def _answer(question: dict[str, Any], device: Any, max_bytes: int) -> dict[str, Any]:
    from day0.devices.probe_calls import holds_dtype, try_call
    from day0.records import Signature

    if "measure" in question:
        from day0.devices import probe_measure

        measure = getattr(probe_measure, question["measure"])
        found: dict[str, Any] = measure(device, tuple(question["dtypes"])).model_dump(mode="json")
        return found
    if "dtype" in question:
        tried = holds_dtype(question["dtype"], device)
    else:
        tried = try_call(Signature.model_validate(question["call"]), device, max_bytes=max_bytes)
    if tried.status in ("refused", "wrong", "skipped") and not _is_well(device):
        tried = tried.model_copy(update={"broken": True})
    return tried.model_dump(mode="json")


def _is_well(device: Any) -> bool:
    """Say whether the device still computes: some errors stay until the process ends."""
    import torch

    from day0.devices.open import synchronize

    try:
        ones = torch.ones(4, device=device).clone()
        synchronize(device)
        return bool(torch.equal(ones.cpu(), torch.ones(4)))
    except USER_ERRORS:
        return False
