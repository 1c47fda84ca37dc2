"""What each target of the adapter hands to our operators, against vLLM's own method: `vllm_ports.py`, run beside vLLM.

The operators are computed by their references, in float32 and on odd sizes, so what differs is the translation.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from day0.reference_ops.load import load_operator
from day0.registry.export.engines.vllm_0_32 import _PORTS, ADAPTER
from day0.registry.export.runtime.spec import find_target

LIMITS = {torch.float32: 2e-5, torch.bfloat16: 2.0**-6}
"""Of the difference in float32; in bfloat16 relative, two units in the last place: vLLM normalises a sum before it
rounds it, and the contract of the fused norm has it rounded first and allows either."""
F32 = torch.float32
Scene = tuple[str, tuple[Any, ...], torch.dtype, Callable[[], tuple[Any, ...]]]


class Direct:
    """A bundle that takes every call and computes it by the reference."""

    def refuse(self, operator: str, *tensors: Any) -> str:
        """Take everything."""
        return ""

    def call(self, operator: str, place: str, *args: Any) -> Any:
        """Compute the reference."""
        return load_operator(operator).reference(*args)

    def own(self, layer: Any, reason: str, *args: Any) -> Any:
        """Fail: what is tried here has to be taken."""
        raise SystemExit(f"{type(layer).__name__} went to vLLM: {reason}")


def scenes() -> Iterator[Scene]:
    """Target, arguments of its constructor, dtype, and what makes the arguments of a call."""
    for name in ("RMSNorm", "hw_agnostic.RMSNorm"):
        # In two bytes it shows whether the weight multiplies before or after the rounding.
        for dtype in (F32, torch.bfloat16):
            yield name, (24, 1e-5), dtype, lambda: (torch.randn(5, 24),)
            yield name, (24, 1e-5), dtype, lambda: (torch.randn(5, 24), torch.randn(5, 24))
    for name in ("SiluAndMul", "hw_agnostic.SiluAndMul"):
        yield name, (), F32, lambda: (torch.randn(5, 14),)
    yield "SiluAndMulWithClamp", (1.5,), F32, lambda: (3 * torch.randn(5, 14),)
    yield "SiluAndMulWithClamp", (1.5, 1.702, 1.0), F32, lambda: (3 * torch.randn(5, 14),)
    yield "SwigluOAIAndMul", (1.702, 1.5), F32, lambda: (3 * torch.randn(5, 14),)
    yield "SituAndMul", (2.0, 3.0), F32, lambda: (3 * torch.randn(5, 14),)
    yield "SituAndMul", (2.0,), F32, lambda: (3 * torch.randn(5, 14),)
    for neox in (True, False):
        for rotated in (16, 8):
            shape = (16, rotated, 64, 10000.0, neox, torch.float32)
            yield (
                "RotaryEmbedding",
                shape,
                F32,
                lambda: (torch.tensor([3, 1, 40]), torch.randn(3, 64), torch.randn(3, 32)),
            )
            yield "RotaryEmbedding", shape, F32, lambda: (torch.tensor([7]), torch.randn(1, 64), None)
    for normalise in (True, False):
        args = (3, normalise, 4, 2, "sigmoid", 2.5)
        yield "GroupedTopk", args, F32, lambda: (torch.randn(6, 8), torch.randn(6, 16), torch.randn(16))


def main() -> int:
    """Print one line for each call; the exit code is 1 if one differs."""
    config = importlib.import_module("vllm.config")
    failed = 0
    torch.manual_seed(0)
    targets = {target.name: target for target in ADAPTER.targets}
    tried = set()
    with torch.no_grad(), config.set_current_vllm_config(config.VllmConfig()):
        for name, built, dtype, made in scenes():
            target = targets[name]
            layer = find_target(target)(*built)
            layer._day0_site = "here"
            if hasattr(layer, "weight"):
                torch.nn.init.normal_(layer.weight, 1.0, 0.2)
            layer.to(dtype)
            args = tuple(one.to(dtype) if dtype != F32 and one is not None else one for one in made())
            ours = _PORTS[target.path.partition(":")[2]](Direct(), layer, *(_copy(one) for one in args))
            error = _error(ours, layer.forward_native(*args), by_expert=name == "GroupedTopk")
            tried.add(name)
            failed += error > LIMITS[dtype]
            print(
                f"{'ok  ' if error <= LIMITS[dtype] else 'FAIL'} {name} {built} {dtype}: largest difference {error:.1e}"
            )
    left = sorted(set(targets) - tried)
    print(f"{len(tried)} targets, {failed or 'none'} differ" + (f"; not tried: {', '.join(left)}" if left else ""))
    return int(failed > 0 or bool(left))


def _copy(one: Any) -> Any:
    return one.clone() if isinstance(one, torch.Tensor) else one


def _error(ours: Any, theirs: Any, *, by_expert: bool) -> float:
    if by_expert:
        # The order among the chosen experts has no meaning; each has to have its weight.
        (ours, own_ids), (theirs, their_ids) = ours, theirs
        assert own_ids.dtype == their_ids.dtype
        ours, theirs = (
            torch.zeros(6, 16).scatter(1, ids.long(), w) for ids, w in ((own_ids, ours), (their_ids, theirs))
        )
    pairs = zip(*(one if isinstance(one, tuple) else (one,) for one in (ours, theirs)), strict=True)
    worst = 0.0
    for one, other in pairs:
        if one is None or other is None:
            worst = max(worst, 0.0 if one is other else float("inf"))
        elif one.shape != other.shape or one.dtype != other.dtype:
            return float("inf")
        else:
            error = (one.double() - other.double()).abs()
            worst = max(worst, float((error / other.double().abs() if one.dtype != F32 else error).max()))
    return worst


if __name__ == "__main__":
    sys.exit(main())
