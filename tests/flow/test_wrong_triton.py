"""Wrong kernels in Triton that a user brings: on a GPU the check names each, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from day0.kernels.load import load_implementation_file, load_implementations
from tests.flow.conftest import Day0
from tests.flow.wrong_triton import FAULTS, write_wrong


def test_each_is_a_file_of_a_user_that_is_preferred_over_the_right_one(tmp_path: Path) -> None:
    written = write_wrong(tmp_path)
    assert len(written) == len(FAULTS) >= 3
    for operator, path in written.items():
        found = load_implementation_file(path)
        assert {one.operator for one in found} == {operator}
        assert {one.id for one in found} == {"outside"}
        right = [one for one in load_implementations() if one.operator == operator and one.id == "triton"]
        assert all(one.rank < other.rank for one in found for other in right), "the lower rank comes first"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.slow
def test_each_is_caught_on_cuda(day0: Day0, tmp_path: Path) -> None:
    written = write_wrong(tmp_path)
    brought = [part for path in written.values() for part in ("--with", path)]
    run = ("--run", "r")
    assert day0("trace", "toy", "--dtype", "bfloat16", *run).returncode == 0
    assert day0("inventory", "--device", "cuda", *brought, *run).returncode == 0
    done = day0("register", "--namespace", "kimi/k3.1", *run)
    assert done.returncode == 0, done.stdout + done.stderr
    done = day0("check", "--level", "ops", *run)
    assert done.returncode == 1, done.stdout + done.stderr
    cases = json.loads((tmp_path / "r" / "numerics.json").read_text())["body"]["cases"]
    failed = [one for one in cases if one["status"] == "fail" and "outside" in one["implementation"]]
    assert {one["op"] for one in failed} == set(written)
    assert not [one for one in cases if one["status"] == "fail" and "outside" not in one["implementation"]]
