"""The toy's weights: how trained ones are loaded and verified, and how others are drawn from a seed."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from day0.converters.mxfp4 import encode_mxfp4
from day0.errors import Day0Error
from day0.hashing import hash_bytes
from day0.models.toy.config import ToyConfig
from day0.models.toy.model import ToyModel, make_toy
from day0.reference_ops.mxfp4_decode import BLOCK

__all__ = ["SEED", "WEIGHTS_HASH", "draw_weights", "load_weights", "make_weights", "weights_bytes", "weights_path"]

SEED = 20261129
WEIGHTS_HASH = "sha256:39b8e27b9ff3a6c32b602644b3b88bd37a6e841dcf153a1c82afca9cd58dde36"
"""Hash of the file that ships; `python -m day0.models.toy.train` makes the file and prints this."""


def weights_path() -> Path:
    """Return where the file lies."""
    return Path(__file__).parents[1] / "weights" / "toy.safetensors"


def make_weights(config: ToyConfig, seed: int = SEED) -> dict[str, torch.Tensor]:
    """Draw all weights from one generator, in the order of their names; experts are encoded to MXFP4.

    Floats are bfloat16, so that they are the same numbers in every wider dtype.
    """
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: tuple(value.shape) for name, value in make_toy(config, "meta").state_dict().items()}
    weights: dict[str, torch.Tensor] = {}
    for name in sorted(shapes):
        if name.endswith(".codes"):
            encoded = encode_mxfp4(_expert_weight(shapes[name], generator))
            weights[name], weights[name.replace(".codes", ".scales")] = encoded.codes, encoded.scales
        elif not name.endswith(".scales"):
            weights[name] = _draw(name, shapes[name], generator).to(torch.bfloat16)
    return weights


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return float64 values of about normal distribution and variance 1.

    Sums of whole numbers: torch.randn rounds differently from machine to machine.
    """
    steps = torch.randint(-32, 33, (4, *shape), generator=generator).sum(dim=0)
    return torch.div(steps.to(torch.float64), (4 * (65**2 - 1) / 12) ** 0.5)


def _expert_weight(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    experts, rows, packed = shape
    dense: torch.Tensor = _normal((experts, rows, 2 * packed), generator) * (2 * packed) ** -0.5
    # What real checkpoints have too: a block of zeros, and one that is next to nothing.
    dense[0, 0, :BLOCK] = 0.0
    dense[0, 1, :BLOCK] *= 2.0**-60
    return dense


_SPREAD = {"A_log": 0.3, "dt_bias": 0.3, "e_score_correction_bias": 0.3, "base": 0.3, "scale": 0.3, "bias": 0.3}
"""Standard deviation of parameters that are added or are exponents, by the last part of their name."""


def _draw(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return _scaled(name, shape, _normal(shape, generator))


def draw_weights(model: ToyModel, seed: int = SEED) -> None:
    """Fill a model where it lies, from a generator of its device: numbers of the same kind as `make_weights` draws."""
    device = model.embed_tokens.weight.device
    generator = torch.Generator(device).manual_seed(seed)
    for name, value in sorted(model.state_dict().items()):
        if name.endswith(".codes"):
            value.random_(0, 256, generator=generator)
        elif name.endswith(".scales"):
            # Codes of all kinds are about 3 in the mean, and weights shall be about 1 over the root of their inputs.
            value.fill_(127 + round(math.log2((value.shape[-1] * BLOCK) ** -0.5 / 3)))
        else:
            shape = tuple(value.shape)
            value.copy_(_scaled(name, shape, torch.randn(shape, generator=generator, device=device)))


def _scaled(name: str, shape: tuple[int, ...], values: torch.Tensor) -> torch.Tensor:
    last = name.rpartition(".")[2]
    if last in _SPREAD:
        return torch.mul(values, _SPREAD[last])
    if name.endswith(("norm.weight", "norm0.weight", "norm1.weight", "_res.norm")):
        return torch.add(torch.mul(values, 0.1), 1.0)
    if name in ("embed_tokens.weight", "vision_tower.position_table"):
        return values
    # A gain above 1 keeps layers from drowning in the residual, so that a broken one shows in the logits.
    fan_in = shape[-2] if name.endswith((".k_b", ".v_b")) else shape[-1]
    return torch.mul(values, 1.5 * fan_in**-0.5)


def weights_bytes(weights: dict[str, torch.Tensor]) -> bytes:
    """Return the file for some weights: the same bytes every time."""
    # One entry only: safetensors writes several in any order.
    data: bytes = save(weights, metadata={"made_by": "day0.models.toy.train"})
    return data


def load_weights(model: ToyModel, path: Path | None = None, expected: str | None = None) -> None:
    """Load the weights into a model on the CPU.

    Raises Day0Error if the file is missing, or is not the one that ships.
    """
    path, expected = path or weights_path(), expected or WEIGHTS_HASH
    remake = "train it again with `python -m day0.models.toy.train`, or install day0 again"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Day0Error(str(path), f"the toy's weights cannot be read: {error.strerror}", hint=remake) from None
    found = hash_bytes(data)
    if found != expected:
        facts = (f"expected {expected}", f"found    {found}")
        raise Day0Error(str(path), "this is not the file of weights that ships with day0", facts=facts, hint=remake)
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise Day0Error(str(path), f"not a safetensors file: {error}", hint=remake) from None
    model.load_state_dict(tensors, strict=True)
