"""Draw the next token.

Shape suffixes: B sequences, V tokens of the vocabulary. Sorted tensors are by falling logit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["OP", "fake", "kept_tokens", "reference", "sample", "validate"]

NAME = "day0::sample_token"


def validate(logits_BV: torch.Tensor, uniform_B: torch.Tensor, temperature: float, topk: int, topp: float) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("logits", logits_BV, "BV")
    check.floating("logits", logits_BV)
    check.true("logits", logits_BV.shape[1] >= 1, "a vocabulary of 1 or more", list(logits_BV.shape))
    check.shape("uniform", uniform_B, "B")
    check.dtype("uniform", uniform_B, torch.float32, torch.float64)
    check.true("temperature", math.isfinite(temperature) and temperature >= 0, "0 or a positive number", temperature)
    check.true("topk", topk >= 0, "0 for all tokens, or how many", topk)
    check.true("topp", 0 < topp <= 1, "more than 0 and at most 1", topp)


def reference(
    logits_BV: torch.Tensor, uniform_B: torch.Tensor, temperature: float, topk: int, topp: float
) -> torch.Tensor:
    """Return tokens [B] int64; -1 where every logit is NaN or -inf.

    Temperature, then top-k, then top-p, then the first token, by falling probability and among equal ones by rising
    number, at which the running sum exceeds `uniform` (in [0, 1)) of the whole. Temperature 0 takes the first of these.
    In float64 whatever the dtype, so that rounding decides nothing.
    """
    validate(logits_BV, uniform_B, temperature, topk, topp)
    order_BV, weight_BV = kept_tokens(logits_BV, temperature, topk, topp)
    running_BV = weight_BV.cumsum(dim=-1)
    reached_B1 = uniform_B.to(torch.float64)[:, None] * running_BV[:, -1:]
    kept_B1 = (weight_BV > 0).sum(dim=-1, keepdim=True)
    # The product may round up to the whole sum, beyond the last token that is kept.
    place_B1 = torch.minimum((running_BV <= reached_B1).sum(dim=-1, keepdim=True), (kept_B1 - 1).clamp_min(0))
    token_B1 = order_BV.gather(-1, place_B1)
    return torch.where(kept_B1 > 0, token_B1, -1)[:, 0]


def kept_tokens(
    logits_BV: torch.Tensor, temperature: float, topk: int, topp: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token numbers [B, V] by falling logit and their weights [B, V] float64, 0 for those that are cut.

    Weights are relative to the largest, which is 1. Several +inf share everything.
    """
    score_BV = torch.where(torch.isnan(logits_BV), float("-inf"), logits_BV.to(torch.float64))
    sorted_BV, order_BV = torch.sort(score_BV, dim=-1, descending=True, stable=True)
    place_V = torch.arange(sorted_BV.shape[-1], device=logits_BV.device)
    if temperature == 0:
        weight_BV = (place_V == 0).to(torch.float64).expand_as(sorted_BV)
    else:
        # The difference first: it cannot overflow. inf - inf is NaN, hence the equality.
        top_B1 = sorted_BV[:, :1]
        weight_BV = torch.where(sorted_BV == top_B1, 1.0, ((sorted_BV - top_B1) / temperature).exp())
    weight_BV = weight_BV.masked_fill(torch.isneginf(sorted_BV), 0.0)
    if topk > 0:
        weight_BV = weight_BV.masked_fill(place_V >= topk, 0.0)
    if topp < 1:
        running_BV = weight_BV.cumsum(dim=-1)
        before_BV = torch.nn.functional.pad(running_BV[:, :-1], (1, 0))
        weight_BV = weight_BV.masked_fill(before_BV >= topp * running_BV[:, -1:], 0.0)
    return order_BV, weight_BV


def sample(
    logits_BV: torch.Tensor,
    generator: torch.Generator,
    *,
    temperature: float = 1.0,
    topk: int = 0,
    topp: float = 1.0,
) -> torch.Tensor:
    """Draw one number for each row from `generator`, on its device, and return the tokens [B] int64.

    Calls the operator through torch, which has to know it: see `register_operators`.
    """
    # float32 has 24 bits: of 160,000 tokens many would never come.
    uniform_B = torch.rand(logits_BV.shape[0], generator=generator, device=generator.device, dtype=torch.float64)
    drawn_B: torch.Tensor = torch.ops.day0.sample_token(
        logits_BV, uniform_B.to(logits_BV.device), temperature, topk, topp
    )
    return drawn_B


def fake(logits_BV: torch.Tensor, uniform_B: torch.Tensor, temperature: float, topk: int, topp: float) -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(logits_BV, uniform_B, temperature, topk, topp)
    return logits_BV.new_empty((logits_BV.shape[0],), dtype=torch.int64)


def flops(logits_BV: torch.Tensor, uniform_B: torch.Tensor, temperature: float, topk: int, topp: float) -> int:
    """Difference, quotient, exponential, sum and comparison; sorting is not arithmetic."""
    return 0 if temperature == 0 else 5 * logits_BV.numel()


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Logits as a model gives them, and numbers from [0, 1)."""
    logits_BV, uniform_B = args[:2]
    logits_BV.copy_(2.0 * torch.randn(logits_BV.shape, generator=generator))
    uniform_B.copy_(torch.rand(uniform_B.shape, generator=generator, dtype=uniform_B.dtype))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, ties with every cut and nothing to choose, no row and one token, and the vocabulary of Kimi K3."""
    inf, nan = float("inf"), float("nan")
    logits_BV, uniform_B = torch.randn(3, 8, generator=generator), torch.rand(3, generator=generator)
    yield Sample(kind="small", args=(logits_BV, uniform_B, 0.7, 0, 1.0), kwargs={})
    ties_BV = torch.randint(-1, 2, (5, 13), generator=generator).to(torch.bfloat16)
    ties_BV[0, 3], ties_BV[1, 2], ties_BV[2] = nan, inf, -inf
    uniform_B = torch.rand(5, generator=generator, dtype=torch.float64)
    for temperature, topk, topp in ((0.0, 0, 1.0), (1.0, 4, 1.0), (1.3, 0, 0.6), (1.0, 7, 0.9), (1e-30, 99, 1e-9)):
        yield Sample(kind="odd", args=(ties_BV, uniform_B, temperature, topk, topp), kwargs={})
    yield Sample(kind="corner", args=(torch.zeros(0, 4), torch.zeros(0), 1.0, 2, 0.5), kwargs={})
    yield Sample(kind="corner", args=(torch.zeros(1, 1), torch.zeros(1), 1.0, 0, 1.0), kwargs={})
    edge_B = torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64)
    yield Sample(kind="corner", args=(torch.tensor([[-1e4, 0.0, -1e4]] * 2), edge_B, 1.0, 0, 1.0), kwargs={})
    logits_BV = 2.0 * torch.randn(2, 163840, generator=generator)
    uniform_B = torch.rand(2, generator=generator, dtype=torch.float64)
    yield Sample(kind="traced", args=(logits_BV, uniform_B, 0.6, 50, 0.95), kwargs={})


def nearby(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Draws and cuts that another order of the sums over the vocabulary cannot tell from the given ones."""
    given = dict(zip(("logits_BV", "uniform_B", "temperature", "topk", "topp"), args, strict=False)) | {
        {"logits": "logits_BV", "uniform": "uniform_B"}.get(name, name): value for name, value in kwargs.items()
    }
    off = given["logits_BV"].shape[1] * torch.finfo(torch.float64).eps
    for draw in (1.0 - off, 1.0 + off):
        uniform_B = (given["uniform_B"].to(torch.float64) * draw).clamp(0.0, 1.0)
        for cut in (1.0 - off, 1.0, 1.0 + off) if given["topp"] < 1 else (1.0,):
            yield (), given | {"uniform_B": uniform_B, "topp": min(1.0, given["topp"] * cut)}


OP = Operator(
    name=NAME,
    version=1,
    summary="sampling of the next token from logits and given random numbers",
    schema="(Tensor logits, Tensor uniform, float temperature, int topk, float topp) -> Tensor",
    mathematics="p = softmax(logits / temperature) over the topk largest; of these the shortest row of falling p whose sum "
    "reaches topp; the first token at which the running sum exceeds uniform times the whole",
    source="inverse transform sampling; nucleus sampling, arXiv 1904.09751",
    reference=reference,
    fake=fake,
    flops=flops,
    fill=fill,
    samples=samples,
    comparison="nearby",
    nearby=nearby,
    tolerance=Tolerance(
        ratio=1.0,
        ceiling=0.0,
        ulps=0.0,
        reason="sums in float64 are part of the meaning: for given numbers all ranks have to draw the same token. Another "
        "order of the sums moves an edge by 1e-16, which a draw meets once in 1e15; sums in float32 move it by 1e-7",
    ),
    attributes=(
        Attribute(name="temperature", meaning="0 takes the most probable token, the lowest number among equal ones"),
        Attribute(name="topk", meaning="0 for all; exactly this many, also among equal ones"),
        Attribute(name="topp", meaning="1.0 for all; counted after top-k has been renormalised"),
    ),
    verified_against="transformers' top-k and top-p warpers; torch.multinomial by frequency; Python's fractions",
)
