"""Faults of operators of new models, from reports that nobody had looked at while the checker was written."""

from __future__ import annotations

from typing import Any

import torch

from day0.devices.faults._fault import Fault
from day0.devices.faults._model_inputs import patches, rope
from day0.devices.faults._tools import Arguments, fault, instead, seeded, shows, with_arguments, with_result
from day0.reference_ops.fp8_block_quantise import expand, largest

__all__ = ["FAULTS"]

ROWS = 48
"""Programs that the faulty norm starts, one for each row."""
TILE = 16
"""Chosen rows that sparse attention takes in at a time."""
LOWEST = -5e4
"""What stands for minus infinity in the faulty attention."""


def _zero_over_zero(result: Any, given: Arguments) -> Any:
    """Take the largest magnitude over 448 for the scale of a block of zeros too, and divide by it."""
    values, scales = result
    rows, columns = given["block_rows"], given["block_columns"]
    empty = largest(given["x"].float(), rows, columns) == 0
    if given["floor"] > 0 or not bool(empty.any()):
        return None
    lost = expand(empty, values.shape[0], values.shape[1], rows, columns)
    spoiled = torch.where(lost, float("nan"), values.float()).to(values.dtype)
    return spoiled, torch.where(empty, 0.0, scales)


def _saturated_early(result: Any, given: Arguments) -> Any:
    """Encode every magnitude of 256 and more as the largest there is."""
    wide = result[0].float()
    return torch.where(wide.abs() >= 256.0, wide.sign() * 448.0, wide).to(result[0].dtype), result[1]


def _leading_tile_poisons(result: Any, given: Arguments) -> Any:
    """Give NaN to a query whose first 16 entries are no rows, although later ones are."""
    indices = given["indices"]
    rows = given["kv"].shape[1] if "kv" in given else None
    valid = (indices >= 0) if rows is None else (indices >= 0) & (indices < rows)
    poisoned = valid.any(-1) & ~valid[..., :TILE].any(-1)
    if not bool(poisoned.any()):
        return None
    nan = float("nan")
    out = result[0].masked_fill(poisoned[..., None, None], nan)
    lse = result[-1]
    # The decode form returns heads before queries.
    mask = poisoned[..., None] if "kv" in given else poisoned[:, None]
    return (out, *result[1:-1], lse.masked_fill(mask, nan))


def _very_low_scores_lost(result: Any, given: Arguments) -> Any:
    """Start the running maximum at -5e4 in place of minus infinity: what is below it weighs nothing."""
    lse = result[-1]
    by_query = lse if "kv" in given else lse.transpose(1, 2)
    lost = torch.isfinite(by_query) & (by_query < LOWEST * given["scale"])
    if not bool(lost.any()):
        return None
    sentinel = torch.where(lost, LOWEST * given["scale"], by_query).to(lse.dtype)
    back = sentinel if "kv" in given else sentinel.transpose(1, 2).contiguous()
    return (result[0].masked_fill(lost[..., None], 0.0), *result[1:-1], back)


def _weights_without_bias_again(result: Any, given: Arguments) -> Any:
    """Take the bias off the chosen scores again, where it has swallowed them."""
    if given["score"] != "sigmoid":
        return None
    bias = given["bias"].float()
    scores = (torch.sigmoid(given["logits"].float()) + bias) - bias
    picked = scores.gather(-1, result[1])
    if given["normalise"]:
        picked = picked / (picked.sum(-1, keepdim=True) + 1e-20)
    return (picked * given["scale"]).to(result[0].dtype), result[1]


def _never_normalised(given: Arguments) -> Arguments | None:
    return {"normalise": False} if given["score"] != "softmax_topk" else None


def _tail_not_decayed(result: Any, given: Arguments) -> Any:
    """Read the gate behind the end of a last, short chunk, where 0 stands: the state it leaves is not decayed."""
    tail = given["g"].shape[1] % given["chunk"]
    if not tail:
        return None
    growth = torch.exp(-given["g"][:, -tail:].float().sum(1))
    state = result[1]
    undone = growth[..., None] if given["state_layout"] == "kv" else growth[..., None, :]
    return result[0], (state.float() * undone).to(state.dtype)


def _limit_ignored(given: Arguments) -> Arguments | None:
    return {"kind": "swiglu"} if given["kind"] == "swiglu_clamped" else None


def _second_half_not_stored(result: Any, given: Arguments) -> torch.Tensor | None:
    """Leave the second values of the pairs as they came."""
    pairs, start = given["cos"].shape[-1], given["start"]
    if given["pairing"] != "half" or not pairs:
        return None
    kept = slice(start + pairs, start + 2 * pairs)
    out: torch.Tensor = result.clone()
    out[..., kept] = given["x"][..., kept]
    return out


def _products_rounded(given: Arguments) -> Any:
    """Multiply in bfloat16 and add up in float32."""
    x, weight, state = given["x"], given["weight"], given["state"]
    if x.dtype != torch.bfloat16 or weight.dtype != torch.bfloat16:
        return None
    tokens, kept = x.shape[1], weight.shape[-1] - 1
    before = x.new_zeros(x.shape[0], kept, x.shape[2]) if state is None else state.to(x.dtype)
    seen = torch.cat((before, x), dim=1)
    total = torch.zeros(x.shape)
    for tap in range(kept + 1):
        total = total + (weight[:, tap] * seen[:, tap : tap + tokens]).float()
    total = total * torch.sigmoid(total) if given["silu"] else total
    return total.to(x.dtype), seen[:, tokens:].clone(memory_format=torch.contiguous_format)


def _angles_in_bfloat16(given: Arguments) -> torch.Tensor | None:
    """Make positions, frequencies and angles in the dtype of the values."""
    x = given["x"]
    if x.dtype != torch.bfloat16:
        return None
    width = x.shape[-1]
    frequency = (1.0 / given["theta"] ** (torch.arange(0, width, 4).float() / width)).to(x.dtype)
    places = given["positions"].flip(-1).to(x.dtype)
    angle = (frequency[None, :, None] * places[:, None, :]).flatten(1)
    cos, sin = angle.cos()[:, None, :].float(), angle.sin()[:, None, :].float()
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    turned: torch.Tensor = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    flat: torch.Tensor = turned.flatten(-2).to(x.dtype)
    return flat


def _late_rows_not_written(result: Any, given: Arguments) -> torch.Tensor | None:
    """Leave rows after the 48th as the memory was; 7 stands for whatever was there."""
    rows = result.reshape(-1, result.shape[-1]).clone()
    if rows.shape[0] <= ROWS:
        return None
    rows[ROWS:] = 7.0
    out: torch.Tensor = rows.reshape(result.shape)
    return out


def _quantise(values: list[float]) -> Any:
    return lambda device: list(
        torch.ops.day0.fp8_block_quantise(torch.tensor([values], device=device), 1, 2, False, 0.0)
    )


def _attention(chosen: list[int], size: float = 1.0) -> Any:
    def run(device: torch.device) -> Any:
        q, kv = torch.full((1, 1, 1, 2), size), -torch.full((1, 20, 2), size)
        indices = torch.tensor([[chosen]], dtype=torch.int32)
        return list(torch.ops.day0.sparse_mla_prefill(q.to(device), kv.to(device), indices.to(device), 2, 0.5))

    return run


def _router(bias: float) -> Any:
    def run(device: torch.device) -> Any:
        logits, biases = torch.tensor([[-16.0, -17.0, -18.0]]), torch.full((3,), bias)
        return list(torch.ops.day0.moe_router(logits.to(device), biases.to(device), 2, 1.0))

    return run


def _short_chunk(device: torch.device) -> Any:
    keys = seeded(1, 1, 1, 2).to(device)
    gate, beta = torch.full((1, 1, 1, 2), -1.0, device=device), torch.zeros(1, 1, 1, device=device)
    state = torch.ones(1, 1, 2, 2, device=device)
    return list(torch.ops.day0.kda_chunked(keys, keys, keys, gate, beta, state, 2))


def _convolution(device: torch.device) -> Any:
    x, weight = seeded(1, 5, 4, dtype=torch.bfloat16), seeded(4, 4, seed=1, dtype=torch.bfloat16)
    return list(torch.ops.day0.short_conv(x.to(device), weight.to(device)))


def _turned(device: torch.device) -> Any:
    x, _ = patches(device)
    return torch.ops.day0.rope_2d(x.to(torch.bfloat16), torch.tensor([[257, 3]], device=device), 1e4)


_VLLM = "https://github.com/vllm-project/vllm"
_SGLANG = "https://github.com/sgl-project/sglang"
_ATTENTION = "day0::sparse_mla_prefill day0::sparse_mla_decode"
_FAMILY = "later"

FAULTS: tuple[Fault, ...] = (
    fault(
        "quantise_zero_block_nan",
        _FAMILY,
        "https://github.com/huggingface/kernels-community/issues/681 https://github.com/THUDM/slime/pull/2256",
        "a block of zeros is divided by a scale of 0",
        "day0::fp8_block_quantise",
        with_result(_zero_over_zero),
        shows(_quantise([0.0, 0.0, 1.0, 2.0])),
    ),
    fault(
        "quantise_saturates_early",
        _FAMILY,
        f"{_SGLANG}/pull/40581",
        "FP8 values of 256 and more are encoded as 448",
        "day0::fp8_block_quantise",
        with_result(_saturated_early),
        shows(_quantise([448.0, 300.0])),
    ),
    fault(
        "leading_tile_poisons",
        _FAMILY,
        f"{_VLLM}/issues/48364",
        f"sparse attention gives NaN where the first {TILE} chosen entries are no rows and later ones are",
        _ATTENTION,
        with_result(_leading_tile_poisons),
        shows(_attention([-1] * TILE + [3])),
    ),
    fault(
        "very_low_scores_lost",
        _FAMILY,
        "https://github.com/flashinfer-ai/flashinfer/pull/4401",
        "sparse attention takes -5e4 for minus infinity, so that scores below it weigh nothing",
        _ATTENTION,
        with_result(_very_low_scores_lost),
        shows(_attention([0, 1], size=300.0)),
    ),
    fault(
        "router_bias_swallows_scores",
        _FAMILY,
        "https://github.com/flashinfer-ai/flashinfer/pull/3875",
        "routing weights are the biased scores less the bias, which is 0 where the bias is large",
        "day0::moe_router",
        with_result(_weights_without_bias_again),
        shows(_router(12.0)),
    ),
    fault(
        "router_never_normalises",
        _FAMILY,
        f"{_VLLM}/pull/31246",
        "routing weights are not divided by their sum, whatever was asked for",
        "day0::moe_router",
        with_arguments(_never_normalised),
        shows(_router(0.5)),
    ),
    fault(
        "delta_tail_not_decayed",
        _FAMILY,
        "https://github.com/gittensor-ai-lab/sparkinfer/pull/604 https://github.com/inclusionAI/cuLA/pull/38",
        "chunked delta attention leaves a wrong state where the last chunk is short: its gate is read behind the end",
        "day0::kda_chunked",
        with_result(_tail_not_decayed),
        shows(_short_chunk),
    ),
    fault(
        "activation_limit_ignored",
        _FAMILY,
        f"{_SGLANG}/pull/40579",
        "the gated activation with a limit does not clamp",
        "day0::gated_activation day0::fused_experts",
        with_arguments(_limit_ignored),
        shows(
            lambda device: torch.ops.day0.gated_activation(
                torch.tensor([[9.0, 9.0]], device=device), "swiglu_clamped", False, 2.0
            )
        ),
    ),
    fault(
        "rope_second_half_not_stored",
        _FAMILY,
        "https://github.com/vllm-project/vllm-ascend/pull/7082",
        "rope by halves does not store the second half of its results",
        "day0::rope",
        with_result(_second_half_not_stored),
        shows(rope),
    ),
    fault(
        "convolution_products_rounded",
        _FAMILY,
        f"{_VLLM}/issues/52887",
        "the short convolution rounds its products to bfloat16 before it adds them up",
        "day0::short_conv",
        instead(_products_rounded),
        shows(_convolution),
    ),
    fault(
        "rope_2d_angles_in_bfloat16",
        _FAMILY,
        "https://github.com/huggingface/candle/pull/3520",
        "rope of patches makes its angles in bfloat16 where the values are",
        "day0::rope_2d",
        instead(_angles_in_bfloat16),
        shows(_turned),
    ),
    fault(
        "norm_rows_past_grid",
        _FAMILY,
        "https://github.com/vllm-project/vllm-ascend/pull/5012",
        f"RMSNorm computes {ROWS} rows and leaves the others as the memory was",
        "day0::rms_norm",
        with_result(_late_rows_not_written),
        shows(
            lambda device: torch.ops.day0.rms_norm(
                torch.ones(ROWS + 1, 1, device=device), torch.ones(1, device=device), 1e-6
            )
        ),
    ),
)
