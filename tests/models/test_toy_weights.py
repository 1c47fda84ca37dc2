"""The toy's weights and the toy as a source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from day0.errors import Day0Error
from day0.hashing import hash_bytes
from day0.models.make_toy_weights import main
from day0.models.toy import ToyConfig, make_toy
from day0.models.toy_source import open_toy
from day0.models.toy_weights import WEIGHTS_HASH, load_weights, make_weights, weights_bytes, weights_path
from day0.playbook import ModelPlan


def test_the_file_is_what_the_seed_gives() -> None:
    data = weights_bytes()
    assert hash_bytes(data) == WEIGHTS_HASH
    assert weights_path().read_bytes() == data
    assert len(data) < 1_000_000


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
    assert "python -m day0.models.make_toy_weights" in caught.value.hint


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Day0Error, match="cannot be read: No such file"):
        load_weights(make_toy(ToyConfig()), tmp_path / "no.safetensors")


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "toy.safetensors"
    path.write_bytes(b"not safetensors")
    with pytest.raises(Day0Error, match="not a safetensors file"):
        load_weights(make_toy(ToyConfig()), path, hash_bytes(b"not safetensors"))


def test_the_script_makes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "weights" / "toy.safetensors"
    monkeypatch.setattr("day0.models.make_toy_weights.weights_path", lambda: path)
    main()
    assert hash_bytes(path.read_bytes()) == WEIGHTS_HASH
    assert WEIGHTS_HASH in capsys.readouterr().out


def plan(**changes: Any) -> ModelPlan:
    return ModelPlan(source="toy", dtype="float32", set=changes)


def test_two_builds_are_equal_and_separate() -> None:
    spec = open_toy(plan())
    one, other = spec.build("cpu"), spec.build("cpu")
    for (name, left), right in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(left, right), name
        assert left.data_ptr() != right.data_ptr()
    assert not one.training and not any(p.requires_grad for p in one.parameters())


def test_building_leaves_the_random_state_alone() -> None:
    torch.manual_seed(4)
    before = torch.get_rng_state()
    open_toy(plan(n_experts=6)).build("cpu")
    assert torch.equal(before, torch.get_rng_state())


def test_other_sizes_get_seeded_weights_and_another_fingerprint() -> None:
    spec, changed = open_toy(plan()), open_toy(plan(index_topk=4, mla_layers=[2, 5]))
    assert changed.sparse_top_k == 4 and changed.overrides == {"index_topk": "4", "mla_layers": "[2, 5]"}
    assert spec.fingerprint != changed.fingerprint
    assert spec.fingerprint != open_toy(ModelPlan(source="toy", dtype="bfloat16")).fingerprint
    assert type(changed.build("cpu").get_submodule("layers.1")).__name__ == "MlaLayer"


def test_an_unknown_field_gives_near_names() -> None:
    with pytest.raises(Day0Error, match="the toy has no field 'index_topkk'") as caught:
        open_toy(plan(index_topkk=4))
    assert caught.value.where == "--set index_topkk" and "index_topk" in caught.value.hint


@pytest.mark.parametrize("value", ["many", 2.5, True, None, [1]])
def test_a_value_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(Day0Error, match=r"expected a whole number such as 10") as caught:
        open_toy(plan(n_experts=value))
    assert caught.value.where == "--set n_experts" and caught.value.hint


@pytest.mark.parametrize("value", [["a"], [1.5], 4])
def test_a_list_holds_whole_numbers(value: Any) -> None:
    with pytest.raises(Day0Error, match="expected a list of whole numbers"):
        open_toy(plan(mla_layers=value))


def test_a_whole_number_is_a_number() -> None:
    assert open_toy(plan(situ_beta=3)).overrides == {"situ_beta": "3"}
