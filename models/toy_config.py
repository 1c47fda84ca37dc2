"""Sizes of the toy model. Chosen so that a mistake changes a shape: no two sizes that meet are equal."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from day0.errors import Day0Error
from day0.reference_ops.mxfp4_decode import BLOCK

__all__ = ["ToyConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToyConfig:
    """A small Kimi-K3.1-shaped model: KDA layers, gated MLA layers with an indexer, MXFP4 experts.

    Raises Day0Error for sizes that cannot be built.
    """

    vocab_size: int = 120
    hidden_size: int = 96
    num_hidden_layers: int = 5
    mla_layers: tuple[int, ...] = (4, 5)
    """Numbered from 1, as in the checkpoints; all others are KDA layers."""
    rms_norm_eps: float = 1e-5
    kda_heads: int = 3
    kda_key_dim: int = 16
    kda_value_dim: int = 24
    kda_gate_rank: int = 14
    kda_gate_lower_bound: float = -5.0
    conv_kernel: int = 4
    mla_heads: int = 5
    q_lora_rank: int = 40
    kv_lora_rank: int = 28
    nope_head_dim: int = 12
    shared_head_dim: int = 4
    """The dimensions that other models rotate; here all heads share them unrotated."""
    v_head_dim: int = 20
    lora_norm_eps: float = 1e-6
    index_heads: int = 16
    """With fewer than 16 many scores are exactly 0, and the choice among them is arbitrary."""
    index_head_dim: int = 10
    index_topk: int = 8
    dense_layers: int = 1
    """How many layers from the first on have a dense feed-forward network."""
    intermediate_size: int = 136
    n_experts: int = 10
    experts_per_token: int = 3
    moe_intermediate_size: int = 64
    shared_intermediate_size: int = 32
    routed_scaling_factor: float = 1.5
    situ_beta: float = 4.0
    situ_linear_beta: float = 25.0
    max_positions: int = 4096

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        for field in fields(self):
            value = getattr(self, field.name)
            lowest = 0 if field.name == "dense_layers" else 1
            if isinstance(value, int) and value < lowest:
                _refuse(field.name, f"expected at least {lowest}, got {value}")
        wrong = [layer for layer in self.mla_layers if not 1 <= layer <= self.num_hidden_layers]
        if wrong:
            _refuse("mla_layers", f"layers are numbered 1 to {self.num_hidden_layers}, got {wrong[0]}")
        for name in ("hidden_size", "moe_intermediate_size"):
            if getattr(self, name) % BLOCK:
                _refuse(name, f"expected a multiple of the MXFP4 block of {BLOCK}, got {getattr(self, name)}")
        if self.experts_per_token > self.n_experts:
            _refuse("experts_per_token", f"expected at most the {self.n_experts} experts, got {self.experts_per_token}")

    def as_dict(self) -> dict[str, object]:
        """Return all fields as plain data."""
        return asdict(self)


def _refuse(name: str, what: str) -> None:
    raise Day0Error(f"toy config: {name}", what, hint="see models/toy_config.py for the sizes of the toy")
