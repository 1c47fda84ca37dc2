"""Which experts a token goes to, and with which weights.

Shape suffixes: N tokens, E experts, K chosen experts, G groups, S experts of a group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Routing, Sample, Tolerance

__all__ = ["OP", "fake", "reference", "validate"]

NAME = "day0::moe_router"
SCORES = ("sigmoid", "sqrtsoftplus", "softmax_topk")
LARGE = 30.0
"""Magnitude of biases from which `fill` makes large ones: a score has no such size."""
STEP = 65536.0
"""Between large biases: float32 keeps no more than the first digits of a score that one of them is added to."""


def validate(
    logits_NE: torch.Tensor,
    bias_E: torch.Tensor,
    topk: int,
    scale: float,
    groups: int,
    topk_groups: int,
    score: str,
    normalise: bool,
) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("logits", logits_NE, "NE")
    check.shape("bias", bias_E, "E")
    check.floating("logits", logits_NE)
    check.floating("bias", bias_E)
    experts = logits_NE.shape[-1]
    check.true("scale", 0 < scale < float("inf"), "a positive number", scale)
    check.true("score", score in SCORES, " or ".join(SCORES), repr(score))
    check.true("groups", groups >= 1 and experts % groups == 0, f"a divisor of the {experts} experts", groups)
    check.true("topk_groups", 1 <= topk_groups <= groups, f"1 to the {groups} groups", topk_groups)
    size = experts // groups
    check.true("groups", groups == 1 or size >= 2, "two experts or more in a group", f"{groups}, of {size} each")
    check.true("topk", 1 <= topk <= topk_groups * size, f"1 to {topk_groups * size} experts to choose from", topk)
    if score == "softmax_topk":
        check.true("groups", groups == 1, "1 for softmax_topk", groups)
        check.true("normalise", normalise, "True for softmax_topk, which sums to 1 by itself", normalise)


def reference(
    logits_NE: torch.Tensor,
    bias_E: torch.Tensor,
    topk: int,
    scale: float,
    groups: int = 1,
    topk_groups: int = 1,
    score: str = "sigmoid",
    normalise: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights [N, K] (float32, or float64 for float64) and expert numbers [N, K] int64, best first.

    The bias takes part in the choice only; the weights are the unbiased scores, over their sum if `normalise`, times
    `scale`. With groups, only the `topk_groups` whose two best choices have the largest sum are chosen from.
    softmax_topk chooses by the logit and takes the softmax over the chosen; its bias is not read.
    Ties go to the lower expert and the lower group. NaN comes before all numbers, and spoils its own token only.
    """
    validate(logits_NE, bias_E, topk, scale, groups, topk_groups, score, normalise)
    wide = torch.float64 if logits_NE.dtype == torch.float64 else torch.float32
    # Before anything else: scores of two bytes tie, and pick other experts.
    logits_NE = logits_NE.to(wide)
    if score == "softmax_topk":
        chosen_NK = best(logits_NE, topk)
        return torch.softmax(torch.gather(logits_NE, -1, chosen_NK), dim=-1) * scale, chosen_NK
    score_NE = _unbiased(logits_NE, score)
    choice_NE = score_NE + bias_E.to(wide)
    if groups > 1:
        # Not 0: a bias can push every choice of the kept groups below it.
        choice_NE = choice_NE.masked_fill(~in_best_groups(choice_NE, groups, topk_groups), float("-inf"))
    chosen_NK = best(choice_NE, topk)
    weight_NK = torch.gather(score_NE, -1, chosen_NK)
    if normalise:
        weight_NK = weight_NK / (weight_NK.sum(dim=-1, keepdim=True) + 1e-20)
    return weight_NK * scale, chosen_NK


def choice_scores(
    logits_NE: torch.Tensor, bias_E: torch.Tensor, topk: int, scale: float, *rest: Any, **named: Any
) -> torch.Tensor:
    """Return what experts are chosen by [N, E], in float64 and with no group closed."""
    score = _score(*rest, **named)
    wide_NE = logits_NE.to(torch.float64)
    return wide_NE if score == "softmax_topk" else _unbiased(wide_NE, score) + bias_E.to(torch.float64)


def exact_scores(
    logits_NE: torch.Tensor, bias_E: torch.Tensor, topk: int, scale: float, *rest: Any, **named: Any
) -> torch.Tensor:
    """Return what experts are chosen by [N, E], in float64, where it is the same bits at every place; else NaN.

    A logit is itself, and the sigmoid of 0 is 1/2. Other results of a function may differ by a unit from place to
    place: kernels for CPUs take another path for the last few elements, torch's own among them.
    """
    score, wide_NE = _score(*rest, **named), logits_NE.to(torch.float64)
    if score == "softmax_topk":
        return wide_NE
    known_NE = torch.where(wide_NE == 0.0, 0.5 if score == "sigmoid" else float("nan"), float("nan"))
    return known_NE + bias_E.to(torch.float64)


def weights_of(
    chosen_NK: torch.Tensor,
    logits_NE: torch.Tensor,
    bias_E: torch.Tensor,
    topk: int,
    scale: float,
    groups: int = 1,
    topk_groups: int = 1,
    score: str = "sigmoid",
    normalise: bool = True,
) -> torch.Tensor:
    """Return the weights [N, K] in float64 that chosen experts [N, K] get."""
    wide_NE = logits_NE.to(torch.float64)
    if score == "softmax_topk":
        return torch.softmax(torch.gather(wide_NE, -1, chosen_NK), dim=-1) * scale
    weight_NK = torch.gather(_unbiased(wide_NE, score), -1, chosen_NK)
    return weight_NK / (weight_NK.sum(dim=-1, keepdim=True) + 1e-20) * scale if normalise else weight_NK * scale


def _unbiased(wide_NE: torch.Tensor, score: str) -> torch.Tensor:
    softplus = torch.nn.functional.softplus
    return torch.sigmoid(wide_NE) if score == "sigmoid" else softplus(wide_NE, threshold=40.0).sqrt()


def _score(groups: int = 1, topk_groups: int = 1, score: str = "sigmoid", normalise: bool = True) -> str:
    return score


def _groups(
    logits_NE: torch.Tensor,
    bias_E: torch.Tensor,
    topk: int,
    scale: float,
    groups: int = 1,
    topk_groups: int = 1,
    *_: Any,
    **__: Any,
) -> tuple[int, int]:
    return groups, topk_groups


def best(values_NX: torch.Tensor, count: int) -> torch.Tensor:
    """Return the places of the largest values [N, count], best first, equal ones by rising place."""
    order_NX = torch.sort(values_NX, dim=-1, descending=True, stable=True).indices
    # Without elements `contiguous` would keep the strides of the slice.
    return order_NX[:, :count].clone(memory_format=torch.contiguous_format)


def in_best_groups(choice_NE: torch.Tensor, groups: int, topk_groups: int) -> torch.Tensor:
    """Return a mask [N, E], True for the experts of the groups with the largest sum of two best choices."""
    size = choice_NE.shape[-1] // groups
    sorted_NGS = torch.sort(choice_NE.unflatten(-1, (groups, size)), dim=-1, descending=True).values
    group_NG = sorted_NGS[..., :2].sum(dim=-1)
    kept_NG = torch.zeros_like(group_NG, dtype=torch.bool).scatter(-1, best(group_NG, topk_groups), True)
    return kept_NG.repeat_interleave(size, dim=-1)


def fake(
    logits_NE: torch.Tensor,
    bias_E: torch.Tensor,
    topk: int,
    scale: float,
    groups: int = 1,
    topk_groups: int = 1,
    score: str = "sigmoid",
    normalise: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of the results."""
    validate(logits_NE, bias_E, topk, scale, groups, topk_groups, score, normalise)
    wide = torch.float64 if logits_NE.dtype == torch.float64 else torch.float32
    shape = (logits_NE.shape[0], topk)
    return logits_NE.new_empty(shape, dtype=wide), logits_NE.new_empty(shape, dtype=torch.int64)


def flops(logits_NE: torch.Tensor, bias_E: torch.Tensor, topk: int, *rest: Any, **named: Any) -> int:
    """A score, a bias and one comparison for each expert; a sum, a division and a product for each chosen one."""
    return int(logits_NE.shape[0] * (5 * logits_NE.shape[1] + 3 * topk))


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Biases of both signs, and scores further apart than rounding, so that the choice is decided by the values.

    Where the biases that came are large (regimes `wide` and `large`), they are large again: each far from every other,
    and so far above the scores that float32 loses those in a sum. Groups lie in bands, one above the other in another order for each token, so that their sums are apart too.
    Which expert wins a tie is tested with the samples; here two dtypes have to see the same order.
    """
    logits_NE, bias_E = args[0], args[1]
    groups = args[4] if len(args) > 4 else kwargs.get("groups", 1)
    tokens, experts = logits_NE.shape
    size = experts // groups
    band_NG1 = torch.rand(tokens, groups, 1, generator=generator).argsort(dim=1)
    place_NGS = torch.rand(tokens, groups, size, generator=generator).argsort(dim=-1)
    steps_NE = (band_NG1 * size + place_NGS).flatten(1).float()
    logits_NE.copy_((steps_NE - experts / 2) * (4.0 / experts))
    large = bool(bias_E.numel()) and float(bias_E.float().abs().amax()) > LARGE
    bias_E.copy_(_apart(experts, groups, generator) if large else _signs(experts, generator))


def _signs(experts: int, generator: torch.Generator) -> torch.Tensor:
    return torch.where(torch.rand(experts, generator=generator) < 0.5, -1.0, 1.0)


def _apart(experts: int, groups: int, generator: torch.Generator) -> torch.Tensor:
    """Return biases [E] of different multiples of STEP, those of a group above or below all of another group."""
    band_G1 = torch.rand(groups, 1, generator=generator).argsort(dim=0)
    place_GS = torch.rand(groups, experts // groups, generator=generator).argsort(dim=-1)
    return STEP * (band_G1 * (experts // groups) + place_GS + 1).flatten().float()


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, odd sizes with ties, every score, groups, all experts chosen, no token; the routers of K3 and V3."""
    logits_NE = torch.randn(4, 6, generator=generator)
    yield Sample(kind="small", args=(logits_NE, torch.randn(6, generator=generator), 2, 1.0), kwargs={})
    ties_NE = torch.randint(-1, 2, (5, 7), generator=generator).float()
    yield Sample(kind="odd", args=(ties_NE, torch.zeros(7), 3, 2.5), kwargs={})
    ties_NE = torch.randint(-1, 2, (6, 15), generator=generator).float()
    bias_E = torch.randint(-3, 0, (15,), generator=generator).float()
    yield Sample(kind="odd", args=(ties_NE, bias_E, 4, 2.5, 5, 2, "sigmoid", False), kwargs={})
    yield Sample(kind="odd", args=(30.0 * ties_NE, bias_E, 4, 1.5, 1, 1, "sqrtsoftplus", True), kwargs={})
    yield Sample(kind="odd", args=(ties_NE, torch.zeros(15), 4, 1.0, 1, 1, "softmax_topk", True), kwargs={})
    # Biases far above the scores: weights that are made from what was chosen by would be rounded away.
    far_E = 1e5 * torch.tensor([3.0, 1.0, 4.0, 0.0, 5.0, 2.0])
    yield Sample(kind="corner", args=(logits_NE, far_E, 3, 1.0), kwargs={})
    yield Sample(kind="corner", args=(torch.full((1, 3), -40.0), torch.zeros(3), 3, 1.0), kwargs={})
    yield Sample(kind="corner", args=(torch.zeros(0, 8), torch.zeros(8), 2, 1.0, 4, 1, "sigmoid", True), kwargs={})
    for experts, topk, scale, groups, kept in ((896, 16, 1.0, 1, 1), (256, 8, 2.5, 8, 4)):
        logits_NE, bias_E = torch.zeros(4, experts), torch.zeros(experts)
        args = (logits_NE, bias_E, topk, scale, groups, kept, "sigmoid", True)
        fill(args, {}, generator)
        yield Sample(kind="traced", args=args, kwargs={})


OP = Operator(
    name=NAME,
    version=2,
    summary="mixture-of-experts routing: scores, bias for the choice only, limited to the best groups",
    schema="(Tensor logits, Tensor bias, int topk, float scale, int groups=1, int topk_groups=1, "
    'str score="sigmoid", bool normalise=True) -> (Tensor, Tensor)',
    mathematics="s = sigmoid(logits) or sqrt(softplus(logits)); choice = s + bias, -inf outside the topk_groups groups "
    "with the largest sum of two best choices; pick topk of choice; weight = s / (sum of picked s + 1e-20) * scale; "
    "softmax_topk: pick topk logits, weight = softmax of the picked * scale",
    source="DeepSeek-V3 technical report (auxiliary-loss-free balancing, node-limited routing); DeepSeek-V4; gpt-oss",
    reference=reference,
    fake=fake,
    flops=flops,
    fill=fill,
    samples=samples,
    comparison="routes",
    index_output=1,
    routing=Routing(scores=choice_scores, groups=_groups, weights=weights_of, exact=exact_scores),
    tolerance=Tolerance(
        ratio=3.0, ceiling=1e-2, ulps=4.0, reason="one exponential, one sum and one division in float32: 4 ULP"
    ),
    attributes=(
        Attribute(name="groups, topk_groups", meaning="into how many groups, how many are chosen from: 8 and 4 in V3"),
        Attribute(name="score", meaning="sigmoid (V3, K3), sqrtsoftplus (V4), softmax_topk (gpt-oss, without bias)"),
        Attribute(name="normalise", meaning="whether the picked scores are divided by their sum (norm_topk_prob)"),
        Attribute(name="scale", meaning="routed_scaling_factor"),
    ),
    verified_against="transformers routers of deepseek_v3, deepseek_v4, gpt_oss, glm5_next, kimi_linear; "
    "nemo-automodel KimiK3Gate",
)
