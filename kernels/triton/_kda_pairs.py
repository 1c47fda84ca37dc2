"""What the tokens of a chunk read of each other in Kimi Delta Attention, for gates that are near and for any.

Blocks stand in the first dimension of everything, two of them, and each has a warp: what one warp makes it also reads.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from day0.kernels.triton._parts import parts_of_float32
from day0.kernels.triton._triton import triton_and_language

__all__ = ["Pairs", "pairs_of_a_chunk"]

tl: Any = None
split: Any = None
product: Any = None
total: Any = None
turned: Any = None
first_block: Any = None
"""Set at the first call: Triton looks these up in this module by these names."""


class Pairs(NamedTuple):
    """Jitted functions; `near` and `far` add to four sums: reads and system of a block, and those of the first one."""

    total: Any
    first_block: Any
    near: Any
    far: Any


@cache
def pairs_of_a_chunk() -> Pairs:
    """Return the functions; Triton is imported at the first call."""
    global tl, split, product, total, turned, first_block
    triton, tl = triton_and_language()
    split, product = parts_of_float32()[:2]

    @triton.jit
    def total(chosen, gate):
        # Sums of gates as products with -1, 0 and 1, which no bit of a gate is lost in.
        chosen = tl.broadcast_to(
            chosen.to(tl.float32).to(tl.bfloat16)[None, :, :], [2, chosen.shape[0], chosen.shape[1]]
        )
        return tl.dot(chosen, gate[0], tl.dot(chosen, gate[1], tl.dot(chosen, gate[2])))

    @triton.jit
    def turned(parts):
        return tl.permute(parts[0], (0, 2, 1)), tl.permute(parts[1], (0, 2, 1)), tl.permute(parts[2], (0, 2, 1))

    @triton.jit
    def first_block(x):
        # What belongs to the first block, for both.
        b = tl.arange(0, 2)[:, None, None]
        return tl.broadcast_to(tl.sum(tl.where(b == 0, x, 0.0), 0)[None, :, :], x.shape)

    @triton.jit
    def near_pairs(
        key, query, gate, until, read, system, read_first, system_first, r, T: tl.constexpr, PARTS: tl.constexpr,
        ANSWERS: tl.constexpr,
    ):  # fmt: skip
        # From the middle of each block on, and back to it; the second block reads the first through its own middle.
        summed, at_token = r[None, :], r[:, None]
        on = ((summed >= T // 2) & (summed <= at_token)).to(tl.float32)
        back = ((summed < T // 2) & (summed > at_token)).to(tl.float32)
        apart = total(on - back, gate)
        rise, fall = tl.exp2(apart), tl.exp2(-apart)
        left, asking, right = split(key * rise), split(query * rise), turned(split(key * fall))
        read, system = product(asking, right, read, ANSWERS), product(left, right, system, PARTS)
        right = turned(split(first_block(key * until)))
        read_first = product(asking, right, read_first, ANSWERS)
        system_first = product(left, right, system_first, PARTS)
        return read, system, read_first, system_first

    @triton.jit
    def far_pairs(
        k, g, at, step, keys, length, key, query, since, until, read, system, read_first, system_first, r,
        T: tl.constexpr, PARTS: tl.constexpr, ANSWERS: tl.constexpr,
    ):  # fmt: skip
        # By their distance: the gates between two tokens of a block are added up one after the other.
        passed, apart = tl.zeros(key.shape, tl.float32), (r[:, None] - r[None, :])[None, :, :]
        read += tl.where(apart == 0, tl.sum(query * key, 2)[:, :, None], 0.0)
        for distance in range(1, T):
            near = keys & (r >= distance)[None, :, None]
            passed += tl.load(g + at - (distance - 1) * step, mask=near, other=0.0).to(tl.float32)
            left = tl.load(k + at - distance * step, mask=near, other=0.0).to(tl.float32) * tl.exp(passed)
            scale = tl.sum(tl.where(apart == distance, length[:, None, :], 0.0), 2)
            read += tl.where(apart == distance, (tl.sum(left * query, 2) * scale)[:, :, None], 0.0)
            system += tl.where(apart == distance, (tl.sum(left * key, 2) * scale)[:, :, None], 0.0)
        right = turned(split(first_block(key * until)))
        read_first = product(split(query * since), right, read_first, ANSWERS)
        return read, system, read_first, product(split(key * since), right, system_first, PARTS)

    return Pairs(total, first_block, near_pairs, far_pairs)
