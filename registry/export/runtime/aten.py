"""Put a locked implementation before torch's kernel of an aten operator. Standard library only when loaded.

It holds for the whole process, for every model in it: torch's dispatcher knows no models. Dtypes that are not locked
go to the kernel that stood there, and so do calls from inside the implementation.
"""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from day0.registry.export.runtime.core import Bundle

__all__ = ["override"]

PLACE = "aten"


def override(bundle: Bundle, operator: str, key: str) -> None:
    """Register a router at a dispatch key; the kernel below is kept and called for what is not locked.

    Raises Day0Error if this torch has no operator of that name.
    """
    torch = importlib.import_module("torch")
    signatures = importlib.import_module("day0.reference_ops.signatures")
    overload = signatures.resolve(operator)
    below = _below(torch, overload, operator, key)
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # torch warns of every overridden kernel; here that is the purpose.
        warnings.simplefilter("ignore", UserWarning)
        library.impl(
            operator.partition("::")[2], _router(bundle, operator, below, signatures), key, allow_override=True
        )
    # Not written down as bound: every process has it, and those without a model have nothing to call it.
    bundle.overloads[operator] = library


def _router(bundle: Bundle, operator: str, below: Callable[..., Any], signatures: Any) -> Callable[..., Any]:
    running = threading.local()

    def route(*args: Any, **kwargs: Any) -> Any:
        tensors = list(signatures.tensors_in((args, dict(sorted(kwargs.items())))))
        choice = bundle.choices[operator].get(tuple([one.dtype for one in tensors]))
        if choice is None or getattr(running, "inside", False):
            return below(*args, **kwargs)
        running.inside = True
        try:
            return bundle.run(choice, f"{PLACE} @ {operator}", args, kwargs, tensors, below)
        finally:
            running.inside = False

    return route


def _below(torch: Any, overload: Any, operator: str, key: str) -> Callable[..., Any]:
    if torch._C._dispatch_has_kernel_for_dispatch_key(operator, key):
        kernel = torch.library.get_kernel(overload, key)
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        return lambda *args, **kwargs: kernel.call_boxed(keys, *args, **kwargs)
    leaves = importlib.import_module("day0.devices.leaves")
    kind = leaves.composite_kind(operator)
    if kind is not None:
        composite = getattr(torch._C.DispatchKey, leaves.composite_key(kind))
        return lambda *args, **kwargs: leaves.call_at(overload, composite, args, kwargs)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{key} has no kernel of {operator}, and the lock has none for these dtypes")

    return refuse
