"""Part `paths` of `model.py`: one model, its operators by a lock of day0's kernels, and in plain torch.

Shape suffixes: B batch, S tokens.
"""

from __future__ import annotations

import argparse

import torch
from model_rows import Rows, refuse_difference
from model_toy import (
    decoded_experts,
    lock_for,
    make_context,
    plain_calls,
    random_model,
    scaled,
    speak,
    step,
    use_experts,
)

from day0.models.toy.calls import dispatched
from day0.models.toy.model import ToyModel
from day0.registry.dispatch import activate


def run(options: argparse.Namespace, rows: Rows) -> None:
    """Compare, then time decode and prefill both ways."""
    device, tiny = options.device, options.tiny
    config = scaled(options.scale, tiny=tiny, experts=0 if tiny else options.experts)
    lock, implementations = lock_for(config, device)
    model = random_model(config, device)
    use_experts(model, decoded_experts(model))
    context = make_context(model, 2 if tiny else 8, 16 if tiny else 4096, device)
    prompt_BS = torch.randint(0, config.vocab_size, (1, 40 if tiny else 2048), device=device)
    calls = {"decode": lambda: step(model, context), "prefill": lambda: prefill(model, prompt_BS)}
    cases = {"decode": f"decode at {context.where.first + 1} x {len(context.ids_B1)}"}
    cases["prefill"] = f"prefill of {prompt_BS.shape[1]}"
    found, graphs, eager = {}, {}, {}
    with activate(lock, torch.device(device), implementations) as active:
        for phase, call in calls.items():
            found[phase] = call()
            graphs[phase] = rows.time(cases[phase], "lock", call, device)
            eager[phase] = rows.time(cases[phase], "lock, eager", call, device, graph=False)
        ran = [receipt for receipt in active.receipts() if receipt.calls and receipt.operator.startswith("day0::")]
    rows.figure("model_locked_operators_that_ran", len({receipt.operator for receipt in ran}))
    speak(model, plain_calls())
    for phase, call in calls.items():
        error = refuse_difference(f"{phase}, lock against plain torch", call(), found[phase])
        rows.figure(f"model_{phase}_lock_against_plain_error", error)
        # It waits for the host to know which experts were chosen.
        took = rows.time(cases[phase], "plain torch, eager", call, device, graph=False)
        rows.figure(f"model_{phase}_lock_eager_over_plain", took / eager[phase])
        rows.figure(f"model_{phase}_lock_graph_over_plain", took / graphs[phase])
    speak(model, dispatched())


def prefill(model: ToyModel, prompt_BS: torch.Tensor) -> torch.Tensor:
    """Return logits of a prompt, without a cache."""
    return model(input_ids=prompt_BS, use_cache=False).logits
