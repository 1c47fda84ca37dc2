"""Weights of quantised checkpoints, decoded one by one while they are loaded.

Understood: FP8 with one scale per tensor, row or block (`fp8`, `compressed-tensors` in `float-quantized`), and MXFP4 as
gpt-oss stores it and as `compressed-tensors` packs it (`mxfp4-pack-quantized`). All else is refused by name.

Shape suffixes: O output rows, I input values, B blocks of rows, C blocks of columns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from day0.converters.mxfp4 import Mxfp4, decode_mxfp4
from day0.errors import Day0Error
from day0.models.checkpoint import Checkpoint, StoredTensor

__all__ = ["LazyTensor", "readable_tensors"]

_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_SCALES = ("weight_scale_inv", "weight_scale")
_ACTIVATIONS = ("input_scale", "input_activation_scale", "k_scale", "v_scale", "output_scale")
"""Scales of what flows through the model: a kernel's matter, not the weights'."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LazyTensor:
    """A weight in full precision that is read, and decoded where it must be, when it is indexed."""

    read: Callable[[], torch.Tensor]

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Read the tensor, then index it."""
        return self.read()[index]


def readable_tensors(checkpoint: Checkpoint, quantisation: Mapping[str, Any] | None, dtype: torch.dtype) -> Any:
    """Return every weight of a checkpoint by the name that the plain model has for it.

    `quantisation` is the config's `quantization_config`; `dtype` is what decoded weights have.
    Raises Day0Error for a format that day0 cannot decode, and for one that config.json does not mention.
    """
    method = _method(quantisation)
    if method is None:
        _refuse_hidden(checkpoint)
        return {name: LazyTensor(read=tensor.read) for name, tensor in checkpoint.tensors.items()}
    if method not in _DECODERS:
        known = ", ".join(sorted(_DECODERS))
        raise Day0Error(
            str(checkpoint.folder),
            f"its weights are quantised as {method}, which day0 cannot decode; it can: {known}",
            hint="--mode meta needs no weights; or save the checkpoint in bfloat16 and trace that",
        )
    return _DECODERS[method](checkpoint, quantisation or {}, dtype)


def _method(quantisation: Mapping[str, Any] | None) -> str | None:
    if not quantisation:
        return None
    method = str(quantisation.get("quant_method", "of unknown method"))
    if method == "compressed-tensors":
        groups = quantisation.get("config_groups")
        formats = {str(one.get("format")) for one in groups.values()} if isinstance(groups, Mapping) else set()
        overall = str(quantisation.get("format"))
        formats = formats - {"None"} or {overall}
        return f"{method} {' and '.join(sorted(formats))}"
    return method


def _refuse_hidden(checkpoint: Checkpoint) -> None:
    for name, tensor in checkpoint.tensors.items():
        if tensor.dtype in _FP8 or name.endswith(("_blocks", "weight_packed", *_SCALES)):
            what = f"{name} is quantised ({_name(tensor.dtype)}), and config.json has no quantization_config"
            raise Day0Error(str(checkpoint.folder), what, hint="take config.json and weights from one checkpoint")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ------------------------------------------------------------------------------------------------------- FP8


def _fp8(checkpoint: Checkpoint, quantisation: Mapping[str, Any], dtype: torch.dtype) -> dict[str, LazyTensor]:
    block = _block(checkpoint, quantisation)
    tensors = checkpoint.tensors
    found: dict[str, LazyTensor] = {}
    for name, tensor in tensors.items():
        stem = name.removesuffix("weight")
        if name.rpartition(".")[2] in _ACTIVATIONS or (
            name.endswith(("_scale_inv", "_scale")) and _owner(name) in tensors
        ):
            continue
        if tensor.dtype not in _FP8:
            found[name] = LazyTensor(read=tensor.read)
            continue
        # Stacked experts have no `.weight`: their scales are called after them.
        names = [stem + one if stem != name else name + one.removeprefix("weight") for one in _SCALES]
        scale = next((tensors[one] for one in names if one in tensors), None)
        if scale is None:
            raise Day0Error(str(tensor.file), f"{name} is FP8 and has no scale beside it", hint="fetch it again")
        _check_scale(tensor, scale, block)
        read = functools.partial(_scaled, tensor, scale, block, dtype)
        found[name] = LazyTensor(read=read)
    return found


def _owner(scale: str) -> str:
    end = "_scale_inv" if scale.endswith("_scale_inv") else "_scale"
    return scale.removesuffix(end)


def _block(checkpoint: Checkpoint, quantisation: Mapping[str, Any]) -> tuple[int, int] | None:
    block = quantisation.get("weight_block_size")
    if block is None:
        return None
    if isinstance(block, (list, tuple)) and len(block) == 2 and all(type(one) is int and one > 0 for one in block):
        return (block[0], block[1])
    where = str(checkpoint.folder / "config.json")
    raise Day0Error(where, f"weight_block_size is {block!r}", hint="expected two whole numbers, such as [128, 128]")


def _check_scale(weight: StoredTensor, scale: StoredTensor, block: tuple[int, int] | None) -> None:
    rows, columns = (*weight.shape, 1, 1)[:2] if len(weight.shape) < 2 else weight.shape[-2:]
    blocks = (-(-rows // block[0]), -(-columns // block[1])) if block else (1, 1)
    fitting = {(), (1,), (1, 1), (rows,), (rows, 1), *([blocks] if block else [])}
    shape = scale.shape[len(weight.shape) - 2 :] if len(weight.shape) > 2 and len(scale.shape) > 2 else scale.shape
    if shape not in fitting:
        what = f"{scale.name} has shape {list(scale.shape)}, which does not fit {weight.name} {list(weight.shape)}"
        raise Day0Error(str(scale.file), what, hint=f"weight_block_size is {block}; is config.json of this checkpoint?")


def _scaled(
    weight: StoredTensor, scale: StoredTensor, block: tuple[int, int] | None, dtype: torch.dtype
) -> torch.Tensor:
    # Exact products in float32, rounded once.
    values_OI, scales = weight.read().float(), scale.read().float()
    if block is not None and scales.dim() >= 2:
        scales = _spread(scales, block, values_OI.shape)
    elif scales.dim() == 1 and scales.numel() == values_OI.shape[0] and values_OI.dim() > 1:
        scales = scales[:, None]
    return (values_OI * scales).to(dtype)


def _spread(scales_BC: torch.Tensor, block: tuple[int, int], shape: torch.Size) -> torch.Tensor:
    """Repeat the scale of each block over its rows and columns, cut to the weight at the edges."""
    rows, columns = shape[-2:]
    if scales_BC.shape[-2:] == (rows, 1):
        return scales_BC
    wide = scales_BC.repeat_interleave(block[0], dim=-2).repeat_interleave(block[1], dim=-1)
    return wide[..., :rows, :columns]


# ----------------------------------------------------------------------------------------------------- MXFP4


def _mxfp4_stacked(
    checkpoint: Checkpoint, quantisation: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, LazyTensor]:
    """gpt-oss: `X_blocks` [E, O, G, 16] and `X_scales` [E, O, G] of experts whose module keeps X as [E, I, O]."""
    found: dict[str, LazyTensor] = {}
    for name, tensor in checkpoint.tensors.items():
        if name.endswith("_scales") and name.removesuffix("_scales") + "_blocks" in checkpoint.tensors:
            continue
        if not name.endswith("_blocks"):
            found[name] = LazyTensor(read=tensor.read)
            continue
        stem = name.removesuffix("_blocks")
        scales = _partner(checkpoint, tensor, stem + "_scales")
        _check_mxfp4(tensor, scales, tensor.shape[:-2], tensor.shape[-2:] == (*tensor.shape[-2:-1], 16))
        found[stem] = LazyTensor(read=functools.partial(_stacked, tensor, scales, dtype))
    return found


def _stacked(blocks: StoredTensor, scales: StoredTensor, dtype: torch.dtype) -> torch.Tensor:
    codes = blocks.read().flatten(-2)
    return (
        decode_mxfp4(Mxfp4(codes=codes, scales=scales.read().view(torch.uint8)), dtype).transpose(-1, -2).contiguous()
    )


def _mxfp4_packed(checkpoint: Checkpoint, quantisation: Mapping[str, Any], dtype: torch.dtype) -> dict[str, LazyTensor]:
    """compressed-tensors: `weight_packed` [O, I / 2] and `weight_scale` [O, I / 32]."""
    found: dict[str, LazyTensor] = {}
    for name, tensor in checkpoint.tensors.items():
        stem = name.removesuffix("weight_packed")
        if name.endswith("weight_scale") and name.removesuffix("scale") + "packed" in checkpoint.tensors:
            continue
        if stem == name:
            found[name] = LazyTensor(read=tensor.read)
            continue
        scales = _partner(checkpoint, tensor, stem + "weight_scale")
        _check_mxfp4(tensor, scales, tensor.shape[:-1], tensor.shape[-1] == 16 * scales.shape[-1])
        found[stem + "weight"] = LazyTensor(read=functools.partial(_packed, tensor, scales, dtype))
    return found


def _packed(codes: StoredTensor, scales: StoredTensor, dtype: torch.dtype) -> torch.Tensor:
    return decode_mxfp4(Mxfp4(codes=codes.read(), scales=scales.read().view(torch.uint8)), dtype)


def _partner(checkpoint: Checkpoint, tensor: StoredTensor, name: str) -> StoredTensor:
    found = checkpoint.tensors.get(name)
    if found is None:
        raise Day0Error(
            str(tensor.file), f"{tensor.name} has no {name.rpartition('.')[2]} beside it", hint="fetch it again"
        )
    return found


def _check_mxfp4(codes: StoredTensor, scales: StoredTensor, rows: tuple[int, ...], fits: bool) -> None:
    bytes_both = codes.dtype == torch.uint8 and scales.dtype.itemsize == 1
    if not fits or not bytes_both or scales.shape[: len(rows)] != rows or not scales.shape:
        what = (
            f"{codes.name} {_name(codes.dtype)}{list(codes.shape)} and {scales.name} {_name(scales.dtype)}"
            f"{list(scales.shape)} are no MXFP4 weight"
        )
        raise Day0Error(str(codes.file), what, hint="expected 16 bytes of codes for each scale byte")


_DECODERS: dict[str, Callable[[Checkpoint, Mapping[str, Any], torch.dtype], dict[str, LazyTensor]]] = {
    "fp8": _fp8,
    "compressed-tensors float-quantized": _fp8,
    "compressed-tensors naive-quantized": _fp8,
    "compressed-tensors mxfp4-pack-quantized": _mxfp4_packed,
    "mxfp4": _mxfp4_stacked,
}
