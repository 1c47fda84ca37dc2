"""Part `transformers` of `model.py`: real layers of two models of transformers, their own code against day0's operators.

Layers have the sizes of the published configs and random weights; there are few of them. The library's cache grows
with every step, so that decode is not captured as a graph: both ways run eagerly, and say so.

Shape suffixes: B batch, S tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from model_rows import Rows, free, refuse_difference
from model_toy import chosen_for
from timing import timed, timed_runs

from day0.analyzers.trace import trace_model
from day0.errors import Day0Error
from day0.implementation import Implementation
from day0.models.adapters.adapt import adapted
from day0.models.driver import step
from day0.models.source import open_model
from day0.models.workload import plan_phases
from day0.playbook import ModelPlan, PhasePlan, WorkloadPlan
from day0.records import Lock
from day0.registry.dispatch import activate

FEW: dict[str, dict[str, Any]] = {
    "deepseek_v32": {"num_hidden_layers": 2, "first_k_dense_replace": 1, "vocab_size": 16384},
    "kimi_linear": {
        "num_hidden_layers": 5,
        "vocab_size": 16384,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}
"""What is smaller than in the published config: a dense and a sparse layer; four KDA layers and one MLA layer."""
SMALL: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 32}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 2}
TINY: dict[str, dict[str, Any]] = {
    "deepseek_v32": {**SMALL, "n_routed_experts": 16, "q_lora_rank": 64, "index_topk": 16, "index_n_heads": 16},
    "kimi_linear": {**SMALL, "num_experts": 16, "linear_num_heads": 2},
}


def run(options: argparse.Namespace, rows: Rows) -> None:
    """Both models; one that this release of transformers does not have is written down as that."""
    for name in FEW:
        if rows.left() < 15:
            return
        try:
            one_model(name, options, rows)
        except (Day0Error, ImportError, torch.OutOfMemoryError) as error:
            rows.row(name, "not run", 0.0, f"{type(error).__name__}: {str(error)[:200]}")
        free(options.device)


def one_model(name: str, options: argparse.Namespace, rows: Rows) -> None:
    """Compare the logits of prefill and of a step, then time both ways."""
    device, tiny = options.device, options.tiny
    changes = FEW[name] | (TINY[name] if tiny else {})
    lock, implementations = lock_of(name, changes, device)
    model = build(name, changes, device)
    shapes = ((1, 24),) if tiny else ((1, 4096), (8, 2048))
    for batch, tokens in shapes:
        if rows.left() < 12:
            return
        generator = torch.Generator(device).manual_seed(tokens)
        prompt_BS = torch.randint(3, 4000 if not tiny else 100, (batch, tokens), generator=generator, device=device)
        took = {"transformers": both_phases(name, "transformers", model, prompt_BS, device, rows)}
        with replaced(model, lock, implementations, device) as active:
            took["day0"] = both_phases(name, "day0's operators", model, prompt_BS, device, rows)
            ran = sum(1 for receipt in active.receipts() if receipt.calls)
        tag = f"hf_{name}_batch_{batch}"
        for phase in ("prefill", "decode"):
            mine, own = took["day0"][phase], took["transformers"][phase]
            if batch > 1 or phase == "prefill" or tiny:
                # Of a single token nobody knows whether another expert was nearly as good.
                rows.figure(f"{tag}_{phase}_error", refuse_difference(f"{name}, {phase}", mine[0], own[0]))
            rows.figure(f"{tag}_{phase}_day0_over_transformers", own[1] / mine[1])
        rows.figure(f"hf_{name}_operators_that_ran", ran)


def build(name: str, changes: dict[str, Any], device: str) -> torch.nn.Module:
    """Build on the device itself: on the host, drawing billions of weights takes minutes."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(name, **changes)
    with torch.device(device):
        torch.manual_seed(0)
        model: torch.nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval().requires_grad_(False)


def lock_of(name: str, changes: dict[str, Any], device: str) -> tuple[Lock, tuple[Implementation, ...]]:
    """Trace the adapted model on meta and choose, as `day0 run` does."""
    spec = open_model(ModelPlan(source=f"hf:{name}", dtype="bfloat16", set=changes, adapt=("all",)))
    phases = {"prefill": PhasePlan(tokens=32), "decode": PhasePlan(tokens=1, context=32)}
    trace = trace_model(spec, plan_phases(spec, WorkloadPlan(batch=2, phases=phases)))
    return chosen_for(trace, device, "base")


@contextmanager
def replaced(
    model: torch.nn.Module, lock: Lock, implementations: tuple[Implementation, ...], device: str
) -> Iterator[Any]:
    """Let modules call our operators, and those go to what the lock chose."""
    with adapted(model, ("all",)), activate(lock, torch.device(device), implementations) as active:
        yield active


def both_phases(
    name: str, way: str, model: torch.nn.Module, prompt_BS: torch.Tensor, device: str, rows: Rows
) -> dict[str, tuple[torch.Tensor, float]]:
    """Return logits and milliseconds of the prompt, and of a step after it."""
    batch, tokens = prompt_BS.shape
    case = f"{name} {tokens} x {batch}"
    found = step(model, prompt_BS)
    ms = median_of(lambda: step(model, prompt_BS), device, 3)
    rows.row(case, f"prefill, {way}", ms, "eager", batch=batch, context=tokens)
    cache, ids_B1 = found.cache, prompt_BS[:, :1]
    stepped = step(model, ids_B1, cache).logits_BSV
    kv = cache_bytes(cache) // batch
    # Each step makes the cache one token longer, which is nothing beside what it holds.
    took = median_of(lambda: step(model, ids_B1, cache), device, 10)
    rows.row(case, f"decode, {way}", took, "eager: the cache grows", batch=batch, context=tokens, kv_bytes=kv)
    return {"prefill": (found.logits_BSV, ms), "decode": (stepped, took)}


def median_of(call: Any, device: str, repeat: int) -> float:
    """Return the median of milliseconds, without a graph."""
    if device != "cuda":
        return timed([call], 2, device)
    call()
    return timed_runs([call], repeat)


def cache_bytes(cache: Any) -> int:
    """Return the bytes of all tensors that a cache of transformers holds."""
    found: dict[int, int] = {}
    for layer in getattr(cache, "layers", ()):
        for value in vars(layer).values():
            parts = (
                value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else (value,)
            )
            for one in parts:
                if isinstance(one, torch.Tensor):
                    found[one.data_ptr()] = one.nbytes
    return sum(found.values())
