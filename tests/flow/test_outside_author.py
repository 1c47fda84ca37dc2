"""Public bugs as kernels of a user: each is caught on the calls of the toy, and the report says by which rule."""

from __future__ import annotations

import json
from pathlib import Path

from tests.flow.conftest import FEW_LAYERS, Day0, only_traced_calls

WRONG = Path(__file__).with_name("outside_author.py")
RULES = {
    "day0::kda_gate": {"relative_l2"},
    "day0::moe_router": {"route", "relative_l2", "elements"},
    "day0::sparse_mla_decode": {"relative_l2", "elements"},
    "day0::mxfp4_decode": {"exact", "non_finite"},
}


def test_each_is_caught_on_traced_calls_by_a_rule_that_is_named(day0: Day0, tmp_path: Path) -> None:
    run = ("--run", "r")
    done = day0("trace", "toy", *FEW_LAYERS.split(), *run)
    assert done.returncode == 0, done.stderr
    assert day0("inventory", "--device", "sim", "--with", WRONG, *run).returncode == 0
    done = day0("register", "--namespace", "kimi/k3.1", *run)
    assert done.returncode == 0, done.stdout + done.stderr
    only_traced_calls(tmp_path / "r")
    done = day0("check", *run)
    assert done.returncode == 1, done.stdout + done.stderr
    cases = json.loads((tmp_path / "r" / "numerics.json").read_text())["body"]["cases"]
    failed = [one for one in cases if one["status"] == "fail"]
    assert all("outside" in one["implementation"] for one in failed), "nothing else is wrong"
    found = {op: {one["rule"] for one in failed if one["op"] == op} for op in RULES}
    assert all(found.values()), found
    for op, rules in found.items():
        assert rules <= RULES[op], (op, rules)
        assert op in done.stdout
        assert next(iter(rules)) in done.stdout
