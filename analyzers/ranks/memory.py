"""What a prefill and a token of decode take on one rank: predicted from its cut model on meta, and measured there.

Both count a rank's own weights and buffers, and the most that lives at one moment of the two calls: caches, activations,
buffers of collectives. What libraries keep for themselves, such as cuBLAS, is told beside it.

Shape suffixes: B batch, S tokens, T keys, H heads, D dimension of a head.
"""

from __future__ import annotations

import contextlib
import gc
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from day0.analyzers.fit.lifetimes import LifetimeRecorder, WeightMark
from day0.analyzers.fit.plan import Lifetime, largest_live
from day0.analyzers.parallel import cut_model, fake_group
from day0.analyzers.ranks.collective_calls import sharded_class
from day0.devices.open import synchronize
from day0.errors import USER_ERRORS
from day0.models.driver import step
from day0.models.spec import ModelSpec
from day0.models.workload import token_ids
from day0.records import Signature
from day0.reference_ops.signatures import describe

__all__ = ["Measured", "Predicted", "held_bytes", "measure_step", "predict_step"]

NEVER = 1 << 60
"""The end of what is held until the last call is over."""
FUSED = "scaled_dot_product_attention"


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """Bytes on a rank; None, with the reason, where they cannot be said."""

    bytes: int | None
    why: str = ""
    calls: tuple[Signature, ...] = ()
    """Each call of an operator of ours that differs from the others, also where the run stopped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Bytes on this rank."""

    step: int
    """The most that was asked for in the two calls, over what was held before."""
    other: int
    """What was held before them besides weights and buffers."""
    allocated: int
    """The most that the allocator gave out in all; it rounds up, small tensors more than large ones."""


def held_bytes(model: nn.Module) -> int:
    """Return the bytes of memory behind a model's parameters and buffers, each piece of memory once."""
    return sum(_pieces(model).values())


def _pieces(model: nn.Module) -> dict[int, int]:
    local = [
        getattr(value, "to_local", lambda value=value: value)() for value in (*model.parameters(), *model.buffers())
    ]
    return {int(one.untyped_storage()._cdata): one.untyped_storage().nbytes() for one in local}


def run_step(model: nn.Module, ids_BS: torch.Tensor) -> None:
    """Prefill all tokens but the last, and decode that one."""
    before = step(model, ids_BS[:, :-1].contiguous())
    step(model, ids_BS[:, -1:].contiguous(), before.cache)


# ------------------------------------------------------------------------------------------- predicted


def predict_step(
    spec: ModelSpec, ranks: int, tokens: int, device: torch.device, *, whole_experts: bool = False
) -> Predicted:
    """Run rank 0 of so many on meta for a prompt of `tokens` and one more, and add up what lives at one moment."""
    model = spec.build("meta")
    recorder = _Recorder({})
    group = fake_group(ranks) if ranks > 1 else contextlib.nullcontext()
    ids_BS = token_ids(spec, 1, tokens + 1, seed=0).to("meta")
    try:
        with group:
            if ranks > 1:
                cut_model(model, ranks, spec.source, whole_experts=whole_experts)
            pieces = _pieces(model)
            recorder.marks.update({address: WeightMark() for address in pieces})
            with recorder, _FusedAttention(device):
                run_step(model, ids_BS)
    except USER_ERRORS as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Predicted(bytes=None, why=f"it does not run on meta: {first[:200]}", calls=recorder.told)
    calls, ours = recorder.told, sorted({one.op for one in recorder.told})
    if ours:
        some = ", ".join(ours[:2]) + (f" and {len(ours) - 2} more" if len(ours) > 2 else "")
        return Predicted(bytes=None, why=f"nobody says what {some} allocate inside themselves", calls=calls)
    lives = [Lifetime(one.begin, one.end if one.end is not None else NEVER, one.bytes) for one in recorder.storages]
    return Predicted(bytes=sum(pieces.values()) + largest_live(lives))


class _Recorder(LifetimeRecorder):
    """Records what this rank allocates; operators of ours are told, since they may allocate what no one sees."""

    def __init__(self, marks: dict[int, WeightMark]) -> None:
        super().__init__(marks)
        self.calls: dict[str, Signature] = {}
        self._sharded = sharded_class()

    @property
    def told(self) -> tuple[Signature, ...]:
        """The calls of operators of ours, in the order of the first of each."""
        return tuple(self.calls.values())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._sharded in types:
            return NotImplemented  # comes again as the calls of this rank
        if func.name().startswith("day0::"):
            call = describe(func.name(), args, kwargs or {})
            self.calls.setdefault(call.model_dump_json(), call)
        return super().__torch_dispatch__(func, types, args, kwargs)


class _FusedAttention(TorchFunctionMode):
    """On meta torch takes attention apart; here it allocates as on the device that will run it."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") != FUSED or not self._fuses(args, kwargs):
            return func(*args, **kwargs)
        query_BHSD, value_BHTD = args[0], args[2]
        mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
        batch, heads, rows, _ = query_BHSD.shape
        as_numbers = mask.to(query_BHSD.dtype) if mask is not None and mask.dtype == torch.bool else None
        sums_BHS = query_BHSD.new_empty(batch, heads, rows, dtype=torch.float32)
        out_BSHD = query_BHSD.new_empty(batch, rows, heads, value_BHTD.shape[-1])
        del as_numbers, sums_BHS
        return out_BSHD.transpose(1, 2)

    def _fuses(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Ask torch what it would take on the device, with tensors of these shapes."""

        def there(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=self.device)

        with _disable_current_modes():
            given = [there(value) for value in args]
            named = {name: there(value) for name, value in kwargs.items()}
            return int(torch._fused_sdp_choice(*given, **named)) != 0


# -------------------------------------------------------------------------------------------- measured


def measure_step(model: nn.Module, ids_BS: torch.Tensor, device: torch.device) -> Measured | None:
    """Return the peak of a prefill and a token of decode, in bytes; None where the device does not count.

    `ids_BS` is on the device. It runs once before, so that what libraries allocate once is there.
    """
    module: Any = getattr(torch, device.type, None)
    if not hasattr(module, "max_memory_allocated") or not hasattr(module, "reset_peak_memory_stats"):
        return None
    run_step(model, ids_BS)
    gc.collect()
    synchronize(device)
    before, _ = _asked_for(module)
    module.reset_peak_memory_stats()
    run_step(model, ids_BS)
    synchronize(device)
    return Measured(
        step=_asked_for(module)[1] - before,
        other=before - held_bytes(model),
        allocated=int(module.max_memory_allocated()),
    )


def _asked_for(module: Any) -> tuple[int, int]:
    """Return the bytes that were asked for and are held, and the most there were; as allocated where that is all one knows."""
    stats = module.memory_stats() if hasattr(module, "memory_stats") else {}
    names = ("requested_bytes.all.current", "requested_bytes.all.peak")
    if all(stats.get(name) for name in names):
        return int(stats[names[0]]), int(stats[names[1]])
    return int(module.memory_allocated()), int(module.max_memory_allocated())
