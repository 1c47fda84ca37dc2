"""Sparse attention over latents (DSA): DeepSeek-V3.2, GLM-5 and what is made like them, in the absorbed form.

The attention keeps its own code: projections, rotation, cache, indexer and gates. What changes is what it hands to the
function that attends: latents as they are cached instead of keys and values of each head, and the indexer's choice instead
of a mask. That function multiplies the key's up-projection into the queries and the value's onto the results.

Shape suffixes: B batch, S queries, H heads, T keys, K chosen tokens, L latent, R rotated values, C = L + R row width,
N values of a key that are not rotated, V values, P pages, G rows of a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from day0.errors import Day0Error
from day0.models.adapters._adapter import Adapter, Candidate, Refused, needs
from day0.models.adapters._dsa_probe import probe
from day0.models.adapters._rebind import calls_of, names_of, rebound
from day0.models.adapters.rope import FUNCTIONS, rotations

__all__ = ["ADAPTER", "attend"]

INTERFACES, EXPAND, POOLED = "ALL_ATTENTION_FUNCTIONS", "expand_kv", "build_attention_mask_from_topk"
KNOWN = ("eager", "sdpa")
PAGE = 64
"""Rows of a page in decode: what kernels for paged caches are made for."""


def candidates(module: nn.Module) -> Sequence[Candidate]:
    """One way to attend, behind each way to rotate; the last one rotates by their own function."""
    needs(module, "kv_b_proj", "indexer", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank", "config")
    _refuse(module)
    try:
        turned = rotations(module) if calls_of(module, *FUNCTIONS) else ()
    except Refused:
        turned = ()
    ways = (*turned, ("its own rotation", {}))
    return [Candidate(text=text, forward=_forward(module, ours)) for text, ours in ways]


def _refuse(module: Any) -> None:
    """Raise Refused for what the operators cannot express, or what cannot be read from outside."""
    if module.indexer is None and not getattr(module, "skip_topk", False):
        raise Refused("it has no indexer: it reads every key")
    missing = [name for name in (INTERFACES, EXPAND) if name not in names_of(module)]
    if missing:
        raise Refused(f"its forward does not name {' nor '.join(missing)}")
    projection, implementation = module.kv_b_proj, module.config._attn_implementation
    if type(projection) is not nn.Linear or projection.bias is not None or projection.weight.dtype.itemsize < 2:
        raise Refused(f"its kv_b_proj is {projection}: its weight is absorbed, so it has to be a plain matrix")
    if implementation not in KNOWN:
        raise Refused(f"it attends by {implementation}, which is no code of its own")


def _forward(module: nn.Module, turned: dict[str, Any]) -> Any:
    own = rebound(module, {**turned, INTERFACES: _Interfaces()})

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return own(_Seen(self), *args, **kwargs)

    return forward


class _Interfaces:
    """Stands where their table of attention functions stands."""

    def get_interface(self, name: str, default: Any) -> Any:
        return attend


class _Config:
    """A config with another attention function: for one that it does not know their code makes no mask."""

    def __init__(self, config: Any) -> None:
        self.config, self._attn_implementation = config, "day0"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.config, name)


class _Seen:
    """A module as its own forward sees it here: it expands nothing, and a choice stays one."""

    def __init__(self, module: Any) -> None:
        self.module, self.config = module, _Config(module.config)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def expand_kv(self, kv_nope: torch.Tensor, k_rot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return kv_nope, k_rot

    def build_attention_mask_from_topk(
        self, topk_indices: torch.Tensor, query_states: torch.Tensor, kv_length: int
    ) -> torch.Tensor:
        return topk_indices


def attend(
    seen: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    *,
    scaling: float,
    dropout: float = 0.0,
    indices: torch.Tensor | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return [B, S, H, V] in the place of their attention function; `key` is the latent, `value` the rotated part.

    Raises Day0Error for dropout, and where attention weights are asked for of code that would give them.
    """
    module = seen.module
    _allowed(module, dropout, kwargs)
    absorbed_HNL, back_HLV = _projections(module)
    q_BHSN, q_BHSR = query.split((module.qk_nope_head_dim, query.shape[-1] - module.qk_nope_head_dim), dim=-1)
    latent_BHSL = torch.matmul(q_BHSN, absorbed_HNL)
    q_BSHC = torch.cat((latent_BHSL.transpose(1, 2), q_BHSR.transpose(1, 2)), dim=-1)
    chosen_BSK = attention_mask if indices is None else _visible(indices, attention_mask)
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    sink_H = None if s_aux is None else s_aux.to(wide)
    run = _decode if query.shape[2] == 1 else _prefill
    out_BSHL = run(q_BSHC, key[:, 0], value[:, 0], chosen_BSK.to(torch.int32), float(scaling), sink_H)
    out_BHSV = torch.matmul(out_BSHL.transpose(1, 2), back_HLV)
    return out_BHSV.transpose(1, 2), None


def _allowed(module: Any, dropout: float, kwargs: dict[str, Any]) -> None:
    asked = kwargs.get("output_attentions") or getattr(module.config, "output_attentions", False)
    what = "drops weights at random" if dropout else ""
    if asked and module.config._attn_implementation == "eager":
        what = "is asked for its weights"
    if what:
        raise Day0Error(
            type(module).__name__,
            f"it {what}, and the operators that it is adapted to do not",
            hint="call the model in eval mode without output_attentions, or adapt it without dsa",
        )


def _projections(module: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is absorbed into queries [H, N, L], and what makes values of latents [H, L, V]."""
    sizes = (module.qk_nope_head_dim, module.v_head_dim)
    weight: Any = module.kv_b_proj.weight
    # Where ranks share a model, each has the rows of its own heads.
    weight = weight.to_local() if hasattr(weight, "to_local") else weight
    weight_HXL = weight.unflatten(0, (-1, sum(sizes)))
    up_HNL, down_HVL = weight_HXL.split(sizes, dim=1)
    return up_HNL, down_HVL.transpose(1, 2)


def _visible(indices_BSK: torch.Tensor, mask_B1ST: torch.Tensor) -> torch.Tensor:
    """Return a choice with -1 for tokens that the mask hides: where few are visible, theirs holds hidden ones too."""
    shape_BST = (*indices_BSK.shape[:2], mask_B1ST.shape[-1])
    seen_BSK = mask_B1ST[:, 0].expand(shape_BST).gather(-1, indices_BSK.long())
    # Masks that are added hold 0 for what is visible.
    return torch.where(seen_BSK if seen_BSK.dtype == torch.bool else seen_BSK >= 0, indices_BSK, -1)


def _prefill(
    q_BSHC: torch.Tensor,
    latent_BTL: torch.Tensor,
    rope_BTR: torch.Tensor,
    chosen_BSK: torch.Tensor,
    scale: float,
    sink_H: torch.Tensor | None,
) -> torch.Tensor:
    rows_BTC = torch.cat((latent_BTL, rope_BTR), dim=-1)
    out_BSHL: torch.Tensor = torch.ops.day0.sparse_mla_prefill(
        q_BSHC, rows_BTC, chosen_BSK, latent_BTL.shape[-1], scale, None, sink_H
    )[0]
    return out_BSHL


def _decode(
    q_B1HC: torch.Tensor,
    latent_BTL: torch.Tensor,
    rope_BTR: torch.Tensor,
    chosen_B1K: torch.Tensor,
    scale: float,
    sink_H: torch.Tensor | None,
) -> torch.Tensor:
    """Each sequence has pages of its own, one after the other; rows that fill the last one are never chosen."""
    batch, keys, latent = latent_BTL.shape
    pages = -(-keys // PAGE)
    rows_BTC = latent_BTL.new_zeros((batch, pages * PAGE, q_B1HC.shape[-1]))
    rows_BTC[:, :keys, :latent] = latent_BTL
    rows_BTC[:, :keys, latent:] = rope_BTR
    first_B11 = pages * PAGE * torch.arange(batch, device=chosen_B1K.device, dtype=torch.int32)[:, None, None]
    slots_B1K = torch.where(chosen_B1K >= 0, chosen_B1K + first_B11, -1)
    pages_PGC = rows_BTC.view(batch * pages, PAGE, -1)
    out_B1HL: torch.Tensor = torch.ops.day0.sparse_mla_decode(
        q_B1HC, pages_PGC, slots_B1K, latent, scale, "plain", None, sink_H
    )[0]
    return out_B1HL


ADAPTER = Adapter(
    title="sparse attention over latents: the chosen rows alone, up-projections absorbed",
    operators=("day0::sparse_mla_prefill", "day0::sparse_mla_decode", "day0::rope"),
    classes=tuple(
        f"transformers.models.*.{name}Attention"
        for name in (
            "DeepseekV32",
            "GlmMoeDsa",
            "Glm5NextText",
            "AXK2",
            "HYV4",
            "HYV4VL",
            "Dots3NoteText",
            "MistralLarge4Text",
        )
    ),
    candidates=candidates,
    probe=probe,
)
