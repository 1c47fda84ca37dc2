"""Run layers of SGLang without its engine: `sglang_ops.py CHECKPOINT OUT.json SCENE`.

SGLang's own loader of plugins runs, then a stand-in for its loader of models puts a few of its layers together: what
the plugin watches is watched. Scenes: `layers`, `subclasses`, `pinned`, `router`; and `ports`, which holds what the
adapter makes of every layer's call, computed by the references, against the layer itself, without a plugin.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import sglang_prelude  # type: ignore[import-not-found]  # tests/engines is no package

if not os.environ.get("SGLANG_PLATFORM"):
    sglang_prelude.stand_in_for_rotary()

import torch
from torch import nn

Calls = dict[str, tuple[nn.Module, tuple[Any, ...], Callable[..., Any]]]
"""By name: a layer, the arguments of its call, and what SGLang's own code computes."""


def main(out: Path, scene: str) -> None:
    """Write whether every layer returns what SGLang's own code does, and what SGLang's trace says ran."""
    from sglang.kernels.fused_op import enable_fused_op_trace, get_fused_op_trace  # type: ignore[import-not-found]
    from sglang.srt.plugins import load_plugins  # type: ignore[import-not-found]

    torch.manual_seed(0)
    if scene == "ports":
        agree, trace = ports(), []
    else:
        load_plugins()
        calls = SCENES[scene]()
        load(nn.ModuleDict({name: layer for name, (layer, _, _) in calls.items()}))
        enable_fused_op_trace()
        with torch.no_grad():
            agree = {name: close(layer(*args), own(*args)) for name, (layer, args, own) in calls.items()}
        trace = [f"{one.op}: {one.backend}" for one in get_fused_op_trace()]
    print(agree, trace)
    text = json.dumps({"agree": all(agree.values()), "layers": agree, "trace": trace})
    out.write_text(f"{text}\n", encoding="utf-8")


def load(model: nn.Module) -> None:
    """Hand a model to whoever watches SGLang's loader, which here has nothing to load."""
    from sglang.srt.model_executor.model_runner import ModelRunner  # type: ignore[import-not-found]

    wrapped: Any = ModelRunner.load_model
    original = getattr(wrapped, "__wrapped__", None)
    for cell in wrapped.__closure__ or ():
        if original is not None and cell.cell_contents is original:
            cell.cell_contents = lambda runner: None
    config = SimpleNamespace(model_type="llama", architectures=["LlamaForCausalLM"])
    if original is not None:
        wrapped(SimpleNamespace(model=model, model_config=SimpleNamespace(hf_config=config)))


def close(found: Any, wanted: Any) -> bool:
    """Compare results of one call; experts of a router may come in another order."""
    pairs = zip(*(one if isinstance(one, tuple) else (one,) for one in (found, wanted)), strict=True)
    return all(
        one.dtype == two.dtype and torch.allclose(one.sort().values, two.sort().values, atol=1e-5, rtol=1e-5)
        for one, two in pairs
    )


def layers() -> Calls:
    """A norm and an activation."""
    from sglang.srt.layers.activation import SiluAndMul  # type: ignore[import-not-found]

    act, x = SiluAndMul(), torch.randn(4, 64)
    return {"norm": (norm := _norm(), (x,), norm.forward_native), "act": (act, (x,), act.forward_native)}


def _norm(cls: Any = None, **more: Any) -> Any:
    from sglang.srt.layers.layernorm import RMSNorm  # type: ignore[import-not-found]

    made = (cls or RMSNorm)(64, **more)
    nn.init.normal_(made.weight)
    return made


def subclasses() -> Calls:
    """An heir of the norm that only a model's file defines, and one that computes something else."""
    from sglang.srt.layers.layernorm import RMSNorm

    def doubled(self: Any, x: torch.Tensor, *more: Any) -> torch.Tensor:
        return 2 * x

    heir = type("Heir", (RMSNorm,), {})
    made = {
        "norm": _norm(),
        "heir": _norm(type("Late", (heir,), {})),
        "other": _norm(type("Other", (RMSNorm,), {"forward_native": doubled})),
    }
    x = torch.randn(4, 64)
    return {name: (layer, (x,), layer.forward_native) for name, layer in made.items()}


def pinned() -> Calls:
    """A norm whose constructor has chosen for itself."""
    x = torch.randn(4, 64)
    made = {"norm": _norm(), "pinned": _norm(force_native=True)}
    return {name: (layer, (x,), layer.forward_native) for name, layer in made.items()}


def router() -> Calls:
    """The router of a mixture of experts, which is a function of SGLang's that a layer calls."""
    from sglang.srt.layers.moe import topk  # type: ignore[import-not-found]

    class Router(nn.Module):
        def forward(self, hidden: torch.Tensor, logits: torch.Tensor, bias: torch.Tensor) -> Any:
            return topk.biased_grouped_topk(hidden, logits, bias, 2, True, 4, 2)

    def own(hidden: torch.Tensor, logits: torch.Tensor, bias: torch.Tensor) -> Any:
        return topk.biased_grouped_topk_impl(hidden, logits, bias, 2, True, 4, 2)

    return {"router": (Router(), (torch.randn(5, 8), torch.randn(5, 16), torch.randn(16)), own)}


class References:
    """Stands for a bundle: everything is locked, and the references compute it."""

    def refuse(self, operator: str, *tensors: torch.Tensor) -> str:
        """Take everything."""
        return ""

    def call(self, operator: str, place: str, *args: Any) -> Any:
        """Compute by the reference."""
        from day0.reference_ops.load import load_operators

        return load_operators()[operator].reference(*args)


def ports() -> dict[str, bool]:
    """Hold the adapter's translation of every target's call against the target's own forward."""
    from sglang.srt.layers.activation import SiluAndMul, SituAndMul
    from sglang.srt.layers.moe import topk
    from sglang.srt.layers.rotary_embedding import get_rope  # type: ignore[import-not-found]

    from day0.registry.export.engines.sglang_0_5_23 import _PORTS

    x, residual = torch.randn(5, 64), torch.randn(5, 64)
    turn = (torch.tensor([0, 3, 1, 7, 2]), torch.randn(5, 128), torch.randn(5, 64))
    routed = (torch.randn(5, 8), torch.randn(5, 16), torch.randn(16))
    cases: list[tuple[str, str, Any, tuple[Any, ...]]] = [
        ("norm", "RMSNorm", _norm(), (x,)),
        ("norm with a residual", "RMSNorm", _norm(), (x, residual)),
        ("norm that rounds first", "RMSNorm", _norm(cast_x_before_out_mul=True), (x, residual)),
        ("swiglu", "SiluAndMul", SiluAndMul(), (x,)),
        ("situ", "SituAndMul", SituAndMul(beta=2.0), (x,)),
        ("situ with a bound", "SituAndMul", SituAndMul(beta=2.0, linear_beta=3.0), (x,)),
        ("rope, halves", "RotaryEmbedding", get_rope(32, 32, 16, 10000, True), turn),
        ("rope, interleaved", "RotaryEmbedding", get_rope(32, 16, 16, 10000, False), turn),
        ("router", "biased_grouped_topk", SimpleNamespace(), (*routed, 2, True, 4, 2)),
        ("router with a scale", "biased_grouped_topk", SimpleNamespace(), (*routed, 2, True, 4, 2, 0, 2.5, True)),
    ]
    agree = {}
    with torch.no_grad():
        for name, target, layer, args in cases:
            own = getattr(layer, "forward_native", topk.biased_grouped_topk_impl)(*args)
            layer._day0_site = f"{target} @ here"
            decided: Any = _PORTS[target](References(), layer, *args)
            agree[name] = callable(decided) and close(decided(), own)
    return agree


SCENES = {"layers": layers, "subclasses": subclasses, "pinned": pinned, "router": router}

if __name__ == "__main__":
    main(Path(sys.argv[2]), sys.argv[3])
