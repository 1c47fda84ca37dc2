"""Which cases a trace is checked with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from day0.analyzers.cases.case import Case
from day0.analyzers.cases.forms._form import Form, load_forms
from day0.analyzers.cases.kinds import says_values
from day0.analyzers.cases.meta import refused_on_meta
from day0.analyzers.cases.refusals._refusal import load_refusals
from day0.analyzers.cases.regimes._regime import load_regimes
from day0.analyzers.cases.ways._way import load_ways
from day0.hashing import hash_json
from day0.playbook import CheckPlan
from day0.records import ListValue, ScalarValue, Signature, TensorValue, Trace, TraceEntry, Value
from day0.reference_ops._spec import Operator
from day0.reference_ops.load import contract_of
from day0.reference_ops.signatures import resolve, signature_id
from day0.reference_ops.torch_ops import register_operators

__all__ = ["plan_cases", "plan_signature"]


def plan_cases(
    trace: Trace, plan: CheckPlan, captured: Mapping[str, str] | None = None, *, devices: int = 1
) -> Iterator[Case]:
    """Yield the cases of a trace in a fixed order.

    Every signature gets the values that models have. One signature of each kind (operator, dtypes, ranks, orders of
    memory) also gets the rarer values, the derived calls, the ways of calling and the calls to refuse; with
    `plan.thorough` all of them do. `captured` names files with real values, by signature; `devices` is how many of
    the device there are.
    """
    register_operators()
    seen: set[str] = set()
    operators: set[str] = set()
    for entry in sorted(trace.entries, key=lambda one: (one.signature.op, one.id)):
        kind = _kind(entry.signature)
        rare = plan.thorough or kind not in seen
        seen.add(kind)
        once = entry.signature.op not in operators
        operators.add(entry.signature.op)
        yield from plan_signature(entry.signature, entry.id, plan, rare=rare, once=once, devices=devices)
        if entry.id in (captured or {}):
            yield _captured(entry, plan, (captured or {})[entry.id])


def plan_signature(
    signature: Signature, name: str, plan: CheckPlan, *, rare: bool = True, once: bool = True, devices: int = 1
) -> Iterator[Case]:
    """Yield the cases of one signature, which has the id `name`; without the rare ones if those are not wanted.

    `once` is False where those that follow from the operator alone were planned with another signature.
    """
    contract = contract_of(signature.op)
    case = partial(Case, signature_id=name, seed=plan.seed)
    for regime in load_regimes().values():
        wanted = regime.name in plan.regimes and (rare or regime.everywhere) and (plan.thorough or not regime.thorough)
        if wanted and regime.applies(signature, contract):
            yield case(signature=signature, regime=regime.name)
    if not rare or not plan.derived or not says_values(signature):
        return
    for way in load_ways().values():
        if way.name != "plain" and way.device_index < devices and way.applies(signature, contract):
            yield case(signature=signature, regime="ordinary", way=way.name)
    forms = [one for one in load_forms().values() if (once or not one.once) and (plan.thorough or not one.thorough)]
    yield from _derived(signature, contract, forms, case)
    for refusal in load_refusals().values():
        for refused in refusal.derive(signature, contract):
            yield case(signature=refused, regime="ordinary", refusal=refusal.name)


def _derived(signature: Signature, contract: Operator | None, forms: list[Form], case: partial[Case]) -> Iterator[Case]:
    """Yield the derived calls that are other calls, and valid ones, each once."""
    seen = {signature_id(signature)}
    for form in forms:
        for suffix, derived in form.derive(signature, contract):
            known = signature_id(derived)
            if known in seen or refused_on_meta(derived):
                continue
            seen.add(known)
            name = f"{form.name}.{suffix}" if suffix else form.name
            for regime in form.regimes:
                if load_regimes()[regime].applies(derived, contract):
                    yield case(signature=derived, regime=regime, form=name)


def _captured(entry: TraceEntry, plan: CheckPlan, file: str) -> Case:
    return Case(signature_id=entry.id, signature=entry.signature, regime="captured", seed=plan.seed, captured=file)


def _kind(signature: Signature) -> str:
    """Name what calls have in common that go the same way through a kernel, whatever their sizes."""
    schema = [one.name for one in resolve(signature.op)._schema.arguments]
    named = [*zip(schema, signature.args, strict=False), *sorted(signature.kwargs.items())]
    return hash_json([signature.op, [[name, _outline(value)] for name, value in named]])


def _outline(value: Value) -> object:
    if isinstance(value, ListValue):
        return [_outline(item) for item in value.items[:2]]
    if isinstance(value, ScalarValue):
        # Sizes and positions are scalars too; how many there are matters, not which.
        return value.type if value.type in ("int", "float") else [value.type, value.value]
    return _layout(value)


def _layout(value: TensorValue) -> object:
    order = sorted(range(len(value.shape)), key=lambda dim: (-value.stride[dim], dim))
    return [value.dtype, order, 0 in value.stride, value.offset > 0, value.alias is not None]
