"""Sizes and attributes of the toy model. Sizes are chosen so that a mistake changes a shape."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace

from day0.errors import Day0Error
from day0.reference_ops.mxfp4_decode import BLOCK

__all__ = ["ToyConfig"]

_CHOICES = {
    "residual": ("attention", "plain", "hyper"),
    "mla_rope": ("none", "half", "interleaved"),
    "index_rope": ("none", "half", "interleaved"),
    "activation": ("situ", "swiglu", "swiglu_clamped"),
    "kda_state_layout": ("kv", "vk"),
}

LARGEST = 1 << 24
"""Of any size: beyond it products of sizes leave the range of torch's own arithmetic."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToyConfig:
    """A small Kimi-K3.1-shaped model; other families differ by these fields alone (see toy_variants).

    Raises Day0Error for sizes and attributes that cannot be built.
    """

    vocab_size: int = 120
    hidden_size: int = 96
    num_hidden_layers: int = 5
    mla_layers: tuple[int, ...] = (4, 5)
    """Numbered from 1, as in the checkpoints; all others are KDA layers."""
    rms_norm_eps: float = 1e-5
    residual: str = "attention"
    """`attention`: over snapshots of earlier blocks (K3); `plain`: a sum; `hyper`: several streams (GLM-5.3-Flash)."""
    residual_block: int = 2
    """Layers between two snapshots."""
    residual_streams: int = 3

    kda_heads: int = 3
    kda_key_dim: int = 16
    kda_value_dim: int = 24
    kda_gate_rank: int = 14
    kda_gate_lower_bound: float = -5.0
    """0 means the plain gate, which has no bound."""
    kda_state_layout: str = "kv"
    conv_kernel: int = 4

    mla_heads: int = 5
    mla_gate: bool = True
    q_lora_rank: int = 40
    kv_lora_rank: int = 28
    nope_head_dim: int = 12
    shared_head_dim: int = 4
    """Key dimensions that all heads share; K3.1 leaves them unrotated, GLM-5.3-Flash has none."""
    v_head_dim: int = 20
    lora_norm_eps: float = 1e-6
    mla_rope: str = "none"
    rope_theta: float = 10000.0

    index_heads: int = 17
    """With fewer than 16 many scores are exactly 0, and the choice among them is arbitrary."""
    index_head_dim: int = 16
    index_topk: int = 8
    index_key_eps: float = 1e-5
    index_rope: str = "none"
    index_rope_dim: int = 8
    """Rotated from the first dimension on."""
    index_hadamard: bool = True
    index_pool: int = 0
    """Above 0, runs of that many tokens are scored and chosen together (GLM-5.3-Flash)."""
    index_shared_layers: tuple[int, ...] = ()
    """MLA layers without an indexer: they read what the last one before them chose (GLM-5.2)."""

    dense_layers: int = 1
    """How many layers from the first on have a dense feed-forward network."""
    intermediate_size: int = 136
    n_experts: int = 10
    experts_per_token: int = 3
    expert_groups: int = 1
    expert_groups_kept: int = 1
    latent_size: int = 64
    """Width in which the routed experts work; 0 means the hidden size, without projections and norm."""
    moe_intermediate_size: int = 32
    shared_intermediate_size: int = 18
    routed_scaling_factor: float = 0.02
    """Small on purpose: a norm behind the sum hides any factor but a tiny one, and so a weight on the wrong side."""
    activation: str = "situ"
    activation_limit: float = 10.0
    situ_beta: float = 4.0
    situ_linear_beta: float = 25.0

    vision: bool = True
    vision_layers: int = 2
    vision_hidden_size: int = 44
    vision_heads: int = 3
    vision_head_dim: int = 12
    vision_intermediate_size: int = 76
    vision_patch: int = 4
    vision_channels: int = 3
    vision_grid: int = 8
    """Rows and columns of the table of positions, which is resized to the image."""
    vision_merge: int = 2
    vision_window: int = -1
    """A patch sees patches at most this far away; -1 means the whole image."""
    vision_global_tokens: int = 0
    vision_keep: int = 0
    """How many visual tokens the decoder gets, the most important ones in their order; 0 means all."""

    block_size: int = 7
    """Tokens in a page of the cache."""
    max_positions: int = 4096

    expert_batch: int = 0
    """So many of the chosen experts are decoded at a time, for a device without room for a layer's; 0: all at once."""
    expert_slots: int = 0
    """So many experts are kept in FP8 between calls, and the others converted when they are chosen; 0: none."""

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        self._refuse_sizes()
        self._refuse_attributes()
        self._refuse_experts()
        self._refuse_combinations()

    def _refuse_sizes(self) -> None:
        may_be_zero = {
            *("dense_layers", "latent_size", "index_pool", "shared_head_dim", "vision_global_tokens", "vision_keep"),
            *("expert_batch", "expert_slots"),
        }
        for field in fields(self):
            value = getattr(self, field.name)
            lowest = -1 if field.name == "vision_window" else 0 if field.name in may_be_zero else 1
            if type(value) is int and value < lowest:
                _refuse(field.name, f"expected at least {lowest}, got {value}")
            if type(value) is int and value > LARGEST:
                _refuse(field.name, f"expected at most {LARGEST}, got {value}")
        for name in ("hidden_size" if not self.latent_size else "latent_size", "moe_intermediate_size"):
            if getattr(self, name) % BLOCK:
                _refuse(name, f"expected a multiple of the MXFP4 block of {BLOCK}, got {getattr(self, name)}")

    def _refuse_attributes(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                _refuse(name, f"expected one of {', '.join(allowed)}, got '{getattr(self, name)}'")
        for name in ("mla_layers", "index_shared_layers"):
            wrong = [layer for layer in getattr(self, name) if not 1 <= layer <= self.num_hidden_layers]
            if wrong:
                _refuse(name, f"layers are numbered 1 to {self.num_hidden_layers}, got {wrong[0]}")
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is float and not math.isfinite(value):
                _refuse(field.name, f"expected a finite number, got {value}")
            if type(value) is float and value <= 0 and field.name != "kda_gate_lower_bound":
                _refuse(field.name, f"expected a positive number, got {value}")
        if self.kda_gate_lower_bound > 0:
            _refuse("kda_gate_lower_bound", f"a log decay is at most 0, got {self.kda_gate_lower_bound}")

    def _refuse_experts(self) -> None:
        experts, groups, kept = self.n_experts, self.expert_groups, self.expert_groups_kept
        if self.experts_per_token > experts:
            _refuse("experts_per_token", f"expected at most the {experts} experts, got {self.experts_per_token}")
        if experts % groups:
            _refuse("expert_groups", f"{experts} experts cannot be split into {groups} groups")
        # A group is judged by its two best experts.
        if groups > 1 and experts == groups:
            _refuse("expert_groups", "expected two experts or more in a group, got 1")
        if kept > groups:
            _refuse("expert_groups_kept", f"expected at most {groups}, got {kept}")
        if self.expert_batch and self.expert_slots:
            _refuse("expert_batch", "an expert cache has batches of its own: give expert_slots or expert_batch")
        left = experts // groups * kept
        if self.experts_per_token > left:
            what = f"expected at most the {left} experts of the kept groups, got {self.experts_per_token}"
            _refuse("experts_per_token", what)

    def _refuse_combinations(self) -> None:
        if self.index_hadamard and self.index_head_dim & (self.index_head_dim - 1):
            _refuse("index_head_dim", f"the Hadamard transform needs a power of two, got {self.index_head_dim}")
        other = [layer for layer in self.index_shared_layers if layer not in self.mla_layers]
        if other:
            _refuse("index_shared_layers", f"layer {other[0]} is no MLA layer")
        unscored = [layer for layer in self.index_shared_layers if layer <= min(self.mla_layers, default=0)]
        if unscored:
            _refuse("index_shared_layers", f"layer {unscored[0]} has no MLA layer before it to share with")
        if self.index_pool and self.index_topk % self.index_pool:
            _refuse("index_pool", f"expected a divisor of the top-k of {self.index_topk}, got {self.index_pool}")
        for rope, width in (("mla_rope", self.shared_head_dim), ("index_rope", self.index_rope_dim)):
            if getattr(self, rope) != "none" and width % 2:
                _refuse(rope, f"rotation needs an even width, got {width}")
        if self.index_rope != "none" and self.index_rope_dim > self.index_head_dim:
            what = f"expected at most the {self.index_head_dim} dimensions of an index head, got {self.index_rope_dim}"
            _refuse("index_rope_dim", what)
        if self.vision and self.vision_head_dim % 4:
            what = f"rotation in two directions needs a multiple of 4, got {self.vision_head_dim}"
            _refuse("vision_head_dim", what)

    def activation_rule(self) -> tuple[float, float, float]:
        """Return limit, beta and linear beta: 0 where the activation does not read them."""
        situ = self.activation == "situ"
        limit = self.activation_limit if self.activation == "swiglu_clamped" else 0.0
        return limit, self.situ_beta if situ else 0.0, self.situ_linear_beta if situ else 0.0

    def architecture(self) -> ToyConfig:
        """Return the config without what says how the model is served: weights are the same for all of these."""
        return replace(self, expert_batch=0, expert_slots=0)

    def as_dict(self) -> dict[str, object]:
        """Return all fields as plain data."""
        return asdict(self)


def _refuse(name: str, what: str) -> None:
    raise Day0Error(f"toy config: {name}", what, hint="see models/toy/config.py for the sizes of the toy")
