"""The toy as a model: one answer however it is called, on every dtype and without weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from day0.errors import Day0Error
from day0.models.driver import greedy, step
from day0.models.spec import decoder_layers
from day0.models.toy import ToyConfig, ToyModel, make_toy
from day0.models.toy_attention import KdaAttention, MlaAttention, ShortConv
from day0.models.toy_source import open_toy
from day0.models.toy_weights import load_weights
from day0.playbook import ModelPlan
from day0.reference_ops.signatures import tensors_in

CONFIG = ToyConfig()
TOPK = CONFIG.index_topk


def toy(dtype: torch.dtype = torch.float64) -> ToyModel:
    model = make_toy(CONFIG)
    load_weights(model)
    return model.to(dtype)


def ids(batch: int, tokens: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, CONFIG.vocab_size, (batch, tokens), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("tokens", [1, TOPK - 1, TOPK, TOPK + 1, 3 * TOPK])
def test_decode_equals_prefill(tokens: int) -> None:
    model, ids_BS = toy(), ids(2, tokens + 1)
    whole = step(model, ids_BS).logits_BSV[:, -1]
    first = step(model, ids_BS[:, :-1])
    last = step(model, ids_BS[:, -1:], first.cache).logits_BSV[:, -1]
    torch.testing.assert_close(last, whole, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("cut", [1, 3, TOPK, TOPK + 5])
def test_prefill_in_pieces_equals_prefill(cut: int) -> None:
    model, ids_BS = toy(), ids(1, 2 * TOPK)
    whole = step(model, ids_BS).logits_BSV
    first = step(model, ids_BS[:, :cut])
    second = step(model, ids_BS[:, cut:], first.cache)
    torch.testing.assert_close(torch.cat((first.logits_BSV, second.logits_BSV), dim=1), whole, rtol=1e-11, atol=1e-11)
    assert second.cache.length == 2 * TOPK


def test_a_call_leaves_the_cache_it_was_given_as_it_was() -> None:
    model, ids_BS = toy(), ids(1, 6)
    cache = step(model, ids_BS).cache
    held = [tensor.clone() for layer in cache.layers for tensor in cache_tensors(layer)]
    answers = [step(model, ids(1, 2, seed=9), cache).logits_BSV for _ in range(2)]
    assert torch.equal(*answers)
    for old, tensor in zip(held, [t for layer in cache.layers for t in cache_tensors(layer)], strict=True):
        assert torch.equal(old, tensor)


def cache_tensors(layer: Any) -> list[torch.Tensor]:
    return list(tensors_in([getattr(layer, name) for name in layer.__slots__]))


def test_no_token_sees_the_future() -> None:
    model, ids_BS = toy(), ids(1, 3 * TOPK)
    changed = ids_BS.clone()
    changed[0, 2 * TOPK] = (changed[0, 2 * TOPK] + 1) % CONFIG.vocab_size
    before, after = step(model, ids_BS).logits_BSV, step(model, changed).logits_BSV
    assert torch.equal(before[:, : 2 * TOPK], after[:, : 2 * TOPK])
    assert not torch.allclose(before[:, 2 * TOPK :], after[:, 2 * TOPK :])


def test_rows_of_a_batch_do_not_meet() -> None:
    model, ids_BS = toy(), ids(3, TOPK + 3)
    together = step(model, ids_BS).logits_BSV
    for row in range(3):
        alone = step(model, ids_BS[row : row + 1]).logits_BSV
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-11, atol=1e-11)


def test_attention_beyond_the_topk_is_sparse() -> None:
    """With every token chosen the answer differs beyond the top-k and nowhere else."""
    wide = make_toy(ToyConfig(index_topk=4 * TOPK))
    load_weights(wide)
    ids_BS = ids(1, 3 * TOPK)
    sparse, dense = step(toy(), ids_BS).logits_BSV, step(wide.double(), ids_BS).logits_BSV
    torch.testing.assert_close(sparse[:, :TOPK], dense[:, :TOPK])
    assert not torch.allclose(sparse[:, TOPK:], dense[:, TOPK:], rtol=1e-3)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("layers.0.self_attn.A_log", lambda x: x + 1),
        ("layers.1.self_attn.q_conv.weight", lambda x: x.flip(-1)),
        ("layers.1.mlp.gate.e_score_correction_bias", lambda x: -x),
        ("layers.2.mlp.experts.w1.codes", lambda x: (x >> 4) | (x << 4)),
        ("layers.3.self_attn.indexer.wq_b.weight", lambda x: x.roll(1, 0)),
        ("layers.3.self_attn.g_proj.weight", lambda x: -x),
        ("layers.4.self_attn.indexer.weights_proj.weight", lambda x: x.abs()),
        ("layers.4.mlp.experts.w2.scales", lambda x: x.flip(-1)),
    ],
)
def test_every_kind_of_part_reaches_the_logits(name: str, change: Any) -> None:
    model, ids_BS = toy(), ids(1, 3 * TOPK)
    before = step(model, ids_BS).logits_BSV
    part = model.state_dict()[name]
    part.copy_(change(part))
    after = step(model, ids_BS).logits_BSV
    assert float((after - before).abs().max()) > 1e-3 * float(before.std())


@pytest.mark.parametrize(
    "change",
    [
        {"routed_scaling_factor": 2.5},
        {"experts_per_token": 2},
        {"situ_beta": 2.0},
        {"situ_linear_beta": 2.0},
        {"kda_gate_lower_bound": -1.0},
        {"rms_norm_eps": 1e-2},
        {"lora_norm_eps": 1e-1},
        {"index_topk": TOPK - 1},
    ],
    ids=str,
)
def test_every_attribute_reaches_the_logits(change: dict[str, Any]) -> None:
    other = make_toy(replace(CONFIG, **change))
    load_weights(other)
    before, after = (step(model.double(), ids(1, 2 * TOPK)).logits_BSV for model in (toy(), other))
    assert float((after - before).abs().max()) > 1e-4 * float(before.std())


def test_absorbed_attention_equals_keys_and_values_written_out() -> None:
    layer = toy().get_submodule("layers.3.self_attn")
    assert isinstance(layer, MlaAttention)
    x_BSD = torch.randn(2, TOPK, CONFIG.hidden_size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    latent_BSL, shared_BSR = layer._rows(x_BSD).split((CONFIG.kv_lora_rank, CONFIG.shared_head_dim), dim=-1)
    key_BHSN = torch.einsum("bsl,hnl->bhsn", latent_BSL, layer.k_b)
    shared_BHSR = shared_BSR[:, None].expand(-1, CONFIG.mla_heads, -1, -1)
    value_BHSV = torch.einsum("bsl,hlv->bhsv", latent_BSL, layer.v_b)
    query = layer.q_b_proj(layer.q_a_norm(layer.q_a_proj(x_BSD))).unflatten(-1, (CONFIG.mla_heads, -1)).transpose(1, 2)
    heads = torch.nn.functional.scaled_dot_product_attention(
        query, torch.cat((key_BHSN, shared_BHSR), dim=-1), value_BHSV, is_causal=True
    )
    expected = layer.o_proj(heads.transpose(1, 2).flatten(-2) * torch.sigmoid(layer.g_proj(x_BSD)))
    torch.testing.assert_close(layer(x_BSD, None)[0], expected)


def test_gate_is_bounded_and_not_clamped() -> None:
    layer = toy().get_submodule("layers.0.self_attn")
    assert isinstance(layer, KdaAttention)
    x_BSD = 3.0 * torch.randn(1, 9, CONFIG.hidden_size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    g_BSHK = layer._log_decay(x_BSD)
    raw_BSC = layer.f_b_proj(layer.f_a_proj(x_BSD)) + layer.dt_bias
    rate_C = layer.A_log.exp().repeat_interleave(CONFIG.kda_key_dim)
    torch.testing.assert_close(g_BSHK.flatten(-2), -5.0 / (1.0 + torch.exp(-rate_C * raw_BSC)))
    assert -5.0 < float(g_BSHK.min()) < -4.0 and -1.0 < float(g_BSHK.max()) < 0.0


def test_convolution_is_causal_and_its_last_tap_is_the_newest_token() -> None:
    conv = ShortConv(2, 3).double()
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([[4.0, 2.0, 1.0], [0.0, 0.0, 1.0]]))
    x_BSC = torch.tensor([[[1.0, 1.0], [10.0, 2.0], [100.0, 3.0]]], dtype=torch.float64)
    out_BSC, kept_BWC = conv(x_BSC, None)
    sums = torch.tensor([[[1.0, 1.0], [12.0, 2.0], [124.0, 3.0]]], dtype=torch.float64)
    torch.testing.assert_close(out_BSC, sums * torch.sigmoid(sums))
    assert torch.equal(kept_BWC, x_BSC[:, 1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_dtypes_stay_near_float64(dtype: torch.dtype) -> None:
    # Below the top-k the choice of tokens cannot flip; which experts are chosen still may, so this is loose.
    ids_BS = ids(2, TOPK)
    golden, got = step(toy(), ids_BS).logits_BSV, step(toy(dtype), ids_BS).logits_BSV
    assert got.dtype == dtype
    error = torch.linalg.vector_norm(got.double() - golden) / torch.linalg.vector_norm(golden)
    assert float(error) < 200 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_runs_without_weights_in_every_dtype(dtype: str) -> None:
    model = open_toy(ModelPlan(source="toy", dtype=dtype)).build("meta")
    first = step(model, ids(2, 3 * TOPK).to("meta"))
    second = step(model, ids(2, 1).to("meta"), first.cache)
    assert second.logits_BSV.shape == (2, 1, CONFIG.vocab_size)
    assert str(second.logits_BSV.dtype) == f"torch.{dtype}" and second.logits_BSV.is_meta


def test_conversion_leaves_packed_weights_alone() -> None:
    model = toy(torch.bfloat16)
    kinds = {name.rpartition(".")[2] for name, value in model.state_dict().items() if value.dtype == torch.uint8}
    assert kinds == {"codes", "scales"}
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}


class Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        self.seen: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen.add(func.name().partition(".")[0])
        return func(*args, **(kwargs or {}))


def test_calls_our_operators_and_never_waits_for_values() -> None:
    model, names = toy(torch.float32), Names()
    cache = step(model, ids(1, 4)).cache
    with names:
        step(model, ids(1, 4))
        step(model, ids(1, 1), cache)
    ours = {"kda_recurrent", "lightning_indexer", "moe_router", "mxfp4_decode", "sparse_mla", "topk_tokens"}
    assert {f"day0::{name}" for name in ours} <= names.seen
    assert not names.seen & {"aten::_local_scalar_dense", "aten::nonzero", "aten::item", "aten::equal"}


def test_layers_are_of_the_planned_kinds() -> None:
    layers = decoder_layers(toy())
    assert [type(layer).__name__ for layer in layers.values()] == ["KdaLayer"] * 3 + ["MlaLayer"] * 2
    assert next(iter(layers)) == "layers.0"


def test_no_cache_unless_asked() -> None:
    model, ids_BS = toy(), ids(1, 5)
    without = model(input_ids=ids_BS, use_cache=False)
    assert without.past_key_values is None
    assert torch.equal(without.logits, model(input_ids=ids_BS).logits)


def test_greedy_generation_repeats_itself() -> None:
    first, again = (greedy(toy(torch.float32), ids(1, 12), 6) for _ in range(2))
    assert torch.equal(first[0], again[0]) and first[1].shape == (1, 6, CONFIG.vocab_size)


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("hidden_size", 100, "expected a multiple of the MXFP4 block of 32, got 100"),
        ("experts_per_token", 11, "expected at most the 10 experts, got 11"),
        ("mla_layers", (0,), "layers are numbered 1 to 5, got 0"),
        ("index_topk", 0, "expected at least 1, got 0"),
    ],
)
def test_impossible_sizes_are_refused(field: str, value: Any, what: str) -> None:
    with pytest.raises(Day0Error, match=what) as caught:
        ToyConfig(**{field: value})
    assert caught.value.where == f"toy config: {field}"
