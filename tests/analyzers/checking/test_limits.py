"""How much of the host's memory a case takes, measured: less than a worker may take for its size."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from day0.analyzers.cases.case import Case
from day0.analyzers.checking.case import check_case
from day0.analyzers.checking.limits import TIMES_CASE
from day0.records import Lock
from day0.reference_ops.signatures import describe

ROOT = Path(__file__).resolve().parents[3]
MEASURE = """
import sys, torch
from day0.analyzers.cases.case import Case
from day0.analyzers.checking.case import check_case
from day0.records import Lock
from day0.reference_ops.signatures import describe

def told(name):
    lines = open("/proc/self/status", encoding="ascii").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))

rows = torch.zeros(1 << 14, 64, dtype=torch.bfloat16)  # 2 MiB, and as much of results
calls = {"cumsum": (rows, 1), "mm": (rows, rows[:64].contiguous()), "silu": (rows,)}
for name, args in calls.items():
    case = Case(signature_id="x", signature=describe(f"aten::{name}", args, {}), regime="ordinary", seed=0)
    lock = Lock(device="cpu", namespace="base", model="x", entries=())
    check_case(case, torch.device("cpu"), None, lock, max_bytes=1 << 30)  # libraries load
    open("/proc/self/clear_refs", "w").write("5")
    before = told("VmRSS")
    found = check_case(case, torch.device("cpu"), None, lock, max_bytes=1 << 30)
    print(found.status, (told("VmHWM") - before) / (2 * rows.nbytes))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no Linux")
def test_a_case_takes_no_more_than_its_limit_allows() -> None:
    # Freed memory goes back at once, as that of a case of the largest size does.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", MEASURE]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [line.split() for line in done.stdout.splitlines()]
    assert [status for status, _ in found] == ["pass"] * 3
    taken = [float(times) for _, times in found]
    assert 10.0 < max(taken) < TIMES_CASE, taken


def test_results_count_as_well_as_arguments() -> None:
    signature = describe("aten::mm", (torch.zeros(512, 1), torch.zeros(1, 512)), {})
    case = Case(signature_id="x", signature=signature, regime="ordinary", seed=0)
    lock = Lock(device="cpu", namespace="base", model="x", entries=())
    found = check_case(case, torch.device("cpu"), None, lock, max_bytes=1 << 16)
    assert found.status == "skipped"
    assert found.reason == "its tensors and results take 1 MiB, more than 0 MiB"
    assert check_case(case, torch.device("cpu"), None, lock, max_bytes=1 << 21).status == "pass"
