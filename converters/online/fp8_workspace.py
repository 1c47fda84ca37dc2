"""Memory of one size for converted experts, used again for every layer, with guards that show who wrote too far.

Shape suffixes: S slots, R rows, C columns, P = C / 2 packed bytes, G = C / 32 groups; M, N blocks of scales.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from day0.converters.blocks import bounds_of
from day0.converters.online.budget import available_bytes
from day0.converters.tables import BF16, E4M3, HIGHEST, LOWEST, NAN_ROW, fp8_table, wide_table
from day0.converters.tiers._tier import GROUP_BYTES, Decode, Scaled
from day0.converters.weight import GROUP
from day0.errors import Day0Error, near_names

__all__ = ["ALIGNMENT", "LAYOUTS", "Fp8Workspace", "Matrix", "Packed", "slot_bytes"]

ALIGNMENT = 256
"""Of every matrix and every grid of scales: what accelerators load in one go, and lines of a cache are not shared."""
GUARD = 0xA5
GUARD_BYTES = 64
NAN_BYTE = 255
BLOCK = 128
MOST_BF16 = 252
ASKED_BYTES = 1 << 25
"""The largest scale byte under which every code fits bfloat16."""

HEIGHTS = {"fp8-128x128": BLOCK, "fp8-1x128": 1}
LAYOUTS = ("mxfp8", *HEIGHTS, "bf16")
"""mxfp8: e4m3 with the scale bytes as they are, always exact. fp8-128x128 and fp8-1x128: one float32 for a block, refused
where that is not exact. bf16: without scales, for devices that multiply no FP8."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """Size of one matrix of an expert. Raises Day0Error for one that holds no whole groups."""

    rows: int
    columns: int

    def __post_init__(self) -> None:
        """Refuse what MXFP4 cannot hold."""
        if self.rows < 1 or self.columns < GROUP or self.columns % GROUP:
            what = f"expected rows and a multiple of {GROUP} columns, got {self.rows} x {self.columns}"
            raise Day0Error("expert matrix", what, hint="pad the row")


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """A matrix in MXFP4: codes uint8 [R, P], low nibble first; scales uint8 [R, G]."""

    codes: torch.Tensor
    scales: torch.Tensor
    settled: str = ""
    """A layout in which `Fp8Workspace.settled` found it exact by its scales alone: not looked at again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """Where a tensor lies within a slot."""

    begin: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def _places(matrices: Sequence[Matrix], layout: str) -> tuple[list[_Place], list[_Place | None], int]:
    """Return places of values and of scales, and the bytes of a slot; behind each place lies a guard."""
    values: list[_Place] = []
    scales: list[_Place | None] = []
    at = 0

    def place(shape: tuple[int, ...], dtype: torch.dtype) -> _Place:
        nonlocal at
        found = _Place(begin=at, shape=shape, dtype=dtype)
        at = -(-(at + found.nbytes + GUARD_BYTES) // ALIGNMENT) * ALIGNMENT
        return found

    for one in matrices:
        size = (one.rows, one.columns)
        values.append(place(size, torch.bfloat16 if layout == "bf16" else torch.float8_e4m3fn))
        if layout == "mxfp8":
            scales.append(place((one.rows, one.columns // GROUP), torch.uint8))
        elif layout in HEIGHTS:
            scales.append(place((-(-one.rows // HEIGHTS[layout]), -(-one.columns // BLOCK)), torch.float32))
        else:
            scales.append(None)
    return values, scales, at


def slot_bytes(matrices: Sequence[Matrix], layout: str = "mxfp8") -> int:
    """Return what one expert takes, with alignment and guards."""
    return _places(matrices, layout)[2]


class Fp8Workspace:
    """Slots for experts of one shape. Its memory is allocated once; what a slot held before is overwritten."""

    def __init__(
        self,
        matrices: Sequence[Matrix],
        slots: int,
        *,
        decode: Decode,
        scaled: Scaled | None = None,
        layout: str = "mxfp8",
        device: torch.device | str = "cpu",
    ) -> None:
        """Allocate; `decode` and `scaled` are a tier's.

        Raises Day0Error for an unknown layout, without slots, and for more than there is memory for.
        """
        if layout not in LAYOUTS:
            hint = near_names(layout, LAYOUTS) or ", ".join(LAYOUTS)
            raise Day0Error(f"workspace layout {layout}", "there is no such layout", hint=hint)
        if slots < 1 or not matrices:
            raise Day0Error(
                "workspace", f"expected slots and matrices, got {slots} and {len(matrices)}", hint="give one"
            )
        self.matrices, self.slots, self.layout, self._decode = tuple(matrices), slots, layout, decode
        self._scaled = scaled
        self._values, self._scales, self.slot_bytes = _places(matrices, layout)
        whole = _allocated(ALIGNMENT + slots * self.slot_bytes + ALIGNMENT, slots, torch.device(device))
        skip = -(whole.data_ptr() + ALIGNMENT) % ALIGNMENT
        # A guard before the first slot too: there is one on either side of every matrix.
        self._front = whole[skip + ALIGNMENT - GUARD_BYTES : skip + ALIGNMENT]
        self._memory = whole[skip + ALIGNMENT : skip + ALIGNMENT + slots * self.slot_bytes]
        whole.fill_(GUARD)
        self._unread = torch.zeros(1, dtype=torch.int32, device=whole.device)
        # Made once: each costs more than a launch, and a conversion is two of those.
        self._all_values = tuple(self._over(place) for place in self._values)
        self._all_scales = tuple(None if place is None else self._over(place) for place in self._scales)
        self._table = wide_table(BF16) if layout == "bf16" else fp8_table(E4M3)
        self._sizes = tuple(((one.rows, one.columns // 2), (one.rows, one.columns // GROUP)) for one in self.matrices)
        self._written = tuple(self._as_written(one) for one in self._all_values)

    @property
    def nbytes(self) -> int:
        """Of all slots."""
        return self.slots * self.slot_bytes

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self._memory.device

    def values(self, matrix: int) -> torch.Tensor:
        """Return [S, R, C] over all slots, without a copy: what a kernel that takes slot numbers reads."""
        return self._all_values[matrix]

    def scales(self, matrix: int) -> torch.Tensor | None:
        """Return the scales of all slots, beside their values: uint8 [S, R, G] or float32 [S, M, N]; None for bf16."""
        return self._all_scales[matrix]

    def _over(self, place: _Place) -> torch.Tensor:
        size = place.dtype.itemsize
        steps = [math.prod(place.shape[dim + 1 :]) for dim in range(len(place.shape))]
        base = self._memory.view(place.dtype)
        return base.as_strided(
            (self.slots, *place.shape), (self.slot_bytes // size, *steps), base.storage_offset() + place.begin // size
        )

    def _as_written(self, values_SRC: torch.Tensor) -> torch.Tensor:
        """Return what a look-up writes: [S, G, B] in the dtype of pairs over all slots; bytes [S, R, C] with scales."""
        if self._scaled is not None and self.layout != "bf16":
            return values_SRC.view(torch.uint8)
        pairs_SRB = values_SRC.view(self._table.pairs.dtype)
        groups = math.prod(pairs_SRB.shape[1:]) // GROUP_BYTES
        step, begin = pairs_SRB.stride(0), pairs_SRB.storage_offset()
        return pairs_SRB.as_strided((self.slots, groups, GROUP_BYTES), (step, GROUP_BYTES, 1), begin)

    def convert(self, slot: int, matrix: int, packed: Packed) -> None:
        """Convert one matrix into a slot; nothing else is written.

        Raises Day0Error for another size, and where a value would not be exact: then the slot holds nothing of use.
        """
        self._sized(matrix, packed)
        if self._at_once(slot, matrix, packed):
            return
        rows_RG = self._rows(slot, matrix, packed)
        codes_GB = packed.codes.reshape(-1, GROUP_BYTES).contiguous()
        out = self._written[matrix][slot]
        if out.dtype != self._table.pairs.dtype:
            out = out.view(self._table.pairs.dtype).view(-1, GROUP_BYTES)
        self._decode(codes_GB, rows_RG.reshape(-1).contiguous(), self._table, out)

    def settled(self, matrix: int, packed: Packed) -> Packed:
        """Return the same, marked where its scales alone show that it stays exact: `convert` then asks no more.

        For weights that are converted again and again: asking waits for the device. Raises Day0Error as `convert` does.
        """
        self._sized(matrix, packed)
        if self.layout != "mxfp8" and not self._by_scales(packed.scales):
            return packed
        return replace(packed, settled=self.layout)

    def exact_by_scales(self, bytes_ERG: torch.Tensor) -> torch.Tensor | None:
        """Say of every expert of a layer at once, bool [E], whether its scales leave it exact; None where they cannot.

        One wait for a whole layer instead of one for each expert.
        """
        if self.layout == "mxfp8":
            return torch.ones(len(bytes_ERG), dtype=torch.bool, device=bytes_ERG.device)
        if self.layout != "bf16":
            return None
        # A few at a time: a copy of all scales may not fit beside the weights.
        few = max(1, ASKED_BYTES // max(1, bytes_ERG[:1].nbytes))
        return torch.cat(
            [(torch.where(e == NAN_BYTE, 0, e) <= MOST_BF16).flatten(1).all(1) for e in bytes_ERG.split(few)]
        )

    def _by_scales(self, bytes_RG: torch.Tensor) -> bool:
        if self.layout == "bf16":
            self._fits_bf16(bytes_RG)
            return True
        bounds = bounds_of(E4M3, bytes_RG, None, HEIGHTS[self.layout], BLOCK // GROUP)
        return not bool((bytes_RG == NAN_BYTE).any()) and bool(bounds.settled().all())

    def _sized(self, matrix: int, packed: Packed) -> None:
        codes_RP, bytes_RG = packed.codes, packed.scales
        expected = self._sizes[matrix]
        if (codes_RP.shape, bytes_RG.shape) != expected:
            what = f"expected codes and scales {expected}, got {tuple(codes_RP.shape)} and {tuple(bytes_RG.shape)}"
            raise Day0Error("expert matrix", what, hint="all experts of a workspace have one shape")
        if codes_RP.dtype != torch.uint8 or bytes_RG.dtype != torch.uint8:
            what = f"expected uint8 codes and scales, got {codes_RP.dtype} and {bytes_RG.dtype}"
            raise Day0Error("expert matrix", what, hint="view int8 or E8M0 as uint8")

    def _at_once(self, slot: int, matrix: int, packed: Packed) -> bool:
        """Let the tier convert with scales; say whether it could."""
        scales = self.scales(matrix)
        if self._scaled is None or scales is None:
            return False
        proven = self.layout == "mxfp8" or packed.settled == self.layout
        # Of this call alone: threads convert beside each other.
        unsettled = self._unread if proven else torch.zeros_like(self._unread)
        height = HEIGHTS.get(self.layout, 0)
        self._scaled(packed.codes, packed.scales, height, scales[slot], self._written[matrix][slot], unsettled)
        return proven or not bool(unsettled)

    def _rows(self, slot: int, matrix: int, packed: Packed) -> torch.Tensor:
        """Return the row of the table for every group, and store the scales."""
        scales, bytes_RG = self.scales(matrix), packed.scales
        if scales is None:
            if packed.settled != self.layout:
                self._fits_bf16(bytes_RG)
            return bytes_RG
        if self.layout == "mxfp8":
            scales[slot].copy_(bytes_RG)
            return _row_of_one(tuple(bytes_RG.shape), bytes_RG.device)
        height = HEIGHTS[self.layout]
        bounds = bounds_of(E4M3, bytes_RG, packed.codes, height, BLOCK // GROUP)
        scale_MN = bounds.scale()
        if bool((scale_MN > bounds.exact).any()):
            raise _inexact(self.layout, "the exponents of a block lie too far apart")
        scales[slot].copy_(((scale_MN.to(torch.int32) + 127) << 23).view(torch.float32))
        return _block_rows(bytes_RG, scale_MN, height)

    def _fits_bf16(self, bytes_RG: torch.Tensor) -> None:
        largest = torch.where(bytes_RG == NAN_BYTE, 0, bytes_RG).max()
        if int(largest) > MOST_BF16:
            raise _inexact("bf16", f"scale byte {int(largest)} leaves the range of bfloat16")

    def decoded(self, matrix: int, slots: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return the matrices of some slots as [n, R, C] in `dtype`; rounded once, if at all."""
        index = torch.tensor(list(slots), dtype=torch.int64, device=self.device)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        # By bytes: few devices select from FP8.
        place = self._values[matrix]
        stored = self.values(matrix).view(torch.uint8 if place.dtype.itemsize == 1 else torch.int16)
        values_SRC = stored.index_select(0, index).view(place.dtype)
        scales = self.scales(matrix)
        if scales is None:
            return values_SRC.to(dtype)
        chosen = scales.index_select(0, index)
        if self.layout == "mxfp8":
            # A code times a power of two has few enough bits for bfloat16: one rounding there too, and half the bytes.
            held = dtype if dtype == torch.bfloat16 else wide
            factor = _powers(held, chosen.device)[chosen.to(torch.int32)][..., None]
            grouped_SRGN = values_SRC.to(held).unflatten(-1, (-1, GROUP)).mul_(factor)
            widened_SRC: torch.Tensor = grouped_SRGN.flatten(-2).to(dtype)
            return widened_SRC
        rows, columns = place.shape
        tall = chosen.to(wide).repeat_interleave(HEIGHTS[self.layout], 1)
        factor = tall[:, :rows].repeat_interleave(BLOCK, 2)[..., :columns]
        return values_SRC.to(wide).mul_(factor).to(dtype)

    def check_guards(self) -> None:
        """Raise Day0Error where something was written beyond a matrix or its scales, with slot and matrix."""
        if not bool((self._front == GUARD).all()):
            raise _overrun("before the first slot")
        by_slot = self._memory.view(self.slots, self.slot_bytes)
        for kind, places in (("values", self._values), ("scales", self._scales)):
            for number, place in enumerate(places):
                if place is None:
                    continue
                end = place.begin + place.nbytes
                broken = (by_slot[:, end : end + GUARD_BYTES] != GUARD).any(dim=1).nonzero()
                if len(broken):
                    raise _overrun(f"behind the {kind} of matrix {number} in slot {int(broken[0])}")


def _allocated(size: int, slots: int, device: torch.device) -> torch.Tensor:
    # Asked before on a host: it promises any amount, and ends whoever then uses it.
    free = available_bytes(device) if device.type == "cpu" else None
    try:
        if free is None or size <= free:
            return torch.empty(size, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError:
        free = available_bytes(device)
    what = f"{slots:,} slots take {size:,} bytes on {device}, and {free or 0:,} are free"
    raise Day0Error("workspace", what, hint="take fewer slots")


def _inexact(layout: str, why: str) -> Day0Error:
    return Day0Error(f"workspace layout {layout}", f"an expert does not fit: {why}", hint="use layout mxfp8")


def _overrun(where: str) -> Day0Error:
    hint = "a kernel that was given this workspace writes too far; its tile does not divide the matrix?"
    return Day0Error("workspace", f"the guard {where} was overwritten", hint=hint)


@functools.lru_cache(maxsize=64)
def _row_of_one(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return the row of exponent 0 for every group: the scales say all the rest."""
    # Made on the host: a copy from there is done when it returns, whatever stream asks next.
    return torch.full(shape, -LOWEST, dtype=torch.uint8).to(device)


def _block_rows(bytes_RG: torch.Tensor, scale_MN: torch.Tensor, height: int) -> torch.Tensor:
    rows, groups = bytes_RG.shape
    wide = scale_MN.repeat_interleave(height, 0)[:rows].repeat_interleave(BLOCK // GROUP, 1)[:, :groups]
    k = (bytes_RG.to(torch.int16) - 127 - wide.to(torch.int16)).clamp_(LOWEST, HIGHEST) - LOWEST
    return torch.where(bytes_RG == NAN_BYTE, NAN_ROW, k).to(torch.uint8)


@functools.lru_cache(maxsize=8)
def _powers(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return 2^(byte - 127) for every scale byte, NaN for 255."""
    powers = [2.0 ** (byte - 127) for byte in range(NAN_BYTE)]
    return torch.tensor([*powers, math.nan], dtype=dtype, device=device)
