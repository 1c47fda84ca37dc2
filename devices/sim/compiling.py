"""torch.compile and the simulated device, which has no compiler: the backend `eager` runs, every other one is refused.

A backend without an inductor can run compiled models one operator at a time only. torch's tracer would not stop at the
tensors of this device: it would step into the Python that stands for the hardware, and compile that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch._C._dynamo import eval_frame

__all__ = ["refuse_compiled", "stay_out_of_tracing"]

_ALLOWED = frozenset({"eager", "eager_noexcept", "eager_debug"})
_WRAPPED = "_torchdynamo_orig_backend"


def stay_out_of_tracing(entries: Iterable[Callable[..., Any]], inner: Iterable[Callable[..., Any]]) -> None:
    """Keep torch's tracer out of functions: out of `entries` themselves, out of `inner` and all that those call."""
    skip, go_on = eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
    outer: tuple[Callable[..., Any], ...] = (*entries, refuse_compiled)
    for one in outer:
        eval_frame.set_code_exec_strategy(one.__code__, eval_frame._FrameExecStrategy(skip, go_on))
    below: tuple[Callable[..., Any], ...] = (*inner, _backend_of)
    for one in below:
        eval_frame.set_code_exec_strategy(one.__code__, eval_frame._FrameExecStrategy(skip, skip))


def refuse_compiled(func: Any) -> None:
    """Raise RuntimeError if this call comes from a model that torch.compile is compiling, but with backend `eager`."""
    callback = eval_frame.get_eval_frame_callback()
    if not callable(callback):
        return
    backend = _backend_of(callback)
    if backend in _ALLOWED:
        return
    raise RuntimeError(
        f"torch.compile: the sim device has no compiler, and backend '{backend}' cannot compile {func.name()} for it; call the "
        "model without torch.compile, or use torch.compile(model, backend='eager')"
    )


def _backend_of(callback: Any) -> str:
    while hasattr(callback, _WRAPPED):
        callback = getattr(callback, _WRAPPED)
    return str(getattr(callback, "compiler_name", None) or getattr(callback, "__name__", type(callback).__name__))
