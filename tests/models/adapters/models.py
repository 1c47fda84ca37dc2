"""Small models of transformers with random weights, from their configs alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

from day0.models.driver import step
from day0.models.hf import open_hf
from day0.models.spec import ModelSpec
from day0.playbook import ModelPlan

__all__ = ["FITS", "ids", "logits", "opened", "small"]

FITS = {
    "llama": {"gated_mlp": 2, "rms_norm": 5, "rope": 2},
    "gemma3_text": {"rms_norm": 13, "rope": 2},
    "glm4": {"fused_gate_mlp": 2, "rms_norm": 9, "rope": 2},
    "cohere": {"gated_mlp": 2, "rope": 2},
    "gpt_oss": {"fused_experts": 2, "rms_norm": 5, "rope": 2, "softmax_router": 2},
    "mixtral": {"fused_experts": 2, "rms_norm": 5, "rope": 2, "softmax_router": 2},
    "deepseek_v32": {
        "dsa": 2, "fused_experts": 1, "gated_mlp": 2, "lightning_indexer": 2, "moe_router": 1, "rms_norm": 9,
    },
    "glm_moe_dsa": {
        "dsa": 2, "fused_experts": 1, "gated_mlp": 2, "lightning_indexer": 2, "moe_router": 1, "rms_norm": 9,
    },
    "deepseek_v4": {"fused_experts": 3, "gated_mlp": 3, "moe_router": 2, "rms_norm": 27, "rope": 3},
    "glm5_next": {
        "dsa": 1, "fused_experts": 2, "gated_mlp": 5, "kda": 2, "moe_router": 2, "pooled_indexer": 1, "rms_norm": 24,
    },
    "kimi_linear": {"fused_experts": 2, "gated_mlp": 3, "kda": 2, "moe_router": 2, "rms_norm": 8},
}  # fmt: skip
"""How many modules of a type's small model each adapter fits."""


SMALLER: dict[str, dict[str, Any]] = {
    "kimi_linear": {"linear_num_heads": 2, "linear_head_dim": 16},
    "glm5_next": {"linear_num_heads": 2, "linear_head_dim": 16, "index_topk": 8, "index_kpool": 4},
}
"""What shrinking leaves large."""


@cache
def opened(name: str, way: str = "own") -> ModelSpec:
    """Return the spec of a small model; shrunk once for each way through its experts, which its config holds."""
    return open_hf(ModelPlan(source=f"hf:{name}", shrink=True, set=SMALLER.get(name, {})))


def small(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """Return a small model on the CPU."""
    model: Any = opened(name, "eager").build("cpu").to(dtype)
    # Their other ways through the experts are kernels for some dtypes.
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model


def ids(name: str, tokens: int) -> torch.Tensor:
    """Return the same token ids [2, tokens] every time."""
    return torch.randint(1, opened(name, "eager").vocab_size, (2, tokens), generator=torch.Generator().manual_seed(3))


def logits(model: nn.Module, ids_BS: torch.Tensor) -> list[torch.Tensor]:
    """Return the logits of a prompt, and of one token behind it."""
    prompt = step(model, ids_BS[:, :-1])
    return [prompt.logits_BSV, step(model, ids_BS[:, -1:], prompt.cache).logits_BSV]
