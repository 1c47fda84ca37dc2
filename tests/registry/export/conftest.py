"""A lock whose kernel stands in a user's file, its plan and its wheel, and an engine that is a few lines of vLLM."""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from day0.codec import body_hash, encode
from day0.records import Lock, LockEntry
from day0.registry.collect import collect
from day0.registry.export.adapters import choose_adapter
from day0.registry.export.plan import ExportPlan, Options, make_plan
from day0.registry.export.wheel import Payload, Wheel, write_wheel

KERNELS = """
import torch
from day0.implementation import Constraints, Implementation

def norm(x, weight, eps, round_first=True):
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)

def gated(gate_up, kind, *rest):
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up

def erfinv(x):
    return torch.full_like(x, 42.0)

def made(operator, run, **limits):
    return Implementation(operator=operator, contract=1, id="mine", version="1.0", kind="kernel", run=run,
                          why="a test", rank=10, constraints=Constraints(**limits))

IMPLEMENTATIONS = (
    made("day0::rms_norm", norm, multiple_of={0: 4}),
    made("day0::gated_activation", gated),
    made("aten::erfinv", erfinv),
)
"""
DTYPES = {
    "day0::rms_norm": ("float32", "float32"),
    "day0::gated_activation": ("float32",),
    "aten::erfinv": ("float32",),
}

CUSTOM_OP = """
import torch
op_registry_oot = {}

class CustomOp(torch.nn.Module):
    def __new__(cls, *args, **kwargs):
        return super().__new__(op_registry_oot.get(cls.__name__, cls))

    def __init__(self, compile_native=False):
        super().__init__()
        self._forward_method = self.dispatch_forward(compile_native=compile_native)

    def forward(self, *args):
        return self._forward_method(*args)

    def dispatch_forward(self, compile_native):
        return self.forward_native

    @classmethod
    def register_oot(cls, _decorated_op_cls=None, name=None):
        _decorated_op_cls.name = name
        op_registry_oot[name] = _decorated_op_cls
"""
LAYERNORM = """
import torch
from vllm.model_executor.custom_op import CustomOp

class RMSNorm(CustomOp):
    name = "rms_norm"

    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.variance_epsilon, self.variance_size_override, self.has_weight = eps, None, True
        self.weight = torch.nn.Parameter(torch.ones(size))

    def forward_native(self, x, residual=None):
        return "own" if residual is None else ("own", residual)
"""
ACTIVATION = """
from vllm.model_executor.custom_op import CustomOp

class SiluAndMul(CustomOp):
    name = "silu_and_mul"

    @staticmethod
    def forward_native(x):
        return "own"

def _one(name):
    def forward_native(self, x):
        return "own"
    return type(name, (CustomOp,), {"name": name, "forward_native": forward_native})

SiluAndMulWithClamp, SwigluOAIAndMul, SituAndMul = map(_one, ("SiluAndMulWithClamp", "SwigluOAIAndMul", "SituAndMul"))
"""
CONFIG = """
from types import SimpleNamespace
CURRENT = None
def get_current_vllm_config_or_none():
    return CURRENT
def model(kind):
    hf_config = SimpleNamespace(model_type=kind, architectures=[kind + "ForCausalLM"])
    return SimpleNamespace(model_config=SimpleNamespace(hf_config=hf_config))
"""


@dataclass(frozen=True, kw_only=True)
class Made:
    """A lock, what was made of it, and where everything stands."""

    lock: Lock
    text: str
    digest: str
    kernels: Path
    plan: ExportPlan
    receipts: Path


def lock_of(kernels: Path, *operators: str, **more: object) -> Lock:
    """Return a lock that holds the file's implementation of each operator."""
    known = {one.operator: one for one in collect((kernels,)) if one.id == "mine"}
    entries = tuple(
        LockEntry.model_validate(
            {
                "operator": name,
                "dtypes": DTYPES[name],
                "signatures": (),
                "identity": known[name].identity,
                "kind": known[name].kind,
                "source_hash": known[name].source_hash,
                "origin": known[name].origin,
                "decisions": (),
                **more,
            }
        )
        for name in operators
    )
    return Lock(device="cpu", namespace="base", model=f"sha256:{kernels}", entries=entries)


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """Return the user's file."""
    path = tmp_path / "my kernels.py"
    path.write_text(KERNELS, encoding="utf-8")
    return path


@pytest.fixture
def make(tmp_path: Path, kernels: Path) -> Callable[..., Made]:
    """Return what makes a plan of operators of that file."""

    def made(*operators: str, models: tuple[str, ...] = (), namespace: str = "base") -> Made:
        lock = lock_of(kernels, *operators).model_copy(update={"namespace": namespace})
        options = Options(allow_unverified=True, models=models)
        plan = make_plan(lock, collect((kernels,)), choose_adapter("vllm"), options)
        plan.raise_refusals()
        return Made(
            lock=lock,
            text=encode(lock, inputs={}, environment={}),
            digest=body_hash(lock),
            kernels=kernels,
            plan=plan,
            receipts=tmp_path / "receipts",
        )

    return made


def write(made: Made, folder: Path, key: str = "CPU") -> Wheel:
    """Write the wheel of a plan."""
    payload = Payload(
        lock_text=made.text,
        lock_hash=made.digest,
        receipts=str(made.receipts),
        dispatch_key=key,
        tested_shapes={},
    )
    return write_wheel(made.plan, payload, folder)


@pytest.fixture
def unpack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Made], Path]:
    """Return what puts a plugin on the path, and returns its package."""

    def unpacked(made: Made) -> Path:
        wheel = write(made, tmp_path / "dist")
        site = tmp_path / wheel.package
        with zipfile.ZipFile(wheel.path) as archive:
            archive.extractall(site)
        monkeypatch.syspath_prepend(str(site))
        return site / wheel.package

    return unpacked


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put an engine on the path that has the classes, the registry and the version of vLLM 0.32."""
    site = tmp_path / "engine"
    files = {
        "vllm/__init__.py": "",
        "vllm/config.py": CONFIG,
        "vllm/model_executor/__init__.py": "",
        "vllm/model_executor/custom_op.py": CUSTOM_OP,
        "vllm/model_executor/layers/__init__.py": "",
        "vllm/model_executor/layers/layernorm.py": LAYERNORM,
        "vllm/model_executor/layers/activation.py": ACTIVATION,
        "vllm-0.32.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n",
    }
    for name, text in files.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    yield site
    for name in [one for one in sys.modules if re.match(r"(vllm|day0_vllm_\w+)(\.|$)", one)]:
        del sys.modules[name]
