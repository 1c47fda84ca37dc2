"""The checks of `benchmarks/dispatch_cuda.py` as tests, where there is a GPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from day0.reference_ops.torch_ops import register_operators

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "dispatch_cuda.py"


def _script() -> Any:
    spec = importlib.util.spec_from_file_location("dispatch_cuda", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.filterwarnings("ignore")
def test_every_check_holds_on_the_gpu() -> None:
    register_operators()
    script = _script()
    for check in (*script.CHECKS, *script.CUDA_CHECKS):
        assert check()
