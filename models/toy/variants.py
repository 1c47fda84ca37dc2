"""Other model families as attributes of the toy."""

from __future__ import annotations

from typing import Any

__all__ = ["VARIANTS"]

_PLAIN: dict[str, Any] = {
    "residual": "plain",
    "mla_gate": False,
    "latent_size": 0,
    "activation": "swiglu",
    "vision": False,
    "index_key_eps": 1e-6,
    "rms_norm_eps": 1e-6,
    "routed_scaling_factor": 2.5,
}

VARIANTS: dict[str, dict[str, Any]] = {
    # Every layer is MLA with an indexer; the indexer rotates halves, main attention neighbours.
    "deepseek-v3.2": {
        **_PLAIN,
        "num_hidden_layers": 3,
        "mla_layers": (1, 2, 3),
        "mla_rope": "interleaved",
        "index_rope": "half",
        "index_hadamard": True,
        "n_experts": 12,
        "expert_groups": 4,
        "expert_groups_kept": 2,
    },
    # Interleaved everywhere, no Hadamard transform, indices shared between layers.
    "glm-5": {
        **_PLAIN,
        "rms_norm_eps": 1e-5,
        "num_hidden_layers": 4,
        "mla_layers": (1, 2, 3, 4),
        "index_shared_layers": (2, 4),
        "mla_rope": "interleaved",
        "index_rope": "interleaved",
        "index_hadamard": False,
    },
    # KDA and MLA without positions 3:1, pools of tokens in the indexer, several residual streams, one eps for all
    # norms but the index key's.
    "glm-5.3-flash": {
        **_PLAIN,
        "rms_norm_eps": 1e-5,
        "lora_norm_eps": 1e-5,
        "nope_head_dim": 16,
        "shared_head_dim": 0,
        "residual": "hyper",
        "num_hidden_layers": 4,
        "mla_layers": (4,),
        "index_hadamard": False,
        "index_pool": 4,
        "activation": "swiglu_clamped",
        "vision": True,
    },
}
"""Fields that differ from ToyConfig's defaults, which are K3.1's."""
