"""The indexer of sparse attention (DSA): DeepSeek-V3.2, GLM-5, HY4, with their slice of rotated values and pairing.

Shape suffixes: B batch, S queries, T keys, H heads, D head dimension, K chosen tokens; A is B or 1, P pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from day0.models.adapters._adapter import Adapter, Candidate, Forward, Probe, Refused, needs
from day0.models.adapters._small import draw, linear, norm, small
from day0.models.adapters.rope import to_halves

__all__ = ["ADAPTER"]

HEADS, HEAD, TURNED, WIDTH, RANK, TOPK = 16, 16, 8, 24, 20, 4


def candidates(module: nn.Module) -> Sequence[Candidate]:
    """The rotated slice at either end, in either pairing."""
    needs(module, "wq_b", "wk", "k_norm", "weights_proj", "n_heads", "head_dim", "qk_rope_head_dim", "index_topk")
    if hasattr(module, "index_kpool"):
        raise Refused("it scores pools of tokens: its keys are made by other code")
    scale = getattr(module, "softmax_scale", None)
    if scale is not None and scale != module.head_dim**-0.5:  # type: ignore[operator]  # a number in all of them
        raise Refused(f"its softmax_scale is {scale}, and day0::lightning_indexer means head_dim ** -0.5")
    return [
        Candidate(text=f"{'last' if last else 'first'} values turn, {pairing}", forward=_forward(pairing, last))
        for pairing in ("half", "interleaved")
        for last in (False, True)
    ]


def _forward(pairing: str, last: bool) -> Forward:
    def turned(self: Any, x_BSHD: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        cos_ASP, sin_ASP = (one[..., : self.qk_rope_head_dim // 2] for one in angles)
        start = self.head_dim - self.qk_rope_head_dim if last else 0
        x_BSHD = torch.ops.day0.rope(x_BSHD, cos_ASP, sin_ASP, pairing, start)
        if pairing == "half":
            return x_BSHD
        # What they keep in the cache is in half order; in another, caches of both codes could not be exchanged.
        return to_halves(x_BSHD, start, self.qk_rope_head_dim)

    def forward(
        self: Any,
        hidden_states: torch.Tensor,
        q_resid: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        cache: Any = None,
    ) -> torch.Tensor:
        batch, queries, _ = hidden_states.shape
        q_BSHD = self.wq_b(q_resid).view(batch, queries, self.n_heads, self.head_dim)
        k_BSD = self.k_norm(self.wk(hidden_states).to(self.k_norm.weight.dtype)).to(q_BSHD.dtype)
        q_BSHD = turned(self, q_BSHD, position_embeddings)
        k_BTD = turned(self, k_BSD[:, :, None], position_embeddings)[:, :, 0]
        if cache is not None:
            k_BTD = cache.update_indexer(k_BTD, self.layer_idx)
        w_BSH = self.weights_proj(hidden_states.to(self.weights_proj.weight.dtype)).float()
        keys = k_BTD.shape[1]
        # The last query sees at most every key; what a static cache or padding hides, the mask closes.
        logits_BST = torch.ops.day0.lightning_indexer(q_BSHD, k_BTD.to(q_BSHD.dtype), w_BSH, keys - queries)
        if attention_mask.dtype == torch.bool:
            logits_BST = logits_BST.masked_fill(~attention_mask, float("-inf"))
        else:
            logits_BST = logits_BST + attention_mask
        chosen_BSK, _ = torch.ops.day0.topk_tokens(logits_BST, min(self.index_topk, keys))
        # Theirs fills rows that see fewer keys with hidden ones and masks them again: one of those, and never a key that
        # is among the chosen, which a kernel that gathers rows would count twice.
        hidden_BS1 = logits_BST.argmin(dim=-1, keepdim=True).to(chosen_BSK.dtype)
        chosen_BSK = torch.where(chosen_BSK < 0, hidden_BS1, chosen_BSK)
        return chosen_BSK

    return forward


def probe(module: nn.Module, generator: torch.Generator) -> Probe:
    """A prompt, and two queries behind a cache; what is compared is the mask that the attention makes of the choice."""
    children = {
        "wq_b": linear(module.wq_b, generator, RANK, HEADS * HEAD),
        "wk": linear(module.wk, generator, WIDTH, HEAD),
        "weights_proj": linear(module.weights_proj, generator, WIDTH, HEADS),
        "k_norm": norm(module.k_norm, generator, HEAD),
    }
    sizes = {"n_heads": HEADS, "head_dim": HEAD, "qk_rope_head_dim": TURNED, "index_topk": TOPK, "layer_idx": 0}
    made = small(module, generator, {}, children, **sizes, softmax_scale=HEAD**-0.5)
    calls = []
    for queries, keys in ((11, 11), (2, 9)):
        angle_ASP = 3.0 * draw(generator, 1, queries, TURNED // 2)
        angles = tuple(torch.cat((x, x), dim=-1) for x in (angle_ASP.cos(), angle_ASP.sin()))
        mask_BST = torch.zeros(2, queries, keys, dtype=torch.float64)
        mask_BST.masked_fill_(torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1), float("-inf"))
        cache = _Cache(draw(generator, 2, keys - queries, HEAD))
        x_BSD, rank_BSR = draw(generator, 2, queries, WIDTH), draw(generator, 2, queries, RANK)
        calls.append((x_BSD, rank_BSR, angles, mask_BST, None, cache))
    return Probe(module=made, calls=tuple(calls), settle=lambda chosen: _mask(chosen))


class _Cache:
    """Keeps keys as the models' own caches do."""

    def __init__(self, k_BTD: torch.Tensor) -> None:
        self.k_BTD = k_BTD

    def update_indexer(self, k_BSD: torch.Tensor, layer_idx: int) -> torch.Tensor:
        return torch.cat((self.k_BTD.to(k_BSD.dtype), k_BSD), dim=1)


def _mask(chosen_BSK: torch.Tensor) -> torch.Tensor:
    """Return which visible keys [B, S, T] are chosen: in what order, and what else beside them, changes nothing."""
    batch, queries, _ = chosen_BSK.shape
    keys = {11: 11, 2: 9}[queries]
    mask_BST = torch.zeros(batch, queries, keys, dtype=torch.bool).scatter(-1, chosen_BSK.long(), True)
    return mask_BST & torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


ADAPTER = Adapter(
    title="indexer of sparse attention: index logits, and the choice of tokens",
    operators=("day0::lightning_indexer", "day0::topk_tokens", "day0::rope"),
    classes=("transformers.models.*Indexer",),
    candidates=candidates,
    probe=probe,
    gradients=False,
)
