"""What a failed stage leaves behind: the first wrong module, its inputs, and its results on all three places."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from day0.analyzers.canary.context import CanaryContext
from day0.analyzers.modules.compare import Compared, compare_modules
from day0.analyzers.modules.passes import Pass
from day0.analyzers.modules.places import CPU, Models, in_float64, in_own_dtype, on_device
from day0.analyzers.modules.record import Recording, record_pass
from day0.analyzers.modules.tree import tensors_of
from day0.errors import USER_ERRORS, Day0Error
from day0.records import ModuleResult
from day0.registry.call_guard import RefusedCall
from day0.registry.results import WrongResult

__all__ = ["Found", "look_for_cause"]

ERRORS: tuple[type[BaseException], ...] = (*USER_ERRORS, Day0Error, WrongResult, RefusedCall)
"""What a model or a kernel may raise."""
MOST_BYTES = 64 << 20
COMMAND = "day0 check --level model"


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Where a stage went wrong first."""

    place: str = ""
    """Module with its class and phase."""
    folder: str = ""
    """Below the run folder."""
    command: str = ""


def look_for_cause(stage: str, look_at: Callable[[CanaryContext], Pass] | None, context: CanaryContext) -> Found:
    """Run the stage's pass again module by module, and write what the first wrong one was given and gave.

    A pass that stops on the device names the module that was running. Never raises what a model or a kernel raises.
    """
    if look_at is None:
        return Found(command=COMMAND)
    running = _Running()
    try:
        models, calls = context.three(), look_at(context)
        with running.watching(models.device):
            compared = compare_modules(models, calls, context.spec.dtype)
    except ERRORS as error:
        place = running.place()
        text = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"
        folder = _write(context, stage, {"stopped_in": place, "error": text}, {})
        return Found(place=place, folder=folder, command=COMMAND)
    wrong = _first(compared)
    about = {"first_divergent": compared.first_divergent, "reason": compared.reason, **_about(wrong)}
    if compared.non_finite is not None:
        about["non_finite"] = compared.non_finite.model_dump(mode="json")
    tensors = _tensors(models, calls, wrong) if wrong is not None else {}
    folder = _write(context, stage, about, tensors)
    return Found(place=compared.first_divergent, folder=folder, command=COMMAND)


def _first(compared: Compared) -> ModuleResult | None:
    alone = next((one for one in compared.modules if one.fresh.status == "fail"), None)
    return alone or next((one for one in compared.modules if one.cumulative.status == "fail"), None)


def _about(wrong: ModuleResult | None) -> dict[str, Any]:
    return {} if wrong is None else {"module": wrong.model_dump(mode="json")}


def _tensors(models: Models, calls: Pass, wrong: ModuleResult) -> dict[str, torch.Tensor]:
    """Return what a module was given and gave in the pass, on each place."""
    key = (wrong.phase, wrong.module, wrong.call)
    found: dict[str, torch.Tensor] = {}
    for name, recording in _recordings(models, calls, wrong.module).items():
        call = recording.calls.get(key)
        if call is None:
            continue
        for kind, rows in (("input", tensors_of(call.inputs)), ("result", call.results)):
            found |= {f"{name}.{kind}.{number}": one.contiguous().clone() for number, one in enumerate(rows)}
    size = sum(one.numel() * one.element_size() for one in found.values())
    return found if size <= MOST_BYTES else {}


def _recordings(models: Models, calls: Pass, path: str) -> dict[str, Recording]:
    try:
        with in_float64(models.golden) as golden:
            right = record_pass(calls, models.golden, CPU, keep_inputs=MOST_BYTES, only=path)
        with in_own_dtype(models.same, golden.made) as same:
            base = record_pass(calls, models.same, CPU, keep_inputs=MOST_BYTES, only=path)
        with on_device(models.device, golden.made, same.made):
            got = record_pass(calls, models.device, models.where, keep_inputs=MOST_BYTES, only=path)
    except ERRORS:
        return {}
    return {"golden": right, "cpu": base, "device": got}


def _write(context: CanaryContext, stage: str, about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> str:
    folder = context.evidence / "canary" / stage
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "evidence.json").write_text(json.dumps(about, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if tensors:
        safetensors.torch.save_file(tensors, folder / "tensors.safetensors")
    return str(Path(context.evidence.name) / folder.relative_to(context.evidence))


class _Running:
    """The modules of the device that are running; after an error, those that were."""

    def __init__(self) -> None:
        self._paths: list[str] = []

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        handles = [handle for path, module in model.named_modules() for handle in self._follow(path, module)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _follow(self, path: str, module: nn.Module) -> list[Any]:
        name = f"{path or '(model)'} ({type(module).__name__})"

        def enter(*_: Any) -> None:
            self._paths.append(name)

        def leave(*_: Any) -> None:
            if self._paths:
                self._paths.pop()

        # Without always_call: an error leaves the path of the module in which it was raised.
        return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]

    def place(self) -> str:
        """Return the innermost module that has not returned; empty where none was running."""
        return self._paths[-1] if self._paths else ""
