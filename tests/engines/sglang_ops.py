"""Run layers of SGLang without its server: `sglang_ops.py OUT.json SCENE`.

SGLang's own loader of plugins runs, then a stand-in for its loader of models puts a few of its layers together: what
the plugin watches is watched. Scenes: `layers`, `subclasses`, `pinned`, `router`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parent))
import sglang_prelude

if not os.environ.get("SGLANG_PLATFORM"):
    sglang_prelude.stand_in_for_rotary()

import torch
from torch import nn


def main(out: Path, scene: str) -> None:
    """Write what the layers return, summed, and what SGLang's own trace says ran."""
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.kernels.fused_op import enable_fused_op_trace, get_fused_op_trace
    from sglang.srt.model_executor.model_runner import ModelRunner

    torch.manual_seed(0)
    model = SCENES[scene]()
    # What the plugin wrapped asks the runner for its weights; here there are none to load.
    wrapped = ModelRunner.load_model
    config = SimpleNamespace(model_type="llama", architectures=["LlamaForCausalLM"])
    runner = SimpleNamespace(model=model, model_config=SimpleNamespace(hf_config=config))
    _without_weights(wrapped)(runner)
    enable_fused_op_trace()
    with torch.no_grad():
        results = {name: layer() for name, layer in model.calls.items()}
    trace = [f"{one.op}: {one.backend}" for one in get_fused_op_trace()]
    out.write_text(json.dumps({"results": results, "trace": trace}) + "\n", encoding="utf-8")


def _without_weights(wrapped):
    """Return the wrapped loader with its innermost function, SGLang's, taken out."""
    original = getattr(wrapped, "__wrapped__", None)
    if original is None:
        return lambda runner: None
    for cell in wrapped.__closure__ or ():
        if cell.cell_contents is original:
            cell.cell_contents = lambda runner: None
    return wrapped


class Layers(nn.Module):
    """A few layers and one call for each."""

    def __init__(self, **layers: nn.Module) -> None:
        super().__init__()
        self.calls = {}
        for name, layer in layers.items():
            setattr(self, name, layer)

    def call(self, name, *args):
        layer = getattr(self, name)

        def run() -> list[float]:
            found = layer(*args)
            found = found if isinstance(found, tuple) else (found,)
            return [float(one.float().abs().sum()) for one in found if isinstance(one, torch.Tensor)]

        self.calls[name] = run
        return self


def layers() -> Layers:
    """A norm and an activation."""
    from sglang.srt.layers.activation import SiluAndMul
    from sglang.srt.layers.layernorm import RMSNorm

    x = torch.randn(4, 64)
    model = Layers(norm=RMSNorm(64), act=SiluAndMul())
    return model.call("norm", x).call("act", x)


def subclasses() -> Layers:
    """An heir of the norm, an heir of an heir that only a model's file defines, and one that computes something else."""
    from sglang.srt.layers.layernorm import RMSNorm

    class Heir(RMSNorm):
        pass

    class Other(RMSNorm):
        def forward_native(self, x, residual=None, post_residual_addition=None, quant_linear=None):
            return 2 * x

    x = torch.randn(4, 64)
    model = Layers(norm=RMSNorm(64), heir=type("Late", (Heir,), {})(64), other=Other(64))
    return model.call("norm", x).call("heir", x).call("other", x)


def pinned() -> Layers:
    """A norm whose constructor has chosen for itself."""
    from sglang.srt.layers.layernorm import RMSNorm

    x = torch.randn(4, 64)
    return Layers(norm=RMSNorm(64), pinned=RMSNorm(64, force_native=True)).call("norm", x).call("pinned", x)


def router() -> Layers:
    """The router of a mixture of experts, which is a function of SGLang's that a layer calls."""
    from sglang.srt.layers.moe import topk

    class Router(nn.Module):
        def forward(self, hidden, logits, bias):
            return topk.biased_grouped_topk(hidden, logits, bias, 2, True, 4, 2)

    inputs = (torch.randn(5, 8), torch.randn(5, 16), torch.randn(16))
    return Layers(router=Router()).call("router", *inputs)


SCENES = {"layers": layers, "subclasses": subclasses, "pinned": pinned, "router": router}

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
