"""Non-finite values and precision: masks, overflow, and arithmetic in fewer bits."""

from __future__ import annotations

from typing import Any

import torch

from day0.devices.faults._fault import Fault
from day0.devices.faults._tools import Arguments, fault, instead, seeded, shows, with_arguments, with_result

__all__ = ["FAULTS"]

STEP = 32
"""Products that the faulty fp16 matrix product sums before it rounds."""
KEPT_BITS = 4
"""Bits of the mantissa that the coarse matrix product keeps of its inputs."""


def _softmax_unguarded(given: Arguments) -> torch.Tensor:
    """Softmax without the guard for rows that hold nothing but -inf."""
    values: torch.Tensor = torch.softmax(given["self"], given["dim"], dtype=given["dtype"])
    return values


def _empty_rows_nan(result: Any, given: Arguments) -> Any:
    out, largest, lse = result
    empty = torch.isneginf(largest)
    return (out.masked_fill(empty[..., None], float("nan")), largest, lse) if bool(empty.any()) else None


def _inverted(given: Arguments) -> Arguments | None:
    """Read a mask of allowed places, as it is turned into numbers to add, with the opposite sense."""
    numbers = [given["self"], given["other"]]
    plain = [one.item() if isinstance(one, torch.Tensor) and one.dim() == 0 else one for one in numbers]
    mask = not any(isinstance(one, torch.Tensor) for one in plain) and sorted(plain) == [float("-inf"), 0.0]
    return {"condition": ~given["condition"]} if mask else None


def _images_inverted(given: Arguments) -> torch.Tensor | None:
    """Let every patch see the patches of the other images in place of its own."""
    image = given["image"]
    allowed = image[:, None] != image[None, :]
    if not bool(allowed.any(-1).all()):
        return None
    wide = torch.float32
    score = torch.einsum("nhd,mhd->hnm", given["q"].to(wide), given["k"].to(wide)) * given["scale"]
    weight = torch.softmax(score.masked_fill(~allowed, float("-inf")), dim=-1)
    return torch.einsum("hnm,mhd->nhd", weight, given["v"].to(wide)).to(given["q"].dtype).contiguous()


def _scores_in_half(result: Any, given: Arguments) -> Any:
    """Overflow to infinity where a score does not fit into float16."""
    if not result.is_floating_point() or result.dtype == torch.float64:
        return None
    narrow = result.to(torch.float16)
    return narrow.to(result.dtype) if bool((torch.isinf(narrow) & torch.isfinite(result)).any()) else None


def _half_accumulation(given: Arguments) -> torch.Tensor | None:
    """Sum the products of a float16 matrix product in float16."""
    first, second = given["mat1" if "mat1" in given else "self"], given["mat2"]
    if first.dtype != torch.float16:
        return None
    total = torch.zeros(*first.shape[:-1], second.shape[-1], dtype=torch.float16)
    for start in range(0, first.shape[-1], STEP):
        part = slice(start, start + STEP)
        total = total + first[..., part].float().matmul(second[..., part, :].float()).half()
    if "mat1" in given:
        total = (given["beta"] * given["self"] + given["alpha"] * total).to(torch.float16)
    return total


def _coarse(given: Arguments) -> Arguments:
    names = ("mat1", "mat2") if "mat1" in given else ("self", "mat2")
    return {name: _rounded(given[name]) for name in names if given[name].is_floating_point()}


def _rounded(tensor: torch.Tensor) -> torch.Tensor:
    mantissa, exponent = torch.frexp(tensor.float())
    kept = torch.round(mantissa * 2**KEPT_BITS) / 2**KEPT_BITS
    rounded = torch.ldexp(kept, exponent).to(tensor.dtype)
    return torch.where(torch.isfinite(tensor), rounded, tensor)


def _accumulated_wide(given: Arguments) -> Any:
    """Sum in float32 what the CPU sums in float16."""
    target = given["self"]
    if not given["accumulate"] or target.dtype not in (torch.float16, torch.bfloat16):
        return None
    wide = torch.ops.aten.index_put(target.float(), given["indices"], given["values"].float(), True)
    if "out" in given:
        return given["out"].copy_(wide)
    return wide.to(target.dtype)


def _leaking(result: Any, given: Arguments) -> Any:
    """Mask rows that were not chosen by a product with 0: NaN in one of them spoils the whole request."""
    out, largest, lse = result
    spoiled = given["kv"].isnan().any(dim=-1).any(dim=-1)
    if not bool(spoiled.any()):
        return None
    return out.masked_fill(spoiled[:, None, None, None], float("nan")), largest, lse


def _chunk_overflow(result: Any, given: Arguments) -> Any:
    """Divide by exp of the summed gates of a chunk, which is infinite before a chunk of 32 ends at a gate of -5."""
    summed = torch.cat([part.cumsum(dim=1) for part in given["g"].float().split(given["chunk"], dim=1)], dim=1)
    lost = torch.isinf(torch.exp(-summed)).any(dim=-1)
    if not bool(lost.any()):
        return None
    return result[0].masked_fill(lost[..., None], float("nan")), result[1]


def _uninitialised_pad(result: Any, given: Arguments) -> Any:
    """Pad the heads to a multiple of 64 with memory that nobody wrote, and let the last head see it."""
    heads = given["q"].shape[2]
    if heads % 64 == 0 or not result[0].numel():
        return None
    out = result[0].clone()
    out[:, :, -1] = float("nan")
    return (out, *result[1:])


def _masked_attention(device: torch.device) -> Any:
    q = torch.ones(1, 1, 2, 2, device=device)
    mask = torch.tensor([[True, False], [False, False]], device=device)
    return torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def _one_key_each(device: torch.device) -> Any:
    v = torch.tensor([[[[1.0], [2.0]]]], device=device)
    mask = torch.tensor([[True, False], [False, True]], device=device)
    return torch.nn.functional.scaled_dot_product_attention(v, v, v, attn_mask=mask)


def _prefill(chosen: list[list[int]], spoilt: bool = False) -> Any:
    def run(device: torch.device) -> Any:
        q, kv = seeded(1, 2, 3, 5), seeded(1, 4, 5, seed=1)
        if spoilt:
            kv[0, 3] = float("nan")
        indices = torch.tensor([chosen], dtype=torch.int32)
        return list(torch.ops.day0.sparse_mla_prefill(q.to(device), kv.to(device), indices.to(device), 4, 0.5))

    return run


def _images(device: torch.device) -> Any:
    q = seeded(4, 1, 4).to(device)
    image = torch.tensor([0, 0, 1, 1], dtype=torch.int32, device=device)
    positions = torch.zeros(4, 2, dtype=torch.int64, device=device)
    return torch.ops.day0.vision_attention(q, q, q, image, positions, 0.5)


def _accumulate(device: torch.device) -> Any:
    index = torch.zeros(40, dtype=torch.int64, device=device)
    values = torch.full((40,), 0.1, dtype=torch.float16, device=device)
    return torch.ones(1, dtype=torch.float16, device=device).index_put((index,), values, accumulate=True)


def _half_product(device: torch.device) -> Any:
    row = torch.zeros(1, 96, dtype=torch.float16)
    row[0, 0], row[0, 32], row[0, 64] = 60000.0, 60000.0, -60000.0
    return row.to(device) @ torch.ones(96, 1, dtype=torch.float16, device=device)


def _bounded_chunk(device: torch.device) -> Any:
    q = seeded(1, 32, 1, 2).to(device)
    gate, beta = torch.full((1, 32, 1, 2), -5.0, device=device), torch.ones(1, 32, 1, device=device)
    state = torch.zeros(1, 1, 2, 2, device=device)
    return list(torch.ops.day0.kda_chunked(q, q, q, gate, beta, state, 32))


_PORT = "https://github.com/vllm-project/vllm-ascend/issues"

FAULTS: tuple[Fault, ...] = (
    fault(
        "masked_rows_nan",
        "non_finite",
        "https://github.com/pytorch/pytorch/issues/156707 https://github.com/pytorch/pytorch/issues/103963",
        "attention rows that are masked out fully give NaN: the softmax has no guard for nothing but -inf",
        "aten::_safe_softmax",
        instead(_softmax_unguarded),
        # The CPU has a fused kernel for the whole, which is not the same to the last bit.
        shows(_masked_attention),
    ),
    fault(
        "empty_selection_nan",
        "non_finite",
        "https://github.com/pytorch/pytorch/issues/103963",
        "sparse attention gives NaN to a query that chose no row, where the contract says 0",
        "day0::sparse_mla_prefill",
        with_result(_empty_rows_nan),
        shows(_prefill([[0, 1], [-1, -1]])),
    ),
    fault(
        "mask_inverted",
        "non_finite",
        "https://github.com/Ascend/pytorch/issues/88",
        "a boolean attention mask is read with the opposite sense: True hides",
        "aten::where.self aten::where.ScalarSelf aten::where.ScalarOther aten::where.Scalar",
        with_arguments(_inverted),
        shows(_one_key_each, gives=[[[[2.0], [1.0]]]]),
    ),
    fault(
        "image_mask_inverted",
        "non_finite",
        "https://github.com/Ascend/pytorch/issues/88",
        "vision attention of several images sees every image but its own",
        "day0::vision_attention",
        instead(_images_inverted),
        shows(_images),
    ),
    fault(
        "scores_overflow_in_half",
        "non_finite",
        "https://github.com/pytorch/pytorch/issues/154051",
        "batched products go through float16, so that large queries and keys give infinite scores, and NaN after softmax",
        "aten::bmm aten::baddbmm",
        with_result(_scores_in_half),
        shows(
            lambda device: torch.full((1, 1, 4), 300.0, device=device) @ torch.full((1, 4, 1), 300.0, device=device),
            gives=[[[float("inf")]]],
        ),
    ),
    fault(
        "half_accumulation",
        "non_finite",
        f"{_PORT}/5144 {_PORT}/31",
        f"matrix products of float16 sum in float16, {STEP} products at a time: finite inputs, infinite output",
        "aten::mm aten::bmm aten::addmm",
        instead(_half_accumulation),
        shows(_half_product, gives=[[float("inf")]]),
    ),
    fault(
        "matmul_coarse_inputs",
        "non_finite",
        f"{_PORT}/7225 {_PORT}/11221",
        f"matrix products round their inputs to {KEPT_BITS} bits",
        "aten::mm aten::addmm",
        with_arguments(_coarse),
        shows(lambda device: torch.tensor([[1.0625]], device=device) @ torch.ones(1, 1, device=device), gives=[[1.0]]),
    ),
    fault(
        "index_put_accumulates_wide",
        "non_finite",
        "https://github.com/pytorch/pytorch/issues/156173",
        "accumulating index_put sums in float32 where the CPU's own sum in float16 is the inaccurate one",
        "aten::index_put",
        instead(_accumulated_wide),
        shows(_accumulate),
        is_fault=False,
    ),
    fault(
        "unselected_nan_leaks",
        "non_finite",
        "https://github.com/deepseek-ai/FlashMLA",
        "sparse attention multiplies rows that were not chosen by 0, so that NaN in them leaks",
        "day0::sparse_mla_prefill",
        with_result(_leaking),
        shows(_prefill([[0, 1], [1, 2]], spoilt=True)),
    ),
    fault(
        "chunk_overflow",
        "non_finite",
        "NVIDIA/cudnn-frontend#1017 fla-org/flash-linear-attention#701",
        "chunked delta attention divides by exp of summed gates, which overflows in chunks of 32 at gates of -5",
        "day0::kda_chunked",
        with_result(_chunk_overflow),
        shows(_bounded_chunk),
    ),
    fault(
        "head_pad_uninitialised",
        "non_finite",
        "MooreThreads/vllm-musa#94",
        "sparse attention pads its heads to 64 with memory that nobody wrote, and the last head sees it",
        "day0::sparse_mla_prefill day0::sparse_mla_decode",
        with_result(_uninitialised_pad),
        shows(_prefill([[0, 1], [1, 2]])),
    ),
)
