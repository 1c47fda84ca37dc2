"""Part `experts` of `model.py`: what converting four-bit experts costs a step of decode, and what the cache saves.

The same tokens go through three ways with the same weights: all experts there in bfloat16, every chosen expert converted
in every step, and the expert cache. Tokens are drawn as often as words are in text (Zipf), because routing follows the
token. On a GPU the step is a graph in pieces (`model_pieces.py`) with slots in bfloat16, which kernels read where they
lie; slots in MXFP8 are widened for every step, without graphs.

Shape suffixes: B batch, S steps, V vocabulary, N tokens, L latent, K choices, E experts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from model_pieces import Pieces
from model_rows import Rows, differ, free
from model_toy import (
    Context,
    Resident,
    decoded_experts,
    lock_for,
    make_context,
    random_model,
    scaled,
    step,
    together,
    use_experts,
)
from timing import captured

from day0.converters.online.expert_cache import CacheMetrics, ExpertCache
from day0.models.toy.model import ToyModel
from day0.models.toy.online import cache_experts, expert_layers
from day0.registry.dispatch import activate

LIMIT = 1e-2
"""Of one layer of experts, given the same tokens and choices: four-bit values are exact in all of these."""
WARM, TIMED = 24, 24
"""Steps that fill the cache, and steps that are timed."""
BATCHES, LAYOUTS = (1, 8), ("bf16", "mxfp8")
Step = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What one way gave and took."""

    logits_SV: torch.Tensor
    ms: float
    convert_ms: float
    hit_rate: float


def run(options: argparse.Namespace, rows: Rows) -> None:
    """One request and several at a time, by each layout of the workspace."""
    device, tiny = options.device, options.tiny
    config = scaled(options.scale, tiny=tiny, experts=0 if tiny else 2 * options.experts)
    lock, implementations = lock_for(config, device)
    # Not in inference mode, where nobody counts changes of weights: they would be asked each time whether they are exact.
    with torch.inference_mode(mode=False), torch.no_grad():
        model = random_model(config, device)
        together(model)
    there = decoded_experts(model)
    with activate(lock, torch.device(device), implementations):
        for layout in LAYOUTS:
            for batch in BATCHES:
                compare(model, there, batch, layout, options, rows)
                free(device)


def compare(
    model: ToyModel, wide: list[Resident], batch: int, layout: str, options: argparse.Namespace, rows: Rows
) -> None:
    """Run the three ways and write down times, shares and the ratio."""
    device, config = options.device, model.config
    pieces = device == "cuda" and layout == "bf16"
    ids_SB = zipf_tokens(config.vocab_size, WARM + TIMED, batch, device)
    context = make_context(model, batch, 16 if options.tiny else 4096, device)
    case = f"decode of {batch}, {config.n_experts} experts, {layout}"
    how = "graph in pieces" if pieces else "eager"
    use_experts(model, wide)
    there = decode(whole(model, context, graph=pieces), ids_SB, None)
    rows.row(case, "all experts in bfloat16", there.ms, "graph" if pieces else how, batch=batch)
    layers = config.num_hidden_layers - config.dense_layers
    kept = int(options.share * layers * config.n_experts)
    found: dict[str, Ran] = {}
    for way, slots in (("nothing kept", 0), ("cache", kept)):
        if rows.left() < 8:
            return
        scratch = min(config.n_experts, batch * config.experts_per_token)
        cache = cache_experts(model, slots=slots, scratch=scratch, layout=layout)
        refuse_other_experts(f"{case}, {way}", model, wide[0], device)
        # Once without graphs: kernels are built then.
        step(model, context)
        run_step = Pieces(model, context, cache).run if pieces else whole(model, context, graph=False)
        found[way] = one = decode(run_step, ids_SB, cache)
        cache.close()
        share = one.convert_ms / one.ms
        said = f"{how}; {one.hit_rate:.0%} hits, {share:.1%} converting"
        rows.row(case, way, one.ms, said, batch=batch, slots=slots, hit_rate=one.hit_rate, conversion_share=share)
        rows.figure(f"expert_ways_differ_batch_{batch}_{layout}", differ(one.logits_SV, there.logits_SV)[1])
        free(device)
    write_figures(f"batch_{batch}_{layout}", found, there, rows)


def write_figures(tag: str, found: dict[str, Ran], there: Ran, rows: Rows) -> None:
    """Write the ratio, the shares and the hit rate."""
    none, cache = found["nothing kept"], found["cache"]
    rows.figure(f"expert_cache_over_none_{tag}", none.ms / cache.ms)
    rows.figure(f"conversion_share_of_decode_{tag}", cache.convert_ms / cache.ms)
    rows.figure(f"conversion_share_without_cache_{tag}", none.convert_ms / none.ms)
    rows.figure(f"expert_cache_hit_rate_{tag}", cache.hit_rate)
    rows.figure(f"expert_cache_over_all_there_{tag}", there.ms / cache.ms)


def whole(model: ToyModel, context: Context, *, graph: bool) -> Step:
    """Return a step that is not in pieces."""
    if not graph:

        def eager(ids_B: torch.Tensor) -> torch.Tensor:
            context.ids_B1.copy_(ids_B[:, None])
            return step(model, context)[:, -1]

        return eager
    out: list[torch.Tensor] = []

    def keep() -> None:
        out[:] = [step(model, context)[:, -1]]

    replay, _ = captured(keep)

    def replayed(ids_B: torch.Tensor) -> torch.Tensor:
        context.ids_B1.copy_(ids_B[:, None])
        replay()
        return out[0]

    return replayed


def refuse_other_experts(what: str, model: ToyModel, right: Resident, device: str) -> None:
    """Raise SystemExit where the first layer of experts computes something else than with its weights in bfloat16."""
    layer, config = expert_layers(model)[0], model.config
    tokens, choices = 5, config.experts_per_token
    generator = torch.Generator(device).manual_seed(5)
    width = config.latent_size or config.hidden_size
    x_NL = torch.randn(tokens, width, generator=generator, device=device, dtype=torch.bfloat16)
    scores_NE = torch.rand(tokens, config.n_experts, generator=generator, device=device)
    chosen_NK = scores_NE.argsort(dim=-1)[:, :choices].contiguous()
    weight_NK = torch.full((tokens, choices), 1.0 / choices, device=device)
    found = layer(x_NL, weight_NK, chosen_NK)
    workspace, layer.workspace = layer.workspace, right
    error = differ(found, layer(x_NL, weight_NK, chosen_NK))[1]
    layer.workspace = workspace
    if not error <= LIMIT:
        raise SystemExit(f"error: {what}: a layer of experts differs by {error:.3g}, more than {LIMIT}")


def zipf_tokens(vocabulary: int, steps: int, batch: int, device: str) -> torch.Tensor:
    """Return token ids [steps, batch]; the n-th commonest is drawn in proportion to 1 / n."""
    generator = torch.Generator().manual_seed(11)
    weights = 1.0 / torch.arange(1, vocabulary + 1, dtype=torch.float64)
    drawn = torch.multinomial(weights, steps * batch, replacement=True, generator=generator)
    # Which token is common says nothing of its number.
    return torch.randperm(vocabulary, generator=generator)[drawn].view(steps, batch).to(device)


def decode(run_step: Step, ids_SB: torch.Tensor, cache: ExpertCache | None) -> Ran:
    """Run token by token, and return what the timed steps took, in the mean."""
    device = ids_SB.device.type
    logits, before, began = [], None, 0.0
    for number, ids_B in enumerate(ids_SB):
        if number == WARM:
            before, began = counted(cache, device), time.perf_counter()
        logits.append(run_step(ids_B).clone())
    settle(device)
    ms = 1e3 * (time.perf_counter() - began) / TIMED
    after = counted(cache, device)
    ran = {"convert_ms": 0.0, "hit_rate": 1.0}
    if before is not None and after is not None:
        asked = after.hits + after.misses - before.hits - before.misses
        ran["convert_ms"] = 1e3 * (after.convert_seconds - before.convert_seconds) / TIMED
        ran["hit_rate"] = (after.hits - before.hits) / max(1, asked)
    return Ran(logits_SV=torch.cat(logits[WARM:]), ms=ms, **ran)


def counted(cache: ExpertCache | None, device: str) -> CacheMetrics | None:
    """Return what the cache did so far, all of it done."""
    settle(device)
    return cache.metrics() if cache is not None else None


def settle(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()
