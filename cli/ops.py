"""The commands about operators: list, show, verify."""

from __future__ import annotations

import json as jsonlib
import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from day0.cli import show_ops
from day0.cli.talk import Talk
from day0.errors import ExitCode

if TYPE_CHECKING:
    from day0.implementation import Implementation
    from day0.reference_ops._spec import Operator
    from day0.reference_ops.agreement._verify import Agreement

__all__ = ["ops_list", "ops_show", "ops_verify"]


def ops_list(*, load: list[Path], json: bool) -> int:
    """`day0 ops list`."""
    from day0.reference_ops.agreement._verify import distributions
    from day0.reference_ops.load import load_operators
    from day0.registry.collect import collect

    talk = Talk(as_json=json)
    operators, implementations = load_operators(), collect(tuple(load))
    against = {name: distributions(name) for name in operators}
    show_ops.operators(talk, operators, implementations, against)
    if json:
        rows = {
            name: {
                "version": op.version,
                "summary": op.summary,
                "implementations": _identities(name, implementations),
                "verified_against": list(against[name]) or ([op.verified_against] if op.verified_against else []),
            }
            for name, op in sorted(operators.items())
        }
        print(jsonlib.dumps(rows, indent=1))
    return int(ExitCode.OK)


def _identities(operator: str, implementations: tuple[Implementation, ...]) -> list[str]:
    return [str(one.identity) for one in implementations if one.operator == operator]


def ops_show(*, name: str, load: list[Path], json: bool) -> int:
    """`day0 ops show`."""
    from day0.reference_ops.agreement._load import load_comparisons
    from day0.reference_ops.load import load_operator
    from day0.registry.collect import collect

    operator = load_operator(name)
    implementations = [one for one in collect(tuple(load)) if one.operator == name]
    comparisons = [one for one in load_comparisons() if one.operator == name]
    facts = _facts(operator)
    facts["verified_against"] = operator.verified_against
    facts["comparisons"] = [
        {"variant": one.variant, "against": one.against, "distribution": one.distribution, "limit": one.limit}
        for one in comparisons
    ]
    facts["implementations"] = [
        {"identity": str(one.identity), "contract": one.contract, "kind": one.kind, "why": one.why}
        for one in implementations
    ]
    if json:
        print(jsonlib.dumps(facts, indent=1))
    else:
        show_ops.operator(Talk(), facts)
    return int(ExitCode.OK)


def _facts(one: Operator) -> dict[str, Any]:
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
