"""Small models of transformers on `sim` with nothing missing: forward, in prefill and decode, equals the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from day0.devices.sim.device import counters
from day0.models.driver import step

transformers = pytest.importorskip("transformers")

TEXT: dict[str, Any] = {
    "vocab_size": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 48,
    "intermediate_size": 80,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "v_head_dim": 20,
    "linear_head_dim": 16,
    "linear_num_heads": 3,
}
KIMI = {**TEXT, "num_local_experts": 6, "qk_rope_head_dim": 8, "mlp_layer_types": ["dense"] + 4 * ["sparse"]}
GLM = {
    **TEXT,
    "n_routed_experts": 6,
    "q_lora_rank": 24,
    "index_topk": 8,
    "index_kpool": 4,
    "index_n_heads": 4,
    "index_head_dim": 16,
    "hc_mult": 2,
    "mlp_layer_types": ["dense"] + 4 * ["sparse"],
}
EYES = {
    "depth": 2,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 48,
    "image_size": 8,
    "patch_size": 2,
    "out_hidden_size": 48,
    "projection_intermediate_size": 40,
}
IMAGE, START, END = 120, 121, 122
TOKENS = 21
CLOSE = 2e-6
"""Largest difference of logits: some composites sum in another order than the CPU's own kernels."""


def small(model_type: str) -> torch.nn.Module:
    """Return a model with random weights, drawn from a seed, on the CPU."""
    if model_type == "kimi_linear":
        config = transformers.AutoConfig.for_model(model_type, **KIMI)
        auto = transformers.AutoModelForCausalLM
    else:
        tokens = {"image_token_id": IMAGE, "image_start_token_id": START, "image_end_token_id": END}
        config = transformers.AutoConfig.for_model(model_type, text_config=GLM, vision_config=EYES, **tokens)
        auto = transformers.AutoModelForImageTextToText
    torch.manual_seed(0)
    made: torch.nn.Module = auto.from_config(config).eval()
    with torch.no_grad():
        for value in made.parameters():
            value.normal_(0, 0.2)  # what transformers draws is so small that all logits are nearly equal
    return made


def prefill_and_decode(model: torch.nn.Module, ids_BT: torch.Tensor) -> list[torch.Tensor]:
    """Return the logits of a prompt and of two tokens after it."""
    first = step(model, ids_BT)
    second = step(model, ids_BT[:, :1], first.cache)
    third = step(model, ids_BT[:, 1:2], second.cache)
    return [first.logits_BSV, second.logits_BSV, third.logits_BSV]


@pytest.mark.usefixtures("null")
@pytest.mark.parametrize("model_type", ["kimi_linear", "glm5_next"])
def test_text_equals_the_cpu(model_type: str) -> None:
    model = small(model_type)
    ids_BT = torch.randint(3, 100, (2, TOKENS), generator=torch.Generator().manual_seed(1))
    expected = prefill_and_decode(model, ids_BT)
    got = prefill_and_decode(model.to("sim"), ids_BT.to("sim"))
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.device.type == "sim"
        assert theirs.std() > 0.05, "logits that are all alike would show nothing"
        assert (ours.cpu() - theirs).abs().max().item() <= CLOSE
    assert not counters().fallbacks


@pytest.mark.usefixtures("null")
def test_text_and_image_equal_the_cpu() -> None:
    model = small("glm5_next")
    generator = torch.Generator().manual_seed(2)
    words = torch.randint(3, 100, (1, 6), generator=generator)
    ids_BT = torch.cat([words, torch.tensor([[START, *4 * [IMAGE], END]]), words], dim=1)
    inputs = {
        "input_ids": ids_BT,
        "pixel_values": torch.randn(16, 3 * 2 * 2 * 2, generator=generator),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "mm_token_type_ids": (ids_BT == IMAGE).int(),
    }
    with torch.no_grad():
        expected = model(**inputs).logits
        blind = model(**{**inputs, "pixel_values": torch.zeros(16, 24)}).logits
        got = model.to("sim")(**{name: value.to("sim") for name, value in inputs.items()}).logits
    assert (expected - blind).abs().max().item() > 0.01, "the image must matter"
    assert (got.cpu() - expected).abs().max().item() <= CLOSE
