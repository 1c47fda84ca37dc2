"""Other sizes: nothing, one, odd, and just past the blocks that kernels work in."""

from __future__ import annotations

from collections.abc import Iterator

from day0.analyzers.cases.forms._form import Form
from day0.analyzers.cases.forms._resize import with_sizes
from day0.analyzers.cases.forms._values import argument
from day0.analyzers.cases.kinds import takes_mean_off
from day0.analyzers.judging.kinds import short_name
from day0.records import Signature, TensorValue
from day0.reference_ops._spec import Operator

__all__ = ["FORM"]

SIZES = (0, 1, 17, 65, 257)
"""Nothing; the row that decoding has; odd; and one past blocks of 64 and 256, where the edges of tiles are."""

MOST = 1 << 15
"""Elements of the largest tensor of a derived call: past block edges, and still cheap."""


def _derive(signature: Signature, contract: Operator | None) -> Iterator[tuple[str, Signature]]:
    sizes = [size for size in SIZES if size > 1 or not takes_mean_off(signature)]
    yield from (one for one in with_sizes(signature, sizes, MOST) if not _lacks_groups(one[1]))


def _lacks_groups(signature: Signature) -> bool:
    """Say whether a product in groups has none: its rows belong to no group, and what stands in them is left open."""
    if short_name(signature.op) != "_grouped_mm":
        return False
    ends = argument(signature, "offs")
    return isinstance(ends, TensorValue) and ends.shape == (0,)


FORM = Form(
    name="sizes",
    why="the last block of a loop, buffers of a fixed size, paths that a size of 0 or 1 takes",
    derive=_derive,
)
