"""`day0 convert record-routing` and `simulate-cache`: what experts a run needs, and what a cache would make of it."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from day0.cli.talk import Talk, safe
from day0.errors import Day0Error, ExitCode, near_names

if TYPE_CHECKING:
    import torch
    from torch import nn

    from day0.converters.online.expert_cache import ExpertCache
    from day0.converters.online.routing import Routing
    from day0.converters.online.simulate import Simulated

__all__ = ["record_routing", "simulate_cache"]

MOST_TOKENS = 1 << 20
SUFFIXES = (".svg", ".png", ".html")


def record_routing(
    *,
    model: str,
    result: Path,
    batch: int,
    tokens: int,
    new_tokens: int,
    sets: list[str],
    adapt: list[str],
    dtype: str,
    seed: int,
    slots: int | None,
    policy: str,
    split: str,
    threads: int,
    json: bool,
) -> int:
    """`day0 convert record-routing`: run a model and write what its routers chose."""
    from day0.cli.plans import trace_plan
    from day0.converters.online.routing import write_routing
    from day0.models.routing import record_routing as record
    from day0.models.source import open_model

    talk = Talk(as_json=json)
    if result.is_dir() or not result.absolute().parent.is_dir():
        # Said now, and not after the run.
        what = "it is a folder" if result.is_dir() else "its folder does not exist"
        raise Day0Error(str(result), what, hint="name a file, such as routing.safetensors")
    plan = trace_plan(
        model=model, sets=sets, dtype=dtype, mode="auto", batch=batch, phases=[], trust_remote_code=False,
        name="routing", adapt=adapt,
    )  # fmt: skip
    with talk.busy("building the model"):
        spec = open_model(plan.model)
        module = spec.build("cpu")
    cache = None if slots is None else _cached(module, slots, policy, split, threads)
    facts = {"model": model, "weights": "trained" if spec.trained else "drawn from a seed"}
    with talk.busy("running"):
        ids_BS = _prompts(module, spec.vocab_size, batch, tokens, seed)
        routing = record(
            module, ids_BS, new_tokens, watch=lambda at, of: talk.progress("decoding", at, of), facts=facts
        )
    write_routing(result, routing)
    found = {"file": str(result), **_about(routing)}
    if cache is not None:
        found["measured"] = _measured(cache, routing)
    _say_recorded(talk, found, trained=spec.trained)
    if json:
        print(jsonlib.dumps(found, indent=1))
    return int(ExitCode.OK)


def _cached(module: nn.Module, slots: int, policy: str, split: str, threads: int) -> ExpertCache:
    from day0.models.toy.model import ToyModel
    from day0.models.toy.online import cache_experts

    if not isinstance(module, ToyModel):
        raise Day0Error("--slots", "only the toy runs with a cache here", hint="leave it out, and use simulate-cache")
    return cache_experts(module, slots=slots, policy=policy, split=split, threads=threads, batch=int(threads > 0))


def _prompts(module: nn.Module, vocabulary: int, batch: int, tokens: int, seed: int) -> torch.Tensor:
    """Return token ids [B, S]: questions that the toy was trained on; random ones for other models."""
    import torch

    from day0.models.toy.model import ToyModel
    from day0.models.toy.tasks import recall_questions

    generator = torch.Generator().manual_seed(seed)
    if vocabulary < 1:
        raise Day0Error("model source", "it is not called with token ids", hint="record the toy, or an hf: model")
    if isinstance(module, ToyModel) and module.config.vocab_size >= 120:
        # A question has three tokens, and a pair two.
        return recall_questions(batch, 24, max(1, tokens // 3), generator).ids_BS[:, :tokens]
    return torch.randint(0, vocabulary, (batch, tokens), generator=generator)


def _about(routing: Routing) -> dict[str, Any]:
    return {
        "layers": routing.layers,
        "experts": routing.experts,
        "steps": routing.steps,
        "calls": len(routing.calls),
        "most_experts_in_a_call": routing.per_step(),
        "decode_step_needs": _need(routing),
        "facts": routing.facts,
    }


def _need(routing: Routing) -> int:
    """Return how many experts the last step needs in all layers: recordings end with decode."""
    last = max((call.step for call in routing.calls), default=0)
    return sum(len(call.needed) for call in routing.calls if call.step == last)


def _measured(cache: ExpertCache, routing: Routing) -> dict[str, Any]:
    from day0.converters.online.simulate import simulate

    metrics, expected = cache.metrics(), simulate(routing, cache.plan)
    cache.workspace.check_guards()
    cache.close()
    return {
        "slots": cache.plan.slots,
        "scratch": cache.plan.scratch,
        "policy": cache.plan.policy,
        "split": cache.plan.split,
        "hit_rate": metrics.hit_rate,
        "simulated_hit_rate": expected.hit_rate,
        "conversions": metrics.misses,
        "evictions": metrics.evictions,
        "bytes_converted": metrics.bytes_converted,
        "convert_seconds": metrics.convert_seconds,
        "wait_seconds": metrics.wait_seconds,
    }


def _say_recorded(talk: Talk, found: dict[str, Any], *, trained: bool) -> None:
    talk.say(
        f"recorded {found['steps']:,} steps of {found['layers']:,} layers with {found['experts']:,} experts in "
        f"{safe(found['file'])}; a decoding step needs {found['decode_step_needs']:,}"
    )
    if not trained:
        talk.note("weights are drawn from a seed: such routers spread their choices more evenly than trained ones")
    if one := found.get("measured"):
        talk.say(
            f"with {one['slots']:,} slots and {one['scratch']:,} of scratch: hit rate {one['hit_rate']:.1%}, simulated "
            f"{one['simulated_hit_rate']:.1%}; {one['conversions']:,} conversions of {one['bytes_converted']:,} bytes "
            f"in {one['convert_seconds'] * 1000:.1f} ms, {one['evictions']:,} evictions"
        )


def simulate_cache(
    *,
    routing: Path,
    slots: list[int],
    policies: list[str],
    splits: list[str],
    scratch: int | None,
    plot: Path | None,
    json: bool,
) -> int:
    """`day0 convert simulate-cache`: hit rates by policy, division and number of slots."""
    from day0.converters.online.routing import read_routing
    from day0.converters.online.simulate import default_sizes, sweep
    from day0.converters.online.slots import POLICIES, SPLITS

    talk = Talk(as_json=json)
    if plot is not None and plot.suffix not in SUFFIXES:
        raise Day0Error(f"--plot {plot}", f"no drawing ends in '{plot.suffix}'", hint=f"use {', '.join(SUFFIXES)}")
    chosen = _chosen("--policy", policies, POLICIES), _chosen("--split", splits, SPLITS)
    found = read_routing(routing)
    sizes = tuple(sorted(set(slots))) or default_sizes(found)
    with talk.busy("simulating"):
        results = sweep(found, sizes, policies=chosen[0], splits=chosen[1], scratch=scratch)
    _table(talk, found, results)
    if plot is not None:
        from day0.reports.cache_chart import cache_chart, write_cache_chart

        source = found.facts.get("model", routing.name)
        title = f"{source}: {found.layers:,} layers, {found.experts:,} experts, {found.steps:,} steps"
        write_cache_chart(plot, cache_chart(results, need=max(1, _need(found)), title=title))
        talk.say(f"drawn in {safe(plot)}")
    if json:
        print(jsonlib.dumps({"routing": _about(found), "results": [_plain(one) for one in results]}, indent=1))
    return int(ExitCode.OK)


def _chosen(flag: str, asked: list[str], known: Sequence[str]) -> tuple[str, ...]:
    for one in asked:
        if one not in known:
            hint = near_names(one, tuple(known)) or " or ".join(known)
            raise Day0Error(f"{flag} {one}", "there is no such choice", hint=hint)
    return tuple(dict.fromkeys(asked)) or tuple(known)


def _plain(one: Simulated) -> dict[str, Any]:
    return {
        "policy": one.plan.policy,
        "split": one.plan.split,
        "slots": one.plan.slots,
        "scratch": one.plan.scratch,
        "hit_rate": one.hit_rate,
        "hits": one.hits,
        "misses": one.misses,
        "evictions": one.evictions,
        "unkept": one.unkept,
        "rounds": one.rounds,
    }


def _table(talk: Talk, routing: Routing, results: Sequence[Simulated]) -> None:
    need = _need(routing)
    talk.say(
        f"{safe(routing.facts.get('model', 'a model'))}: {routing.layers:,} layers of {routing.experts:,} experts, "
        f"{routing.steps:,} steps; the last step needs {need:,} experts"
    )
    columns = list(dict.fromkeys((one.plan.policy, one.plan.split) for one in results))
    rates = {(one.plan.slots, one.plan.policy, one.plan.split): one.hit_rate for one in results}
    table = Table(box=None, pad_edge=False)
    table.add_column("slots", justify="right", no_wrap=True)
    table.add_column("of a step", justify="right", no_wrap=True)
    for policy, split in columns:
        table.add_column(f"{policy}, {'by layer' if split == 'layer' else 'one pool'}", justify="right")
    for slots in dict.fromkeys(one.plan.slots for one in results):
        cells = [f"{rates[slots, *column]:.1%}" for column in columns]
        table.add_row(f"{slots:,}", f"{slots / need:.2f}" if need else "", *cells)
    talk.out.print(table)
    talk.say("lru: what was used longest ago leaves; lrc: what was converted longest ago")
    if need and any(one.plan.slots < need and one.plan.split == "shared" for one in results):
        talk.note("one pool below one step's need keeps nothing: a layer comes again after all others have passed")
