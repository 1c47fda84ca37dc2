"""The toy's weights: the file that ships, and what a seed gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from day0.errors import Day0Error
from day0.hashing import hash_bytes
from day0.models.toy.model import ToyConfig, make_toy
from day0.models.toy.variants import VARIANTS
from day0.models.toy.weights import WEIGHTS_HASH, load_weights, make_weights, weights_bytes, weights_path


def test_the_file_that_ships_fits_the_default() -> None:
    model = make_toy(ToyConfig())
    load_weights(model)
    assert all(bool(value.isfinite().all()) for value in model.state_dict().values())
    assert weights_path().stat().st_size < 1_500_000


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path, weights = tmp_path / "toy.safetensors", make_weights(ToyConfig(), 1)
    data = weights_bytes(weights)
    path.write_bytes(data)
    model = make_toy(ToyConfig())
    load_weights(model, path, hash_bytes(data))
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name].to(value.dtype)), name
    assert data == weights_bytes(make_weights(ToyConfig(), 1)), "the same weights make another file"


@pytest.mark.parametrize("name", ["", *VARIANTS])
def test_seeded_weights_fit_every_variant(name: str) -> None:
    config = ToyConfig(**VARIANTS.get(name, {}))
    weights = make_weights(config)
    shapes = {name: value.shape for name, value in make_toy(config, "meta").state_dict().items()}
    assert {name: value.shape for name, value in weights.items()} == shapes
    assert {value.dtype for value in weights.values()} == {torch.bfloat16, torch.uint8}


def test_weights_hold_what_real_checkpoints_surprise_with() -> None:
    weights = make_weights(ToyConfig())
    codes = torch.cat([value.flatten() for name, value in weights.items() if name.endswith(".codes")])
    scales = torch.cat([value.flatten() for name, value in weights.items() if name.endswith(".scales")])
    assert bool(((codes & 15) == 8).any()), "no -0"
    assert int(scales.min()) == 0 and bool(((scales > 0) & (scales < 80)).any()), "no extreme scale"
    assert any(bool((value < 0).any()) for name, value in weights.items() if name.endswith("correction_bias"))


def test_another_seed_gives_other_weights() -> None:
    one, other = make_weights(ToyConfig(), 1), make_weights(ToyConfig(), 2)
    assert one.keys() == other.keys()
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])


@pytest.mark.parametrize("damage", ["flipped bit", "cut off"])
def test_a_damaged_file_is_refused(tmp_path: Path, damage: str) -> None:
    data = bytearray(weights_path().read_bytes())
    if damage == "cut off":
        del data[-100:]
    else:
        data[-1] ^= 1
    path = tmp_path / "toy.safetensors"
    path.write_bytes(data)
    with pytest.raises(Day0Error, match="not the file of weights that ships") as caught:
        load_weights(make_toy(ToyConfig()), path)
    assert caught.value.where == str(path)
    assert caught.value.facts == (f"expected {WEIGHTS_HASH}", f"found    {hash_bytes(bytes(data))}")
    assert "python -m day0.models.toy.train" in caught.value.hint


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Day0Error, match="cannot be read: No such file"):
        load_weights(make_toy(ToyConfig()), tmp_path / "no.safetensors")


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "toy.safetensors"
    path.write_bytes(b"not safetensors")
    with pytest.raises(Day0Error, match="not a safetensors file"):
        load_weights(make_toy(ToyConfig()), path, hash_bytes(b"not safetensors"))
