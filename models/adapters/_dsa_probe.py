"""A small module of a class with sparse attention over latents, and calls that tell its ways apart.

Shape suffixes: B batch, S queries, T keys, K chosen tokens, L latent, R rotated values, D width; A is B or 1, P = R / 2.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from day0.models.adapters._adapter import Probe, Refused
from day0.models.adapters._angles import angle_form, laid_out
from day0.models.adapters._small import draw, linear, small

__all__ = ["probe"]

HEADS, NOPE, TURNED, VALUE, LATENT, RANK, WIDTH, TOPK = 3, 6, 8, 5, 12, 10, 24, 4
SCALE = 0.4
"""Larger than a model's, so that a choice or a scale that is off moves results far."""


def probe(module: nn.Module, generator: torch.Generator) -> Probe:
    """A prompt longer than the choice, one query behind a cache, and three; one sequence padded on the left.

    What is chosen is given, as the module's own indexer would: rows that see few tokens hold hidden ones too.
    """
    own: Any = module
    turned = TURNED if own.qk_rope_head_dim else 0
    children = {name: _child(name, child, generator, turned) for name, child in module.named_children()}
    sizes = {
        "num_heads": HEADS,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": turned,
        "qk_head_dim": NOPE + turned,
        "v_head_dim": VALUE,
        "kv_lora_rank": LATENT,
        "q_lora_rank": RANK,
        "hidden_size": WIDTH,
        "gate_projection_size": VALUE,
    }
    known = {name: size for name, size in sizes.items() if hasattr(module, name)}
    shapes = dict.fromkeys(module._parameters, (HEADS,))
    made = small(module, generator, shapes, children, **known, scaling=SCALE, layer_idx=0)
    calls = tuple(_call(made, generator, turned, *size) for size in ((9, 0), (1, 70), (3, 6)))
    return Probe(module=made, calls=calls, settle=lambda result: result[0])


def _child(name: str, child: nn.Module, generator: torch.Generator, turned: int) -> nn.Module:
    """Return a small child. Raises Refused for one that is not known: its sizes are not either."""
    query, row = HEADS * (NOPE + turned), LATENT + turned
    products = {
        "q_a_proj": (WIDTH, RANK),
        "q_b_proj": (RANK, query),
        "q_gate_proj": (2 * RANK, query + HEADS * VALUE),
        "kv_a_proj_with_mqa": (WIDTH, row),
        "kv_b_proj": (LATENT, HEADS * (NOPE + VALUE)),
        "o_proj": (HEADS * VALUE, WIDTH),
        "gate_proj": (WIDTH, HEADS * VALUE),
        "g_proj": (WIDTH, HEADS),
    }
    norms = {"q_a_layernorm": RANK, "kv_a_layernorm": LATENT, "k_rope_only_layernorm": turned}
    if name in products:
        return linear(child, generator, *products[name])
    if name in norms:
        return small(child, generator, dict.fromkeys(child._parameters, (norms[name],)))
    if name == "indexer":
        return _Chosen()
    raise Refused(f"it has a part {name} ({type(child).__name__}) that no small module of it can be made with")


class _Chosen(nn.Module):
    """Gives what was chosen beforehand: it travels with the cache, which an indexer gets too."""

    def forward(self, *args: Any, cache: Any, **kwargs: Any) -> torch.Tensor:
        chosen_BSK: torch.Tensor = cache.chosen_BSK
        return chosen_BSK


class _Cache:
    """Keeps latents as the models' own caches do."""

    def __init__(self, latent_B1TL: torch.Tensor, rope_B1TR: torch.Tensor, chosen_BSK: torch.Tensor) -> None:
        self.latent_B1TL, self.rope_B1TR, self.chosen_BSK = latent_B1TL, rope_B1TR, chosen_BSK

    def update(
        self, latent: torch.Tensor, rope: torch.Tensor, layer_idx: int, kwargs: object = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = ((self.latent_B1TL, latent), (self.rope_B1TR, rope))
        latent_B1TL, rope_B1TR = (torch.cat((old.to(new.dtype), new), dim=2) for old, new in pairs)
        return latent_B1TL, rope_B1TR


def _call(module: Any, generator: torch.Generator, turned: int, queries: int, before: int) -> tuple[Any, ...]:
    """Return positional arguments of its forward, whatever it takes of what is known."""
    keys = before + queries
    visible_BST = torch.ones(queries, keys, dtype=torch.bool).tril(before).repeat(2, 1, 1)
    # At least one token stays visible: what attends to nothing is anything, in their code.
    visible_BST[1, :, 0] = False
    visible_BST[1, :, 1] = True
    chosen_BSK = _choice(visible_BST, generator, hidden=not hasattr(module, "build_attention_mask_from_topk"))
    latent_B1TL, rope_B1TR = (draw(generator, 2, 1, before, size) for size in (LATENT, turned))
    added_B1ST = torch.where(visible_BST, 0.0, torch.finfo(torch.bfloat16).min)[:, None].double()
    known = {
        "hidden_states": draw(generator, 2, queries, WIDTH),
        "position_embeddings": _angles(module, generator, queries) if turned else None,
        "attention_mask": added_B1ST if module.config._attn_implementation == "eager" else visible_BST[:, None],
        "cache": _Cache(latent_B1TL, rope_B1TR, chosen_BSK),
        "position_ids": None,
        "prev_topk_indices": chosen_BSK,
    }
    taken = [one for one in inspect.signature(type(module).forward).parameters.values() if one.kind != one.VAR_KEYWORD][
        1:
    ]
    strange = [one.name for one in taken if one.name not in known]
    if strange:
        raise Refused(f"its forward takes {' and '.join(strange)}, which no call on a small module can be made with")
    return tuple(known[one.name] for one in taken)


def _choice(visible_BST: torch.Tensor, generator: torch.Generator, *, hidden: bool) -> torch.Tensor:
    """Return distinct tokens [B, S, K], visible ones first; behind them hidden ones as of a top-k, or -1."""
    rank_BST = torch.rand(visible_BST.shape, generator=generator) + visible_BST
    found = rank_BST.topk(min(TOPK, visible_BST.shape[-1]), dim=-1)
    chosen_BSK = found.indices if hidden else torch.where(found.values >= 1, found.indices, -1)
    return chosen_BSK.to(torch.int32)


def _angles(module: Any, generator: torch.Generator, queries: int) -> tuple[torch.Tensor, torch.Tensor]:
    try:
        form = angle_form(module)
    except Refused:
        form = "twice"
    angle_ASP = 3.0 * draw(generator, 1, queries, TURNED // 2)
    return laid_out(angle_ASP.cos(), form), laid_out(angle_ASP.sin(), form)
