"""What a process holds is its own: not what the one that has started it held."""

from __future__ import annotations

import os
import subprocess
import sys

from day0.analyzers.resident import peak_resident, resident

PROGRAM = "from day0.analyzers.resident import peak_resident; print(peak_resident())"
HELD = 400 << 20


def test_a_child_of_a_large_process_has_a_peak_of_its_own() -> None:
    held = os.urandom(HELD)
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < HELD // 2
    assert len(held) == HELD


def test_the_peak_stays_when_memory_is_given_back() -> None:
    held = os.urandom(HELD)
    most = resident(os.getpid())
    del held
    assert peak_resident() >= most - (1 << 20)
    assert most > HELD


def test_a_process_that_is_gone_holds_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
        assert resident(child.pid) == 0
