"""Operators after which the host waits, by their arguments where the name alone does not say it."""

from __future__ import annotations

from typing import Any

import torch

from day0.devices.leaves import syncs

__all__ = ["host_waits"]

_MASKS = (torch.bool, torch.uint8)
_INDEXING = frozenset(
    {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}
)
"""With a mask among the indices they look for its true entries."""
_COUNTING = frozenset({"aten::bincount", "aten::unique_dim_consecutive", "aten::masked_scatter_backward"})


def host_waits(op: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
    """Say whether the size or the value of a result has to come back from the device.

    By name: `nonzero`, `item` and the like. By arguments: indexing with a mask counts its true entries, repeating by a
    tensor needs its sum unless the caller says it, and a copy from a device to the host that is not asked not to block.
    """
    name = op.partition(".")[0]
    if syncs(op) or name in _COUNTING:
        return True
    if name in _INDEXING:
        indices = args[1] if len(args) > 1 else kwargs.get("indices", ())
        masks = [one for one in indices if isinstance(one, torch.Tensor) and one.dtype in _MASKS]
        # One value everywhere under a mask is a masked fill, which needs no count.
        fills = "put" in name and len(args) > 2 and len(masks) == 1 and args[2].numel() == 1
        return bool(masks) and not fills
    if op == "aten::repeat_interleave.Tensor":
        return kwargs.get("output_size") is None
    if name in ("aten::_to_copy", "aten::copy_"):
        return _copies_to_host(name, args, kwargs, result)
    return False


def _copies_to_host(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
    source = args[1] if name == "aten::copy_" and len(args) > 1 else args[0] if args else None
    target = args[0] if name == "aten::copy_" and args else result
    if not isinstance(source, torch.Tensor) or not isinstance(target, torch.Tensor):
        return False
    return source.device.type not in ("cpu", "meta") and target.device.type == "cpu"
