"""The adapter in an engine that has vLLM's classes and registry in a few lines; the real one is in tests/engines."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from day0.registry.export.gate import read_receipts
from tests.registry.export.conftest import Made

OPERATORS = ("day0::rms_norm", "day0::gated_activation")


def register(package: Path) -> Any:
    """Call the plugin's entry point as the engine does, and return its module."""
    module = importlib.import_module(f"{package.name}.engine")
    module.register()
    return module


def build(kind: str, module: str, name: str, *args: Any) -> Any:
    """Build a layer inside the configuration of a model, as the engine does."""
    config = importlib.import_module("vllm.config")
    config.__dict__["CURRENT"] = config.model(kind)
    prefix = f"model.{name}"
    assert prefix
    return getattr(importlib.import_module(f"vllm.model_executor.layers.{module}"), name)(*args)


def calls(made: Made) -> dict[tuple[str, str], int]:
    (process,) = read_receipts(made.receipts, made.digest).processes
    return {(one.target, one.site): one.count for one in process.calls}


def declined(made: Made) -> list[tuple[str, str, bool]]:
    (process,) = read_receipts(made.receipts, made.digest).processes
    return [(one.target, one.reason, one.meant) for one in process.declined if not one.target.startswith("hw_agnostic")]


def test_a_layer_calls_the_locked_implementation_and_it_is_written_down(
    make: Callable[..., Made], unpack: Callable[[Made], Path], vllm: Path
) -> None:
    made = make(*OPERATORS)
    register(unpack(made))
    norm, gated = build("llama", "layernorm", "RMSNorm", 8), build("llama", "activation", "SiluAndMul")
    x, residual = torch.randn(3, 8), torch.randn(3, 8)
    want = torch.nn.functional.rms_norm(x, (8,), norm.weight.data, 1e-6)
    torch.testing.assert_close(norm(x), want)
    y, total = norm(x, residual)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(total, (8,), norm.weight.data, 1e-6))
    assert gated(torch.randn(3, 8)).shape == (3, 4)
    assert calls(made) == {("RMSNorm", "model.RMSNorm"): 2, ("SiluAndMul", "model.SiluAndMul"): 1}
    assert declined(made) == []
    assert norm.name == "rms_norm", "custom_ops=['+rms_norm'] has to go on finding the layer"


def test_registering_again_changes_nothing(
    make: Callable[..., Made], unpack: Callable[[Made], Path], vllm: Path
) -> None:
    made = make(*OPERATORS)
    module = register(unpack(made))
    registry = importlib.import_module("vllm.model_executor.custom_op").op_registry_oot
    before = dict(registry)
    module.register()
    assert registry == before


def test_two_owners_of_a_target_are_both_named(
    make: Callable[..., Made], unpack: Callable[[Made], Path], vllm: Path
) -> None:
    package = unpack(make(*OPERATORS))
    registry = importlib.import_module("vllm.model_executor.custom_op").op_registry_oot
    registry["RMSNorm"] = type("Theirs", (), {"__module__": "their_plugin"})
    with pytest.raises(Exception, match=r"their_plugin\.Theirs has replaced it, and day0-vllm-base .* wants to"):
        register(package)


def test_two_plugins_for_two_models_serve_one_process_whichever_comes_first(
    make: Callable[..., Made], unpack: Callable[[Made], Path], vllm: Path
) -> None:
    one = make("day0::rms_norm", models=("llama",), namespace="llama/v1")
    other = make("day0::rms_norm", models=("qwen3",), namespace="qwen/v3")
    third = make("day0::rms_norm", models=("llama",), namespace="llama/v2")
    modules = [register(unpack(made)) for made in (one, other)]
    for module in modules:
        module.register()
    build("llama", "layernorm", "RMSNorm", 8)(torch.randn(2, 8))
    for _ in range(2):
        build("qwen3", "layernorm", "RMSNorm", 8)(torch.randn(2, 8))
    assert sum(calls(one).values()) == 1
    assert sum(calls(other).values()) == 2
    assert build("gemma3", "layernorm", "RMSNorm", 8)(torch.randn(2, 8)) == "own"
    with pytest.raises(Exception, match=r"day0-vllm-llama-v1 .* has replaced it, and day0-vllm-llama-v2 .* wants to"):
        register(unpack(third))


def test_another_model_in_the_process_runs_the_engines_own(
    make: Callable[..., Made], unpack: Callable[[Made], Path], vllm: Path
) -> None:
    made = make("day0::rms_norm", models=("llama",))
    register(unpack(made))
    assert build("gemma3", "layernorm", "RMSNorm", 8)(torch.randn(2, 8)) == "own"
    assert declined(made) == [("RMSNorm", "the model is gemma3 gemma3ForCausalLM", True)]
    assert isinstance(build("llama", "layernorm", "RMSNorm", 8)(torch.randn(2, 8)), torch.Tensor)


def test_dtypes_that_are_not_locked_run_the_engines_own_and_are_counted(
    make: Callable[..., Made], unpack: Callable[[Made], Path], vllm: Path
) -> None:
    made = make("day0::rms_norm")
    register(unpack(made))
    layer = build("llama", "layernorm", "RMSNorm", 8).to(torch.bfloat16)
    assert layer(torch.randn(2, 8).to(torch.bfloat16)) == "own"
    reason = "day0::rms_norm is not locked for torch.bfloat16 torch.bfloat16"
    assert declined(made) == [("RMSNorm", reason, False)]


def test_sizes_that_the_constraints_refuse_run_the_reference_and_are_counted(
    make: Callable[..., Made], unpack: Callable[[Made], Path], vllm: Path
) -> None:
    made = make("day0::rms_norm")
    register(unpack(made))
    x = torch.randn(2, 6)
    torch.testing.assert_close(
        build("llama", "layernorm", "RMSNorm", 6)(x), torch.nn.functional.rms_norm(x, (6,), eps=1e-6)
    )
    assert calls(made) == {}
    ((target, reason, meant),) = declined(made)
    assert (target, meant) == ("RMSNorm", False)
    assert "does not take the call" in reason
    assert "multiple" in reason


def test_it_compiles_without_a_break_and_counts_inside(
    make: Callable[..., Made], unpack: Callable[[Made], Path], vllm: Path
) -> None:
    made = make("day0::rms_norm")
    register(unpack(made))
    layer = build("llama", "layernorm", "RMSNorm", 8)
    compiled = torch.compile(lambda x: layer(x) + 1.0, backend="eager", fullgraph=True)
    x = torch.randn(3, 8)
    for _ in range(4):
        torch.testing.assert_close(compiled(x), layer.forward_native.__self__(x) + 1.0)
    assert calls(made) == {("RMSNorm", "model.RMSNorm"): 8}
    wide = build("llama", "layernorm", "RMSNorm", 8).to(torch.float64)
    refused = torch.compile(lambda x: wide(x) == "own", backend="eager", fullgraph=True)
    assert refused(torch.randn(3, 8, dtype=torch.float64)) is True
    assert [reason for _, reason, _ in declined(made)] == [
        "day0::rms_norm is not locked for torch.float64 torch.float64"
    ]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return x[..., :2].clone()", r"returned torch.float32 \[3, 2\], and the contract says torch.float32 \[3, 8\]"),
        ("return x", "returned memory of an argument"),
        ("return None", "returned NoneType"),
    ],
)
def test_a_kernel_that_breaks_the_contract_stops_the_engine(
    make: Callable[..., Made],
    unpack: Callable[[Made], Path],
    vllm: Path,
    kernels: Path,
    body: str,
    said: str,
) -> None:
    text = kernels.read_text(encoding="utf-8")
    kernels.write_text(text.replace("return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)", body))
    register(unpack(make("day0::rms_norm")))
    layer = build("llama", "layernorm", "RMSNorm", 8)
    with pytest.raises(Exception, match=said):
        layer(torch.randn(3, 8))


def change(package: Path, name: str) -> None:
    path = package / name
    path.write_bytes(path.read_bytes() + b"\n# changed\n")


@pytest.mark.parametrize("name", ["with/0_my kernels.py", "ops.lock", "core.py"])
def test_a_file_that_was_changed_after_the_export_is_named(
    make: Callable[..., Made], unpack: Callable[[Made], Path], vllm: Path, name: str
) -> None:
    package = unpack(make("day0::rms_norm"))
    change(package, name)
    with pytest.raises(Exception, match="was changed after the export"):
        register(package)


def test_an_implementation_beside_the_engine_that_is_not_what_was_locked_is_refused(
    make: Callable[..., Made], unpack: Callable[[Made], Path], vllm: Path
) -> None:
    package = unpack(make("day0::rms_norm"))
    path = package / "MANIFEST.json"
    manifest = json.loads(path.read_text())
    for change, said in (({"source_hash": "sha256:0"}, "is not what was locked"), ({"identity": "x"}, "is not there")):
        path.write_text(json.dumps({**manifest, "entries": [{**manifest["entries"][0], **change}]}))
        with pytest.raises(Exception, match=said):
            register(package)


def test_an_engine_that_was_not_tested_is_refused(
    make: Callable[..., Made], unpack: Callable[[Made], Path], vllm: Path
) -> None:
    metadata = vllm / "vllm-0.32.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("0.32.0", "0.34.0"))
    with pytest.raises(Exception, match=r"tested with vllm >=0\.32\.0,<0\.33, and 0\.34\.0 is installed"):
        register(unpack(make("day0::rms_norm")))


def test_another_version_of_day0_is_refused(
    make: Callable[..., Made], unpack: Callable[[Made], Path], vllm: Path
) -> None:
    package = unpack(make("day0::rms_norm"))
    path = package / "MANIFEST.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "requires": ["day0==9.9"]}))
    with pytest.raises(Exception, match=r"the plugin was exported with day0==9\.9"):
        register(package)


def test_an_aten_operator_is_overridden_for_its_dtypes_and_counted(
    make: Callable[..., Made], unpack: Callable[[Made], Path], vllm: Path
) -> None:
    made = make("aten::erfinv")
    before = torch.erfinv(torch.tensor(0.5, dtype=torch.float64))
    package = unpack(made)
    module = importlib.import_module(f"{package.name}.core")
    bundle = module.open_bundle(package, engine_version="0.32.0", role="test")
    bundle.override_aten()
    try:
        assert float(torch.erfinv(torch.tensor([0.5]))) == 42.0
        assert torch.erfinv(torch.tensor(0.5, dtype=torch.float64)) == before
        assert calls(made) == {("aten", "aten::erfinv"): 1}
    finally:
        bundle.overloads["aten::erfinv"]._destroy()
    assert float(torch.erfinv(torch.tensor([0.5]))) != 42.0
    assert package.name in {name.partition(".")[0] for name in sys.modules}
