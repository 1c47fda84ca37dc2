"""Multi-head latent attention of the toy model, over the tokens that an indexer chose.

Shape suffixes: B batch, S new tokens, T all tokens, D hidden, H heads, N key dimensions of a head, V value, L latent,
R shared dimensions, C = L + R, K chosen tokens, P pages, G tokens in a page.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from day0.models.index_manager import IndexManager
from day0.models.toy.cache import MlaCache, Placement, read_rows, write_rows
from day0.models.toy.calls import Calls
from day0.models.toy.config import ToyConfig
from day0.models.toy.indexer import Indexer, angles
from day0.models.toy.layers import RmsNorm

__all__ = ["MlaAttention"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """The pages of a layer, the new tokens among them, and where tokens lie in them."""

    cache: MlaCache
    where: Placement


class MlaAttention(nn.Module):
    """Gated latent attention in absorbed form.

    Prefill is a masked matrix product over the rows of all tokens; one token on a cache takes the truly sparse
    operator, which reads chosen rows from their pages and skips pages without any.
    """

    def __init__(self, config: ToyConfig, calls: Calls, name: str, has_indexer: bool) -> None:
        super().__init__()
        self.config, self.calls, self.name = config, calls, name
        self.manager = IndexManager()
        hidden, heads, latent = config.hidden_size, config.mla_heads, config.kv_lora_rank
        nope, values = config.nope_head_dim, config.v_head_dim
        self.q_a_proj = nn.Linear(hidden, config.q_lora_rank, bias=False)
        self.q_a_norm = RmsNorm(config.q_lora_rank, config.lora_norm_eps)
        self.q_b_proj = nn.Linear(config.q_lora_rank, heads * (nope + config.shared_head_dim), bias=False)
        self.kv_a_proj = nn.Linear(hidden, latent + config.shared_head_dim, bias=False)
        self.kv_a_norm = RmsNorm(latent, config.lora_norm_eps)
        self.k_b = nn.Parameter(torch.empty(heads, nope, latent))
        self.v_b = nn.Parameter(torch.empty(heads, latent, values))
        if config.mla_gate:
            self.g_proj = nn.Linear(hidden, heads * values, bias=False)
        self.o_proj = nn.Linear(heads * values, hidden, bias=False)
        self.indexer = Indexer(config, calls) if has_indexer else None
        self.scale = float((nope + config.shared_head_dim) ** -0.5)

    def forward(
        self, x_BSD: torch.Tensor, given_BSK: torch.Tensor | None, cache: MlaCache | None, where: Placement | None
    ) -> tuple[torch.Tensor, torch.Tensor, MlaCache | None]:
        """Return the output [B, S, D], the tokens that were read [B, S, K], and the new cache.

        `given_BSK` is what an earlier layer chose, for a layer without an indexer.
        """
        first = where.first if where is not None else 0
        low_BSC = self.q_a_norm(self.q_a_proj(x_BSD))
        rows_BSC = self.rows(x_BSD, first)
        keys_BSX = self.indexer.keys(x_BSD, first) if self.indexer is not None else None
        held = self._hold(cache, where, rows_BSC, keys_BSX)
        if self.indexer is not None and keys_BSX is not None:
            self._start(self.indexer, x_BSD, low_BSC, keys_BSX, held)
        q_BSHC = self.query(low_BSC, first)
        chosen_BSK = self.manager.table(self.name, first + x_BSD.shape[1]) if self.indexer is not None else given_BSK
        if chosen_BSK is None:
            raise RuntimeError(f"{self.name} has no indexer, and no layer before it chose tokens")
        if held is not None and first and x_BSD.shape[1] == 1:
            out_BSHL = self._decode(q_BSHC, chosen_BSK, held)
        else:
            kv_BTC = read_rows(self.calls, held.cache.kv_PGC, held.where) if held is not None and first else rows_BSC
            out_BSHL = self.calls.sparse_mla_prefill(q_BSHC, kv_BTC, chosen_BSK, self.config.kv_lora_rank, self.scale)[
                0
            ]
        return self._project(x_BSD, out_BSHL), chosen_BSK, held.cache if held is not None else None

    def _hold(
        self, cache: MlaCache | None, where: Placement | None, rows_BSC: torch.Tensor, keys_BSX: torch.Tensor | None
    ) -> Held | None:
        """Write what is new into the pages; nothing without a cache."""
        if where is None:
            return None
        kv_PGC = write_rows(self.calls, cache.kv_PGC if cache is not None else None, rows_BSC, where)
        index_PGC = cache.index_PGC if cache is not None else None
        if keys_BSX is not None:
            index_PGC = write_rows(self.calls, index_PGC, keys_BSX, where)
        return Held(cache=MlaCache(kv_PGC=kv_PGC, index_PGC=index_PGC), where=where)

    def _start(
        self, indexer: Indexer, x_BSD: torch.Tensor, low_BSC: torch.Tensor, keys_BSX: torch.Tensor, held: Held | None
    ) -> None:
        """Let the indexer choose while the main path makes its queries."""

        def select() -> torch.Tensor:
            kept_BTX = keys_BSX
            if held is not None and held.where.first and held.cache.index_PGC is not None:
                kept_BTX = read_rows(self.calls, held.cache.index_PGC, held.where)
            chosen_BSK: torch.Tensor = indexer(x_BSD, low_BSC, kept_BTX)
            return chosen_BSK

        self.manager.start(self.name, select, x_BSD.device)

    def _decode(self, q_BSHC: torch.Tensor, chosen_BSK: torch.Tensor, held: Held) -> torch.Tensor:
        """Return [B, 1, H, L]: indices become slots, and pages without any of them are skipped."""
        kv_PGC, where = held.cache.kv_PGC, held.where
        batch, one, chosen = chosen_BSK.shape
        place_BK = chosen_BSK.reshape(batch, chosen).clamp_min(0).to(torch.int64)
        slot_BSK = torch.where(chosen_BSK >= 0, where.slot_BT.gather(1, place_BK).reshape(batch, one, chosen), -1)
        bitmap_BP = self.calls.block_bitmap(slot_BSK, where.block_size, kv_PGC.shape[0])
        out_BSHL: torch.Tensor = self.calls.sparse_mla_decode(
            q_BSHC, kv_PGC, slot_BSK, self.config.kv_lora_rank, self.scale, "plain", None, None, bitmap_BP
        )[0]
        return out_BSHL

    def rows(self, x_BSD: torch.Tensor, first: int) -> torch.Tensor:
        """Return the cache rows of new tokens, [B, S, L + R]: normalised latent, then the shared key."""
        config = self.config
        latent_BSL, shared_BSR = self.kv_a_proj(x_BSD).split((config.kv_lora_rank, config.shared_head_dim), dim=-1)
        shared_BSR = self._rotate(shared_BSR[:, :, None], first)[:, :, 0]
        return torch.cat((self.kv_a_norm(latent_BSL), shared_BSR), dim=-1)

    def query(self, low_BSC: torch.Tensor, first: int) -> torch.Tensor:
        """Return [B, S, H, L + R]: the key's up-projection is absorbed into the query."""
        config = self.config
        q_BSHC = self.q_b_proj(low_BSC).unflatten(-1, (-1, config.nope_head_dim + config.shared_head_dim))
        nope_BSHN, shared_BSHR = q_BSHC.split((config.nope_head_dim, config.shared_head_dim), dim=-1)
        latent_BSHL = torch.einsum("bshn,hnl->bshl", nope_BSHN, self.k_b)
        return torch.cat((latent_BSHL, self._rotate(shared_BSHR, first)), dim=-1)

    def _rotate(self, x_BSHR: torch.Tensor, first: int) -> torch.Tensor:
        config = self.config
        if config.mla_rope == "none":
            return x_BSHR
        cos, sin = angles(first, x_BSHR.shape[1], config.shared_head_dim, config.rope_theta, x_BSHR)
        rotated: torch.Tensor = self.calls.rope(x_BSHR, cos, sin, config.mla_rope, 0)
        return rotated

    def _project(self, x_BSD: torch.Tensor, out_BSHL: torch.Tensor) -> torch.Tensor:
        out_BSC = torch.einsum("bshl,hlv->bshv", out_BSHL, self.v_b).flatten(-2)
        if self.config.mla_gate:
            out_BSC = out_BSC * torch.sigmoid(self.g_proj(x_BSD))
        out_BSD: torch.Tensor = self.o_proj(out_BSC)
        return out_BSD
