"""The commands about operators: list, show, verify."""

from __future__ import annotations

import json as jsonlib
import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from day0.cli import show_ops
from day0.cli.ops_words import facts_of
from day0.cli.talk import Talk
from day0.errors import Day0Error, ExitCode, near_names

if TYPE_CHECKING:
    from day0.implementation import Implementation
    from day0.reference_ops._spec import Operator
    from day0.reference_ops.agreement._verify import Agreement

__all__ = ["contract_facts", "ops_list", "ops_show", "ops_verify"]


def ops_list(
    *, name: str | None, load: list[Path], without: list[str], namespace: str | None, device: str | None, json: bool
) -> int:
    """`day0 ops list`: operators and their implementations, those of them that were asked for."""
    from day0.reference_ops.agreement._verify import distributions
    from day0.reference_ops.load import load_operators

    contracts = load_operators()
    rows = _rows(name, _chosen(load, without, namespace, device), contracts)
    against = {one: list(distributions(one)) for one in rows if one in contracts}
    listed = {
        operator: {
            "version": contracts[operator].version if operator in contracts else 1,
            "summary": contracts[operator].summary if operator in contracts else "torch's own",
            "implementations": [facts_of(one) for one in mine],
            "verified_against": against.get(operator) or _words(contracts.get(operator)),
        }
        for operator, mine in rows.items()
    }
    talk = Talk(as_json=json)
    show_ops.operators(talk, listed, filtered=namespace is not None or device is not None)
    if json:
        print(jsonlib.dumps(listed, indent=1))
    return int(ExitCode.OK)


def _words(contract: Operator | None) -> list[str]:
    return [contract.verified_against] if contract is not None and contract.verified_against else []


def _chosen(
    load: list[Path], without: list[str], namespace: str | None, device: str | None
) -> tuple[Implementation, ...]:
    """Collect implementations, and keep those that a namespace sees and a device may run, in the order they are tried."""
    from day0.devices.profile import load_profile
    from day0.registry.collect import collect
    from day0.registry.namespaces import load_parents, search_path

    found = collect(tuple(load), without=tuple(without))
    path = search_path(namespace, load_parents(tuple(load), without=tuple(without))) if namespace is not None else None
    if path is not None:
        found = tuple(one for one in found if one.namespace in path)
    if device is not None:
        kind = load_profile(device).torch_device
        found = tuple(one for one in found if "*" in one.devices or kind in one.devices)
    order = path or ()
    return tuple(
        sorted(found, key=lambda one: (one.operator, order.index(one.namespace) if order else one.namespace, one.rank))
    )


def _rows(
    name: str | None, found: tuple[Implementation, ...], contracts: dict[str, Operator]
) -> dict[str, list[Implementation]]:
    """Return the implementations by operator, of all operators or of those whose name holds a text."""
    every = sorted({*contracts, *(one.operator for one in found)})
    names = [one for one in every if name is None or name in one]
    if not names:
        hint = near_names(str(name), tuple(every)) or "see `day0 ops list`"
        raise Day0Error("day0 ops list", f"no operator's name holds '{name}'", hint=hint)
    return {operator: [one for one in found if one.operator == operator] for operator in names}


def ops_show(*, name: str, load: list[Path], without: list[str], json: bool) -> int:
    """`day0 ops show`: the contract, as far as there is one, and all implementations."""
    from day0.reference_ops.agreement._load import load_comparisons
    from day0.reference_ops.load import load_operators
    from day0.registry.collect import collect

    implementations = [one for one in collect(tuple(load), without=tuple(without)) if one.operator == name]
    operator = load_operators().get(name)
    facts = contract_facts(operator) if operator is not None else _facts_of_torch(name, implementations)
    comparisons = [one for one in load_comparisons() if one.operator == name]
    facts["comparisons"] = [
        {"variant": one.variant, "against": one.against, "distribution": one.distribution, "limit": one.limit}
        for one in comparisons
    ]
    facts["implementations"] = [
        facts_of(one) for one in sorted(implementations, key=lambda one: (one.namespace, one.rank))
    ]
    if json:
        print(jsonlib.dumps(facts, indent=1))
    else:
        show_ops.operator(Talk(), facts)
    return int(ExitCode.OK)


def _facts_of_torch(name: str, implementations: list[Implementation]) -> dict[str, Any]:
    """Return what torch says of an operator without a contract of ours; one that has implementations counts."""
    import torch

    from day0.reference_ops.load import load_operators
    from day0.registry.schemas import overloads_of, schema_text

    overloads = overloads_of(name) if name.startswith("aten::") else ()
    if not overloads and not implementations:
        known = {*load_operators(), *(one.partition(".")[0] for one in torch._C._dispatch_get_all_op_names())}
        hint = near_names(name, tuple(sorted(known))) or "see `day0 ops list`"
        raise Day0Error("operator", f"there is no '{name}'", hint=hint)
    return {
        "name": name,
        "version": 1,
        "summary": "torch's own; day0 has no contract of it, and checks it against torch's CPU kernel in float64",
        "overloads": [schema_text(one) for one in overloads if "out=" not in one and not one.endswith("out")],
    }


def contract_facts(one: Operator) -> dict[str, Any]:
    """Everything that an operator file says, as plain data."""
    import torch

    samples = list(one.samples(torch.Generator().manual_seed(0)))
    limits = one.tolerance
    return {
        "name": one.name,
        "version": one.version,
        "summary": one.summary,
        "schema": one.schema,
        "mathematics": one.mathematics,
        "source": one.source,
        "comparison": one.comparison,
        "tolerance": {
            "ratio": limits.ratio,
            "ceiling": limits.ceiling,
            "ulps": limits.ulps,
            "reason": limits.reason,
        },
        "attributes": {attribute.name: attribute.meaning for attribute in one.attributes},
        "samples": dict(Counter(sample.kind for sample in samples)),
        "sample_arguments": [
            {"kind": sample.kind, "arguments": [_argument(value) for value in (*sample.args, *sample.kwargs.values())]}
            for sample in samples
        ],
        "verified_against": one.verified_against,
        "has": {
            "second reference": one.quantised is not None,
            "shapes on meta": one.fake is not None,
            "values for traced shapes": one.fill is not None,
            "flops formula": one.flops is not None,
            "bytes formula": one.bytes is not None,
        },
    }


def _argument(value: object) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_argument(one) for one in value)}]"
    return str(value)


def ops_verify(*, name: str | None, json: bool) -> int:
    """`day0 ops verify`: exit code 1 where a reference and somebody else's code differ by more than allowed."""
    from day0.reference_ops.agreement._verify import choose, verify

    talk = Talk(as_json=json)
    comparisons = choose(name)
    with talk.busy("verify"):
        done = verify(comparisons, lambda one: talk.progress(f"{one.operator} with {one.against}"))
    show_ops.agreements(talk, done)
    if json:
        print(jsonlib.dumps([_row(one) for one in done], indent=1))
    return int(ExitCode.GATE_FAILED if any(one.failed for one in done) else ExitCode.OK)


def _row(one: Agreement) -> dict[str, object]:
    finite = one.error is not None and math.isfinite(one.error)
    return {
        "operator": one.comparison.operator,
        "variant": one.comparison.variant,
        "against": one.comparison.against,
        "distribution": one.comparison.distribution,
        "version": one.version,
        # JSON knows no infinity; the reason says what it was.
        "error": one.error if finite else None,
        "limit": one.comparison.limit,
        "verdict": one.verdict,
        "reason": one.reason,
    }
