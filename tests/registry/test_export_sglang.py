"""The SGLang adapter on small stand-ins for SGLang's classes; tests/engines/run_sglang.py does the same in SGLang."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from day0.errors import Day0Error
from day0.reference_ops.load import load_operators
from day0.registry.export import sglang_platform
from day0.registry.export.adapters import choose_adapter
from day0.registry.export.engines import sglang_0_5_23 as adapter
from day0.registry.export.runtime import sglang as routes
from day0.registry.export.runtime.spec import TargetError

Owner = tuple[str, str, str, bool]


class Backend(Enum):
    PLUGIN = "plugin"
    TRITON = "triton"
    TORCH = "torch"


class BaseFusedOp(nn.Module):
    """SGLang's dispatch in its order: forced backend, out of tree, kernel backends, platform method, native."""

    priority: ClassVar[tuple[Backend, ...]] = (Backend.TRITON, Backend.PLUGIN, Backend.TORCH)
    capabilities: ClassVar[dict[Backend, frozenset[str]]] = {}
    _oot_forward_registry: ClassVar[dict[str, dict[type, Callable[..., Any]]]] = {}
    key: ClassVar[str | None] = None
    forced: ClassVar[Backend | None] = None

    def __init__(self) -> None:
        super().__init__()
        self._forward_method: Callable[..., Any] | None = None

    @classmethod
    def register_oot_forward(cls, op_cls: type, fn: Callable[..., Any], platform_key: str) -> None:
        cls._oot_forward_registry.setdefault(platform_key, {})[op_cls] = fn

    def forward_native(self, *args: Any) -> Any:
        raise NotImplementedError

    def forward_plugin(self, *args: Any) -> Any:
        raise NotImplementedError

    def forward_triton(self, *args: Any) -> Any:
        raise NotImplementedError

    def _platform_method(self, key: str) -> Any:
        return getattr(self, f"forward_{key}", None) if key else None

    def backend_eligible(self, backend: Backend, *args: Any, **kwargs: Any) -> bool:
        return True

    def _resolve_forward_method(self) -> Callable[..., Any]:
        if self.key is not None:
            found = self._oot_forward_registry.get(self.key, {}).get(type(self))
            bound: Any = found.__get__(self) if found is not None else None
            return bound or self._platform_method(self.key) or self.forward_native
        ours = [one for one in self.priority if one in self.capabilities and one is not Backend.TORCH]
        if ours:
            self._dynamic_backend_candidates = tuple(ours)
            return self._forward_backend_dynamic
        return self.forward_native

    def _forward_backend_dynamic(self, *args: Any, **kwargs: Any) -> Any:
        for backend in self._dynamic_backend_candidates:
            if self.backend_eligible(backend, *args, **kwargs):
                return getattr(self, f"forward_{backend.value}")(*args, **kwargs)
        return self.forward_native(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.forced is Backend.TORCH:
            return self.forward_native(*args, **kwargs)
        if self._forward_method is None:
            self._forward_method = self._resolve_forward_method()
        return self._forward_method(*args, **kwargs)


class HookType(Enum):
    AROUND = "around"
    REPLACE = "replace"


class Hooks:
    """SGLang's hooks: the last REPLACE wins, and modules that hold the old function by name are given the new one."""

    _hooks: ClassVar[dict[str, list[tuple[HookType, Any, None]]]] = {}
    _patched: ClassVar[set[str]] = set()

    @classmethod
    def register(cls, target: str, hook: Any, hook_type: HookType) -> None:
        cls._hooks.setdefault(target, []).append((hook_type, hook, None))

    @classmethod
    def apply_hooks(cls) -> None:
        for target, hooks in cls._hooks.items():
            holder, _, name = target.rpartition(".")
            place: Any = sys.modules.get(holder)
            if place is None:
                place = getattr(sys.modules[holder.rpartition(".")[0]], holder.rpartition(".")[2])
            for kind, hook, _source in hooks:
                original = getattr(place, name)
                setattr(place, name, hook if kind is HookType.REPLACE else _around(original, hook))
            cls._patched.add(target)


def _around(original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: hook(original, *args, **kwargs)


@dataclass
class Book:
    """What would stand in a receipt."""

    holes: list[Owner] = field(default_factory=list)

    def declined(self, target: str, site: str, reason: str, *, meant: bool = False) -> None:
        self.holes.append((target, site, reason, meant))


@dataclass
class Bundle:
    """A lock that has every operator for float32, and runs the references."""

    folder: Path
    models: tuple[str, ...] = ()
    locked: tuple[str, ...] = ("day0::rms_norm", "day0::fused_add_rms_norm", "day0::gated_activation")
    book: Book = field(default_factory=Book)
    bound: list[tuple[str, str]] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    title: str = "day0-sglang-base 1"
    namespace: str = "day0_base_1"

    @property
    def manifest(self) -> dict[str, Any]:
        return {"models": self.models}

    def serves(self, kind: str, architectures: tuple[str, ...]) -> bool:
        return not self.models or kind in self.models

    def bind(self, target: str, site: str) -> str:
        self.bound.append((target, site))
        return f"{target} @ {site}"

    def refuse(self, operator: str, *tensors: torch.Tensor) -> str:
        if operator not in self.locked:
            return f"{operator} is not in the lock"
        return "" if tensors[0].dtype is torch.float32 else f"{operator} is not locked for {tensors[0].dtype}"

    def call(self, operator: str, place: str, *args: Any) -> Any:
        self.calls.append((operator, place))
        return load_operators()[operator].reference(*args)

    def note(self, place: str, site: str, reason: str) -> None:
        target, _, inner = place.partition(" @ ")
        self.book.declined(target, inner, reason)

    def own(self, holder: Any, reason: str, *args: Any) -> Any:
        self.note(holder._day0_site, "", reason)
        return holder._day0_own(*args)


class Silu(BaseFusedOp):
    """What SiluAndMul is in SGLang."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return nn.functional.silu(gate) * up


@dataclass
class Sglang:
    """The stand-in modules, and what a test does with them."""

    layers: Any
    topk: Any
    fused: Any
    runner: type
    bundle: Bundle

    def install(self, *names: str) -> routes.Plugin:
        targets = tuple(one for one in adapter.ADAPTER.targets if one.name in names)
        plugin = routes.install(self.bundle, targets, adapter._PORTS)  # type: ignore[arg-type]
        Hooks.apply_hooks()
        return plugin

    def load(self, model: nn.Module, kind: str = "llama") -> None:
        config = SimpleNamespace(hf_config=SimpleNamespace(model_type=kind, architectures=["A"]))
        self.runner().load_model_of(model, config)


@pytest.fixture(params=["in_tree", "out_of_tree"])
def sglang(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Sglang]:
    """SGLang on one of its own platforms, and on one from outside."""
    key = "day0" if request.param == "out_of_tree" else None

    class Runner:
        def load_model(self) -> None:
            return None

        def load_model_of(self, model: nn.Module, config: Any) -> None:
            self.model, self.model_config = model, config
            self.load_model()

    class SiluAndMul(Silu):
        pass

    def topk_gpu(*args: Any, **kwargs: Any) -> str:
        return "SGLang's own"

    topk_gpu.__qualname__ = topk_gpu.__name__ = "biased_grouped_topk_gpu"
    topk_gpu.__module__ = "sglang.srt.layers.moe.topk"
    base = type("BaseFusedOp", (BaseFusedOp,), {"_oot_forward_registry": {}, "key": key})
    silu: Any = type("SiluAndMul", (SiluAndMul, base), {})
    made: dict[str, dict[str, Any]] = {
        "sglang.kernels.fused_op": {
            "BaseFusedOp": BaseFusedOp,
            "KernelBackend": Backend,
            "BACKEND_METHODS": {one: f"forward_{one.value}" for one in Backend},
            "get_fused_op_backend": lambda: silu.forced,
            "_platform_key": lambda: "",
        },
        "sglang.srt.platforms": {
            "current_platform": SimpleNamespace(
                is_out_of_tree=lambda: key is not None, get_dispatch_key_name=lambda: key
            )
        },
        "sglang.srt.plugins.hook_registry": {"HookRegistry": Hooks, "HookType": HookType},
        "sglang.srt.model_executor.model_runner": {"ModelRunner": Runner},
        "sglang.srt.layers.activation": {"SiluAndMul": silu},
        "sglang.srt.layers.moe.topk": {"biased_grouped_topk": topk_gpu, "biased_grouped_topk_gpu": topk_gpu},
    }
    for name, content in made.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    for target in adapter.ADAPTER.targets:
        if not target.hook:
            topk_gpu.__signature__ = _signature(target.signature)  # type: ignore[attr-defined]
    monkeypatch.setattr(Hooks, "_hooks", {})
    monkeypatch.setattr(Hooks, "_patched", set())
    modules = sys.modules
    yield Sglang(
        layers=modules["sglang.srt.layers.activation"],
        topk=modules["sglang.srt.layers.moe.topk"],
        fused=modules["sglang.kernels.fused_op"],
        runner=Runner,
        bundle=Bundle(folder=tmp_path),
    )


def _signature(text: str) -> Any:
    import inspect

    names: dict[str, Any] = {}
    exec(f"def function{text}: ...", names)  # noqa: S102 - the adapter's own text
    return inspect.signature(names["function"])


X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


def test_ours_runs_on_both_kinds_of_platform_and_sglangs_trace_would_show_the_namespace(sglang: Sglang) -> None:
    plugin = sglang.install("SiluAndMul")
    layer = sglang.layers.SiluAndMul()
    sglang.load(nn.ModuleDict({"act": layer}))
    torch.testing.assert_close(layer(X), layer.forward_native(X))
    assert sglang.bundle.bound == [("SiluAndMul", "act")]
    assert sglang.bundle.calls == [("day0::gated_activation", "SiluAndMul @ act")]
    assert not sglang.bundle.book.holes
    torch.testing.assert_close(deepcopy(layer)(X), layer.forward_native(X))
    method = layer.forward_plugin if plugin.key is None else layer._forward_method
    assert method.__name__ == "forward_day0_base_1"


def test_what_the_lock_does_not_take_is_sglangs_and_written_down(sglang: Sglang) -> None:
    sglang.install("SiluAndMul")
    layer = sglang.layers.SiluAndMul()
    sglang.load(nn.ModuleDict({"act": layer}))
    assert layer(X.double()).dtype is torch.float64
    assert sglang.bundle.calls == []
    assert sglang.bundle.book.holes == [
        ("SiluAndMul", "act", "day0::gated_activation is not locked for torch.float64", False)
    ]


def test_classes_above_the_target_stay_as_they_are(sglang: Sglang) -> None:
    sglang.install("SiluAndMul")
    assert BaseFusedOp.capabilities == {}
    assert BaseFusedOp.priority[0] is Backend.TRITON
    assert "day0_folders" not in vars(BaseFusedOp.forward_plugin)
    assert not BaseFusedOp._oot_forward_registry


def test_the_wrong_route_is_not_taken_and_refused(sglang: Sglang, monkeypatch: pytest.MonkeyPatch) -> None:
    right = routes._route

    def wrong(plugin: routes.Plugin, target: Any, cls: Any) -> None:
        right(replace(plugin, key="day0" if plugin.key is None else None), target, cls)

    monkeypatch.setattr(routes, "_route", wrong)
    with pytest.raises(TargetError, match=r"SiluAndMul: our forward is in place .* resolves to Silu\.forward_native"):
        sglang.install("SiluAndMul")


def test_a_wrong_route_that_nobody_asked_about_shows_in_the_receipt(
    sglang: Sglang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "_claim", lambda plugin, target, base: plugin.classes.update({base: target}))
    monkeypatch.setattr(routes, "_route", lambda plugin, target, cls: None)
    sglang.install("SiluAndMul")
    layer = sglang.layers.SiluAndMul()
    sglang.load(nn.ModuleDict({"act": layer}))
    layer(X)
    assert sglang.bundle.bound == []
    assert sglang.bundle.book.holes == [("SiluAndMul", "act", "it resolves to Silu.forward_native", False)]


def test_a_second_owner_is_refused_by_both_names(sglang: Sglang) -> None:
    def theirs(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    cls = sglang.layers.SiluAndMul
    cls.register_oot_forward(cls, theirs, "day0")
    cls.forward_plugin = theirs
    with pytest.raises(TargetError, match=r"two owners: .*theirs.*test_export_sglang.py.* day0-sglang-base 1 wants"):
        sglang.install("SiluAndMul")


def test_heirs_are_served_also_late_ones_and_one_that_computes_something_else_is_not(sglang: Sglang) -> None:
    base = sglang.layers.SiluAndMul
    heir = type("Heir", (base,), {})
    sglang.install("SiluAndMul")
    late = type("Late", (heir,), {})
    other = type("Other", (base,), {"forward_native": lambda self, x: 2 * x})
    model = nn.ModuleDict({"heir": heir(), "late": late(), "other": other()})
    sglang.load(model)
    for layer in model.values():
        layer(X)
    assert torch.equal(model["other"](X), 2 * X)
    assert {place for _, place in sglang.bundle.calls} == {"SiluAndMul @ heir", "SiluAndMul @ late"}
    reasons = {hole[1:3] for hole in sglang.bundle.book.holes}
    assert reasons == {("other", "Other has a forward_native of its own")}


def test_a_pinned_layer_is_a_hole(sglang: Sglang) -> None:
    sglang.install("SiluAndMul")
    layer = sglang.layers.SiluAndMul()
    layer._forward_method = layer.forward_native
    sglang.load(nn.ModuleDict({"act": layer}))
    hole = ("SiluAndMul", "act", "the layer is pinned to Silu.forward_native", False)
    assert sglang.bundle.book.holes == [hole]
    assert sglang.bundle.bound == []


def test_a_forced_backend_is_a_hole(sglang: Sglang) -> None:
    sglang.install("SiluAndMul")
    sglang.layers.SiluAndMul.forced = Backend.TORCH
    layer = sglang.layers.SiluAndMul()
    sglang.load(nn.ModuleDict({"act": layer}))
    layer(X)
    assert "the backend 'torch' is forced" in sglang.bundle.book.holes[0][2]
    assert sglang.bundle.calls == []


def test_two_models_in_one_process_and_one_of_them_is_ours(sglang: Sglang) -> None:
    sglang.bundle.models = ("llama",)
    sglang.install("SiluAndMul")
    ours, theirs = sglang.layers.SiluAndMul(), sglang.layers.SiluAndMul()
    sglang.load(nn.ModuleDict({"act": ours}), "llama")
    sglang.load(nn.ModuleDict({"draft": theirs}), "qwen3")
    ours(X)
    torch.testing.assert_close(theirs(X), theirs.forward_native(X))
    assert sglang.bundle.calls == [("day0::gated_activation", "SiluAndMul @ act")]
    assert sglang.bundle.book.holes == [("SiluAndMul", "draft", "the model is qwen3 A", True)]


def test_two_plugins_share_a_class_each_with_its_own_model(sglang: Sglang, tmp_path: Path) -> None:
    sglang.bundle.models = ("llama",)
    sglang.install("SiluAndMul")
    first, sglang.bundle = sglang.bundle, Bundle(folder=tmp_path / "two", models=("qwen3",), title="day0-sglang-two 1")
    sglang.install("SiluAndMul")
    layers = {kind: sglang.layers.SiluAndMul() for kind in ("llama", "qwen3", "gemma")}
    for kind, layer in layers.items():
        sglang.load(nn.ModuleDict({kind: layer}), kind)
        torch.testing.assert_close(layer(X), layer.forward_native(X))
    assert first.calls == [("day0::gated_activation", "SiluAndMul @ llama")]
    assert sglang.bundle.calls == [("day0::gated_activation", "SiluAndMul @ qwen3")]
    assert all(meant for *_, meant in first.book.holes + sglang.bundle.book.holes)


def test_two_plugins_for_one_model_are_refused(sglang: Sglang, tmp_path: Path) -> None:
    sglang.install("SiluAndMul")
    sglang.bundle = Bundle(folder=tmp_path / "two", title="day0-sglang-two 1")
    sglang.install("SiluAndMul")
    with pytest.raises(TargetError, match=r"act: day0-sglang-\w+ 1 and day0-sglang-\w+ 1 both serve this model"):
        sglang.load(nn.ModuleDict({"act": sglang.layers.SiluAndMul()}))


def test_a_layer_outside_of_every_model_is_bound_when_it_is_called(sglang: Sglang) -> None:
    sglang.install("SiluAndMul")
    sglang.layers.SiluAndMul()(X)
    assert sglang.bundle.calls == [("day0::gated_activation", "SiluAndMul @ ")]
    sglang.bundle.models = ("llama",)
    sglang.layers.SiluAndMul()(X)
    assert sglang.bundle.book.holes == [("SiluAndMul", "", "built outside a model", False)]


ROUTER = (X, torch.randn(3, 16, generator=torch.Generator().manual_seed(1)), torch.zeros(16), 2, True, 4, 2)


def test_a_function_is_replaced_where_callers_look_and_old_bindings_are_named(sglang: Sglang) -> None:
    sglang.bundle.locked = ("day0::moe_router",)
    sglang.topk.table = {"cpu": sglang.topk.biased_grouped_topk}
    sglang.install("biased_grouped_topk")
    sglang.load(nn.ModuleDict())
    weights, experts = sglang.topk.biased_grouped_topk(*ROUTER)
    assert (weights.dtype, experts.dtype, experts.shape) == (torch.float32, torch.int32, (3, 2))
    torch.testing.assert_close(weights.sum(-1), torch.ones(3))
    where = "sglang.srt.layers.moe.topk.table (a table)"
    assert sglang.bundle.book.holes == [
        ("biased_grouped_topk", where, "this name still holds SGLang's own function", False)
    ]


def test_a_function_that_refuses_runs_sglangs_own(sglang: Sglang) -> None:
    sglang.bundle.locked = ("day0::moe_router",)
    sglang.install("biased_grouped_topk")
    assert sglang.topk.biased_grouped_topk(*ROUTER, num_fused_shared_experts=1) == "SGLang's own"
    assert "shared experts" in sglang.bundle.book.holes[0][2]


def test_a_later_replacement_and_one_that_was_lost(sglang: Sglang) -> None:
    sglang.install("biased_grouped_topk")
    dotted = "sglang.srt.layers.moe.topk.biased_grouped_topk"
    Hooks.register(dotted, lambda *args: None, HookType.REPLACE)
    sglang.load(nn.ModuleDict())
    assert "registered later" in sglang.bundle.book.holes[0][2]
    Hooks._patched.discard(dotted)
    with pytest.raises(TargetError, match="was told to replace it and has not"):
        sglang.load(nn.ModuleDict())


def test_a_name_that_sglang_does_not_have_and_another_signature_are_errors(sglang: Sglang) -> None:
    cls = sglang.layers.SiluAndMul
    cls.forward_native = lambda self, x, limit=0: x
    with pytest.raises(TargetError, match=r"forward_native\(self, x, limit=0\), and \(self, x\) was tested"):
        sglang.install("SiluAndMul")
    del sglang.layers.SiluAndMul
    with pytest.raises(TargetError, match="has no 'SiluAndMul'"):
        sglang.install("SiluAndMul")


def test_whatever_goes_wrong_in_the_entry_point_ends_the_process(
    sglang: Sglang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "version", lambda name: "0.5.23")
    with pytest.raises(SystemExit, match="SGLang must not start"):
        adapter.register()


def test_the_adapter_says_what_it_was_tested_with() -> None:
    found = choose_adapter("sglang", "0.5.23")
    assert found.name == "sglang_0_5_23"
    with pytest.raises(Day0Error, match="no adapter was tested"):
        choose_adapter("sglang", "0.5.24")
    # A wheel that brings a platform is skipped whole when another platform is chosen.
    assert [group for group, _ in found.adapter.entry_points] == ["sglang.srt.plugins"]
    assert {one.name for one in found.adapter.targets} == set(adapter._PORTS)
    known = load_operators()
    assert all(name in known for one in found.adapter.targets for name in one.operators)


def test_the_platform_is_there_only_for_whom_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    assert sglang_platform.activate() is None
    monkeypatch.setenv("SGLANG_PLATFORM", "another")
    assert sglang_platform.activate() is None
    monkeypatch.setenv("SGLANG_PLATFORM", "day0_cpu")
    assert sglang_platform.activate() == "day0.registry.export.sglang_platform:Platform"


def _norm(**more: Any) -> SimpleNamespace:
    kept = {
        "variance_size_override": None,
        "has_weight": True,
        "fp32_residual": False,
        "override_orig_dtype": None,
        "_quant_linear": None,
        "weight": nn.Parameter(torch.linspace(0.5, 1.5, 8)),
        "variance_epsilon": 1e-6,
        "cast_x_before_out_mul": False,
        "_day0_site": "RMSNorm @ n",
    }
    return SimpleNamespace(**{**kept, **more})


def test_norms_take_the_fused_operator_or_an_addition_before_the_other(tmp_path: Path) -> None:
    bundle, residual = Bundle(folder=tmp_path), X.flip(0)
    port: Any = adapter._PORTS["RMSNorm"]
    fused = port(bundle, _norm(), X, residual)()
    bundle.locked = ("day0::rms_norm",)
    in_two = port(bundle, _norm(), X, residual)()
    torch.testing.assert_close(fused, in_two)
    assert [name for name, _ in bundle.calls] == ["day0::fused_add_rms_norm", "day0::rms_norm"]
    wanted = nn.functional.rms_norm(X + residual, (8,), _norm().weight, 1e-6)
    torch.testing.assert_close(fused[0], wanted.detach())


@pytest.mark.parametrize(
    "more",
    [
        {"variance_size_override": 4},
        {"has_weight": False},
        {"fp32_residual": True},
        {"override_orig_dtype": torch.float16},
        {"x_pad_to_multiple": 4},
    ],
)
def test_norms_that_are_more_than_the_operator_are_left_alone(tmp_path: Path, more: dict[str, Any]) -> None:
    port: Any = adapter._PORTS["RMSNorm"]
    assert isinstance(port(Bundle(folder=tmp_path), _norm(**more), X), str)
    assert isinstance(port(Bundle(folder=tmp_path), _norm(), X, X, X), str)


def test_a_norm_before_a_projection_is_ours_unless_it_has_to_quantise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norms = types.ModuleType("sglang.srt.layers.layernorm")
    norms._fp8_static_input_scale = lambda linear: linear.scale  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, norms.__name__, norms)
    port: Any = adapter._PORTS["RMSNorm"]
    plain, fp8 = SimpleNamespace(scale=None), SimpleNamespace(scale=1.0)
    bundle = Bundle(folder=tmp_path)
    assert callable(port(bundle, _norm(_quant_linear=plain), X))
    assert isinstance(port(bundle, _norm(_quant_linear=fp8), X), str)
    assert isinstance(port(bundle, _norm(_quant_linear=plain), X, None, None, fp8), str)
