"""Backward on several simulated devices: torch's engine has one queue for them, and refuses by an internal assertion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["explain_backward"]

_NO_QUEUE = "device_ready_queues_"


def explain_backward() -> None:
    """Put a readable refusal in the place of the engine's assertion. It is raised from the same call."""
    run: Any = torch.autograd._engine_run_backward  # type: ignore[attr-defined]  # imported there by name
    if getattr(run, "explains_sim", False):
        return
    torch.autograd._engine_run_backward = _explained(run)  # type: ignore[attr-defined]


def _explained(run: Callable[..., Any]) -> Callable[..., Any]:
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except RuntimeError as error:
            if _NO_QUEUE not in str(error):
                raise
            raise NotImplementedError(
                "backward reaches a tensor on sim:1 or above: torch runs backward for device 0 only where a backend is "
                "written in Python; train on sim:0, and use the other simulated devices for inference and transfers"
            ) from None

    run_backward.explains_sim = True  # type: ignore[attr-defined]  # so that it is put there once
    return run_backward
