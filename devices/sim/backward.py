"""What torch's engine cannot do for a backend written in Python, said in words.

It has one queue for all simulated devices, made at the process' first backward if `sim` is there by then, and stops at
an internal assertion; forward mode over backward ends the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from day0.devices.sim.guard import taken_error
from day0.reference_ops.signatures import tensors_in

__all__ = ["explain_backward"]

_NO_QUEUE = "device_ready_queues_"


def explain_backward() -> None:
    """Put readable refusals in the place of the engine's own. They are raised from the same call."""
    run: Any = torch.autograd._engine_run_backward  # type: ignore[attr-defined]  # imported there by name
    if getattr(run, "explains_sim", False):
        return
    torch.autograd._engine_run_backward = _explained(run)  # type: ignore[attr-defined]


def _explained(run: Callable[..., Any]) -> Callable[..., Any]:
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        _refuse_forward_over_backward(args)
        try:
            return run(*args, **kwargs)
        except SystemError:  # torch has an error without knowing which: the guard has it
            taken = taken_error()
            if taken is None:
                raise
            raise taken from None
        except RuntimeError as error:
            if _NO_QUEUE not in str(error):
                raise
            raise NotImplementedError(_why_no_queue(run)) from None

    run_backward.explains_sim = True  # type: ignore[attr-defined]  # so that it is put there once
    return run_backward


def _why_no_queue(run: Callable[..., Any]) -> str:
    try:  # what the first device always can, if the engine knows it
        one = torch.ones((), device="sim:0", requires_grad=True)
        run((one.sum(),), (torch.ones((), device="sim:0"),), False, False, (one,), allow_unreachable=True)
    except RuntimeError:
        return (
            "torch ran a backward pass before the sim device was opened in this process, and its engine counts the "
            "devices once, at its first; open the sim device first"
        )
    return (
        "backward reaches a tensor on sim:1 or above: torch runs backward for device 0 only where a backend is "
        "written in Python; train on sim:0, and use the other simulated devices for inference and transfers"
    )


def _refuse_forward_over_backward(args: tuple[Any, ...]) -> None:
    if forward_ad._current_level >= 0 and any(one.device.type == "sim" for one in tensors_in(args[:1])):
        raise NotImplementedError(
            "forward mode over backward (torch.func.hessian, jvp of grad) does not run on the sim device; take "
            "jacrev(jacrev(f)), or grad of jvp"
        )
