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
    "gate_of_the_wrong_sign": Planted(
        operator="kda_chunked",
        right="since = tl.exp2(total(",
        wrong="since = tl.exp2(-total(",
    ),
    "state_before_the_chunk_unread": Planted(
        operator="kda_chunked",
        right="result += joined(",
        wrong="result = joined(",
    ),
    "state_not_decayed": Planted(operator="kda_chunked", right="held * whole[None, :]", wrong="held"),
    "own_key_unread": Planted(
        operator="kda_chunked",
        right="(r[:, None] >= r[None, :])[None, :, :], read",
        wrong="(r[:, None] > r[None, :])[None, :, :], read",
    ),
    "own_key_in_the_system": Planted(
        operator="kda_chunked",
        right="below = (r[:, None] > r[None, :])",
        wrong="below = (r[:, None] >= r[None, :])",
    ),
    "second_half_forgets_the_first": Planted(
        operator="kda_chunked", right="tl.where(second, since * before, since)", wrong="since"
    ),
    "factors_beyond_float32": Planted(operator="kda_chunked", right="< -60.0", wrong="< -1e30"),
    "state_in_bfloat16": Planted(
        operator="kda_chunked",
        right="held = product(change, left, held * whole[None, :], PARTS)",
        wrong="held = product(change, left, held * whole[None, :], PARTS).to(tl.bfloat16).to(tl.float32)",
    ),
    "products_of_two_parts": Planted(operator="kda_chunked", right='"precision": 3,', wrong='"precision": 2,'),
    "corner_of_the_inverse_forgotten": Planted(
        operator="kda_chunked", right="keep(solves + off, C * C, corner", wrong="keep(solves + off, C * C, 0.0 * corner"
    ),
    "distant_chunks_left_out": Planted(operator="kda_chunked", right="+ chunk) == 1:", wrong="+ chunk) == 2:"),
}
