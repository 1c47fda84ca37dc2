"""Part `experts` of `model.py`: what converting four-bit experts costs a step of decode, and what the cache saves.

The same tokens go through three models of the same weights: all experts there in bfloat16, every chosen expert
converted in every step, and the expert cache. Tokens are drawn as often as words are in text (Zipf), because routing
follows the token. A step waits for the host once in every layer, to learn which experts are missing: no graphs here.

Shape suffixes: B batch, S tokens, V vocabulary.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import torch
from model_rows import Rows, differ, free
from model_toy import Resident, decoded_experts, lock_for, random_model, scaled, use_experts

from day0.converters.online.expert_cache import CacheMetrics, ExpertCache
from day0.models.toy.model import ToyModel
from day0.models.toy.online import cache_experts, expert_layers
from day0.registry.dispatch import activate

LIMIT = 1e-2
"""Of one layer of experts, given the same tokens and choices: four-bit values are exact in all of these."""
PROMPT, WARM, TIMED = 32, 24, 24
"""Tokens before the first step, steps that fill the cache, and steps that are timed."""
LAYOUTS = ("bf16", "mxfp8")


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
    there = decoded_experts(model)
    with activate(lock, torch.device(device), implementations):
        for batch in (1, 8):
            compare(model, there, batch, options, rows)
            free(device)


def compare(model: ToyModel, wide: list[Resident], batch: int, options: argparse.Namespace, rows: Rows) -> None:
    """Run the ways and write down times, shares and the ratio."""
    device, config = options.device, model.config
    ids_SB = zipf_tokens(config.vocab_size, PROMPT + WARM + TIMED, batch, device)
    layers = config.num_hidden_layers - config.dense_layers
    kept = int(options.share * layers * config.n_experts)
    scratch = min(config.n_experts, batch * config.experts_per_token)
    case = f"decode of {batch}, {config.n_experts} experts"
    use_experts(model, wide)
    there = decode(model, ids_SB, None)
    rows.row(case, "all experts in bfloat16", there.ms, "eager", batch=batch)
    for layout in LAYOUTS:
        found: dict[str, Ran] = {}
        for way, slots in (("nothing kept", 0), ("cache", kept)):
            if rows.left() < 10:
                return
            cache = cache_experts(model, slots=slots, scratch=scratch, layout=layout)
            refuse_other_experts(f"{case}, {way}, {layout}", model, wide[0], device)
            found[way] = one = decode(model, ids_SB, cache)
            cache.close()
            rows.figure(f"expert_ways_differ_batch_{batch}", differ(one.logits_SV, there.logits_SV)[1])
            share = one.convert_ms / one.ms
            facts: dict[str, Any] = {
                "batch": batch,
                "slots": slots,
                "hit_rate": one.hit_rate,
                "conversion_share": share,
            }
            rows.row(
                case, f"{way}, {layout}", one.ms, f"eager; {one.hit_rate:.0%} hits, {share:.1%} converting", **facts
            )
        write_figures(f"batch_{batch}_{layout.replace('-', '_')}", found, rows)


def write_figures(tag: str, found: dict[str, Ran], rows: Rows) -> None:
    """Write the ratio, the share and the hit rate."""
    none, cache = found["nothing kept"], found["cache"]
    rows.figure(f"expert_cache_over_none_{tag}", none.ms / cache.ms)
    rows.figure(f"conversion_share_of_decode_{tag}", cache.convert_ms / cache.ms)
    rows.figure(f"conversion_share_without_cache_{tag}", none.convert_ms / none.ms)
    rows.figure(f"expert_cache_hit_rate_{tag}", cache.hit_rate)


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


def decode(model: ToyModel, ids_SB: torch.Tensor, cache: ExpertCache | None) -> Ran:
    """Give a prompt and then token by token, and return what the timed steps took, in the mean."""
    device = ids_SB.device.type
    output = model(input_ids=ids_SB[:PROMPT].t().contiguous())
    logits, before, began = [], None, 0.0
    for number, ids_B in enumerate(ids_SB[PROMPT:]):
        if number == WARM:
            before, began = counted(cache, device), time.perf_counter()
        output = model(input_ids=ids_B[:, None], past_key_values=output.past_key_values)
        logits.append(output.logits[:, -1])
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
