"""Kimi Delta Attention: the layer keeps its own code and calls our recurrence where it called its file's functions.

Shape suffixes: B batch, S tokens, H heads, K key channels, V value channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from day0.errors import Day0Error
from day0.models.adapters._adapter import Adapter, Candidate, Probe, Refused
from day0.models.adapters._rebind import calls_of, rebound
from day0.models.adapters._small import draw

__all__ = ["ADAPTER"]

CHUNKED, RECURRENT = "chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"
CHUNK = 16
"""Tokens at one time: how far, is the kernel's own matter, and results are the same."""
HEADS, KEYS, VALUES = 2, 8, 6


def candidates(module: nn.Module) -> Sequence[Candidate]:
    """One way: normalised queries and keys, a state with keys in front."""
    missing = [name for name in (CHUNKED, RECURRENT) if name not in calls_of(module, CHUNKED, RECURRENT)]
    if missing:
        raise Refused(f"its forward does not call {' nor '.join(missing)}")
    return [Candidate(text="", forward=rebound(module, {CHUNKED: _kernel(CHUNKED), RECURRENT: _kernel(RECURRENT)}))]


def _kernel(name: str) -> Callable[..., Any]:
    def call(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        *,
        initial_state: torch.Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not use_qk_l2norm_in_kernel or kwargs.get("cu_seqlens") is not None:
            raise Day0Error(
                name, "called without norms of queries and keys, or packed", hint="adapt the model without kda"
            )
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        shape = (query.shape[0], query.shape[2], query.shape[3], value.shape[-1])
        state = query.new_zeros(shape, dtype=wide) if initial_state is None else initial_state.to(wide)
        args = (query, key, value, g, beta, state)
        if name == CHUNKED:
            out_BSHV, state = torch.ops.day0.kda_chunked(*args, CHUNK, "kv")
        else:
            out_BSHV, state = torch.ops.day0.kda_recurrent(*args, "kv")
        return out_BSHV, state if output_final_state else None

    return call


def probe(module: nn.Module, generator: torch.Generator) -> Probe:
    """A prompt of several chunks and one token behind it, with strong and weak decay."""
    functions = calls_of(module, CHUNKED, RECURRENT)

    def both(run: Callable[[str], Callable[..., Any]]) -> Callable[..., Any]:
        def call(*args: torch.Tensor) -> Any:
            named = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
            out_BSHV, state = run(CHUNKED)(*(x[:, :-1] for x in args), initial_state=None, **named)
            last_BSHV, state = run(RECURRENT)(*(x[:, -1:] for x in args), initial_state=state, **named)
            return out_BSHV, last_BSHV, state

        return call

    def ours(candidate: Candidate) -> Callable[..., Any]:
        names: dict[str, Any] = candidate.forward.__globals__
        return both(lambda name: names[name])

    tokens = 2 * CHUNK + 6
    q, k = (draw(generator, 2, tokens, HEADS, KEYS) for _ in range(2))
    v_BSHV = draw(generator, 2, tokens, HEADS, VALUES)
    g_BSHK = -torch.rand(2, tokens, HEADS, KEYS, generator=generator, dtype=torch.float64)
    beta_BSH = torch.rand(2, tokens, HEADS, generator=generator, dtype=torch.float64)
    own = both(lambda name: functions[name])
    return Probe(module=None, calls=((q, k, v_BSHV, g_BSHK, beta_BSH),), own=own, ours=ours)


ADAPTER = Adapter(
    title="Kimi Delta Attention: its recurrence, by chunks and token by token",
    operators=("day0::kda_chunked", "day0::kda_recurrent"),
    classes=("transformers.models.*DeltaAttention", "transformers.models.*LinearAttention"),
    candidates=candidates,
    probe=probe,
)
