"""Part `paths` of `model.py`: one model, its operators by a lock of day0's kernels, and in plain torch.

Shape suffixes: B batch, S tokens.
"""

from __future__ import annotations

import argparse

import torch
from model_rows import Rows, differ
from model_toy import keep_experts, lock_for, make_context, plain_calls, random_model, scaled, speak, step

from day0.models.toy.calls import dispatched
from day0.models.toy.model import ToyModel
from day0.registry.dispatch import activate

LIMIT = 3e-2
"""Relative error of a token between two orders of sums in bfloat16, over five layers."""


def run(options: argparse.Namespace, rows: Rows) -> None:
    """Compare, then time decode and prefill both ways."""
    device, tiny = options.device, options.tiny
    config = scaled(options.scale, tiny=tiny, experts=0 if tiny else options.experts)
    lock, implementations = lock_for(config, device)
    model = random_model(config, device)
    keep_experts(model, device)
    context = make_context(model, 2 if tiny else 8, 16 if tiny else 4096, device)
    prompt_BS = torch.randint(0, config.vocab_size, (1, 40 if tiny else 2048), device=device)
    calls = {"decode": lambda: step(model, context), "prefill": lambda: prefill(model, prompt_BS)}
    found, times = {}, {}
    with activate(lock, torch.device(device), implementations) as active:
        for phase, call in calls.items():
            found[phase] = call()
            case = f"{phase} {context.where.first + 1}" if phase == "decode" else f"{phase} {prompt_BS.shape[1]}"
            times[phase] = rows.time(case, "lock", call, device, batch=len(context.ids_B1))
        ran = {receipt.operator: receipt.calls for receipt in active.receipts() if receipt.calls}
    rows.figure("model_operators_of_lock_that_ran", len(ran))
    speak(model, plain_calls())
    for phase, call in calls.items():
        error = differ(call(), found[phase])
        rows.figure(f"model_{phase}_lock_against_plain_error", error)
        if not error <= LIMIT:
            raise SystemExit(f"error: {phase}: lock and plain torch differ by {error:.3g}, more than {LIMIT}")
        took = rows.time(phase, "plain torch", call, device)
        rows.figure(f"model_{phase}_lock_over_plain", took / times[phase])
    speak(model, dispatched())


def prefill(model: ToyModel, prompt_BS: torch.Tensor) -> torch.Tensor:
    """Return logits of a prompt, without a cache."""
    return model(input_ids=prompt_BS, use_cache=False).logits
