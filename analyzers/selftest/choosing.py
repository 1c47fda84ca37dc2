"""Which calls a fault is tried on, and which cases of theirs: a few of every kind, so that one fault takes about a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from day0.analyzers.cases.case import Case
from day0.analyzers.cases.plan import plan_signature
from day0.playbook import CheckPlan
from day0.records import Signature
from day0.reference_ops.signatures import tensor_values

__all__ = ["Planned", "by_turns", "calls_for", "cases_of", "dtypes_of", "even", "parts", "plain_cases", "spread_cases"]

T = TypeVar("T")
Planned = dict[tuple[str, bool], tuple[Case, ...]]
"""Cases by id of a call, and whether those that follow from its operator alone are among them."""


def calls_for(
    operators: Iterable[str], touches: Mapping[str, frozenset[str]], signatures: Mapping[str, Signature], most: int
) -> list[str]:
    """Return ids of calls that come to some operators, at most `most`: those of the operators themselves first.

    `touches` says which operators a call comes to. Every operator gets its share.
    """
    wanted = sorted(set(operators))
    own: dict[str, list[str]] = {name: [] for name in wanted}
    rest: list[str] = []
    for id_, seen in touches.items():
        call = signatures[id_].op
        mine = next((name for name in (call, call.partition(".")[0]) if name in own), None)
        if mine is not None:
            own[mine].append(id_)
        elif any(op in own or op.partition(".")[0] in own for op in seen):
            rest.append(id_)
    named = [many for many in own.values() if many]
    share = max(2, most // max(1, len(named)))
    chosen = [id_ for many in named for id_ in by_turns(many, lambda one: dtypes_of(signatures[one]), share)]
    below = by_turns(rest, lambda one: (signatures[one].op, *dtypes_of(signatures[one])), max(4, most - len(chosen)))
    return [*chosen, *below]


def dtypes_of(signature: Signature) -> tuple[str, ...]:
    """Return dtypes and ranks of the tensors of a call: kernels are chosen by them."""
    return tuple(f"{one.dtype} {len(one.shape)}" for one in tensor_values(signature))


def by_turns(many: Iterable[T], key: Callable[[T], object], most: int) -> list[T]:
    """Return at most `most` of some things: in turn one of each group, in the order in which groups appear."""
    groups: dict[object, list[T]] = {}
    for one in many:
        groups.setdefault(key(one), []).append(one)
    deepest = max(map(len, groups.values()), default=0)
    return [group[turn] for turn in range(deepest) for group in groups.values() if turn < len(group)][:most]


def cases_of(
    calls: Iterable[tuple[str, Signature]], plan: CheckPlan, devices: int, planned: Planned | None = None
) -> list[Case]:
    """Return all cases of some calls, each with the rare ones; those that follow from an operator alone come once.

    `planned` keeps what was planned: many faults are tried on the same calls.
    """
    kept = planned if planned is not None else {}
    seen, found = set[str](), list[Case]()
    for id_, call in calls:
        key = (id_, call.op not in seen)
        if key not in kept:
            kept[key] = tuple(plan_signature(call, id_, plan, once=key[1], devices=devices))
        found += kept[key]
        seen.add(call.op)
    return found


def plain_cases(cases: Iterable[Case]) -> list[Case]:
    """Return the cases of the calls themselves, without derived ones."""
    return [one for one in cases if one.form == "traced" and one.way == "plain" and not one.refusal]


def spread_cases(cases: Sequence[Case], most: int) -> list[Case]:
    """Return at most `most` cases: the plain ones with ordinary values, then in turn one of each kind.

    Kinds are values, derived call, way and refusal.
    """
    plain = [one for one in plain_cases(cases) if one.regime == "ordinary"]
    groups: dict[tuple[str, ...], list[Case]] = {}
    for one in cases:
        groups.setdefault((one.regime, one.form, one.way, one.refusal), []).append(one)
    # Each kind begins with another call, else most kinds would be seen on the first call alone.
    turned = [many[number % len(many) :] + many[: number % len(many)] for number, many in enumerate(groups.values())]
    rest = [many[turn] for turn in range(max(map(len, turned), default=0)) for many in turned if turn < len(many)]
    return list({one.key: one for one in (*plain, *rest)}.values())[:most]


def even(many: Sequence[T], most: int) -> list[T]:
    """Return at most `most` of some things, at even distances."""
    step = max(1.0, len(many) / most)
    return [many[int(number * step)] for number in range(min(most, len(many)))]


def parts(many: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Cut a list into parts."""
    return (many[start : start + size] for start in range(0, len(many), size))
