"""What a call gave: what it returned, then what it wrote; and whether it wrote anything else."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.cases.copies import StoragePair
from day0.analyzers.judging.exact import differs
from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.words import same_bits
from day0.reference_ops.signatures import tensors_in

__all__ = ["results", "side_effects"]


def side_effects(operator: Any, inputs: CaseInputs, storages: list[StoragePair]) -> Judgement | None:
    """Look at the whole memory behind the arguments: nothing may change but what the schema says is written."""
    written = list(_written(operator, inputs))
    for pair in storages:
        after = pair.moved.cpu()
        if same_bits(after, pair.original):
            continue
        changed = differs(after, pair.original)
        changed = changed.any(-1) if after.is_complex() else changed  # pairs of numbers are compared, elements counted
        for tensor in written:
            if tensor.untyped_storage()._cdata == pair.original.untyped_storage()._cdata:
                changed.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(False)
        if bool(changed.any()):
            place = int(changed.to(torch.uint8).argmax())
            return Judgement(
                passed=False,
                rule="side_effect",
                reason=f"{int(changed.sum())} elements behind an argument were changed that nobody asked to be written",
                worst_index=(place,),
                worst_got=str(after[place].item()),
                worst_expected=str(pair.original[place].item()),
            )
    return None


def results(operator: Any, output: Any, inputs: CaseInputs) -> Iterator[torch.Tensor]:
    """Yield the returned tensors, then the arguments that were written to."""
    yield from tensors_in(output)
    yield from _written(operator, inputs)


def _written(operator: Any, inputs: CaseInputs) -> Iterator[torch.Tensor]:
    """Yield the arguments that the schema says are written to."""
    for position, name in _written_places(operator):
        value = inputs.kwargs.get(name)
        if value is None and position < len(inputs.args):
            value = inputs.args[position]
        yield from tensors_in(value)


@cache
def _written_places(operator: Any) -> tuple[tuple[int, str], ...]:
    arguments = enumerate(operator._schema.arguments)
    return tuple((place, one.name) for place, one in arguments if one.alias_info and one.alias_info.is_write)
