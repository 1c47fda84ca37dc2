"""Prove on a small module of the same class that the operator computes what the module's own code computes.

An adapter that is wrong by an attribute it does not know of is then a refusal with a figure, on every machine and with
every release of the library whose modules it adapts, and never a model that is silently another one.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map

from day0.errors import USER_ERRORS
from day0.models.adapters._adapter import Adapter, Candidate, Probe, Refused
from day0.reference_ops.agreement._widened import Widened

__all__ = ["CLOSE", "RATIO", "prove"]

CLOSE = 1e-10
"""Largest relative error in float64, where rounding explains nothing and another formula shows."""
RATIO = 3.0
"""How much further from float64 than the module's own code in the module's own dtype: the rule of the operators."""
FLOOR = 16.0
"""Units in the last place below which a ratio says nothing, as in the canary."""
SEED = 20
MOST_REASONS = 3


def prove(adapter: Adapter, module: nn.Module, candidates: Sequence[Candidate], dtype: torch.dtype) -> Candidate:
    """Return the first candidate that agrees bit for bit in bfloat16, or else the first that agrees at all.

    Raises Refused with the error of the best where none does, and where the module's own code does not run.
    """
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            probe = adapter.probe(module, torch.Generator().manual_seed(SEED))
            wide = _results(probe, None, torch.float64)
            dtypes = tuple(dict.fromkeys((dtype, torch.bfloat16)))
            own = {one: _results(probe, None, one) for one in dtypes}
        except USER_ERRORS as error:
            raise Refused(f"its own code does not run on the probe: {_first(error)}") from error
        agreed: Candidate | None = None
        reasons: dict[str, str] = {}
        for candidate in candidates:
            try:
                if _compare(probe, candidate, wide, own):
                    return candidate
                agreed = agreed or candidate
            except Refused as error:
                reasons.setdefault(str(error), candidate.text)
            except USER_ERRORS as error:
                reasons.setdefault(_first(error), candidate.text)
    if agreed is not None:
        return agreed
    texts = [f"{text}: {reason}" if text else reason for reason, text in list(reasons.items())[:MOST_REASONS]]
    raise Refused("; ".join(texts) or "there is no way to express it")


def _compare(probe: Probe, candidate: Candidate, wide: list[Any], own: dict[torch.dtype, list[Any]]) -> bool:
    """Return whether the results are bit for bit the same in bfloat16. Raises Refused where they do not agree."""
    for mine, golden in zip(_results(probe, candidate, torch.float64), wide, strict=True):
        _same_form(mine, golden)
        error = _error(mine, golden)
        if not error <= CLOSE:
            raise Refused(f"in float64 its results differ from the module's own by {error:.2g}")
    exact = True
    for dtype, theirs in own.items():
        for mine, other, golden in zip(_results(probe, candidate, dtype), theirs, wide, strict=True):
            _same_form(mine, other)
            floor = FLOOR * torch.finfo(other.dtype).eps if other.is_floating_point() else 0.0
            error, allowed = _error(mine, golden), max(RATIO * _error(other, golden), floor)
            if not error <= allowed and not torch.equal(mine, other):
                raise Refused(f"in {_short(dtype)} it is {error:.2g} away from float64, its own code {allowed:.2g}")
            exact = exact and (dtype != torch.bfloat16 or torch.equal(mine, other))
    return exact


def _results(probe: Probe, candidate: Candidate | None, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return the tensors of all calls of the probe, of the module's own code or of a candidate."""
    found: list[torch.Tensor] = []
    for call in probe.calls:
        args = tree_map(lambda one: _to(one, dtype), copy.deepcopy(call))
        run = _runner(probe, candidate, dtype)
        if dtype == torch.float64:
            with Widened():
                result = run(*args)
        else:
            result = run(*args)
        found += [one for one in tree_flatten(probe.settle(result))[0] if isinstance(one, torch.Tensor)]
    return found


def _runner(probe: Probe, candidate: Candidate | None, dtype: torch.dtype) -> Any:
    if probe.module is None:
        return probe.own if candidate is None else (probe.ours or (lambda one: one.forward))(candidate)
    made = copy.deepcopy(probe.module)
    # Modules that keep some of their weights in float32 keep them there in every dtype but float64.
    mixed = {one.dtype for one in probe.module.parameters()} - {torch.bfloat16, torch.float16}
    if dtype == torch.float64 or len({one.dtype for one in made.parameters()}) <= 1 or not mixed:
        made = made.to(dtype)
    if candidate is None:
        return made
    return lambda *args: candidate.forward(made, *args)


def _to(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _same_form(mine: torch.Tensor, theirs: torch.Tensor) -> None:
    if mine.shape != theirs.shape:
        raise Refused(f"its result has shape {list(mine.shape)}, the module's own {list(theirs.shape)}")
    if mine.dtype != theirs.dtype:
        raise Refused(f"its result is {_short(mine.dtype)}, the module's own {_short(theirs.dtype)}")


def _error(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the relative L2 error; that of integers is 0 or infinite."""
    if not mine.is_floating_point():
        return 0.0 if torch.equal(mine.long(), theirs.long()) else float("inf")
    mine, theirs = mine.double(), theirs.double()
    # -inf stands where nothing may be chosen, in both or it is an error.
    if not torch.equal(torch.isfinite(mine), torch.isfinite(theirs)):
        return float("inf")
    mine, theirs = torch.nan_to_num(mine, 0.0, 0.0, 0.0), torch.nan_to_num(theirs, 0.0, 0.0, 0.0)
    size = float(torch.linalg.vector_norm(theirs)) or 1.0
    return float(torch.linalg.vector_norm(mine - theirs)) / size


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _first(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{type(error).__name__}: {lines[0][:200]}"
