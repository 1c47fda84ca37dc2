"""The Triton kernels without a GPU: right in Triton's interpreter, and compiled for a Hopper GPU.

Both run in processes of their own: the interpreter is chosen when a kernel is made, and kernels are kept.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from day0.kernels.load import load_implementations
from tests.kernels.planted import PLANTED

ROOT = Path(__file__).parents[2]
NAMES = sorted(
    {
        one.operator.removeprefix("day0::")
        for one in load_implementations()
        if one.origin.startswith("kernels/triton/") and not one.operator.endswith("mxfp4_decode")
    }
)
"""The kernel of mxfp4_decode is machine code where it is quick; what is left is judged by tests/converters."""
QUICK = ("gated_activation", "paged_kv_write", "sparse_mla_prefill", "fused_experts")
"""Those that are interpreted each time; the others take minutes together."""
QUICK_FAULTS = ("scale_forgotten",)
COMPILED_QUICKLY = ("rms_norm",)

needs_triton = pytest.mark.skipif(
    util.find_spec("triton") is None,
    reason="triton is not installed: torch for CUDA brings it, else python -m pip install triton==3.6.0",
)


def lines_of(module: str, *names: str) -> list[dict[str, Any]]:
    """Run a script of this folder; return the lines of JSON that it prints."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    environment.pop("TRITON_INTERPRET", None)
    if module == "interpreter":
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-W", "ignore", "-m", f"tests.kernels.{module}", *names]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def judge(names: tuple[str, ...]) -> None:
    """Every call that a kernel takes is right, and each kernel takes some."""
    found = lines_of("interpreter", *names)
    assert not [one for one in found if one["status"] not in ("pass", "skipped")]
    assert {one["operator"] for one in found if one["status"] == "pass"} == set(names)


def caught(faults: tuple[str, ...]) -> None:
    """Each fault makes a call of its kernel fail, and none crashes it."""
    found = lines_of("interpreter", *(f"plant:{fault}" for fault in faults))
    assert not [one for one in found if one["status"] == "crashed"]
    assert {one["operator"] for one in found if one["status"] == "fail"} == {f"plant:{fault}" for fault in faults}


@needs_triton
def test_some_are_right_in_the_interpreter() -> None:
    judge(QUICK)


@needs_triton
def test_planted_faults_are_caught() -> None:
    caught(QUICK_FAULTS)


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(NAMES) - set(QUICK)))
def test_right_in_the_interpreter(name: str) -> None:
    judge((name,))


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("fault", sorted(set(PLANTED) - set(QUICK_FAULTS)))
def test_every_planted_fault_is_caught(fault: str) -> None:
    caught((fault,))


def compiles(names: tuple[str, ...]) -> None:
    """Each kernel becomes machine code for compute capability 9.0 and fits the shared memory."""
    found = lines_of("compiled", *names)
    assert not [one for one in found if one["status"] != "pass"]
    assert {one["operator"] for one in found} == set(names)


@needs_triton
def test_some_compile_for_hopper() -> None:
    compiles(COMPILED_QUICKLY)


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(NAMES) - set(COMPILED_QUICKLY)))
def test_compiles_for_hopper(name: str) -> None:
    compiles((name,))
