"""What a user would run otherwise, by operator: functions of torch, of transformers and of flash-linear-attention.

A peer takes the arguments of the operator and returns its first result, so that it is compared before it is timed. One
that is not installed, or cannot do a call, says so by what it raises. Peers are called as they are, and never copied.

Shape suffixes: B batch, S tokens, H heads, K key, V value, N rows, D width, E experts, T keys.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

from day0.reference_ops import gated_activation

__all__ = ["PEERS", "first", "refuse_other"]

LIMIT = 5e-2
"""Of the relative error between two right ways: FP8 is the coarsest, with 2^-4 for a value."""

Peer = Callable[..., Any]


def torch_rms_norm(x_ND: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
    """Torch's own function."""
    return torch.nn.functional.rms_norm(x_ND, (x_ND.shape[-1],), weight_D, eps)


def transformers_rms_norm(x_ND: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
    """The code of DeepSeek-V3.2's module, without making one."""
    kind = import_module("transformers.models.deepseek_v32.modeling_deepseek_v32").DeepseekV32RMSNorm
    out: torch.Tensor = kind.forward(SimpleNamespace(weight=weight_D, variance_epsilon=eps), x_ND)
    return out


def torch_add_rms_norm(x_ND: torch.Tensor, residual_ND: torch.Tensor, weight_D: torch.Tensor, eps: float) -> Any:
    """A sum, and torch's own function."""
    return torch.nn.functional.rms_norm(x_ND + residual_ND, (x_ND.shape[-1],), weight_D, eps)


def torch_topk(logits_BST: torch.Tensor, topk: int) -> torch.Tensor:
    """Torch's selection; which of equal scores it takes is not specified, and a NaN comes first."""
    return torch.topk(logits_BST, topk).indices.to(torch.int32)


def transformers_mxfp4(codes_NP: torch.Tensor, scales_NG: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The dequantiser of gpt-oss."""
    convert = import_module("transformers.integrations.mxfp4").convert_moe_packed_tensors
    rows, groups = scales_NG.shape
    blocks = codes_NP.view(1, rows, groups, -1)
    # It gives [E, in, out].
    out: torch.Tensor = convert(blocks, scales_NG.view(1, rows, groups), dtype=dtype)
    return out[0].t()


def transformers_experts(
    x_ND: torch.Tensor,
    gate_up_EHD: torch.Tensor,
    down_EDF: torch.Tensor,
    weights_NK: torch.Tensor,
    chosen_NK: torch.Tensor,
    kind: str,
    interleaved: bool,
    weight_early: bool,
    *rule: float,
) -> torch.Tensor:
    """Its grouped products, with the activation of the case in plain torch."""
    forward = import_module("transformers.integrations.moe").grouped_mm_experts_forward

    def gate(hidden: torch.Tensor) -> torch.Tensor:
        return gated_activation.reference(hidden, kind, interleaved, *rule).to(hidden.dtype)

    experts = SimpleNamespace(
        num_experts=len(gate_up_EHD),
        has_gate=True,
        has_bias=False,
        is_transposed=False,
        gate_up_proj=gate_up_EHD,
        down_proj=down_EDF,
        _is_expert_parallel=False,
        has_post_expert_norm=False,
        _apply_gate=gate,
    )
    out: torch.Tensor = forward(experts, x_ND, chosen_NK, weights_NK)
    return out


def fla_recurrent(*call: Any) -> torch.Tensor:
    """flash-linear-attention, a token at a time."""
    return _fla("fused_recurrent_kda", *call[:6])


def fla_chunk(*call: Any) -> torch.Tensor:
    """flash-linear-attention in chunks; its safe form, since gates here go down to -5."""
    return _fla("chunk_kda", *call[:6], safe_gate=True, lower_bound=-5.0)


def _fla(
    name: str,
    q_BSHK: torch.Tensor,
    k_BSHK: torch.Tensor,
    v_BSHV: torch.Tensor,
    g_BSHK: torch.Tensor,
    beta_BSH: torch.Tensor,
    state_BHKV: torch.Tensor,
    **more: Any,
) -> torch.Tensor:
    run = getattr(import_module("fla.ops.kda"), name)
    # It writes the new state over the old one in some forms.
    state_BHKV = state_BHKV.clone()
    out: torch.Tensor = run(
        q_BSHK, k_BSHK, v_BSHV, g_BSHK, beta_BSH,
        initial_state=state_BHKV, output_final_state=True, use_qk_l2norm_in_kernel=True, **more,
    )[0]  # fmt: skip
    return out


PEERS: dict[str, dict[str, Peer]] = {
    "rms_norm": {"torch_rms_norm": torch_rms_norm, "transformers": transformers_rms_norm},
    "fused_add_rms_norm": {"torch_rms_norm": torch_add_rms_norm},
    "topk_tokens": {"torch_topk": torch_topk},
    "mxfp4_decode": {"transformers": transformers_mxfp4},
    "fused_experts": {"transformers_grouped_mm": transformers_experts},
    "kda_recurrent": {"flash_linear_attention": fla_recurrent},
    "kda_chunked": {"flash_linear_attention": fla_chunk},
}
"""By operator and name. Others have no peer but torch eager and torch.compile: no package with them runs there."""


def first(results: Any) -> Any:
    """Return the first result of an operator; None where it has none and writes into its arguments."""
    return results[0] if isinstance(results, (tuple, list)) else results


def refuse_other(found: Any, right: Any) -> None:
    """Raise ValueError where a peer computes something else; indices may differ where scores are equal."""
    if not isinstance(right, torch.Tensor) or not isinstance(found, torch.Tensor):
        return
    if found.shape != right.shape:
        raise ValueError(f"it computes something else: {list(found.shape)} instead of {list(right.shape)}")
    wide, other = (
        (one.sort(dim=-1).values.double() for one in (found, right))
        if not right.is_floating_point()
        else (found.double(), right.double())
    )
    error = float((wide - other).norm() / other.norm())
    if not error <= LIMIT:
        raise ValueError(f"it computes something else: the results differ by {error:.3g}")
