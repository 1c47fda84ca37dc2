"""Image inputs for a model of transformers, from its config and its own code alone: no processor, no image file.

What a model wants differs in three things: the form of the pixels (whole images, or patches with a grid beside them),
the number of visual tokens an image becomes, and the placeholders in the prompt that they replace. The forms are tried
on the model's own `get_image_features`, which also says how many tokens there are.

Shape suffixes: B sequences (one image each), C channels, Y X pixels, N patches of all images, S tokens.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from day0.errors import USER_ERRORS
from day0.models.spec import ImageInputs

__all__ = ["has_vision", "image_inputs"]

Place = Callable[[torch.Tensor], torch.Tensor]

PIXELS = ("pixel_values", "image_pixel_values", "flattened_patches")
GRIDS = ("image_grid_thw", "image_grid_hw", "grid_thw")
PLACEHOLDERS = ("image_token_id", "image_token_index", "media_placeholder_token_id", "image_placeholder_id")
BEFORE = ("vision_start_token_id", "image_start_token_id", "boi_token_id")
AFTER = ("vision_end_token_id", "image_end_token_id", "eoi_token_id")
PATCHES = 8
"""An image has so many patches on each side after they were merged: small, and more than one of everything."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tower:
    """What the config says of the vision branch."""

    channels: int
    patch: int
    frames: int
    """Frames in one patch: towers made for video repeat an image."""
    merge: int
    side: int
    """Pixels of an image's side, 0 where the config does not fix it."""


def has_vision(forward: Callable[..., Any], config: Any) -> bool:
    """Say whether a model takes images: its forward has pixels, and its config describes a tower."""
    names = inspect.signature(forward).parameters
    return any(name in names for name in PIXELS) and _vision_config(config) is not None


def image_inputs(model: nn.Module, ids_BS: torch.Tensor, place: Place) -> ImageInputs:
    """Return the inputs for one image in each sequence of token ids [B, S] (values on the CPU).

    `place` moves a tensor to where the model runs. Raises RuntimeError where no form of pixels that is known fits the
    model, with what the likeliest form met.
    """
    config = model.config
    tower = _tower(config)
    names = inspect.signature(model.forward).parameters
    batch, dtype = ids_BS.shape[0], next(model.parameters()).dtype
    furthest: BaseException | None = None
    for form in _forms(tower, tuple(names), batch):
        arguments = {name: place(_typed(value, dtype)) for name, value in form.items()}
        try:
            tokens = _count_tokens(model, arguments)
        except USER_ERRORS as error:
            furthest = max((one for one in (furthest, error) if one is not None), key=_depth)
            continue
        return _with_placeholders(config, names, ids_BS, arguments, tokens // batch, place)
    raise furthest or RuntimeError(f"{type(model).__name__} takes pixels in no form that day0 knows")


def _depth(error: BaseException) -> int:
    """Return how deep in the model it was raised: the form that came furthest is the likeliest.

    One that stops over a value that nobody has fits in its shape, and comes before all others.
    """
    traceback, depth = error.__traceback__, 1000 if re.search("meta tensor|unallocated", str(error)) else 0
    while traceback is not None:
        traceback, depth = traceback.tb_next, depth + 1
    return depth


def _vision_config(config: Any) -> Any:
    for name in ("vision_config", "vision_tower_config", "vision_encoder_config", "img_processor"):
        found = getattr(config, name, None)
        if found is not None and not isinstance(found, dict):
            return found
    # Some keep the tower inside another part of the config, and some have no tower: patches go to a projection.
    thinker = getattr(config, "thinker_config", None)
    if thinker is not None:
        return _vision_config(thinker)
    return config if isinstance(getattr(config, "patch_size", None), int) else None


def _tower(config: Any) -> _Tower:
    vision = _vision_config(config)
    patch = _number(vision, ("patch_size", "spatial_patch_size"), 14)
    return _Tower(
        channels=_number(vision, ("num_channels", "in_channels", "in_chans", "num_image_channels"), 3),
        patch=patch,
        frames=_number(vision, ("temporal_patch_size",), 1),
        merge=_number(vision, ("spatial_merge_size", "merge_kernel_size", "merge_size", "pooling_kernel_size"), 1),
        side=_number(vision, ("image_size", "img_size"), 0),
    )


def _number(config: Any, names: tuple[str, ...], default: int) -> int:
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, (list, tuple)) and value:
            value = value[-1]
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return default


def _forms(tower: _Tower, names: tuple[str, ...], batch: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the forms of pixels that models take, likeliest first."""
    pixels = next(name for name in PIXELS if name in names)
    grid = next((name for name in GRIDS if name in names), None)
    if grid is not None:
        yield from _grid_forms(tower, pixels, grid, batch)
    if "image_position_ids" in names:
        yield from _placed_forms(tower, pixels, batch)
    if "spatial_shapes" in names:
        yield _shaped_form(tower, pixels, batch)
    yield from _whole_forms(tower, pixels, names, batch)


def _grid_forms(tower: _Tower, pixels: str, grid: str, batch: int) -> Iterator[dict[str, torch.Tensor]]:
    side = PATCHES * tower.merge
    sizes = torch.tensor([[1, side, side] if grid.endswith("thw") else [side, side]] * batch)
    patches, area = batch * side * side, tower.patch * tower.patch * tower.channels
    for shape in (
        (patches, area * tower.frames),
        (patches, tower.channels, tower.patch, tower.patch),
        (patches, tower.channels, tower.frames, tower.patch, tower.patch),
        (patches, area),
        (batch, side * side, area),
    ):
        yield {pixels: torch.zeros(shape), grid: sizes}


def _placed_forms(tower: _Tower, pixels: str, batch: int) -> Iterator[dict[str, torch.Tensor]]:
    for merge in dict.fromkeys((tower.merge, 1, 3)):
        side = PATCHES * merge
        rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        places = torch.stack([columns, rows], dim=-1).reshape(1, side * side, 2).repeat(batch, 1, 1)
        area = tower.patch * tower.patch * tower.channels
        for width in dict.fromkeys((area, area * merge * merge)):
            yield {pixels: torch.zeros(batch, side * side, width), "image_position_ids": places}


def _shaped_form(tower: _Tower, pixels: str, batch: int) -> dict[str, torch.Tensor]:
    side = PATCHES * max(2, tower.merge)
    return {
        pixels: torch.zeros(batch, side * side, tower.patch * tower.patch * tower.channels),
        "spatial_shapes": torch.tensor([[side, side]] * batch),
        "pixel_attention_mask": torch.ones(batch, side * side, dtype=torch.int64),
    }


def _whole_forms(tower: _Tower, pixels: str, names: tuple[str, ...], batch: int) -> Iterator[dict[str, torch.Tensor]]:
    for side in (tower.side,) if tower.side else (tower.patch * 16, tower.patch * tower.merge * PATCHES):
        sizes = {"image_sizes": torch.tensor([[side, side]] * batch)} if "image_sizes" in names else {}
        if "target_sizes" in names:
            sizes["target_sizes"] = torch.tensor([[side // tower.patch, side // tower.patch]] * batch)
        for lead in ((batch,), (batch, 1), (batch, 2)):
            yield {pixels: torch.zeros(*lead, tower.channels, side, side), **sizes}
    yield {pixels: torch.zeros(batch, PATCHES * PATCHES, tower.patch * tower.patch * tower.channels)}


def _typed(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return value.to(dtype) if value.is_floating_point() else value


def _count_tokens(model: nn.Module, arguments: dict[str, torch.Tensor]) -> int:
    """Return how many visual tokens all images become; 0 for a model that puts them in by itself."""
    features = _feature_maker(model)
    if features is None:
        return 0
    given = inspect.signature(features).parameters
    open_ended = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in given.values())
    known = {name: value for name, value in arguments.items() if open_ended or name in given}
    with torch.no_grad():
        return _rows(features(**known))


def _feature_maker(model: nn.Module) -> Callable[..., Any] | None:
    for owner in (model, getattr(model, "model", None)):
        found: Callable[..., Any] | None = getattr(owner, "get_image_features", None)
        if found is not None:
            return found
    return None


def _rows(features: Any) -> int:
    pooled = getattr(features, "pooler_output", None)
    if pooled is not None:
        features = pooled
    if isinstance(features, torch.Tensor):
        return int(features.numel() // features.shape[-1])
    if isinstance(features, (list, tuple)):
        return sum(_rows(one) for one in features)
    last = getattr(features, "last_hidden_state", None)
    return _rows(last) if last is not None else 0


def _with_placeholders(
    config: Any, names: Any, ids_BS: torch.Tensor, arguments: dict[str, Any], tokens: int, place: Place
) -> ImageInputs:
    special = [value for name, value in vars(config).items() if name.endswith(("_token_id", "_token_index"))]
    ordinary = next(number for number in range(len(special) + 1) if number not in special)
    for value in special:
        if isinstance(value, int):
            ids_BS = torch.where(ids_BS == value, ordinary, ids_BS)
    image = _token(config, PLACEHOLDERS)
    if image is not None and not tokens:
        raise RuntimeError("the model does not say how many visual tokens an image becomes")
    if image is not None:
        run = [one for one in (_token(config, BEFORE), *[image] * tokens, _token(config, AFTER)) if one is not None]
        placed = torch.tensor(run).expand(ids_BS.shape[0], -1)
        ids_BS = torch.cat([ids_BS[:, :1], placed, ids_BS[:, 1:]], dim=1)
    arguments = dict(arguments)
    if "mm_token_type_ids" in names:
        arguments["mm_token_type_ids"] = place((ids_BS == (-1 if image is None else image)).long())
    pixels = next(value for name, value in arguments.items() if name in PIXELS)
    text = f"one image as {next(iter(arguments))} {list(pixels.shape)}, {tokens} visual tokens"
    return ImageInputs(ids_BS=ids_BS, arguments=arguments, text=text)


def _token(config: Any, names: tuple[str, ...]) -> int | None:
    for owner in (config, getattr(config, "thinker_config", None), _vision_config(config)):
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
    return None
