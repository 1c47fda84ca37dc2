"""An implementation for people and for JSON: where it comes from, what it takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from day0.implementation import Constraints, Implementation, Limit, TensorLimit
from day0.registry.constraints import limit_text

__all__ = ["constraint_lines", "facts_of", "source_of"]


def source_of(one: Implementation) -> str:
    """Return who brought it: `day0`, an installed package as `name==version`, or a file."""
    if one.distribution:
        return one.distribution
    shipped = one.origin.startswith(("kernels/torch/", "reference_ops/"))
    return "day0" if shipped else one.origin.partition(".py:")[0].removesuffix(".py") + ".py"


def facts_of(one: Implementation) -> dict[str, Any]:
    """Return all that is known of an implementation, as plain data."""
    return {
        "identity": str(one.identity),
        "operator": one.operator,
        "contract": one.contract,
        "namespace": one.namespace,
        "id": one.id,
        "version": one.version,
        "kind": one.kind,
        "rank": one.rank,
        "devices": list(one.devices),
        "constraints": list(constraint_lines(one.constraints)),
        "predicate": _predicate(one),
        "source": source_of(one),
        "origin": one.origin,
        "distribution": one.distribution,
        "source_hash": one.source_hash,
        "why": one.why,
    }


def _predicate(one: Implementation) -> str:
    """Return the first line of what a predicate says of itself, or its name; empty without one."""
    if one.predicate is None:
        return ""
    name = str(getattr(one.predicate, "__name__", type(one.predicate).__name__))
    said = (getattr(one.predicate, "__doc__", None) or "").strip().splitlines()
    return f"{name}: {said[0]}" if said else name


def constraint_lines(limits: Constraints) -> Iterator[str]:
    """Yield what a call must satisfy, one condition in a line."""
    if limits.dtypes:
        yield f"every dtype: {_names(limits.dtypes)}"
    if limits.first_dtype:
        yield f"dtype of the first tensor: {_names(limits.first_dtype)}"
    if ranks := _ranks(limits.min_rank, limits.max_rank):
        yield f"every tensor: {ranks}"
    if limits.contiguous is not None:
        yield f"every tensor: {'' if limits.contiguous else 'not '}contiguous"
    for position, divisor in sorted(limits.multiple_of.items()):
        yield f"last dimension of tensor {position}: a multiple of {divisor}"
    for name, limit in sorted(limits.arguments.items(), key=lambda pair: str(pair[0])):
        yield f"{_argument(name)}: {_limit(limit)}"
    for (left, one), (right, other) in limits.equal:
        yield f"{left} dimension {one} has the size of {right} dimension {other}"
    if limits.any_of:
        ways = ["; ".join(constraint_lines(way)) or "anything" for way in limits.any_of]
        yield "one of: " + " | ".join(ways)


def _argument(name: str | int) -> str:
    return f"argument {name}" if isinstance(name, int) else name


def _limit(limit: Limit | TensorLimit) -> str:
    if isinstance(limit, Limit):
        return limit_text(limit) or "anything"
    parts = [_names(limit.dtypes)] if limit.dtypes else []
    if ranks := _ranks(limit.min_rank, limit.max_rank):
        parts.append(ranks)
    parts += [f"dimension {dim}: {limit_text(size)}" for dim, size in sorted(limit.sizes.items())]
    if limit.contiguous is not None:
        parts.append("contiguous" if limit.contiguous else "not contiguous")
    if limit.required:
        parts.append("must be given")
    return ", ".join(parts) or "anything"


def _ranks(low: int, high: int | None) -> str:
    if high is None:
        return f"at least {low} dimensions" if low else ""
    return f"{low} dimensions" if low == high else f"{low} to {high} dimensions"


def _names(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
