"""The model compiled by torch.compile: a prompt as right as without, a second one without compiling anew.

Shape suffixes: B batch, S tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from day0.analyzers.canary.context import CanaryContext, Measured, model_error
from day0.analyzers.canary.gates import Figure
from day0.analyzers.canary.operators import clock_of, seconds_of
from day0.analyzers.canary.reference import Told, told
from day0.analyzers.modules.measure import new_non_finite
from day0.analyzers.modules.ways import batched
from day0.errors import Day0Error, near_names
from day0.models.driver import step
from day0.models.workload import token_ids
from day0.playbook import Gate
from day0.registry.receipts import Key

TITLE = "a prompt compiled by torch.compile"
LIMIT = 3.0
GATES = (
    Gate(metric="compiled_error_ratio", rule="<=", limit=LIMIT, inconclusive="warn"),
    Gate(metric="compiled_non_finite", rule="==", limit=0, inconclusive="fail"),
    Gate(metric="recompiled", rule="==", limit=0, inconclusive="fail"),
    Gate(metric="locked_bypassed", rule="==", limit=0, inconclusive="fail"),
)
METRICS = {
    "compiled_error": "relative L2 error of the compiled model's logits against float64",
    "compiled_yardstick": "the same error of the dtype itself on the CPU",
    "compiled_error_ratio": "the error, relative to the yardstick",
    "eager_error_ratio": "the same of the model as it is, on the same prompt",
    "compiled_non_finite": "logits that are NaN or infinite in the compiled model alone",
    "compiled_bits_differ": "logits with other bits than without compiling",
    "graphs": "graphs that the model was compiled to",
    "graph_breaks": "places where the compiler had to leave the model to Python",
    "recompiled": "graphs compiled anew for another prompt of the same length",
    "locked_bypassed": "locked implementations that the model calls as it is, and not when it is compiled",
    "compiled_over_eager": "seconds of a prompt compiled, over those of the model as it is, by the device's clock",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Once:
    """One prompt, run once: logits on the CPU, seconds by the device's clock, entries of the lock that were called."""

    logits_BSV: torch.Tensor
    seconds: float
    called: frozenset[Key]


def run(context: CanaryContext) -> Measured:
    """Compile a prefill without a cache, run it on two prompts, and hold it against the model as it is.

    Raises Day0Error for a backend that torch does not know.
    """
    if not context.compile:
        return Measured(metrics={}, unfit="no backend is named: canary.compile in the playbook, such as inductor")
    _refuse_unknown(context.compile)
    model, first_BS, other_BS = context.on_device(), _ids(context, 12), _ids(context, 13)
    right = told(context, "compiled", batched(first_BS), first_BS.tolist())
    eager = _once(context, model, first_BS)
    with _fresh_compiler() as counted:
        made: Any = torch.compile(model, backend=context.compile, dynamic=False)
        _once(context, made, first_BS)  # compiles
        graphs = counted("unique_graphs")
        compiled = _once(context, made, first_BS)
        _once(context, made, other_BS)
        found = {
            "graphs": graphs,
            "graph_breaks": counted("graph_break"),
            "recompiled": counted("unique_graphs") - graphs,
        }
    missed = sorted(f"{operator} {dtypes}" for operator, dtypes in eager.called - compiled.called)
    bits = int((eager.logits_BSV != compiled.logits_BSV).sum())
    metrics: dict[str, float | Figure] = {
        **_errors(right, eager, compiled),
        **{name: float(value) for name, value in found.items()},
        "compiled_non_finite": float(new_non_finite([compiled.logits_BSV], [right.golden_BSV])),
        "compiled_bits_differ": float(bits),
        "locked_bypassed": float(len(missed)),
        "compiled_over_eager": _speed(context, compiled.seconds, eager.seconds),
    }
    return Measured(metrics=metrics, evidence=f"not called when compiled: {'; '.join(missed[:5])}" if missed else "")


def _refuse_unknown(backend: str) -> None:
    known = tuple(torch._dynamo.list_backends(exclude_tags=()))
    if backend not in known:
        hint = near_names(backend, known) or f"backends here: {', '.join(known)}"
        raise Day0Error("canary.compile", f"torch.compile has no backend '{backend}'", hint=hint)


def _ids(context: CanaryContext, seed: int) -> torch.Tensor:
    return token_ids(context.spec, 1, context.prompt_tokens, seed=seed)


def _once(context: CanaryContext, model: nn.Module, ids_BS: torch.Tensor) -> _Once:
    before, there_BS = context.active.counts, ids_BS.to(context.device)
    result, seconds = seconds_of(context.device, lambda: step(model, there_BS, use_cache=False))
    called = frozenset(key for key, calls in context.active.counts.items() if calls > before.get(key, 0))
    return _Once(logits_BSV=result.logits_BSV.detach().cpu(), seconds=seconds, called=called)


@contextmanager
def _fresh_compiler() -> Iterator[Any]:
    """Forget what was compiled before and after, and give a function that reads the compiler's counters."""
    from torch._dynamo.utils import counters  # costs a second where nothing is compiled

    def counted(name: str) -> int:
        return int(sum(counters["graph_break"].values()) if name == "graph_break" else counters["stats"][name])

    torch._dynamo.reset()
    counters.clear()
    try:
        yield counted
    finally:
        torch._dynamo.reset()


def _errors(right: Told, eager: _Once, compiled: _Once) -> dict[str, float | Figure]:
    without, found = (
        model_error(one.logits_BSV, right.same_BSV, right.golden_BSV, followed=False) for one in (eager, compiled)
    )
    ratio: float | Figure = found["error_ratio"]
    eager_ratio = without["error_ratio"]
    if eager_ratio > LIMIT and found["error_ratio"] <= 2.0 * eager_ratio:
        # Without the golden's choices a tie that goes the other way moves the logits, compiled or not.
        ratio = Figure(None, why=f"the model as it is is {eager_ratio:.3g} times the yardstick off on this prompt too")
    return {
        "compiled_error": found["error"],
        "compiled_yardstick": found["yardstick"],
        "compiled_error_ratio": ratio,
        "eager_error_ratio": eager_ratio,
    }


def _speed(context: CanaryContext, compiled: float, eager: float) -> Figure:
    if clock_of(context.device).name == "wall" and context.device.type == "cpu":
        return Figure(None, why="a small model's time on the host's clock says nothing")
    return Figure(compiled / eager if eager else None, why="" if eager else "no time passes on this device")
