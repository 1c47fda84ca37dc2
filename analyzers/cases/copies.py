"""Copies of arguments that keep strides, offsets and shared storage; widened, and on another device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs

__all__ = ["StoragePair", "copy_to", "copy_with_storages", "magnitudes", "storage_row", "widened"]


def storage_row(tensor: torch.Tensor) -> torch.Tensor:
    """Return all elements of the storage as one row: filling a view with stride 0 or overlap needs that."""
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((elements,), (1,), 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoragePair:
    """All the memory behind some arguments, as one row: before the call on the CPU, and on the device."""

    original: torch.Tensor
    moved: torch.Tensor


def copy_to(inputs: CaseInputs, device: torch.device) -> CaseInputs:
    """Copy the arguments to a device with their strides, offsets and shared storage kept."""
    return copy_with_storages(inputs, device)[0]


def copy_with_storages(inputs: CaseInputs, device: torch.device) -> tuple[CaseInputs, list[StoragePair]]:
    """Copy the arguments and return the memory behind them too, to see later what was written to it."""
    storages: dict[tuple[int, torch.dtype], torch.Tensor] = {}
    pairs: list[StoragePair] = []

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            key = (value.untyped_storage()._cdata, value.dtype)
            if key not in storages:
                row = storage_row(value)
                storages[key] = row.to(device, copy=True)
                pairs.append(StoragePair(original=row, moved=storages[key]))
            return storages[key].as_strided(value.shape, value.stride(), value.storage_offset())
        if isinstance(value, torch.device):
            return device
        return _map(value, move)

    return CaseInputs(args=move(inputs.args), kwargs=move(inputs.kwargs)), pairs


def magnitudes(inputs: CaseInputs) -> CaseInputs:
    """Return the arguments with the magnitude of every floating value."""

    def size(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.abs() if value.is_floating_point() else value
        return _map(value, size)

    return CaseInputs(args=size(inputs.args), kwargs=size(inputs.kwargs))


def widened(inputs: CaseInputs) -> CaseInputs:
    """Copy the arguments with every floating tensor and every floating dtype argument as float64."""

    def widen(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            wide = (
                torch.float64 if value.is_floating_point() else torch.complex128 if value.is_complex() else value.dtype
            )
            return value.to(wide, copy=True)
        if isinstance(value, torch.dtype) and value.is_floating_point:
            return torch.float64
        return _map(value, widen)

    return CaseInputs(args=widen(inputs.args), kwargs=widen(inputs.kwargs))


def _map(value: Any, change: Any) -> Any:
    if isinstance(value, list):
        return [change(item) for item in value]
    if isinstance(value, tuple):
        return tuple(change(item) for item in value)
    if isinstance(value, dict):
        return {name: change(item) for name, item in value.items()}
    return value
