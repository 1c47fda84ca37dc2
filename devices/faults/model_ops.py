"""Operators of new models: rope, Hadamard, indexer, delta attention, sparse attention and its pages.

Entries that belong to another kind (ties, non-finite values, scales, phases) stand in that family.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from day0.devices.faults._fault import Fault
from day0.devices.faults._model_inputs import (
    attention,
    cached,
    delta,
    gate,
    gather_after_write,
    indexer,
    rope,
    short,
    transform,
)
from day0.devices.faults._tools import (
    Arguments,
    arguments,
    fault,
    instead,
    shows,
    with_arguments,
    with_call,
    with_result,
)
from day0.devices.sim.planting import Original
from day0.reference_ops.lightning_indexer import visible

__all__ = ["FAULTS"]


def _other_pairing(given: Arguments) -> Arguments:
    return {"pairing": "half" if given["pairing"] == "interleaved" else "interleaved"}


def _other_end(given: Arguments) -> Arguments | None:
    last = given["x"].shape[-1] - 2 * given["cos"].shape[-1]
    return {"start": last if given["start"] == 0 else 0} if last else None


def _keys_untouched(given: Arguments) -> torch.Tensor | None:
    return given["x"].clone() if given["x"].dim() == 3 else None


def _transposed_state(given: Arguments) -> Arguments:
    """Read the memory of a [K, V] state as [V, K], and say nothing where the two differ."""
    state = given["state"]
    read = state.contiguous().reshape(*state.shape[:-2], state.shape[-1], state.shape[-2])
    return {"state": read.transpose(-1, -2).contiguous()}


def _clamped_gate(given: Arguments) -> Any:
    if given["lower_bound"] is None:
        return None
    biased = given["raw"].float() + given["dt_bias"].float()
    plain = -given["a_log"].float().exp()[:, None] * torch.nn.functional.softplus(biased)
    return plain.clamp(min=given["lower_bound"])


def _padding_scanned(given: Arguments) -> Arguments | None:
    """Take padding for tokens: what shall leave the state as it is (g = 0, beta = 0) is written with full weight."""
    padding = (given["beta"] == 0) & (given["g"] == 0).all(dim=-1)
    return {"beta": given["beta"].masked_fill(padding, 1.0)} if bool(padding.any()) else None


def _base_two(result: Any, given: Arguments) -> Any:
    return (*result[:-1], result[-1] / math.log(2.0))


def _axes_swapped(result: Any, given: Arguments) -> Any:
    """Write the sums [B, S, H] where the contract says [B, H, S]."""
    out, lse = result
    return out, lse.transpose(1, 2).contiguous().reshape(lse.shape)


def _stale_pages(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Read what stood in a cache when it was read for the first time."""
    pages = arguments(original, args, kwargs)["pages"]
    key = (pages.untyped_storage()._cdata, pages.storage_offset(), tuple(pages.shape))
    # The tensor is kept beside its copy, so that no other cache takes its place in memory.
    _, old = original.memory.setdefault(key, (pages, pages.clone()))
    args, kwargs = with_call(original, args, kwargs, {"pages": old})
    return original(*args, **kwargs)


def _last_slot_lost(given: Arguments) -> Arguments | None:
    """Skip rows that go to the last place of a page."""
    if given["layout"] != "plain":
        return None
    page = given["pages"].shape[1]
    return {"slots": torch.where(given["slots"] % page == page - 1, -1, given["slots"])}


def _rope_first(result: Any, given: Arguments) -> Any:
    """Return rows with the rotated part in front of the latent one."""
    latent = given["latent"]
    return torch.cat((result[..., latent:], result[..., :latent]), dim=-1)


def _relu_outside(given: Arguments) -> Any:
    q, k, w = (given[name].float() for name in ("q", "k", "w"))
    score = torch.relu(torch.einsum("bsh,bshd,btd->bst", w, q, k)) * (q.shape[2] * q.shape[3]) ** -0.5
    hidden = ~visible(q.shape[1], k.shape[1], given["first_position"], q.device)
    return score.masked_fill(hidden, float("-inf"))


def _oldest_first(given: Arguments) -> Arguments | None:
    return None if given["state"] is None else {"state": given["state"].flip(1)}


def _sink_in_sum(result: Any, given: Arguments) -> Any:
    """Add the sink to the log-sum-exp that is returned, where the contract leaves it out."""
    if given["attn_sink"] is None:
        return None
    return (*result[:-1], torch.logaddexp(result[-1], given["attn_sink"].to(result[-1].dtype)))


_ATTENTION = "day0::sparse_mla_prefill day0::sparse_mla_decode"
_DELTA = "day0::kda_recurrent day0::kda_chunked"
_FLASH = "https://github.com/deepseek-ai/FlashMLA/blob/main/README.md"

FAULTS: tuple[Fault, ...] = (
    fault(
        "rope_other_pairing",
        "model_ops",
        "sgl-project/sglang#13495 vllm-project/vllm-ascend#4641 vllm-project/vllm-ascend#7341 "
        "vllm-project/vllm-ascend#7859",
        "rope pairs neighbours where it shall pair halves, and the other way round",
        "day0::rope",
        with_arguments(_other_pairing),
        shows(rope),
    ),
    fault(
        "rope_other_slice",
        "model_ops",
        "sgl-project/sglang#30342",
        "rope turns the slice at the other end of a head",
        "day0::rope",
        with_arguments(_other_end),
        shows(rope),
    ),
    fault(
        "hadamard_on_one_side",
        "model_ops",
        "ROCm/ATOM#1507",
        "the Hadamard transform leaves keys as they are, and transforms queries",
        "day0::hadamard",
        instead(_keys_untouched),
        shows(transform, gives=[[[1.0, 0.0, 0.0, 0.0]]]),
    ),
    fault(
        "indexer_relu_outside",
        "model_ops",
        "https://github.com/huggingface/transformers/blob/main/src/transformers/models/deepseek_v32/modular_deepseek_v32.py",
        "the indexer takes the ReLU of the weighted sum in place of the sum of weighted ReLUs",
        "day0::lightning_indexer",
        instead(_relu_outside),
        shows(indexer),
    ),
    fault(
        "delta_state_transposed",
        "model_ops",
        "vllm-project/vllm#40956",
        "delta attention reads its state [K, V] as [V, K]",
        _DELTA,
        with_arguments(_transposed_state),
        shows(delta()),
    ),
    fault(
        "gate_bound_is_a_clamp",
        "model_ops",
        "https://github.com/ggml-org/llama.cpp/blob/master/src/models/kimi-k3.cpp",
        "the bounded gate of delta attention cuts the plain gate off at its bound",
        "day0::kda_gate",
        instead(_clamped_gate),
        shows(gate),
    ),
    fault(
        "padding_scanned",
        "model_ops",
        "sgl-project/sglang#39804",
        "delta attention writes padding into its state",
        _DELTA,
        with_arguments(_padding_scanned),
        shows(delta(padded=True)),
    ),
    fault(
        "conv_state_newest_first",
        "model_ops",
        "vllm-project/vllm#52627",
        "the short convolution reads the inputs it has kept in the other order",
        "day0::short_conv",
        with_arguments(_oldest_first),
        shows(short),
    ),
    fault(
        "lse_base_two",
        "model_ops",
        _FLASH,
        "sparse attention returns its log-sum-exp to base 2",
        _ATTENTION,
        with_result(_base_two),
        shows(attention()),
    ),
    fault(
        "lse_axes_swapped",
        "model_ops",
        _FLASH,
        "sparse attention for decoding returns its log-sum-exp queries before heads, as the one for prefill does",
        "day0::sparse_mla_decode",
        with_result(_axes_swapped),
        shows(cached),
    ),
    fault(
        "sink_in_lse",
        "model_ops",
        _FLASH,
        "the log-sum-exp of sparse attention has the sink in it",
        "day0::sparse_mla_prefill",
        with_result(_sink_in_sum),
        shows(attention(sink=True)),
    ),
    fault(
        "stale_pages",
        "model_ops",
        "https://docs.vllm.ai/en/latest/api/vllm/models/kimi_k3/common/dsa_cache/",
        "a paged cache is read as it stood when it was read for the first time",
        "day0::paged_kv_gather",
        _stale_pages,
        shows(gather_after_write(again=True)),
    ),
    fault(
        "page_end_not_written",
        "model_ops",
        "https://docs.vllm.ai/en/latest/api/vllm/models/kimi_k3/common/dsa_cache/",
        "rows that go to the last place of a page are not written",
        "day0::paged_kv_write",
        with_arguments(_last_slot_lost),
        shows(gather_after_write()),
    ),
    fault(
        "cache_rows_rope_first",
        "model_ops",
        "https://github.com/ggml-org/llama.cpp/blob/master/src/models/deepseek32.cpp",
        "rows come from the cache with the rotated part first",
        "day0::paged_kv_gather",
        with_result(_rope_first),
        shows(gather_after_write()),
    ),
)
