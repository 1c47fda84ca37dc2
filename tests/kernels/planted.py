"""Kernels with one fault each, as text that is put in the place of other text of their files."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PLANTED", "Planted"]


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A fault in the file of a kernel."""

    operator: str
    right: str
    wrong: str
    also: tuple[tuple[str, str], ...] = ()
    """Other places that belong to it."""


PLANTED = {
    "mask_one_short": Planted(
        operator="lightning_indexer", right="tl.where(t <= first + s, logit", wrong="tl.where(t < first + s, logit"
    ),
    "scale_forgotten": Planted(
        operator="paged_kv_write",
        right="scaled = value * ((127 - power) << 23).to(tl.float32, bitcast=True)[:, None]",
        wrong="scaled = value",
    ),
    "ties_the_other_way": Planted(
        operator="topk_tokens",
        right="(0xFFFFFFFF - place.to(tl.uint32))",
        wrong="place.to(tl.uint32)",
        also=(
            (
                "index = (0xFFFFFFFF - (both.to(tl.uint64, bitcast=True) & 0xFFFFFFFF)).to(tl.int32)",
                "index = (both.to(tl.uint64, bitcast=True) & 0xFFFFFFFF).to(tl.int32)",
            ),
        ),
    ),
    "router_ties_the_other_way": Planted(
        operator="moe_router",
        right="expert = tl.where(k == place, 0x7FFFFFFF - (best & 0x7FFFFFFF), expert)",
        wrong="expert = tl.where(k == place, best & 0x7FFFFFFF, expert)",
        also=(("(0x7FFFFFFF - number).to(tl.int64)", "number.to(tl.int64)"),),
    ),
    "last_rows_of_an_expert": Planted(
        operator="fused_experts",
        right="real = place < tl.load(first + expert + 1)",
        wrong="real = place < tl.load(first + expert + 1) - 1",
    ),
    "experts_taken_for_neighbours": Planted(
        operator="fused_experts",
        right="base = matrix + expert.to(tl.int64) * step",
        wrong="base = matrix + expert.to(tl.int64) * D * F",
        also=(
            (
                "            base = matrix + expert.to(tl.int64) * D * F\n            gate",
                "            base = matrix + expert.to(tl.int64) * 2 * F * D\n            gate",
            ),
        ),
    ),
    "decay_after_the_read": Planted(
        operator="kda_recurrent",
        right="held = held * decay[:, None]\n            change = strength * (value - tl.sum(held * key[:, None], 0))",
        wrong="change = strength * (value - tl.sum(held * key[:, None], 0))\n            held = held * decay[:, None]",
    ),
}
