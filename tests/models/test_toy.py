"""The toy as a model: one answer however it is called, of whatever family, in every dtype and without weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from day0.errors import Day0Error
from day0.models.driver import greedy, step
from day0.models.spec import decoder_layers
from day0.models.toy.cache import KdaCache
from day0.models.toy.kda import KdaAttention
from day0.models.toy.mla import MlaAttention
from day0.models.toy.model import ToyConfig, make_toy
from day0.models.toy.source import open_toy
from day0.playbook import ModelPlan
from day0.reference_ops.rope import reference as rope
from tests.models.toys import CONFIG, KINDS, TOPK, config_of, ids, image, logits, normal, toy

CLOSE: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-11}
LENGTHS = (1, TOPK - 1, TOPK, TOPK + 1, 8 * TOPK)


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_decode_equals_prefill(kind: str, tokens: int) -> None:
    model, ids_BS = toy(config_of(kind)), ids(2, tokens + 3)
    whole = step(model, ids_BS).logits_BSV
    output = step(model, ids_BS[:, :tokens])
    torch.testing.assert_close(output.logits_BSV, whole[:, :tokens], **CLOSE)
    for place in range(tokens, tokens + 3):
        output = step(model, ids_BS[:, place : place + 1], output.cache)
        torch.testing.assert_close(output.logits_BSV[:, 0], whole[:, place], **CLOSE)


@pytest.mark.parametrize("cut", [1, 3, TOPK, TOPK + 5])
@pytest.mark.parametrize("kind", KINDS)
def test_prefill_in_pieces_equals_prefill(kind: str, cut: int) -> None:
    model, ids_BS = toy(config_of(kind)), ids(2, 3 * TOPK)
    whole = step(model, ids_BS).logits_BSV
    first = step(model, ids_BS[:, :cut])
    second = step(model, ids_BS[:, cut:], first.cache)
    torch.testing.assert_close(torch.cat((first.logits_BSV, second.logits_BSV), dim=1), whole, **CLOSE)
    assert second.cache.length == 3 * TOPK


@pytest.mark.parametrize("kind", [kind for kind in KINDS if config_of(kind).vision])
def test_decode_after_an_image_equals_prefill(kind: str) -> None:
    model, ids_BS, pixels = toy(config_of(kind)), ids(2, 6 + 2 * TOPK), image(2)
    whole = logits(model, ids_BS, pixels)
    output = model(input_ids=ids_BS[:, :-2], pixel_values=pixels)
    for place in (-2, -1):
        output = model(input_ids=ids_BS[:, place:][:, :1], past_key_values=output.past_key_values)
        torch.testing.assert_close(output.logits[:, 0], whole[:, place], **CLOSE)


def test_text_can_follow_an_image_later() -> None:
    """Nothing but the image is in the first call."""
    model, ids_BS, pixels = toy(), ids(2, 6 + TOPK), image(2)
    first = model(input_ids=ids_BS[:, :6], pixel_values=pixels)
    second = step(model, ids_BS[:, 6:], first.past_key_values)
    torch.testing.assert_close(second.logits_BSV, logits(model, ids_BS, pixels)[:, 6:], **CLOSE)


def test_a_call_leaves_the_state_it_was_given_as_it_was() -> None:
    """Pages are shared with the next call, but the tokens that were there stay as they are."""
    model, ids_BS = toy(), ids(1, 6)
    cache = step(model, ids_BS).cache
    held = [one.state_BHKV.clone() for one in cache.layers if isinstance(one, KdaCache)]
    answers = [step(model, ids(1, 2, seed=9), cache).logits_BSV for _ in range(2)]
    assert torch.equal(*answers) and cache.length == 6
    for old, one in zip(held, [one for one in cache.layers if isinstance(one, KdaCache)], strict=True):
        assert torch.equal(old, one.state_BHKV)


@pytest.mark.parametrize("kind", KINDS)
def test_no_token_sees_the_future(kind: str) -> None:
    model, ids_BS, place = toy(config_of(kind)), ids(1, 4 * TOPK), 2 * TOPK + 1
    changed = ids_BS.clone()
    changed[0, place] = (changed[0, place] + 1) % CONFIG.vocab_size
    before, after = logits(model, ids_BS), logits(model, changed)
    assert torch.equal(before[:, :place], after[:, :place])
    assert not torch.allclose(before[:, place], after[:, place])
    assert not torch.allclose(before[:, place + 1 :], after[:, place + 1 :])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_batch_do_not_meet(kind: str) -> None:
    model, ids_BS = toy(config_of(kind)), ids(3, 2 * TOPK + 3)
    pixels = image(3) if model.config.vision else None
    together = logits(model, ids_BS, pixels)
    for row in range(3):
        alone = logits(model, ids_BS[row : row + 1], pixels[row : row + 1] if pixels is not None else None)
        torch.testing.assert_close(together[row : row + 1], alone, **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_beyond_the_topk_is_sparse(kind: str) -> None:
    """With every token chosen the answer differs beyond the top-k, and before it nowhere."""
    ids_BS = ids(1, 5 * TOPK)
    sparse, dense = (logits(toy(config_of(kind, index_topk=topk)), ids_BS) for topk in (TOPK, 8 * TOPK))
    torch.testing.assert_close(sparse[:, :TOPK], dense[:, :TOPK], **CLOSE)
    assert not torch.allclose(sparse[:, 2 * TOPK :], dense[:, 2 * TOPK :], rtol=1e-3)


@pytest.mark.parametrize("pairing", ["none", "half", "interleaved"])
def test_absorbed_attention_equals_keys_and_values_written_out(pairing: str) -> None:
    layer = toy(config_of("kimi-k3.1", mla_rope=pairing)).get_submodule("layers.3.self_attn")
    assert isinstance(layer, MlaAttention)
    heads, nope = CONFIG.mla_heads, CONFIG.nope_head_dim
    x_BSD = normal(2, TOPK, CONFIG.hidden_size)
    angle_SP = torch.arange(TOPK)[:, None] * CONFIG.rope_theta ** -torch.tensor([0.0, 0.5], dtype=torch.float64)

    def turned(x_BSHR: torch.Tensor) -> torch.Tensor:
        return x_BSHR if pairing == "none" else rope(x_BSHR, angle_SP.cos()[None], angle_SP.sin()[None], pairing, 0)

    latent_BSL, shared_BSR = layer.kv_a_proj(x_BSD).split((CONFIG.kv_lora_rank, CONFIG.shared_head_dim), dim=-1)
    latent_BSL = layer.kv_a_norm(latent_BSL)
    key_BHSN = torch.einsum("bsl,hnl->bhsn", latent_BSL, layer.k_b)
    shared_BHSR = turned(shared_BSR[:, :, None]).transpose(1, 2).expand(-1, heads, -1, -1)
    value_BHSV = torch.einsum("bsl,hlv->bhsv", latent_BSL, layer.v_b)
    query_BSHC = layer.q_b_proj(layer.q_a_norm(layer.q_a_proj(x_BSD))).unflatten(-1, (heads, -1))
    query_BSHC = torch.cat((query_BSHC[..., :nope], turned(query_BSHC[..., nope:])), dim=-1)
    mixed = torch.nn.functional.scaled_dot_product_attention(
        query_BSHC.transpose(1, 2), torch.cat((key_BHSN, shared_BHSR), dim=-1), value_BHSV, is_causal=True
    )
    expected = layer.o_proj(mixed.transpose(1, 2).flatten(-2) * torch.sigmoid(layer.g_proj(x_BSD)))
    torch.testing.assert_close(layer(x_BSD, None, None, None)[0], expected, **CLOSE)


def test_gate_is_bounded_and_not_clamped() -> None:
    layer = toy().get_submodule("layers.0.self_attn")
    assert isinstance(layer, KdaAttention)
    x_BSD = 3.0 * normal(1, 9, CONFIG.hidden_size)
    g_BSHK = layer.log_decay(x_BSD)
    raw_BSC = layer.f_b_proj(layer.f_a_proj(x_BSD)) + layer.dt_bias
    rate_C = layer.A_log.exp().repeat_interleave(CONFIG.kda_key_dim)
    torch.testing.assert_close(g_BSHK.flatten(-2), -5.0 / (1.0 + torch.exp(-rate_C * raw_BSC)), **CLOSE)
    assert -5.0 < float(g_BSHK.min()) < -4.0 and -1.0 < float(g_BSHK.max()) < 0.0


def test_gate_without_a_bound_is_the_plain_one() -> None:
    layer = toy(ToyConfig(kda_gate_lower_bound=0.0)).get_submodule("layers.0.self_attn")
    assert isinstance(layer, KdaAttention)
    x_BSD = 3.0 * normal(1, 9, CONFIG.hidden_size)
    raw_BSC = layer.f_b_proj(layer.f_a_proj(x_BSD)) + layer.dt_bias
    rate_C = layer.A_log.exp().repeat_interleave(CONFIG.kda_key_dim)
    expected = -rate_C * torch.nn.functional.softplus(raw_BSC, threshold=100.0)
    torch.testing.assert_close(layer.log_decay(x_BSD).flatten(-2), expected, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_lower_dtypes_stay_near_float64(kind: str, dtype: torch.dtype) -> None:
    # Below the top-k the choice of tokens cannot flip; which experts are chosen still may, so this is loose.
    config, ids_BS = config_of(kind), ids(2, TOPK)
    golden, got = logits(toy(config), ids_BS), logits(toy(config, dtype), ids_BS)
    assert got.dtype == dtype
    error = torch.linalg.vector_norm(got.double() - golden) / torch.linalg.vector_norm(golden)
    assert float(error) < 200 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("source", ["toy", "toy:deepseek-v3.2", "toy:glm-5", "toy:glm-5.3-flash"])
def test_runs_without_weights_in_every_dtype(source: str, dtype: str) -> None:
    model = open_toy(ModelPlan(source=source, dtype=dtype)).build("meta")
    pixels = image(2).to("meta") if hasattr(model, "vision_tower") else None
    ids_BS = ids(2, 3 * TOPK).to("meta")
    first = model(input_ids=ids_BS, pixel_values=pixels)
    second = step(model, ids_BS[:, :1], first.past_key_values)
    assert first.logits.shape == (2, 3 * TOPK, CONFIG.vocab_size)
    assert second.logits_BSV.shape == (2, 1, CONFIG.vocab_size)
    assert str(second.logits_BSV.dtype) == f"torch.{dtype}" and second.logits_BSV.is_meta


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_images_come_in_any_dtype(dtype: torch.dtype) -> None:
    model, ids_BS = toy(CONFIG, dtype), ids(2, TOPK)
    golden, got = logits(toy(), ids_BS, image(2).float()), logits(model, ids_BS, image(2).float())
    assert got.dtype == dtype
    error = torch.linalg.vector_norm(got.double() - golden) / torch.linalg.vector_norm(golden)
    assert float(error) < 200 * torch.finfo(dtype).eps


def test_conversion_leaves_packed_weights_alone() -> None:
    model = toy(CONFIG, torch.bfloat16)
    kinds = {name.rpartition(".")[2] for name, value in model.state_dict().items() if value.dtype == torch.uint8}
    assert kinds == {"codes", "scales"}
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}


class Names(TorchDispatchMode):
    """Notes the operators that are called from outside of ours."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        self.seen: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen.add(func.name().partition(".")[0])
        return func(*args, **(kwargs or {}))


BOTH = {
    *("attention_residual", "fused_experts", "gated_activation", "hadamard", "kda_gate", "lightning_indexer"),
    *("moe_router", "mxfp4_decode", "paged_kv_write", "short_conv", "topk_tokens"),
}
PREFILL, DECODE = {"kda_chunked", "sparse_mla_prefill"}, {"block_bitmap", "kda_recurrent", "sparse_mla_decode"}
IMAGE = {"merge_patches", "resize_positions", "rope_2d", "vision_attention"}
OF_KIND: dict[str, tuple[set[str], set[str]]] = {
    "kimi-k3.1": (BOTH | PREFILL | IMAGE, BOTH | DECODE | {"paged_kv_gather"}),
    "deepseek-v3.2": (
        (BOTH | PREFILL | {"rope"}) - {"attention_residual", "kda_chunked", "kda_gate", "short_conv"},
        (BOTH | DECODE | {"rope", "paged_kv_gather"})
        - {"attention_residual", "kda_recurrent", "kda_gate", "short_conv"},
    ),
    "glm-5.3-flash": (
        (BOTH | PREFILL | IMAGE | {"expand_pools", "hyper_connection_post", "hyper_connection_pre", "pool_index_keys"})
        - {"attention_residual", "hadamard"},
        (BOTH | DECODE | {"expand_pools", "hyper_connection_post", "hyper_connection_pre", "pool_index_keys"})
        - {"attention_residual", "hadamard"}
        | {"paged_kv_gather"},
    ),
}
"""Operators of ours in a prefill, and in a step of decode."""


@pytest.mark.parametrize("kind", OF_KIND)
def test_calls_our_operators_and_never_waits_for_values(kind: str) -> None:
    model, prefill, decode = toy(config_of(kind), torch.float32), Names(), Names()
    pixels = image(1).float() if model.config.vision else None
    with torch.no_grad():
        with prefill:
            cache = model(input_ids=ids(1, 9), pixel_values=pixels).past_key_values
        with decode:
            model(input_ids=ids(1, 1), past_key_values=cache)
    for names, expected in zip((prefill, decode), OF_KIND[kind], strict=True):
        assert {name.removeprefix("day0::") for name in names.seen if name.startswith("day0::")} == expected
        assert not names.seen & {"aten::_local_scalar_dense", "aten::nonzero", "aten::item", "aten::equal"}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("kimi-k3.1", ["KdaLayer"] * 3 + ["MlaLayer"] * 2),
        ("deepseek-v3.2", ["MlaLayer"] * 3),
        ("glm-5.3-flash", ["KdaLayer"] * 3 + ["MlaLayer"]),
    ],
)
def test_layers_are_of_the_planned_kinds(kind: str, expected: list[str]) -> None:
    layers = decoder_layers(make_toy(config_of(kind), "meta"))
    assert [type(layer).__name__ for layer in layers.values()] == expected
    assert next(iter(layers)) == "layers.0"


@pytest.mark.parametrize("kind", KINDS)
def test_no_cache_unless_asked(kind: str) -> None:
    model, ids_BS = toy(config_of(kind)), ids(1, 2 * TOPK)
    without = model(input_ids=ids_BS, use_cache=False)
    assert without.past_key_values is None
    assert torch.equal(without.logits, model(input_ids=ids_BS).logits)


def test_greedy_generation_repeats_itself() -> None:
    first, again = (greedy(toy(CONFIG, torch.float32), ids(1, 12), 6) for _ in range(2))
    assert torch.equal(first[0], again[0]) and first[1].shape == (1, 6, CONFIG.vocab_size)


@pytest.mark.parametrize(
    ("pixels", "tokens", "what"),
    [
        (image(1)[0], 9, r"expected \[images, 3, height, width\], got \[3, 16, 24\]"),
        (image(1)[:, :2], 9, r"expected \[images, 3, height, width\], got \[1, 2, 16, 24\]"),
        (image(1)[..., :-1], 9, "expected height and width to be multiples of 8, got 16 x 23"),
        (image(1)[..., :4, :], 9, "expected height and width to be multiples of 8, got 4 x 24"),
        (image(1)[..., :0, :], 9, "expected height and width to be multiples of 8, got 0 x 24"),
        (image(1).byte(), 9, "expected floating-point values of about 0 to 1, got torch.uint8"),
        (image(1), 5, "the image becomes 6 tokens, but the prompt has only 5"),
        (image(2), 9, "expected one image for each of 1 prompts, got 2"),
    ],
)
def test_images_that_do_not_fit_are_refused(pixels: torch.Tensor, tokens: int, what: str) -> None:
    with pytest.raises(Day0Error, match=what) as caught:
        toy()(input_ids=ids(1, tokens), pixel_values=pixels)
    assert caught.value.where == "pixel_values" and caught.value.hint


def test_images_are_refused_after_the_first_call_and_by_a_model_without_eyes() -> None:
    model = toy()
    cache = step(model, ids(1, 9)).cache
    with pytest.raises(Day0Error, match="only in the first call of a model with a vision branch"):
        model(input_ids=ids(1, 9), past_key_values=cache, pixel_values=image(1))
    with pytest.raises(Day0Error, match="only in the first call of a model with a vision branch"):
        toy(config_of("glm-5"))(input_ids=ids(1, 9), pixel_values=image(1))
