"""Which operators of aten the models call that the simulated device is judged by."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from day0.models.source import open_model
from day0.playbook import ModelPlan


def traced_operators() -> set[str]:
    """Trace them all anew, as the benchmark does."""
    script = _benchmark()
    found = script.operators_of(script.toy_of_references(), mode="real")
    for source, changes in script.MODELS.items():
        found |= script.operators_of(open_model(ModelPlan(source=source, set=changes)))
    return {name for name in found if name.startswith("aten::")}


def _benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "opinfo_on_sim.py"
    spec = importlib.util.spec_from_file_location("opinfo_on_sim", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
