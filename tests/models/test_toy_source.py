"""`toy` and its variants as model sources."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from day0.converters.online.cached import CachedExperts
from day0.errors import Day0Error
from day0.models.driver import step
from day0.models.toy.layers import Experts
from day0.models.toy.source import open_toy
from day0.models.toy.variants import VARIANTS
from day0.playbook import ModelPlan
from tests.models.toys import ids


def plan(source: str = "toy", **changes: Any) -> ModelPlan:
    return ModelPlan(source=source, dtype="float32", set=changes)


OTHER: dict[str, Any] = {"n_experts": 12}
"""Weights for other sizes come from the seed, those of the default from the file that ships."""


def test_two_builds_are_equal_and_separate() -> None:
    spec = open_toy(plan(**OTHER))
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


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_a_model_of_its_own(name: str) -> None:
    spec, again = open_toy(plan(f"toy:{name}")), open_toy(plan(f"toy:{name}"))
    assert spec.source == f"toy:{name}" and spec.fingerprint == again.fingerprint
    others = [open_toy(plan(f"toy:{other}")).fingerprint for other in VARIANTS if other != name]
    assert spec.fingerprint not in {*others, open_toy(plan()).fingerprint}
    model: Any = spec.build("cpu")
    for field, value in VARIANTS[name].items():
        assert getattr(model.config, field) == value
    assert step(model, ids(1, 20)).logits_BSV.shape == (1, 20, spec.vocab_size)


def test_a_field_changes_a_variant_further() -> None:
    spec = open_toy(plan("toy:glm-5", index_shared_layers=[3], index_hadamard=True))
    model: Any = spec.build("meta")
    assert (model.config.index_shared_layers, model.config.index_hadamard) == ((3,), True)
    assert model.config.residual == "plain", "the rest of the variant is lost"


@pytest.mark.parametrize(
    ("source", "near"),
    [("toy:deepseek-v3", "deepseek-v3.2"), ("toy:glm5", "glm-5"), ("toy:glm-5.3-flesh", "glm-5.3-flash")],
)
def test_an_unknown_variant_gives_near_names(source: str, near: str) -> None:
    with pytest.raises(Day0Error, match="the toy has no variant") as caught:
        open_toy(plan(source))
    assert caught.value.where == f"model source {source}" and near in caught.value.hint


def test_a_variant_unlike_any_lists_them() -> None:
    with pytest.raises(Day0Error, match="the toy has no variant 'qqq'") as caught:
        open_toy(plan("toy:qqq"))
    assert all(name in caught.value.hint for name in VARIANTS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mla_gate", False),
        ("index_hadamard", False),
        ("residual", "plain"),
        ("kda_state_layout", "vk"),
        ("rms_norm_eps", 1e-3),
        ("situ_beta", 3),
        ("vision_window", -1),
        ("mla_layers", [1, 5]),
        ("index_shared_layers", [5]),
        ("index_shared_layers", []),
    ],
)
def test_fields_of_every_type_can_be_set(field: str, value: Any) -> None:
    spec = open_toy(plan(**{field: value}))
    model: Any = spec.build("meta")
    held = getattr(model.config, field)
    assert held == (tuple(value) if isinstance(value, list) else value) and set(spec.overrides) == {field}


def test_an_unknown_field_gives_near_names() -> None:
    with pytest.raises(Day0Error, match="the toy has no field 'index_topkk'") as caught:
        open_toy(plan(index_topkk=4))
    assert caught.value.where == "--set index_topkk" and "index_topk" in caught.value.hint


@pytest.mark.parametrize("value", ["many", 2.5, True, None, [1]])
def test_a_value_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(Day0Error, match=r"expected a whole number such as 10") as caught:
        open_toy(plan(n_experts=value))
    assert caught.value.where == "--set n_experts" and caught.value.hint


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("mla_gate", 1, "expected true or false such as True"),
        ("mla_gate", "no", "expected true or false such as True"),
        ("residual", 1, "expected a word such as 'attention'"),
        ("residual", ["plain"], "expected a word such as 'attention'"),
        ("rms_norm_eps", "small", "expected a number such as 1e-05"),
        ("rms_norm_eps", True, "expected a number such as 1e-05"),
        ("mla_layers", ["a"], "expected a list of whole numbers"),
        ("mla_layers", [1.5], "expected a list of whole numbers"),
        ("mla_layers", [True], "expected a list of whole numbers"),
        ("mla_layers", 4, "expected a list of whole numbers"),
    ],
)
def test_other_types_are_refused_for_other_fields(field: str, value: Any, what: str) -> None:
    with pytest.raises(Day0Error, match=what) as caught:
        open_toy(plan(**{field: value}))
    assert caught.value.where == f"--set {field}"


@pytest.mark.parametrize(
    ("field", "value"), [("residual", "sum"), ("kda_state_layout", "kk"), ("mla_layers", [9]), ("index_topk", 0)]
)
def test_what_cannot_be_built_is_refused(field: str, value: Any) -> None:
    with pytest.raises(Day0Error) as caught:
        open_toy(plan(**{field: value}))
    assert caught.value.where == f"toy config: {field}"


@pytest.mark.parametrize("dtype", ["int64", "float8_e4m3fn"])
def test_a_dtype_that_nothing_computes_in_is_refused(dtype: str) -> None:
    with pytest.raises(Day0Error, match="the toy computes in it and cannot") as caught:
        open_toy(ModelPlan(source="toy", dtype=dtype))
    assert caught.value.where == f"--dtype {dtype}"


def test_batches_and_slots_are_ways_to_serve_the_same_trained_model() -> None:
    served: tuple[dict[str, Any], ...] = ({}, {"expert_batch": 2}, {"expert_slots": 12})
    plain, batched, cached = (open_toy(plan(**one)) for one in served)
    assert batched.trained and cached.trained and batched.read_weights is not None
    assert len({plain.fingerprint, batched.fingerprint, cached.fingerprint}) == 3
    right, *others = (step(one.build("cpu"), ids(1, 5)).logits_BSV for one in (plain, batched, cached))
    for logits_BSV in others:
        # Experts in batches are added in another order: rounding of float32, and no more.
        torch.testing.assert_close(logits_BSV, right, rtol=1e-4, atol=1e-4)
    experts = [one for one in cached.build("cpu").modules() if isinstance(one, Experts)]
    assert {type(one.workspace) for one in experts} == {CachedExperts}
    with pytest.raises(Day0Error, match="an expert cache has batches of its own"):
        open_toy(plan(expert_batch=2, expert_slots=4))
