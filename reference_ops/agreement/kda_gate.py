"""Decay gates against transformers and NeMo AutoModel."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from day0.reference_ops import kda_gate
from day0.reference_ops.agreement._comparison import Comparison, error
from day0.reference_ops.agreement._modules import automodel
from day0.reference_ops.agreement._widened import Widened

__all__ = ["COMPARISONS"]

HEADS, KEYS = 3, 6


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return raw values on both sides of 20, rates around 8 and biases, in float64."""
    generator = torch.Generator().manual_seed(4)
    raw_BSHK = 12.0 * torch.randn(2, 7, HEADS, KEYS, generator=generator, dtype=torch.float64)
    a_log_H = torch.log(1.0 + 15.0 * torch.rand(HEADS, generator=generator, dtype=torch.float64))
    return raw_BSHK, a_log_H, torch.randn(HEADS, KEYS, generator=generator, dtype=torch.float64)


def against_module(module_of: Any, bound: float | None) -> float:
    """Call a model's gate without its projections."""
    raw_BSHK, a_log_H, dt_bias_HK = inputs()
    config = SimpleNamespace(
        linear_head_dim=KEYS, linear_num_heads=HEADS, hidden_size=HEADS * KEYS, linear_lower_bound=bound
    )
    gate = module_of()(config).double()
    gate.f_a_proj = gate.f_b_proj = torch.nn.Identity()
    gate.A_log.data.copy_(a_log_H.view(gate.A_log.shape))
    gate.dt_bias.data.copy_(dt_bias_HK.flatten())
    with torch.no_grad(), Widened():
        theirs = gate(raw_BSHK.flatten(2))
    return error(kda_gate.reference(raw_BSHK, a_log_H, dt_bias_HK, bound), theirs)


def kimi_linear() -> Any:
    """Return the plain gate of Kimi Linear."""
    from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearForgetGate

    return KimiLinearForgetGate


def glm5_next() -> Any:
    """Return the gate of GLM-5.3-Flash, plain or bounded."""
    from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextForgetGate

    return Glm5NextTextForgetGate


def against_automodel(bound: float | None) -> float:
    """Call the plain-torch gate of Kimi K3."""
    model = automodel("kimi_k3.model")
    raw_BSHK, a_log_H, dt_bias_HK = inputs()
    with Widened():
        theirs = model._torch_kda_gate(raw_BSHK, a_log_H, KEYS, dt_bias_HK.flatten(), bound)
    return error(kda_gate.reference(raw_BSHK, a_log_H, dt_bias_HK, bound), theirs)


COMPARISONS = (
    Comparison(
        operator=kda_gate.NAME,
        variant="plain",
        against="transformers kimi_linear KimiLinearForgetGate",
        distribution="transformers",
        # Theirs takes softplus for the identity above 20, which leaves out exp(-20).
        limit=1e-10,
        run=partial(against_module, kimi_linear, None),
    ),
    Comparison(
        operator=kda_gate.NAME,
        variant="plain",
        against="transformers glm5_next Glm5NextTextForgetGate",
        distribution="transformers",
        limit=1e-10,
        run=partial(against_module, glm5_next, None),
    ),
    Comparison(
        operator=kda_gate.NAME,
        variant="bounded",
        against="transformers glm5_next Glm5NextTextForgetGate",
        distribution="transformers",
        limit=5e-16,
        run=partial(against_module, glm5_next, -5.0),
    ),
    *(
        Comparison(
            operator=kda_gate.NAME,
            variant="plain" if bound is None else "bounded",
            against="nemo_automodel kimi_k3 _torch_kda_gate",
            distribution="nemo-automodel",
            limit=1e-10 if bound is None else 5e-16,
            run=partial(against_automodel, bound),
        )
        for bound in (None, -5.0)
    ),
)
