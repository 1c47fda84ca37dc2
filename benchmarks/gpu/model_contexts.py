"""Part `contexts` of `model.py`: a step of decode, sparse against dense, over lengths of the context.

Dense is the quicker of two: day0's kernel given every row, and torch's batched products.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

import torch
from model_rows import Rows, free, refuse_difference
from model_toy import (
    Context,
    all_rows,
    decoded_experts,
    deepseek,
    dense,
    keys_in_place,
    lock_for,
    make_context,
    random_model,
    scaled,
    step,
    use_experts,
)

from day0.models.toy.model import ToyConfig, ToyModel
from day0.registry.dispatch import activate

LENGTHS = ((131072, 32), (131072, 8), (131072, 1), (4096, 32), (16384, 32), (65536, 32), (1 << 20, 1), (1 << 20, 4))
"""Context and batch, what matters most first: time may run out."""


def run(options: argparse.Namespace, rows: Rows) -> None:
    """Both families, one after the other, so that one model is in memory."""
    whole = scaled(options.scale, tiny=options.tiny)
    # What is compared is attention: few experts leave memory for caches.
    few = replace(whole, n_experts=whole.n_experts if options.tiny else 16)
    for name, config in (("deepseek_v32", deepseek(few, tiny=options.tiny)), ("kimi_k31", few)):
        family(name, config, options.device, rows, tiny=options.tiny)
        free(options.device)


def family(name: str, config: ToyConfig, device: str, rows: Rows, *, tiny: bool) -> None:
    """Compare below the top-k, where sparse is dense; then time each length."""
    lock, implementations = lock_for(config, device)
    model = random_model(config, device)
    use_experts(model, decoded_experts(model))
    with activate(lock, torch.device(device), implementations):
        agree(name, model, device, rows)
        for tokens, batch in ((16, 2), (64, 2)) if tiny else LENGTHS:
            if rows.left() < 8:
                return
            try:
                measure(name, model, make_context(model, batch, tokens, device), device, rows)
            except torch.OutOfMemoryError:
                rows.row(f"{name} {tokens} x {batch}", "not run", 0.0, "the caches do not fit into the memory")
            free(device)


def agree(name: str, model: ToyModel, device: str, rows: Rows) -> None:
    """Where as many tokens are chosen as there are, a sparse step is a dense one. Raises SystemExit where not."""
    context = make_context(model, 16, model.config.index_topk, device)
    sparse = step(model, context)
    with keys_in_place():
        errors = [refuse_difference(f"{name}, keys in place", step(model, context), sparse)]
    for way in ("kernel", "products"):
        with dense(model, way):
            found = step(model, context, all_rows(context))
        errors.append(refuse_difference(f"{name}, sparse against dense by {way}", found, sparse))
    rows.figure(f"model_{name}_sparse_against_dense_error", max(errors))


def measure(name: str, model: ToyModel, context: Context, device: str, rows: Rows) -> None:
    """Time one length in four ways."""
    batch, tokens = context.where.slot_BT.shape
    case = f"{name} {tokens} x {batch}"
    facts = {"model": name, "context": tokens, "batch": batch, "kv_bytes": context.kv_bytes}
    facts["kv_bytes_of_heads"] = bytes_of_heads(model.config, tokens)
    took: dict[str, float] = {}

    def add(way: str, call: Callable[[], torch.Tensor]) -> None:
        took[way] = rows.time(case, way, call, device, **facts)

    with keys_in_place():
        add("sparse", lambda: step(model, context))
    add("sparse, keys gathered", lambda: step(model, context))
    for way in ("kernel", "products"):
        with dense(model, way):
            add(f"dense, {way}", lambda: step(model, context, all_rows(context)))
    quickest = min(took["dense, kernel"], took["dense, products"])
    tag = f"{tokens // 1024}k_batch_{batch}"
    rows.figure(f"model_{name}_decode_{tag}_sparse_over_dense", quickest / took["sparse"])
    rows.figure(f"model_{name}_kv_bytes_{tag}_over_heads", facts["kv_bytes"] / facts["kv_bytes_of_heads"])


def bytes_of_heads(config: ToyConfig, tokens: int) -> int:
    """Return what one request would take if every layer kept keys and values of every head in bfloat16."""
    key = config.nope_head_dim + config.shared_head_dim
    return config.num_hidden_layers * tokens * config.mla_heads * (key + config.v_head_dim) * 2
