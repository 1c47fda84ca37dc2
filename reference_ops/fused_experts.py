"""The routed experts of a mixture: each token through its chosen experts, weighted and summed.

Shape suffixes: N tokens, D width, E experts, F hidden features, K choices of a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from day0.reference_ops import fp8_block_dequantise, fp8_block_quantise, gated_activation
from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["OP", "fake", "quantised", "reference", "validate"]

NAME = "day0::fused_experts"
FP8_BLOCK = 128


def validate(
    x_ND: torch.Tensor,
    gate_up_EHD: torch.Tensor,
    down_EDF: torch.Tensor,
    weights_NK: torch.Tensor,
    chosen_NK: torch.Tensor,
    kind: str,
    interleaved: bool,
    weight_early: bool,
    limit: float,
    beta: float,
    linear_beta: float,
    gate_up_bias_EH: torch.Tensor | None,
    down_bias_ED: torch.Tensor | None,
) -> None:
    """Refuse arguments that break the contract. H stands for the 2F rows of gate_up."""
    check = Arguments(NAME)
    for name, tensor, letters in (
        ("x", x_ND, "ND"),
        ("gate_up", gate_up_EHD, "EHD"),
        ("down", down_EDF, "EDF"),
        ("weights", weights_NK, "NK"),
        ("chosen", chosen_NK, "NK"),
        ("gate_up_bias", gate_up_bias_EH, "EH"),
        ("down_bias", down_bias_ED, "ED"),
    ):
        if tensor is not None:
            check.shape(name, tensor, letters)
            if name != "chosen":
                check.floating(name, tensor)
    check.dtype("gate_up", gate_up_EHD, x_ND.dtype)
    check.dtype("down", down_EDF, x_ND.dtype)
    check.dtype("chosen", chosen_NK, torch.int32, torch.int64)
    experts, rows, features = gate_up_EHD.shape[0], gate_up_EHD.shape[1], down_EDF.shape[2]
    check.true("gate_up", rows == 2 * features, f"{2 * features} rows, twice the columns of down", rows)
    check.true("gate_up", experts >= 1, "at least one expert", experts)
    gated_activation.validate_kind(check, kind, limit, beta, linear_beta)


def reference(
    x_ND: torch.Tensor,
    gate_up_EHD: torch.Tensor,
    down_EDF: torch.Tensor,
    weights_NK: torch.Tensor,
    chosen_NK: torch.Tensor,
    kind: str,
    interleaved: bool = False,
    weight_early: bool = False,
    limit: float = 0.0,
    beta: float = 0.0,
    linear_beta: float = 0.0,
    gate_up_bias_EH: torch.Tensor | None = None,
    down_bias_ED: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return [N, D] in the dtype of x. A choice outside 0 to E - 1 (dropped, another rank's) contributes 0.

    Inside an expert everything is wide; its output is rounded to the dtype of x, multiplied by the weight and summed
    over the choices wide, and the sum is rounded. With weight_early the expert's input is multiplied by the weight
    and rounded instead, and the outputs are summed as they are.
    """
    weights = (gate_up_EHD, down_EDF, gate_up_bias_EH, down_bias_ED)
    attributes = (kind, interleaved, limit, beta, linear_beta)
    validate(x_ND, *weights[:2], weights_NK, chosen_NK, kind, interleaved, weight_early, *attributes[2:], *weights[2:])
    return mixture(x_ND, weights, weights_NK, chosen_NK, attributes, weight_early, lambda rows: rows)


def mixture(
    x_ND: torch.Tensor,
    parameters: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None],
    weights_NK: torch.Tensor,
    chosen_NK: torch.Tensor,
    attributes: tuple[str, bool, float, float, float],
    weight_early: bool,
    stored: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Sum the weighted experts, choice by choice; `stored` is what happens to the input of each projection.

    The weights are gathered for every token, so sizes depend on no value and no expert meets another one's token.
    """
    gate_up_EHD, down_EDF, gate_up_bias_EH, down_bias_ED = parameters
    wide = torch.float64 if x_ND.dtype == torch.float64 else torch.float32
    total_ND = torch.zeros(x_ND.shape, dtype=wide, device=x_ND.device)
    for choice in range(chosen_NK.shape[1]):
        local_N = (chosen_NK[:, choice] >= 0) & (chosen_NK[:, choice] < gate_up_EHD.shape[0])
        expert_N = torch.where(local_N, chosen_NK[:, choice], 0)
        weight_N1 = weights_NK[:, choice, None].to(wide)
        input_ND = (x_ND.to(wide) * weight_N1).to(x_ND.dtype) if weight_early else x_ND
        hidden_NH = project(stored(input_ND.to(wide)), gate_up_EHD, gate_up_bias_EH, expert_N)
        kind, interleaved, limit, beta, linear_beta = attributes
        active_NF = gated_activation.reference(hidden_NH, kind, interleaved, limit, beta, linear_beta)
        out_ND = project(stored(active_NF), down_EDF, down_bias_ED, expert_N).to(x_ND.dtype).to(wide)
        out_ND = out_ND if weight_early else out_ND * weight_N1
        # Chosen by where, not multiplied by 0: a dropped token may hold NaN.
        total_ND = total_ND + torch.where(local_N[:, None], out_ND, 0.0)
    return total_ND.to(x_ND.dtype)


def project(
    x_NI: torch.Tensor, weight_EOI: torch.Tensor, bias_EO: torch.Tensor | None, expert_N: torch.Tensor
) -> torch.Tensor:
    """Return [N, O]: each token times the matrix of its own expert, in the dtype of x."""
    weight_NOI = weight_EOI.index_select(0, expert_N).to(x_NI.dtype)
    out_NO = torch.bmm(weight_NOI, x_NI[:, :, None])[:, :, 0]
    return out_NO if bias_EO is None else out_NO + bias_EO.index_select(0, expert_N).to(x_NI.dtype)


def quantised(
    x_ND: torch.Tensor,
    gate_up_EHD: torch.Tensor,
    down_EDF: torch.Tensor,
    weights_NK: torch.Tensor,
    chosen_NK: torch.Tensor,
    kind: str,
    interleaved: bool = False,
    weight_early: bool = False,
    limit: float = 0.0,
    beta: float = 0.0,
    linear_beta: float = 0.0,
    gate_up_bias_EH: torch.Tensor | None = None,
    down_bias_ED: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same with FP8 storage: weights e4m3 in blocks of 128 x 128, inputs of both projections e4m3 in 1 x 128.

    Scales are plain float32 (amax / 448), as in the checkpoints that came first; biases are not quantised.
    """
    attributes = (kind, interleaved, limit, beta, linear_beta)
    biases = (gate_up_bias_EH, down_bias_ED)
    validate(
        x_ND, gate_up_EHD, down_EDF, weights_NK, chosen_NK, kind, interleaved, weight_early, *attributes[2:], *biases
    )
    weights = (by_matrix(gate_up_EHD), by_matrix(down_EDF), *biases)
    return mixture(x_ND, weights, weights_NK, chosen_NK, attributes, weight_early, lambda rows: through_fp8(rows, 1))


def by_matrix(weight_EOI: torch.Tensor) -> torch.Tensor:
    """Return the weights as FP8 stores them, one expert at a time: a block never spans two."""
    return torch.stack([through_fp8(weight_OI, FP8_BLOCK) for weight_OI in weight_EOI])


def through_fp8(matrix: torch.Tensor, block_rows: int) -> torch.Tensor:
    """Quantise and dequantise, in the dtype it came in."""
    values, scales = fp8_block_quantise.reference(matrix, block_rows, FP8_BLOCK, False, 0.0)
    return fp8_block_dequantise.reference(values, scales, block_rows, FP8_BLOCK, matrix.dtype)


def fake(
    x_ND: torch.Tensor,
    gate_up_EHD: torch.Tensor,
    down_EDF: torch.Tensor,
    weights_NK: torch.Tensor,
    chosen_NK: torch.Tensor,
    kind: str,
    interleaved: bool = False,
    weight_early: bool = False,
    limit: float = 0.0,
    beta: float = 0.0,
    linear_beta: float = 0.0,
    gate_up_bias_EH: torch.Tensor | None = None,
    down_bias_ED: torch.Tensor | None = None,
) -> torch.Tensor:
    """Shape and dtype of the result."""
    attributes = (kind, interleaved, weight_early, limit, beta, linear_beta)
    validate(x_ND, gate_up_EHD, down_EDF, weights_NK, chosen_NK, *attributes, gate_up_bias_EH, down_bias_ED)
    return x_ND.new_empty(x_ND.shape)


def flops(
    x_ND: torch.Tensor,
    gate_up_EHD: torch.Tensor,
    down_EDF: torch.Tensor,
    weights_NK: torch.Tensor,
    chosen_NK: torch.Tensor,
    kind: str,
    *rest: Any,
    **named: Any,
) -> int:
    """Two projections and the activation for every choice, none of them dropped."""
    (choices, width), (rows, features) = (weights_NK.numel(), x_ND.shape[1]), (gate_up_EHD.shape[1], down_EDF.shape[2])
    return int(
        choices * (2 * rows * width + 2 * features * width + features * gated_activation.FLOPS[kind] + 2 * width)
    )


def moved(
    x_ND: torch.Tensor,
    gate_up_EHD: torch.Tensor,
    down_EDF: torch.Tensor,
    weights_NK: torch.Tensor,
    chosen_NK: torch.Tensor,
    *rest: Any,
    **named: Any,
) -> int:
    """At most one expert is read for each choice, and none twice; biases are small beside them."""
    experts = min(weights_NK.numel(), gate_up_EHD.shape[0])
    matrices = sum(tensor[0].numel() * tensor.element_size() for tensor in (gate_up_EHD, down_EDF))
    rows = sum(tensor.numel() * tensor.element_size() for tensor in (x_ND, x_ND, weights_NK, chosen_NK))
    return int(experts * matrices + rows)


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Distinct experts with weights that sum to 1, the last choice of some tokens dropped; matrices that keep size."""
    _, gate_up_EHD, down_EDF, weights_NK, chosen_NK = args[:5]
    tokens, choices = chosen_NK.shape
    experts = gate_up_EHD.shape[0]
    order = torch.rand(tokens, max(experts, choices), generator=generator).argsort(dim=-1)[:, :choices]
    chosen = torch.where(order < experts, order, -1)
    if choices > 1:
        chosen[::3, -1] = -1
    chosen_NK.copy_(chosen)
    weights_NK.copy_(torch.softmax(torch.randn(tokens, choices, generator=generator), dim=-1))
    for matrix in (gate_up_EHD, down_EDF):
        matrix.mul_(matrix.shape[-1] ** -0.5)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Every kind, biases, both places of the weight; experts without tokens, all dropped, no token; Kimi Linear's."""
    situ, oai = ("situ", False, False, 0.0, 4.0, 25.0), ("swiglu_oai", True, False, 0.5, 0.0, 0.0)
    plain, early = ("swiglu", False, False, 0.0, 0.0, 0.0), ("swiglu_clamped", False, True, 0.5, 0.0, 0.0)
    for name, (tokens, width, experts, features, choices), attributes, biased in (
        ("small", (4, 8, 3, 6, 2), plain, False),
        ("odd", (5, 7, 11, 5, 3), oai, True),
        ("odd", (3, 9, 5, 3, 5), early, False),
        ("corner", (0, 4, 2, 3, 2), situ, False),
        ("corner", (2, 1, 1, 1, 2), situ, True),
        ("traced", (2, 2304, 2, 1024, 2), plain, False),
    ):
        x_ND = torch.randn(tokens, width, generator=generator)
        gate_up_EHD = torch.randn(experts, 2 * features, width, generator=generator)
        down_EDF = torch.randn(experts, width, features, generator=generator)
        weights_NK, chosen_NK = torch.zeros(tokens, choices), torch.zeros(tokens, choices, dtype=torch.int64)
        args = (x_ND, gate_up_EHD, down_EDF, weights_NK, chosen_NK, *attributes)
        fill(args, {}, generator)
        if name == "corner":
            chosen_NK[:1] = -1
        shapes = (gate_up_EHD.shape[:2], down_EDF.shape[:2])
        biases = tuple(torch.randn(shape, generator=generator) if biased else None for shape in shapes)
        yield Sample(kind=name, args=(*args, *biases), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="routed experts of a mixture, weighted and summed",
    schema="(Tensor x, Tensor gate_up, Tensor down, Tensor weights, Tensor chosen, str kind, "
    "bool interleaved=False, bool weight_early=False, float limit=0.0, float beta=0.0, float linear_beta=0.0, "
    "Tensor? gate_up_bias=None, Tensor? down_bias=None) -> Tensor",
    mathematics="out = sum over k of w_k down_e act(gate_up_e x), e = chosen_k; early: down_e act(gate_up_e (w_k x))",
    source="Mixtral; DeepSeek-V3 technical report; Kimi K3's order of rounding, weight and sum; gpt-oss for biases",
    reference=reference,
    quantised=quantised,
    fake=fake,
    flops=flops,
    bytes=moved,
    fill=fill,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=4.0,
        reason="two matrix products in float32; kernels also round between the projections, which costs as much as "
        "the rounding of an expert's output that the reference has itself, so the ratio covers it",
    ),
    attributes=(
        Attribute(name="kind, interleaved, limit, beta, linear_beta", meaning="those of day0::gated_activation"),
        Attribute(name="weight_early", meaning="the weight multiplies the expert's input; else its rounded output"),
        Attribute(name="gate_up_bias, down_bias", meaning="added to the products, gpt-oss; down_bias is weighted too"),
        Attribute(name="stacking", meaning="gate rows first (Mixtral's w1, then w3); the other way fits and is wrong"),
    ),
    verified_against="transformers gpt_oss, deepseek_v3, deepseek_v4 and mixtral experts; nemo-automodel kimi_k3",
)
