"""Kernels of a user that misbehave in every way: each gets a status of its own, and a reproducer that says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.flow.conftest import Done, only_traced_calls, run_day0

MODEL = """
import torch
from torch import nn

class Small(nn.Module):
    def forward(self, *inputs):
        return [torch.nn.functional.silu(x) * 2.0 for x in inputs]

def make():
    return Small(), tuple(torch.linspace(-1, 1, 8 * rows).reshape(rows, 8) for rows in range(1, COUNT + 1))
"""

KERNEL = """
import ctypes
import os
import sys
import time
from pathlib import Path

import torch

from day0.implementation import Implementation

REPAIRED = Path(__file__).with_name("repaired")


def right(x):
    return x * torch.sigmoid(x)


def past_the_end(x):
    out = torch.empty_like(x)
    torch.as_strided(out, (out.numel() + 3,), (1,), out.storage_offset()).fill_(1.0)
    return out.copy_(right(x))


def past_an_argument(x):
    torch.as_strided(x, (x.numel() + 3,), (1,), x.storage_offset())[-3:] = 1.0
    return right(x)


def unwritten(x):
    out = torch.empty_like(x)
    out[1:] = right(x)[1:]
    return out


def on_the_cpu(x):
    return torch.nn.functional.silu(x.cpu()).to(x.device)


def other_settings(x):
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(2)
    return right(x)


def talks(x):
    print("from Python")
    os.write(2, b"from below\\n")
    return right(x)


def forks(x):
    if os.fork() == 0:
        time.sleep(100)
    return right(x)


def goes_on_in_a_copy(x):
    os.fork()
    return right(x)


def closes_output(x):
    os.close(1)
    return right(x)


class Odd(BaseException):
    pass


def raises(x):
    raise Odd("whatever")


def allocates(x):
    return x + torch.empty(1 << 50, device=x.device)[0]


MODES = NAMES


def run(x):
    how = "right" if REPAIRED.exists() else MODES[x.shape[0] - 1]
    if how == "segfault":
        ctypes.string_at(0)
    if how == "abort":
        os.abort()
    if how == "exits":
        os._exit(0)
    if how == "leaves":
        sys.exit(3)
    if how == "hangs":
        time.sleep(1000)
    return globals().get(how, right)(x)


IMPLEMENTATIONS = (
    Implementation(
        operator="aten::silu", contract=1, id="mine", version="1.0", kind="kernel", run=run, why="mine", devices=("*",),
    ),
)
"""


BAD = {
    "segfault": ("crashed", "ran", "the process died of SIGSEGV in aten::silu, at kernel.py:"),
    "abort": ("crashed", "ran", "the process died of SIGABRT in aten::silu, at kernel.py:"),
    "exits": ("crashed", "ran", "it ended the process with exit code 0 in aten::silu"),
    "leaves": ("crashed", "ran", "SystemExit: 3"),
    "raises": ("crashed", "ran", "Odd: whatever"),
    "hangs": ("hung", "ran", "it did not end within 4 s, in aten::silu"),
    "past_the_end": ("fail", "outside", "3 elements after a buffer of 56 elements of float32 were written"),
    "past_an_argument": ("fail", "side_effect", "3 elements behind an argument were changed"),
    "unwritten": ("fail", "uninitialised", "its result depends on memory that it never wrote"),
    "on_the_cpu": ("fell_back", "ran", "its kernel took 320 bytes to the CPU, computed aten::silu there"),
    "other_settings": ("fail", "state", "the call changed default dtype (torch.float32 → torch.float64), threads"),
    "allocates": ("crashed", "ran", "out of memory, though its tensors take only 0.0 MiB: it tried to allocate "),
}
NOTED = {
    "talks": ["it printed 2 lines: from below"],
    "forks": ["it left 1 child process, ended now"],
    "closes_output": ["it closed or moved standard output"],
    "goes_on_in_a_copy": ["it left 1 child process, ended now"],
    "right": [],
}
MODES = (*BAD, *NOTED)
QUICK = ("segfault", "hangs", "past_the_end", "unwritten", "on_the_cpu")
"""Whose reproducers are run each time; each takes seconds."""


class Checked(NamedTuple):
    folder: Path
    device: str
    done: Done

    def cases(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.folder / "r" / "numerics.json").read_text())["body"]["cases"]
        return found

    def case(self, mode: str) -> dict[str, Any]:
        shapes = f"float32[{MODES.index(mode) + 1}, 8]"
        wanted = ("aten::silu", shapes, "ordinary")
        return next(case for case in self.cases() if (case["op"], case["shapes"], case["regime"]) == wanted)

    def repro(self, case: dict[str, Any], *options: object) -> Done:
        return run_day0("repro", Path("r") / case["reproducer"], *options, cwd=self.folder)


@pytest.fixture(scope="module", params=["sim", pytest.param("cpu", marks=pytest.mark.slow)])
def checked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checked:
    """A run whose lock takes the kernel for every silu, checked: how it misbehaves depends on the number of rows."""
    cwd = tmp_path_factory.mktemp(f"check-{request.param}")
    (cwd / "model.py").write_text(MODEL.replace("COUNT", str(len(MODES))))
    (cwd / "kernel.py").write_text(KERNEL.replace("NAMES", repr(MODES)))
    trace = "trace py:model.py:make --dtype float32"
    register = "register --with kernel.py --replace aten::silu"
    for command in (trace, f"inventory --device {request.param}", register):
        done = run_day0(*command.split(), "--run", "r", cwd=cwd)
        assert done.returncode == 0, done.stderr
    only_traced_calls(cwd / "r")
    done = run_day0("check", "--run", "r", "--case-timeout", 4, "--jobs", 1, cwd=cwd)
    assert done.returncode == 1, done.stdout + done.stderr
    return Checked(cwd, request.param, done)


@pytest.mark.parametrize("mode", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in BAD])
def test_a_bad_kernel_gets_its_own_status_and_its_reproducer_shows_the_same(checked: Checked, mode: str) -> None:
    if (checked.device, mode) == ("cpu", "on_the_cpu"):
        pytest.skip("on the CPU nothing falls back to it")
    status, rule, reason = BAD[mode]
    case = checked.case(mode)
    assert (case["status"], case["rule"]) == (status, rule), case["reason"]
    assert case["reason"].startswith(reason)
    assert case["reproducer"] == f"repro/{case['case']}"
    again = checked.repro(case)
    assert again.returncode == 1, again.stdout + again.stderr
    assert f"still fails, in the same way: aten::silu {case['shapes']}" in again.stdout
    assert case["reason"] in again.stdout


@pytest.mark.parametrize("mode", NOTED)
def test_what_a_right_kernel_leaves_behind_is_told_and_no_failure(checked: Checked, mode: str) -> None:
    case = checked.case(mode)
    assert (case["status"], case["notes"]) == ("pass", NOTED[mode])
    if NOTED[mode]:
        assert f"aten::silu: {NOTED[mode][0]}" in checked.done.stdout


def test_the_other_cases_are_unharmed_and_none_is_lost_or_judged_twice(checked: Checked) -> None:
    cases = checked.cases()
    assert {case["status"] for case in cases if case["op"] != "aten::silu"} == {"pass"}
    assert len({case["case"] for case in cases}) == len(cases)
    journal = (checked.folder / "r" / "numerics.cases.jsonl").read_text().splitlines()[1:]
    assert sorted(json.loads(line)["case"] for line in journal) == sorted(case["case"] for case in cases)
    assert not (checked.folder / "r" / ".check").exists(), "workers take their files with them"


def test_failures_are_told_first(checked: Checked) -> None:
    out = checked.done.stdout
    case = checked.case("segfault")
    assert out.index(f"day0 repro RUN/{case['reproducer']}") < out.index("nearest to its limit")
    text = f"✗ aten::silu {case['shapes']} [ordinary] aten::silu@1 base:mine==1.0: crashed: {case['reason']}"
    assert text in out


def test_results_do_not_depend_on_the_number_of_workers_and_a_repaired_kernel_passes(checked: Checked) -> None:
    case = checked.case("unwritten")
    repaired = checked.folder / "repaired"
    repaired.touch()
    try:
        done = checked.repro(case)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "passes now" in done.stdout
        found = []
        for jobs in (1, 3):
            done = run_day0("check", "--run", "r", "--force", "--jobs", jobs, cwd=checked.folder)
            assert done.returncode == 0, done.stdout + done.stderr
            found.append(checked.cases())
        assert found[0] == found[1]
        assert not (checked.folder / "r" / "repro").exists(), "of failures that are no more"
    finally:
        repaired.unlink()
