"""What one imported call costs and gives: its operator run once on meta, which takes neither memory nor a device."""

from __future__ import annotations

import warnings

import torch

from day0.analyzers.recorder import Recorder
from day0.analyzers.traced_inputs.dtypes import ITEM_BYTES
from day0.devices.leaves import composite_kind, is_metadata_view, syncs
from day0.errors import USER_ERRORS
from day0.records import ScalarValue, Signature, TraceEntry
from day0.reference_ops.signatures import materialise, resolve, signature_id, tensor_values

__all__ = ["PHASE", "entry_of"]

PHASE = "imported"

MANY = 4096
"""Results that are lists are as long as an argument says: beyond that they are not made."""

_PLAIN_COMPOSITES = frozenset(
    {
        "conv1d",
        "conv2d",
        "conv3d",
        "layer_norm",
        "linear",
        "log_softmax",
        "matmul",
        "reshape",
        "rms_norm",
        "scaled_dot_product_attention",
        "softmax",
    }
)
"""Composites that run in a fixed number of steps; others (`lstm`, `diff`) loop as often as a text says."""


def entry_of(signature: Signature, count: int) -> TraceEntry:
    """Return the trace entry of an imported call, with results, FLOPs and bytes where meta can say them."""
    operator = resolve(signature.op)
    written = tuple(a.name for a in operator._schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    recorded = _recorded(signature) if _is_safe(signature) else ()
    own = next((one for one in recorded if one.signature.op == signature.op), None)
    moves = not (operator.is_view or is_metadata_view(signature.op))
    return TraceEntry(
        id=signature_id(signature),
        signature=signature,
        outputs=own.outputs if own else (),
        counts={PHASE: count},
        mutates=written,
        host_sync=syncs(signature.op),
        flops=sum(one.flops * sum(one.counts.values()) for one in recorded),
        bytes=own.bytes if own else _argument_bytes(signature) if moves else 0,
    )


def _is_safe(signature: Signature) -> bool:
    """Say whether a call on meta ends at once, whatever a hostile text says."""
    operator = resolve(signature.op)
    if not any(True for _ in tensor_values(signature)):
        return False  # it makes its tensors itself, on the CPU
    name = signature.op.partition("::")[2].partition(".")[0]
    if composite_kind(signature.op) == "implicit" and name not in _PLAIN_COMPOSITES:
        return False
    if not any("[]" in str(one.real_type) or "List" in str(one.real_type) for one in operator._schema.returns):
        return True
    numbers = [int(one.value) for one in signature.args if isinstance(one, ScalarValue) and one.type == "int"]
    sizes = [size for value in tensor_values(signature) for size in value.shape]
    return max((*numbers, *sizes), default=0) <= MANY


def _recorded(signature: Signature) -> tuple[TraceEntry, ...]:
    recorder = Recorder()
    recorder.phase = PHASE
    try:
        # What torch has to say of a dtype or of an argument is for the author of the model, who is not here.
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            args, kwargs = materialise(signature, "meta")
            with recorder:
                resolve(signature.op)(*args, **kwargs)
    except USER_ERRORS:
        return ()
    return recorder.entries()


def _argument_bytes(signature: Signature) -> int:
    total = 0
    for value in tensor_values(signature):
        elements = 1
        for size in value.shape:
            elements *= size
        total += elements * ITEM_BYTES.get(value.dtype, 1)
    return total
