"""day0::moe_router in Triton: one program for each token; the best are taken one after the other, ties by number.

A choice is one whole number: the score's bits, so turned that they rise with it, above the complement of the expert.
No two are equal, and the largest names score and expert at once.

Shape suffixes: N tokens, E experts, K chosen experts, G groups, S experts of a group.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from day0.devices.current import on_its_device
from day0.implementation import Accepted, Call, Constraints, Implementation, Limit, Rejected, TensorLimit
from day0.kernels.triton._math import functions
from day0.kernels.triton._tiles import sizes
from day0.kernels.triton._triton import FLOATS, has_triton, next_power_of_2, triton_and_language
from day0.reference_ops.moe_router import SCORES, validate

__all__ = ["CHOICES", "IMPLEMENTATIONS", "TILES"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call, as the next are."""
exp: Any = None
sigmoid: Any = None
softplus: Any = None
choices: Any = None

TILES = {"warps": 4}
CHOICES = {"warps": (1, 2, 4, 8)}
LARGEST = 4096
"""Experts, filled up to powers of two by group, that one program holds."""
LARGEST_TOPK = 64
"""Each is one pass over all experts."""


@cache
def _kernel() -> Any:
    global tl, exp, sigmoid, softplus, choices
    triton, tl = triton_and_language()
    exp, sigmoid, softplus = functions().exp, functions().sigmoid, functions().softplus

    @triton.jit
    def choices(score, number):
        # -0 as 0, NaN above all numbers.
        bits = (score + 0.0).to(tl.int32, bitcast=True)
        rising = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
        rising = tl.where(tl.abs(score) <= float("inf"), rising, 0x7FFFFFFF)
        return (rising.to(tl.int64) << 32) | (0x7FFFFFFF - number).to(tl.int64)

    @triton.jit
    def route(
        logits,
        bias,
        weights,
        chosen,
        experts,
        topk,
        scale,
        groups,
        size,
        kept,
        SCORE: tl.constexpr,
        NORMALISE: tl.constexpr,
        GROUPS: tl.constexpr,
        SIZE: tl.constexpr,
        K: tl.constexpr,
    ):
        NONE: tl.constexpr = -0x8000000000000000
        token = tl.program_id(0).to(tl.int64)
        g, s = tl.arange(0, GROUPS), tl.arange(0, SIZE)
        number = g[:, None] * size + s[None, :]
        real = (g < groups)[:, None] & (s < size)[None, :]
        score = tl.load(logits + token * experts + number, mask=real, other=0.0).to(tl.float32)
        choice = score
        if SCORE != 2:
            score = sigmoid(score) if SCORE == 0 else tl.sqrt_rn(softplus(score))
            choice = score + tl.load(bias + number, mask=real, other=0.0).to(tl.float32)
        key = tl.where(real, choices(choice, number), NONE)
        if GROUPS > 1:
            first = tl.max(key, 1)
            one = tl.sum(tl.where(key == first[:, None], choice, 0.0), 1)
            rest = tl.where(key == first[:, None], NONE, key)
            second = tl.max(rest, 1)
            two = tl.sum(tl.where(rest == second[:, None], choice, 0.0), 1)
            group = tl.where(g < groups, choices(one + two, g), NONE)
            open_ = tl.zeros([GROUPS], tl.int32)
            for _ in range(kept):
                best = tl.max(group, 0)
                open_ = tl.where(group == best, 1, open_)
                group = tl.where(group == best, NONE, group)
            # Not 0: a bias can push every choice of the kept groups below it.
            closed = real & (open_ == 0)[:, None]
            key = tl.where(closed, choices(tl.full([GROUPS, SIZE], float("-inf"), tl.float32), number), key)
        k = tl.arange(0, K)
        weight = tl.zeros([K], tl.float32)
        expert = tl.zeros([K], tl.int64)
        for place in range(topk):
            best = tl.max(tl.max(key, 1), 0)
            taken = key == best
            value = tl.sum(tl.sum(tl.where(taken, score, 0.0), 1), 0)
            weight = tl.where(k == place, value, weight)
            expert = tl.where(k == place, 0x7FFFFFFF - (best & 0x7FFFFFFF), expert)
            key = tl.where(taken, NONE, key)
        given = k < topk
        if SCORE == 2:
            # Softmax of the chosen; the first is the largest.
            base = tl.sum(tl.where(k == 0, weight, 0.0), 0)
            part = tl.where(given, exp(weight - base), 0.0)
            weight = tl.div_rn(part, tl.zeros([K], tl.float32) + tl.sum(part, 0))
        elif NORMALISE:
            total = tl.sum(tl.where(given, weight, 0.0), 0) + 1e-20
            weight = tl.div_rn(weight, tl.zeros([K], tl.float32) + total)
        tl.store(weights + token * topk + k, weight * scale, mask=given)
        tl.store(chosen + token * topk + k, expert, mask=given)

    return route


@on_its_device
def route(
    logits_NE: torch.Tensor,
    bias_E: torch.Tensor,
    topk: int,
    scale: float,
    groups: int = 1,
    topk_groups: int = 1,
    score: str = "sigmoid",
    normalise: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights [N, K] float32 and expert numbers [N, K] int64, best first."""
    validate(logits_NE, bias_E, topk, scale, groups, topk_groups, score, normalise)
    logits_NE, bias_E = logits_NE.contiguous(), bias_E.contiguous()
    tokens, experts = logits_NE.shape
    weights_NK = torch.empty(tokens, topk, dtype=torch.float32, device=logits_NE.device)
    chosen_NK = torch.empty(tokens, topk, dtype=torch.int64, device=logits_NE.device)
    if tokens:
        _kernel()[(tokens,)](
            logits_NE,
            bias_E,
            weights_NK,
            chosen_NK,
            experts,
            topk,
            float(scale),
            groups,
            experts // groups,
            topk_groups,
            SCORE=SCORES.index(score),
            NORMALISE=normalise,
            GROUPS=next_power_of_2(groups),
            SIZE=next_power_of_2(experts // groups),
            K=next_power_of_2(topk),
            num_warps=sizes("moe_router", TILES, logits_NE.device)["warps"],
        )
    return weights_NK, chosen_NK


def fits(call: Call) -> Accepted | Rejected:
    """Triton is installed, and one program holds all experts."""
    experts, groups = call.tensors[0].shape[-1], call.arguments["groups"]
    if isinstance(groups, int) and 0 < groups <= experts:
        held = next_power_of_2(groups) * next_power_of_2(experts // groups)
        if held > LARGEST:
            return Rejected(f"{experts} experts in groups of {groups} fill {held} places, more than {LARGEST}")
    return has_triton(call)


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::moe_router",
        contract=2,
        id="triton",
        version="1.0",
        kind="kernel",
        run=route,
        why="scores, groups, choice and weights of a token in one program; eager torch launches ten and sorts all",
        devices=("cuda",),
        constraints=Constraints(
            first_dtype=FLOATS,
            arguments={
                "bias": TensorLimit(dtypes=FLOATS),
                "topk": Limit(at_least=1, at_most=LARGEST_TOPK),
            },
        ),
        predicate=fits,
        rank=50,
    ),
)
