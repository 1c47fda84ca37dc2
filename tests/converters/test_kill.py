"""kill -9 at random moments: nothing that looks finished is not, and what goes on ends in the same bytes."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from day0.converters.convert import MANIFEST
from day0.converters.folder import open_folder
from day0.errors import Day0Error

CALLS = ("pwrite", "fsync", "rename", "open", "link", "unlink")


def forked(action: Callable[[], object], *, dies_at: int | None) -> int:
    """Run in a child that kills itself at its n-th system call that touches a file; returns how many it made.

    Not by the clock: a moment between two calls leaves what the moment after the first one leaves.
    """
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        with os.fdopen(read) as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
        return int(said or 0)
    try:
        count = 0

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count == dies_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)

            return call

        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        action()
        os.write(write, str(count).encode())
        os._exit(0)
    except BaseException:  # noqa: BLE001 - a child must never return into the tests of its parent
        os._exit(1)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_ten_random_moments(kit: Any, tmp_path: Path) -> None:
    tensors: dict[str, Any] = {}
    for layer in range(5):
        tensors |= kit.gpt_oss(1, 256, 64, seed=layer, name=f"model.layers.{layer}.mlp.experts")
    source = kit.write(tmp_path / "s", tensors, shards=5)
    kit.run(source, tmp_path / "whole", "fp8")
    whole = {one.name: one.read_bytes() for one in (tmp_path / "whole").iterdir()}
    calls = forked(lambda: kit.run(source, tmp_path / "count", "fp8"), dies_at=None)
    assert calls > 60
    moments = random.Random(7).sample(range(1, calls), 10)  # noqa: S311 - moments, no secrets
    for moment in moments:
        target = tmp_path / f"t{moment}"
        forked(lambda target=target: kit.run(source, target, "fp8"), dies_at=moment)  # type: ignore[misc]
        if target.exists():
            for one in target.iterdir():
                if one.name in whole:
                    assert one.read_bytes() == whole[one.name], f"{one.name} has its name and is not whole"
            if not {MANIFEST, "model.safetensors.index.json"} <= {one.name for one in target.iterdir()}:
                with pytest.raises(Day0Error):
                    open_folder(target)
        kit.run(source, target, "fp8")
        assert {one.name: one.read_bytes() for one in target.iterdir()} == whole, moment
