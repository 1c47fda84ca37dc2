"""Kinds of operators: those that move values, those whose values are not defined."""

from __future__ import annotations

from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.judging.calls import named
from day0.reference_ops.signatures import resolve

__all__ = [
    "adds_into_memory",
    "has_own_strides",
    "is_fresh_memory",
    "is_move",
    "is_pointwise",
    "is_random",
    "keeps_sign_of_zero",
    "rounds_once",
    "short_name",
    "without_values",
]

_MOVES = frozenset(
    {
        "_to_copy",
        "_unsafe_view",
        "abs",
        "alias",
        "as_strided",
        "cat",
        "ceil",
        "clone",
        "constant_pad_nd",
        "copy",
        "detach",
        "embedding",
        "expand",
        "fill",
        "flip",
        "floor",
        "full",
        "full_like",
        "gather",
        "index",
        "index_copy",
        "index_put",
        "index_select",
        "masked_fill",
        "maximum",
        "minimum",
        "neg",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones",
        "ones_like",
        "permute",
        "relu",
        "repeat",
        "reshape",
        "roll",
        "round",
        "scatter",
        "select",
        "sign",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "stack",
        "t",
        "transpose",
        "tril",
        "triu",
        "unbind",
        "unsqueeze",
        "view",
        "where",
        "zero",
        "zeros",
        "zeros_like",
    }
)
"""Operators that move, choose or round values by a rule, without trailing `_`: the only right answer is the same bits."""

_NO_VALUES = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"})
"""Their results are fresh memory: only the layout is defined."""

_SIGN_OF_ZERO = frozenset(
    {
        "_to_copy",
        "abs",
        "alias",
        "cat",
        "clone",
        "copy",
        "copysign",
        "detach",
        "embedding",
        "expand",
        "flip",
        "gather",
        "index",
        "index_copy",
        "index_select",
        "neg",
        "permute",
        "repeat",
        "reshape",
        "roll",
        "scatter",
        "select",
        "slice",
        "split",
        "stack",
        "transpose",
        "unbind",
        "view",
        "where",
    }
)
"""Operators that copy bits or set the sign: 0 for -0 is wrong here. Elsewhere IEEE 754 leaves it open, or kernels do."""

_STRIDES_FREE = ("convolution", "_scaled_dot_product", "scaled_dot_product", "cudnn", "mkldnn", "miopen", "mps_conv")
"""Names that begin so: the backend chooses the strides of its results."""

_BY_INDICES = frozenset({"index", "_unsafe_index"})
"""Operators that choose by several tensors of places at once."""

_ACCUMULATIONS = frozenset(
    {
        "_fused_rms_norm",
        "_grouped_mm",
        "_log_softmax",
        "_safe_softmax",
        "_softmax",
        "addbmm",
        "addmm",
        "addmv",
        "baddbmm",
        "bmm",
        "conv1d",
        "conv2d",
        "conv3d",
        "convolution",
        "cumsum",
        "dot",
        "inner",
        "linalg_vector_norm",
        "linear",
        "logcumsumexp",
        "logsumexp",
        "matmul",
        "mean",
        "mm",
        "mv",
        "nansum",
        "native_group_norm",
        "native_layer_norm",
        "norm",
        "std",
        "sum",
        "var",
        "vdot",
    }
)
"""Operators that add up many values and round once: a kernel that adds up in a half type is worse than that."""

_INTO_MEMORY = frozenset({"index_add", "scatter_add"})
"""Operators that add to what stands in memory, so that it is rounded to its dtype after each addition on most devices."""


def short_name(op: str) -> str:
    """Return `add` for `aten::add_.Tensor`."""
    return op.removeprefix("aten::").partition(".")[0].removesuffix("_")


def is_move(op: str) -> bool:
    """Say whether an operator's results are copies, so that values of every size test the same thing."""
    return short_name(op) in _MOVES


def keeps_sign_of_zero(op: str) -> bool:
    """Say whether 0 in the place of -0 is wrong."""
    return short_name(op) in _SIGN_OF_ZERO


def has_own_strides(op: str, inputs: CaseInputs) -> bool:
    """Say whether the backend chooses the strides of the results."""
    name = short_name(op)
    return name.startswith(_STRIDES_FREE) or (name in _BY_INDICES and _lie_otherwise(named(op, inputs)["indices"]))


def _lie_otherwise(indices: Any) -> bool:
    """Say whether indices lie in different orders in memory: torch packs them first on CUDA and not on the CPU.

    The memory of the result follows that of the indices.
    """
    given = [one for one in indices if isinstance(one, torch.Tensor) and one.dtype not in (torch.bool, torch.uint8)]
    strides = {one.stride() for one in torch.broadcast_tensors(*given)} if given else set()
    return len(strides) > 1 and not all(one.is_contiguous() for one in given)


def rounds_once(op: str) -> bool:
    """Say whether an operator adds up many values and has to round once, at the end."""
    return short_name(op) in _ACCUMULATIONS


def adds_into_memory(op: str, inputs: CaseInputs) -> bool:
    """Say whether this call adds values to places in memory: writing through an index does if it is asked to."""
    name = short_name(op)
    if name in ("index_put", "_index_put_impl"):
        return bool(named(op, inputs)["accumulate"])
    if name == "scatter_reduce":
        return named(op, inputs)["reduce"] in ("sum", "mean", "prod")
    if name == "scatter":
        return named(op, inputs).get("reduce") is not None
    return name in _INTO_MEMORY


def is_pointwise(op: str) -> bool:
    """Say whether torch calls the operator pointwise: each result has nothing to do with its neighbours."""
    return torch.Tag.pointwise in resolve(op).tags


def is_random(op: str) -> bool:
    """Say whether an operator draws random numbers, whatever its arguments."""
    found = resolve(op)
    names = {one.name for one in found._schema.arguments}
    return torch.Tag.nondeterministic_seeded in found.tags and "dropout_p" not in names and short_name(op) != "rrelu"


def is_fresh_memory(op: str) -> bool:
    """Say whether the results are memory that nobody has written: only their layout is defined."""
    return short_name(op) in _NO_VALUES


def without_values(op: str) -> bool:
    """Say whether the values that go in do not decide those that come out: fresh memory, and random numbers."""
    return is_fresh_memory(op) or is_random(op)
