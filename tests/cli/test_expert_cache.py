"""`day0 convert record-routing` and `simulate-cache` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from day0.cli.app import app


def day0(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["convert", *(str(one) for one in arguments)])
    return done.exit_code, done.stdout, done.stderr


def test_record_then_simulate_then_draw(tmp_path: Path) -> None:
    path = tmp_path / "r.safetensors"
    code, said, _ = day0("record-routing", "toy", path, "--tokens", 6, "--new-tokens", 6, "--slots", 12, "--json")
    assert code == 0
    measured = json.loads(said)["measured"]
    assert measured["hit_rate"] == measured["simulated_hit_rate"] > 0
    code, said, talk = day0("simulate-cache", path, "--slots", 3, "--slots", 12, "--plot", tmp_path / "c.svg")
    assert code == 0 and "toy: 4 layers of 10 experts, 7 steps" in said and "keeps nothing" in talk
    drawn = (tmp_path / "c.svg").read_text()
    assert drawn.startswith("<svg") and "least recently converted, one pool" in drawn
    for suffix, begins in ((".png", b"\x89PNG"), (".html", b"<!doctype html>")):
        code, said, _ = day0("simulate-cache", path, "--policy", "lru", "--plot", tmp_path / f"c{suffix}", "--json")
        assert code == 0 and (tmp_path / f"c{suffix}").read_bytes().startswith(begins)
        assert {one["policy"] for one in json.loads(said)["results"]} == {"lru"}
    code, said, _ = day0("simulate-cache", path, "--slots", 12, "--policy", "lru", "--split", "layer", "--json")
    assert code == 0 and len(json.loads(said)["results"]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["simulate-cache", "none"], "there is no such file"),
        (["simulate-cache", "none", "--plot", "x.pdf"], "no drawing ends in '.pdf'"),
        (["simulate-cache", "none", "--policy", "lrx"], "did you mean lr"),
        (["record-routing", "toi", "x"], "of no known form"),
        (["record-routing", "toy", "x", "--slots", "4", "--policy", "fifo"], "there is no such choice"),
        (["record-routing", "toy", "x", "--set", "dense_layers=5"], "no call of day0::moe_router"),
    ],
)
def test_mistakes_are_said(arguments: list[str], said: str) -> None:
    code, _, talk = day0(*arguments)
    assert code == 2 and said in " ".join(talk.split()) and "hint:" in talk
