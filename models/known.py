"""Tensors on meta that carry their values, for runs without memory (`day0.models.fake`)."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["KNOWN_BYTES", "META", "KnownTensor", "known", "to_meta", "to_real", "wrapped"]

KNOWN_BYTES = 16 << 20
"""A tensor of more bytes is not computed for real."""
META = torch.device("meta")


class KnownTensor(torch.Tensor):
    """A meta tensor that carries its values, `held`, on the CPU."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # torch's own idiom

    @staticmethod
    def __new__(cls: type[KnownTensor], real: torch.Tensor) -> KnownTensor:  # noqa: PYI034 - torch asks for a static method
        """Wrap a real tensor; both have the same shape, strides and dtype."""
        made: KnownTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            real.size(),
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            layout=real.layout,
            device=META,
        )
        made.held = real
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares a static method
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Outside the mode, a mode is made for the one call."""
        from day0.models.fake import FakeValues  # the mode is made of these tensors

        with FakeValues():
            return func(*args, **(kwargs or {}))

    def tolist(self) -> Any:
        """Return the values; torch's own method would look for memory."""
        return self.held.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Return the values as an array."""
        return self.held.numpy(force=force)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch leaves it untyped
        """Show that it is one of these."""
        return f"KnownTensor({self.held!r})"


def known(value: torch.Tensor) -> torch.Tensor:
    """Bring a tensor from the CPU into a run without memory: whole numbers and truth values keep what they are."""
    return value.to("meta") if value.is_floating_point() else KnownTensor(value)


def to_real(value: Any) -> Any:
    """Return the tensor that a known one carries, the CPU for a device, anything else as it is."""
    if isinstance(value, KnownTensor):
        return value.held
    return torch.device("cpu") if isinstance(value, torch.device) else value


def to_meta(value: Any) -> Any:
    """Return a plain meta tensor of the same layout, meta for a device, anything else as it is."""
    if isinstance(value, torch.device):
        return META
    if isinstance(value, KnownTensor) or (isinstance(value, torch.Tensor) and value.device.type != "meta"):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=META)
    return value


def wrapped(value: Any) -> Any:
    """Return a tensor with memory as a known one, anything else as it is."""
    if isinstance(value, torch.Tensor) and not isinstance(value, KnownTensor) and value.device.type != "meta":
        return KnownTensor(value)
    return value
