"""Arguments on two devices."""

from __future__ import annotations

from collections.abc import Iterator

from day0.analyzers.cases.forms._values import has_shared_memory
from day0.analyzers.cases.kinds import says_values
from day0.analyzers.cases.refusals._refusal import Refusal
from day0.analyzers.judging.kinds import short_name
from day0.records import Signature, TensorValue
from day0.reference_ops._spec import Operator
from day0.reference_ops.signatures import tensor_values

__all__ = ["REFUSAL"]

_MAY_MIX = frozenset({"copy", "_to_copy", "index", "index_put", "_grouped_mm", "searchsorted", "isin"})
"""Operators of torch that take a tensor of the CPU, by contract or on some devices."""


def _derive(signature: Signature, contract: Operator | None) -> Iterator[Signature]:
    mixes = not signature.op.startswith("aten::") or short_name(signature.op) in _MAY_MIX
    if not mixes and says_values(signature) and not has_shared_memory(signature) and _second(signature) is not None:
        yield signature


def _second(signature: Signature) -> int | None:
    """Return the number of the second tensor of at least one dimension: single values may come from the CPU."""
    plain = [value for value in signature.args if isinstance(value, TensorValue)]
    if len(plain) != len(list(tensor_values(signature))):
        return None
    found = [number for number, value in enumerate(plain) if value.shape and 0 not in value.shape]
    return found[1] if len(found) > 1 else None


REFUSAL = Refusal(
    name="other_device",
    why="an address of the host is read on the device; and callers take a missing kernel for what it is not",
    derive=_derive,
    leaves_on_cpu=_second,
    expected=RuntimeError,
)
