"""Attributes and sizes of the toy: each reaches the logits or the shapes, and what cannot be built is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from day0.errors import Day0Error
from day0.models.driver import step
from day0.models.toy.model import ToyConfig, make_toy
from tests.models.toys import CONFIG, TOPK, ids, image, logits, toy

Change = dict[str, Any]

PARTS: dict[str, Any] = {
    "vision_tower.patch_proj.weight": lambda x: -x,
    "vision_tower.position_table": lambda x: x.flip(0),
    "vision_tower.blocks.1.wqkv.weight": lambda x: x.roll(1, 0),
    "vision_tower.blocks.0.fc0.weight": lambda x: -x,
    "vision_tower.projector0.weight": lambda x: x.roll(1, 0),
    "vision_tower.projector_norm.weight": lambda x: x.flip(0),
    "layers.0.self_attn.A_log": lambda x: x + 1,
    "layers.0.self_attn.f_b_proj.weight": lambda x: -x,
    "layers.0.self_attn.b_proj.weight": lambda x: -x,
    "layers.1.self_attn.q_conv": lambda x: x.flip(-1),
    "layers.1.self_attn.dt_bias": lambda x: x + 1,
    "layers.1.self_attn.o_norm.weight": lambda x: x.flip(0),
    "layers.1.mlp.gate.e_score_correction_bias": lambda x: -x,
    "layers.1.mlp.shared_experts.w3.weight": lambda x: -x,
    "layers.2.mlp.experts.w1.codes": lambda x: (x >> 4) | (x << 4),
    "layers.2.mlp.routed_expert_norm.weight": lambda x: x.flip(0),
    "layers.2.mlp_res.proj": lambda x: -x,
    "layers.2.self_attention_res.norm": lambda x: x.flip(0),
    "layers.3.self_attn.indexer.wq_b.weight": lambda x: x.roll(1, 0),
    "layers.3.self_attn.indexer.k_norm.bias": lambda x: x + 1,
    "layers.3.self_attn.g_proj.weight": lambda x: -x,
    "layers.3.self_attn.kv_a_norm.weight": lambda x: x.flip(0),
    "layers.4.self_attn.indexer.weights_proj.weight": lambda x: x.abs(),
    "layers.4.mlp.experts.w2.scales": lambda x: x.roll(1, 1),
    "output_res.proj": lambda x: -x,
}


@pytest.mark.parametrize("name", PARTS)
def test_every_kind_of_part_reaches_the_logits(name: str) -> None:
    model, ids_BS, pixels = toy(), ids(1, 4 * TOPK), image(1)
    before = logits(model, ids_BS, pixels)
    part = model.state_dict()[name]
    part.copy_(PARTS[name](part))
    after = logits(model, ids_BS, pixels)
    assert float((after - before).abs().max()) > 1e-3 * float(before.std())


ATTRIBUTES: list[tuple[Change, Change]] = [
    ({}, {"mla_layers": (2, 5)}),
    ({}, {"rms_norm_eps": 1e-2}),
    ({}, {"residual": "plain"}),
    ({}, {"residual": "hyper"}),
    ({"residual": "plain"}, {"residual": "hyper"}),
    ({}, {"residual_block": 3}),
    ({"residual": "hyper"}, {"residual_streams": 2}),
    ({}, {"kda_gate_lower_bound": -1.0}),
    ({}, {"kda_gate_lower_bound": 0.0}),
    ({}, {"mla_gate": False}),
    ({}, {"lora_norm_eps": 1e-1}),
    ({}, {"mla_rope": "half"}),
    ({}, {"mla_rope": "interleaved"}),
    ({"mla_rope": "half"}, {"mla_rope": "interleaved"}),
    ({"mla_rope": "half"}, {"rope_theta": 100.0}),
    ({}, {"index_topk": TOPK - 1}),
    ({}, {"index_key_eps": 1.0}),
    ({}, {"index_rope": "half"}),
    ({}, {"index_rope": "interleaved"}),
    ({"index_rope": "half"}, {"index_rope": "interleaved"}),
    ({"index_rope": "half"}, {"index_rope_dim": 4}),
    ({"index_rope": "half"}, {"rope_theta": 100.0}),
    ({}, {"index_pool": 4}),
    ({"index_pool": 4}, {"index_pool": 2}),
    ({}, {"index_shared_layers": (5,)}),
    ({}, {"dense_layers": 0}),
    ({}, {"experts_per_token": 2}),
    ({}, {"expert_groups": 5, "expert_groups_kept": 2}),
    ({"expert_groups": 5, "expert_groups_kept": 5}, {"expert_groups_kept": 2}),
    ({}, {"latent_size": 0}),
    ({}, {"routed_scaling_factor": 2.5}),
    ({}, {"activation": "swiglu"}),
    ({"activation": "swiglu"}, {"activation": "swiglu_clamped", "activation_limit": 1.0}),
    ({"activation": "swiglu_clamped", "activation_limit": 1.0}, {"activation_limit": 2.0}),
    ({}, {"situ_beta": 2.0}),
    ({}, {"situ_linear_beta": 2.0}),
    ({}, {"vision_window": 1}),
    ({"vision_window": 1}, {"vision_window": 2}),
    ({"vision_window": 1}, {"vision_global_tokens": 2}),
    ({}, {"vision_keep": 4}),
    ({}, {"vision": False}),
]
"""From, and to."""


@pytest.mark.parametrize(("base", "change"), ATTRIBUTES, ids=str)
def test_every_attribute_reaches_the_logits(base: Change, change: Change) -> None:
    first = replace(CONFIG, **base)
    before, after = (
        logits(toy(config), ids(1, 5 * TOPK), image(1, (3, 3)) if config.vision else None)
        for config in (first, replace(first, **change))
    )
    assert float((after - before).abs().max()) > 1e-4 * float(before.std())


SAME: tuple[Change, ...] = (
    {"kda_state_layout": "vk"},
    {"block_size": 3},
    {"block_size": 64},
    {"max_positions": 64},
    {"expert_batch": 2},
)
"""Say where things lie and how they are served, and change no number."""


@pytest.mark.parametrize("change", SAME, ids=str)
def test_where_things_lie_changes_no_number(change: Change) -> None:
    rows = []
    for model in (toy(), toy(replace(CONFIG, **change))):
        first = model(input_ids=ids(2, 3 * TOPK), pixel_values=image(2))
        second = step(model, ids(2, 1), first.past_key_values)
        rows.append(torch.cat((first.logits, second.logits_BSV), dim=1))
    # Sums over pages take another order.
    torch.testing.assert_close(*rows, rtol=1e-11, atol=1e-11)


def test_the_hadamard_transform_changes_no_choice() -> None:
    """It is orthogonal and on both sides: only rounding, and codes of a cache, would see it."""
    ids_BS = ids(1, 5 * TOPK)
    with_it, without = (logits(toy(replace(CONFIG, index_hadamard=one)), ids_BS) for one in (True, False))
    torch.testing.assert_close(with_it, without, rtol=1e-11, atol=1e-11)


SIZES: tuple[Change, ...] = (
    *({name: getattr(CONFIG, name) + 1} for name in (
        "vocab_size", "hidden_size", "num_hidden_layers", "kda_heads", "kda_key_dim", "kda_value_dim", "kda_gate_rank",
        "conv_kernel", "mla_heads", "q_lora_rank", "kv_lora_rank", "nope_head_dim", "shared_head_dim", "v_head_dim",
        "index_heads", "intermediate_size", "n_experts", "shared_intermediate_size", "vision_layers",
        "vision_hidden_size", "vision_heads", "vision_intermediate_size", "vision_patch", "vision_channels",
        "vision_grid", "vision_merge",
    )),
    *({"conv_kernel": 1}, {"index_head_dim": 32}, {"latent_size": 96}, {"moe_intermediate_size": 64}),
    *({"vision_head_dim": 16}, {"index_heads": 1, "mla_heads": 1, "kda_heads": 1, "vision_heads": 1}),
)  # fmt: skip


@pytest.mark.parametrize("change", SIZES, ids=str)
def test_every_size_can_be_another(change: Change) -> None:
    config = replace(CONFIG, **change)
    model = make_toy(config, "meta")
    mine, default = (
        {name: part.shape for name, part in one.state_dict().items()} for one in (model, make_toy(CONFIG, "meta"))
    )
    assert mine != default
    side = 2 * config.vision_patch * config.vision_merge
    pixels = torch.empty(1, config.vision_channels, side, side, device="meta")
    first = model(input_ids=ids(1, 9).to("meta"), pixel_values=pixels)
    assert step(model, ids(1, 1).to("meta"), first.past_key_values).logits_BSV.shape == (1, 1, config.vocab_size)


def test_no_field_is_without_a_test() -> None:
    named = {name for pair in ATTRIBUTES for name in pair[1]} | {name for one in (*SAME, *SIZES) for name in one}
    assert {field.name for field in fields(ToyConfig)} == named | {
        "index_hadamard",
        "expert_slots",
    }  # slots: test_toy_source.py


@pytest.mark.parametrize(
    ("changes", "where", "what"),
    [
        ({"latent_size": 100}, "latent_size", "expected a multiple of the MXFP4 block of 32, got 100"),
        ({"latent_size": 0, "hidden_size": 100}, "hidden_size", "multiple of the MXFP4 block of 32, got 100"),
        ({"moe_intermediate_size": 33}, "moe_intermediate_size", "multiple of the MXFP4 block of 32, got 33"),
        ({"index_topk": 0}, "index_topk", "expected at least 1, got 0"),
        ({"latent_size": -32}, "latent_size", "expected at least 0, got -32"),
        ({"vision_window": -2}, "vision_window", "expected at least -1, got -2"),
        ({"residual": "sum"}, "residual", "expected one of attention, plain, hyper, got 'sum'"),
        ({"mla_rope": "pairs"}, "mla_rope", "expected one of none, half, interleaved, got 'pairs'"),
        ({"index_rope": ""}, "index_rope", "expected one of none, half, interleaved, got ''"),
        ({"activation": "gelu"}, "activation", "expected one of situ, swiglu, swiglu_clamped, got 'gelu'"),
        ({"kda_state_layout": "kk"}, "kda_state_layout", "expected one of kv, vk, got 'kk'"),
        ({"mla_layers": (0,)}, "mla_layers", "layers are numbered 1 to 5, got 0"),
        ({"mla_layers": (6,)}, "mla_layers", "layers are numbered 1 to 5, got 6"),
        ({"index_shared_layers": (6,)}, "index_shared_layers", "layers are numbered 1 to 5, got 6"),
        ({"index_shared_layers": (4,)}, "index_shared_layers", "layer 4 has no MLA layer before it"),
        ({"mla_layers": (), "index_shared_layers": (2,)}, "index_shared_layers", "layer 2 is no MLA layer"),
        ({"mla_layers": (1, 5), "index_shared_layers": (3,)}, "index_shared_layers", "layer 3 is no MLA layer"),
        ({"kda_gate_lower_bound": 1.0}, "kda_gate_lower_bound", "a log decay is at most 0, got 1.0"),
        ({"kda_gate_lower_bound": float("-inf")}, "kda_gate_lower_bound", "expected a finite number, got -inf"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps", "expected a positive number, got 0.0"),
        ({"lora_norm_eps": float("nan")}, "lora_norm_eps", "expected a finite number, got nan"),
        ({"index_key_eps": -1e-5}, "index_key_eps", "expected a positive number, got -1e-05"),
        ({"rope_theta": 0.0}, "rope_theta", "expected a positive number, got 0.0"),
        ({"routed_scaling_factor": 0.0}, "routed_scaling_factor", "expected a positive number, got 0.0"),
        ({"activation_limit": 0.0}, "activation_limit", "expected a positive number, got 0.0"),
        ({"situ_beta": 0.0}, "situ_beta", "expected a positive number, got 0.0"),
        ({"situ_linear_beta": -1.0}, "situ_linear_beta", "expected a positive number, got -1.0"),
        ({"experts_per_token": 11}, "experts_per_token", "expected at most the 10 experts, got 11"),
        ({"expert_groups": 3}, "expert_groups", "10 experts cannot be split into 3 groups"),
        ({"expert_groups": 10}, "expert_groups", "expected two experts or more in a group, got 1"),
        ({"expert_groups_kept": 2}, "expert_groups_kept", "expected at most 1, got 2"),
        ({"expert_groups": 5}, "experts_per_token", "expected at most the 2 experts of the kept groups, got 3"),
        ({"index_head_dim": 24}, "index_head_dim", "the Hadamard transform needs a power of two, got 24"),
        ({"index_pool": 3}, "index_pool", "expected a divisor of the top-k of 8, got 3"),
        ({"index_pool": 16}, "index_pool", "expected a divisor of the top-k of 8, got 16"),
        ({"mla_rope": "half", "shared_head_dim": 5}, "mla_rope", "rotation needs an even width, got 5"),
        ({"index_rope": "half", "index_rope_dim": 7}, "index_rope", "rotation needs an even width, got 7"),
        ({"index_rope": "half", "index_rope_dim": 18}, "index_rope_dim", "expected at most the 16 dimensions"),
        ({"vision_head_dim": 6}, "vision_head_dim", "rotation in two directions needs a multiple of 4, got 6"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_refused(changes: Change, where: str, what: str) -> None:
    with pytest.raises(Day0Error, match=what) as caught:
        replace(CONFIG, **changes)
    assert caught.value.where == f"toy config: {where}" and caught.value.hint


def test_sizes_that_must_be_at_least_one() -> None:
    """Every whole number has a lower bound: below it nothing could be built."""
    for field in fields(ToyConfig):
        if type(getattr(CONFIG, field.name)) is int:
            change: Change = {field.name: -2}
            with pytest.raises(Day0Error, match="expected at least") as caught:
                replace(CONFIG, **change)
            assert caught.value.where == f"toy config: {field.name}"
