"""Which results share memory with which arguments, and with each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from day0.analyzers.judging.judgement import Judgement

__all__ = ["Shared", "aliasing", "shared_memory"]

Shared = frozenset[tuple[str, int, int]]
"""`("argument", result, argument)` and `("result", result, later result)` for every two that share memory."""


def shared_memory(results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]) -> Shared:
    """Say what shares memory. Tensors without elements share nothing that anybody could see."""
    outs, ins = ([_storage(one) for one in group] for group in (results, arguments))
    with_arguments = {
        ("argument", out, place)
        for out, key in enumerate(outs)
        for place, other in enumerate(ins)
        if key is not None and key == other
    }
    among = {
        ("result", out, later)
        for out, key in enumerate(outs)
        for later in range(out + 1, len(outs))
        if key is not None and key == outs[later]
    }
    return frozenset(with_arguments | among)


def aliasing(got: Shared, expected: Shared) -> Judgement:
    """Views share the memory that they shall share, everything else has its own."""
    for kind, first, second in sorted(got ^ expected):
        other = f"argument {second}" if kind == "argument" else f"result {second}"
        said = "shares" if (kind, first, second) in got else "does not share"
        reason = f"result {first} {said} the memory of {other}, on the CPU it is the other way round"
        return Judgement(passed=False, rule="aliasing", reason=reason)
    return Judgement(passed=True, rule="aliasing")


def _storage(tensor: torch.Tensor) -> int | None:
    return int(tensor.untyped_storage()._cdata) if tensor.numel() else None
