"""One image for each prompt, with values that every dtype holds exactly, for transformers' models and the toy.

Shape suffixes: B sequences (one image each), S tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from day0.models.spec import ImageInputs, ModelSpec
from day0.models.toy.model import ToyModel

__all__ = ["picture_inputs"]

SEED = 20


def picture_inputs(
    spec: ModelSpec, model: nn.Module, ids_BS: torch.Tensor, place: Callable[[torch.Tensor], torch.Tensor]
) -> ImageInputs | None:
    """Return what a model is called with for a prompt [B, S] with an image; None for one without a vision branch.

    `place` moves a tensor to where the model runs. Pixels are quarters from 0 to 1, the same ones on every device.
    Raises RuntimeError where no form of pixels that is known fits the model.
    """
    if isinstance(model, ToyModel):
        return _toy_picture(model, ids_BS, place) if model.config.vision else None
    if spec.image_inputs is None:
        return None
    made = spec.image_inputs(model, ids_BS, place)
    filled = {
        name: place(_quarters(tuple(value.shape)).to(value.dtype))
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for name, value in made.arguments.items()
    }
    return ImageInputs(ids_BS=made.ids_BS, arguments=filled, text=made.text)


def _toy_picture(model: ToyModel, ids_BS: torch.Tensor, place: Callable[[torch.Tensor], torch.Tensor]) -> ImageInputs:
    config = model.config
    side = 3 * config.vision_patch * config.vision_merge
    pixels = _quarters((ids_BS.shape[0], config.vision_channels, side, side))
    arguments = {"pixel_values": place(pixels.to(next(model.parameters()).dtype))}
    return ImageInputs(ids_BS=ids_BS, arguments=arguments, text=f"one image of {side} by {side} pixels")


def _quarters(shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(0, 5, shape, generator=generator) / 4
