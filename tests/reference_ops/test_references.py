"""References against independent code: plain loops, transformers, ml_dtypes, torch's own kernels."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from day0.errors import Day0Error
from day0.reference_ops import (
    kda_recurrent,
    lightning_indexer,
    moe_router,
    mxfp4_decode,
    sparse_mla_prefill,
    topk_tokens,
)
from day0.reference_ops._spec import Operator, Sample
from day0.reference_ops.load import load_operators
from day0.reference_ops.torch_ops import register_operators

NAN, INF = float("nan"), float("inf")


def samples(operator: Operator) -> list[Sample]:
    return list(operator.samples(torch.Generator().manual_seed(11)))


def wide(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in values)


@pytest.mark.parametrize("number", range(3))
def test_indexer_equals_plain_loops(number: int) -> None:
    q, k, w, first = wide(samples(lightning_indexer.OP)[number].args)
    got = lightning_indexer.reference(q, k, w, first)
    for b in range(q.shape[0]):
        for s in range(q.shape[1]):
            for t in range(k.shape[1]):
                total = sum(
                    w[b, s, h].item() * max(0.0, float(q[b, s, h] @ k[b, t])) for h in range(q.shape[2])
                ) / math.sqrt(q.shape[2] * q.shape[3])
                expected = total if t <= first + s else -INF
                assert got[b, s, t].item() == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_indexer_keeps_negative_scores_and_relu_inside_the_sum() -> None:
    q = torch.tensor([[[[1.0], [-1.0]]]])
    k, w = torch.tensor([[[2.0]]]), torch.tensor([[[-3.0, 5.0]]])
    # Head 0 scores 2, head 1 is cut to 0: -6 / sqrt(2), where a ReLU outside would give 0.
    assert lightning_indexer.reference(q, k, w, 0).item() == pytest.approx(-6 / math.sqrt(2))


@pytest.mark.parametrize("number", range(3))
def test_topk_equals_a_plain_sort(number: int) -> None:
    logits, topk = samples(topk_tokens.OP)[number].args
    got, _ = topk_tokens.reference(logits, topk)
    assert got.dtype == torch.int32
    for row, chosen in zip(logits.flatten(0, 1).tolist(), got.flatten(0, 1).tolist(), strict=True):
        valid = [t for t, score in enumerate(row) if score > -INF]  # false for NaN too
        best = sorted(valid, key=lambda t, row=row: (-row[t], t))[:topk]  # type: ignore[misc]  # a default binds the row
        assert chosen == best + [-1] * (topk - len(best))


def test_topk_takes_infinity_and_breaks_ties_by_rising_index() -> None:
    logits = torch.tensor([[[0.0, INF, 0.0, -0.0, -INF]]])
    assert topk_tokens.reference(logits, 4)[0].tolist() == [[[1, 0, 2, 3]]]


def attend(q: torch.Tensor, rows: torch.Tensor, latent: int, scale: float) -> torch.Tensor:
    """One head's query over some rows, by the definition."""
    weights = [math.exp(scale * float(q @ row)) for row in rows]
    total = torch.zeros(latent, dtype=torch.float64)
    for weight, row in zip(weights, rows, strict=True):
        total += weight / sum(weights) * row[:latent]
    return total


@pytest.mark.parametrize("number", range(3))
def test_sparse_mla_prefill_equals_the_definition(number: int) -> None:
    q, kv, indices, latent, scale = wide(samples(sparse_mla_prefill.OP)[number].args)[:5]
    got = sparse_mla_prefill.reference(q, kv, indices, latent, scale)[0]
    for b in range(q.shape[0]):
        for s in range(q.shape[1]):
            rows = kv[b, [i for i in indices[b, s].tolist() if 0 <= i < kv.shape[1]]]
            for h in range(q.shape[2]):
                torch.testing.assert_close(got[b, s, h], attend(q[b, s, h], rows, latent, scale))


def test_sparse_mla_prefill_lets_no_unchosen_row_through() -> None:
    q, kv = torch.randn(1, 2, 1, 3), torch.randn(1, 4, 3)
    kv[0, 2], kv[0, 3] = NAN, INF
    indices = torch.tensor([[[0, 1], [2, -1]]], dtype=torch.int32)
    out = sparse_mla_prefill.reference(q, kv, indices, 2, 1.0)[0]
    # Row 2 is read by the second query alone, row 3 by nobody.
    assert torch.isfinite(out[0, 0]).all() and torch.isnan(out[0, 1]).all()


def test_sparse_mla_prefill_treats_rows_beyond_the_cache_as_none() -> None:
    q, kv = torch.randn(1, 1, 2, 3), torch.randn(1, 4, 3)
    beyond = torch.tensor([[[1, 4, 99, -7]]], dtype=torch.int32)
    alone = torch.tensor([[[1]]], dtype=torch.int32)
    got, expected = (sparse_mla_prefill.reference(q, kv, indices, 2, 1.0) for indices in (beyond, alone))
    torch.testing.assert_close(got, expected)


def test_kda_equals_the_matrix_form() -> None:
    for sample in samples(kda_recurrent.OP)[:2]:  # these keep the state as [K, V]
        q, k, v, g, beta, state = wide(sample.args[:6])
        out, new = kda_recurrent.reference(q, k, v, g, beta, state)
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
        for b in range(q.shape[0]):
            for h in range(q.shape[2]):
                s = state[b, h]
                for t in range(q.shape[1]):
                    key, eye = k[b, t, h], torch.eye(k.shape[-1], dtype=torch.float64)
                    s = (eye - beta[b, t, h] * torch.outer(key, key)) @ torch.diag(g[b, t, h].exp()) @ s
                    s = s + beta[b, t, h] * torch.outer(key, v[b, t, h])
                    torch.testing.assert_close(out[b, t, h], s.T @ q[b, t, h] / math.sqrt(q.shape[-1]))
                torch.testing.assert_close(new[b, h], s)


def test_kda_equals_transformers() -> None:
    modeling = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    args = samples(kda_recurrent.OP)[1].args
    out, state = kda_recurrent.reference(*args)
    theirs = modeling.recurrent_kimi_delta_attention(
        *args[:5], initial_state=args[5], output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    torch.testing.assert_close(out, theirs[0])
    torch.testing.assert_close(state, theirs[1])


def test_kda_leaves_its_arguments_alone_and_returns_a_new_state() -> None:
    q = torch.zeros(1, 0, 2, 3)
    state = torch.randn(1, 2, 3, 4)
    out, new = kda_recurrent.reference(q, q, torch.zeros(1, 0, 2, 4), q, torch.zeros(1, 0, 2), state)
    assert out.shape == (1, 0, 2, 4)
    assert torch.equal(new, state) and new.data_ptr() != state.data_ptr()


def test_router_equals_transformers() -> None:
    modeling = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    config = modeling.DeepseekV3Config(
        hidden_size=12, n_routed_experts=12, num_experts_per_tok=3, n_group=1, topk_group=1, routed_scaling_factor=2.5
    )
    theirs = modeling.DeepseekV3TopkRouter(config)
    theirs.weight.data.copy_(torch.eye(12))  # logits are the hidden states
    generator = torch.Generator().manual_seed(3)
    logits, bias = torch.randn(9, 12, generator=generator), torch.randn(12, generator=generator)
    theirs.e_score_correction_bias.copy_(bias)
    with torch.no_grad():
        _, weights, chosen = theirs(logits)
    got_weights, got_chosen = moe_router.reference(logits, bias, 3, 2.5)
    order, expected_order = got_chosen.argsort(-1), chosen.argsort(-1)
    assert torch.equal(got_chosen.gather(-1, order), chosen.gather(-1, expected_order))
    torch.testing.assert_close(got_weights.gather(-1, order), weights.gather(-1, expected_order))


def test_router_bias_chooses_but_does_not_weigh() -> None:
    logits, bias = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([10.0, -10.0, 0.0])
    weights, chosen = moe_router.reference(logits, bias, 2, 1.0)
    assert chosen.tolist() == [[0, 2]]
    scores = torch.sigmoid(torch.tensor([0.0, 2.0]))
    torch.testing.assert_close(weights[0], scores / scores.sum())


def test_router_ties_go_to_the_lower_expert() -> None:
    _, chosen = moe_router.reference(torch.zeros(1, 70), torch.zeros(70), 5, 1.0)
    assert chosen.tolist() == [[0, 1, 2, 3, 4]]


def test_router_divides_by_no_zero() -> None:
    # sigmoid(-200) is 0 in float32.
    weights, chosen = moe_router.reference(torch.full((1, 3), -200.0), torch.zeros(3), 2, 1.0)
    assert weights.tolist() == [[0.0, 0.0]] and chosen.tolist() == [[0, 1]]


def all_pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of codes under every scale byte: codes [256, 256], scales [256, 16]."""
    codes = torch.arange(256, dtype=torch.uint8).expand(256, 256).contiguous()
    return codes, torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 16).contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_mxfp4_equals_ml_dtypes_for_every_byte_and_scale(dtype: torch.dtype) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    codes, scales = all_pairs()
    nibbles = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2).numpy()
    values = torch.from_numpy(nibbles.view(ml_dtypes.float4_e2m1fn).astype("float64"))
    powers = torch.from_numpy(scales.numpy().view(ml_dtypes.float8_e8m0fnu).astype("float64"))
    expected = (values * powers.repeat_interleave(32, dim=-1)).to(dtype)
    got = mxfp4_decode.reference(codes, scales, dtype)
    assert torch.equal(torch.isnan(got), torch.isnan(expected)) and bool(torch.isnan(got[255]).all())
    places = ~torch.isnan(got)
    assert torch.equal(got[places], expected[places])
    # Equality takes -0 for 0.
    assert torch.equal(torch.signbit(got[places]), torch.signbit(expected[places]))


def test_mxfp4_scale_is_torchs_e8m0() -> None:
    scales = torch.arange(256, dtype=torch.uint8)[:, None]
    ones = torch.full((256, 16), 0x22, dtype=torch.uint8)  # both nibbles are 1.0
    expected = scales.view(torch.float8_e8m0fnu).float().expand(256, 32)
    torch.testing.assert_close(mxfp4_decode.reference(ones, scales, torch.float32), expected, equal_nan=True)


def test_mxfp4_low_nibble_is_the_even_element() -> None:
    codes = torch.zeros(1, 16, dtype=torch.uint8)
    codes[0, 0] = 0x72
    got = mxfp4_decode.reference(codes, torch.tensor([[127]], dtype=torch.uint8), torch.float32)
    assert got[0, :3].tolist() == [1.0, 6.0, 0.0]


TORCHS_OWN = ("aten::embedding", "aten::gather", "aten::histc", "aten::index", "aten::index_select", "aten::scatter")


@pytest.mark.parametrize("name", TORCHS_OWN)
def test_aten_reference_equals_torchs_kernel(name: str) -> None:
    operator = load_operators()[name]
    packet = getattr(torch.ops.aten, name.partition("::")[2])
    for sample in samples(operator):
        tensor = sample.args[0]
        args = sample.args if tensor.is_floating_point() else (tensor.double(), *sample.args[1:])
        expected = packet(*args, **sample.kwargs).to(tensor.dtype)
        assert torch.equal(operator.reference(*sample.args, **sample.kwargs), expected)


def test_grouped_mm_equals_torchs_kernel() -> None:
    operator = load_operators()["aten::_grouped_mm"]
    for sample in samples(operator):
        half = [tensor.bfloat16() for tensor in sample.args]
        # torch wants the inner sizes to be multiples of 16 bytes; the samples are.
        expected = torch._grouped_mm(*half, **sample.kwargs)
        torch.testing.assert_close(operator.reference(*half, **sample.kwargs), expected, rtol=1.6e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["aten::topk", "aten::sort"])
def test_choice_reference_equals_torchs_values(name: str) -> None:
    operator = load_operators()[name]
    packet = getattr(torch.ops.aten, name.partition("::")[2])
    for sample in samples(operator):
        values, indices = operator.reference(*sample.args, **sample.kwargs)
        assert torch.equal(values, packet(*sample.args, **sample.kwargs)[0])
        assert operator.choice_dim is not None
        dim = operator.choice_dim(sample.args, sample.kwargs)
        assert torch.equal(sample.args[0].gather(dim, indices), values)


@pytest.mark.parametrize("name", ["aten::scatter_", "aten::index_put_"])
def test_writing_reference_writes_in_place(name: str) -> None:
    operator = load_operators()[name]
    packet = getattr(torch.ops.aten, name.partition("::")[2])
    for sample in samples(operator):
        target, other = sample.args[0].clone(), sample.args[0].clone()
        out = operator.reference(target, *sample.args[1:], **sample.kwargs)
        packet(other, *sample.args[1:], **sample.kwargs)
        assert out.data_ptr() == target.data_ptr() and torch.equal(target, other)


@pytest.mark.parametrize("name", sorted(name for name in load_operators() if name.startswith("day0::")))
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_wrong_argument_is_refused_with_its_name(name: str, device: str) -> None:
    register_operators()
    call = getattr(torch.ops.day0, name.partition("::")[2])
    args = [a.to(device) if isinstance(a, torch.Tensor) else a for a in samples(load_operators()[name])[0].args]
    for position, value in enumerate(args):
        if not isinstance(value, torch.Tensor):
            continue
        wrong = [*args]
        wrong[position] = value.to(torch.complex64)
        with pytest.raises(Day0Error, match=r"expected .*, got torch.complex64") as caught:
            call(*wrong)
        assert caught.value.where.startswith(f"{name}: ")


def test_sizes_that_disagree_are_named() -> None:
    q, k, w, _ = samples(lightning_indexer.OP)[0].args
    with pytest.raises(Day0Error, match=r"expected size 8 in dimension D, got shape \[1, 4, 7\]") as caught:
        lightning_indexer.reference(q, k[..., :7], w, 0)
    assert caught.value.where == "day0::lightning_indexer: k"
    with pytest.raises(Day0Error, match="a position of 0 or more, got -1"):
        lightning_indexer.reference(q, k, w, -1)
