"""What kind of work it is to close a gap, read from what torch says of the operator; and what each way would cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from day0.analyzers.recording.costs import count_bytes, count_flops
from day0.devices.leaves import HOST_SYNCS, is_metadata_view, leaf_dtypes, leaf_ranks
from day0.devices.profile import DeviceProfile
from day0.devices.support import operator_exists, supports
from day0.devices.verdict import classify
from day0.errors import Day0Error
from day0.implementation import Implementation
from day0.records import GAP_VERDICTS, Effort, Leaf, Replacement, Signature, TraceEntry
from day0.reference_ops.signatures import describe, materialise, resolve, tensors_in

__all__ = ["EFFORTS", "Pricer", "effort_of"]

EFFORTS: tuple[Effort, ...] = (
    "alias",
    "elementwise",
    "decomposition",
    "reduction",
    "gather_scatter",
    "gemm",
    "attention",
    "recurrence",
    "host_sync",
    "unknown",
)
"""From the least work to the most; what nobody can say stands last."""

_OURS: dict[str, Effort] = {
    "kda_recurrent": "recurrence",
    "kda_chunked": "recurrence",
    "sparse_mla_prefill": "attention",
    "sparse_mla_decode": "attention",
    "vision_attention": "attention",
    "lightning_indexer": "gemm",
    "fused_experts": "gemm",
    "hadamard": "gemm",
    "moe_router": "gather_scatter",
    "topk_tokens": "gather_scatter",
    "topk_from_masked": "gather_scatter",
    "paged_kv_gather": "gather_scatter",
    "paged_kv_write": "gather_scatter",
    "expand_pools": "gather_scatter",
    "merge_patches": "gather_scatter",
    "block_bitmap": "gather_scatter",
    "resize_positions": "gather_scatter",
    "short_conv": "gemm",
    "rms_norm": "reduction",
    "fused_add_rms_norm": "reduction",
    "rms_norm_quantise": "reduction",
    "attention_residual": "reduction",
    "hyper_connection_pre": "reduction",
    "fp8_block_quantise": "reduction",
    "pool_index_keys": "reduction",
    "sample_token": "reduction",
    "hyper_connection_post": "elementwise",
    "kda_gate": "elementwise",
    "gated_activation": "elementwise",
    "rope": "elementwise",
    "rope_2d": "elementwise",
    "mxfp4_decode": "elementwise",
    "fp8_block_dequantise": "elementwise",
}
_GATHERS = frozenset(
    [
        "gather",
        "scatter",
        "scatter_add",
        "scatter_reduce",
        "index",
        "index_put",
        "index_select",
        "index_add",
        "index_copy",
        "embedding",
        "masked_scatter",
        "take",
        "take_along_dim",
        "sort",
        "topk",
        "kthvalue",
        "searchsorted",
        "bucketize",
        "histc",
        "bincount",
        "cumsum",
        "cumprod",
        "logcumsumexp",
        "cummax",
        "cummin",
        "repeat_interleave",
        "roll",
        "flip",
        "unfold_copy",
    ]
)
_REDUCES = frozenset(
    [
        "sum",
        "mean",
        "amax",
        "amin",
        "max",
        "min",
        "argmax",
        "argmin",
        "prod",
        "any",
        "all",
        "norm",
        "linalg_vector_norm",
        "var",
        "std",
        "var_mean",
        "std_mean",
        "logsumexp",
        "_softmax",
        "_log_softmax",
        "_safe_softmax",
        "native_layer_norm",
        "native_group_norm",
        "native_batch_norm",
        "_fused_rms_norm",
        "rms_norm",
        "softmax",
    ]
)
_GEMMS = frozenset(
    [
        "linear",
        "matmul",
        "einsum",
        "_grouped_mm",
        "_scaled_mm",
        "_scaled_grouped_mm",
        "convolution",
        "conv1d",
        "bilinear",
    ]
)
_SYNCS = HOST_SYNCS | {"aten::item", "aten::repeat_interleave.Tensor"}


def effort_of(entry: TraceEntry, leaves: Sequence[Leaf], profile: DeviceProfile) -> tuple[Effort, str]:
    """Return the effort class of a gap, and why it is that class. Where torch says nothing, it is `unknown`."""
    op = entry.signature.op
    space, _, rest = op.partition("::")
    base = rest.partition(".")[0]
    if space == "day0":
        effort = _OURS.get(base)
        return (
            (effort, "by its contract in reference_ops") if effort else ("unknown", "nobody has said what it is like")
        )
    if space != "aten":
        return "unknown", f"{space} is not torch's own, and nothing is known of it"
    return _of_aten(op, base.rstrip("_"), entry, leaves, profile)


def _of_aten(
    op: str, base: str, entry: TraceEntry, leaves: Sequence[Leaf], profile: DeviceProfile
) -> tuple[Effort, str]:
    overload = resolve(op)
    if entry.host_sync or op in _SYNCS or torch.Tag.data_dependent_output in overload.tags:
        return "host_sync", "its result depends on values: the host waits, and no graph can hold it"
    if is_metadata_view(op):
        return "alias", "a view: sizes and strides only"
    sibling = _sibling(op, entry, profile)
    if sibling:
        return "alias", f"the device has {sibling}, which is the same arithmetic"
    if "attention" in base:
        return "attention", "an attention kernel by its name"
    if overload._overloadpacket in flop_registry or base in _GEMMS:
        return "gemm", "torch counts it among the matrix products"
    if torch.Tag.pointwise in overload.tags:
        return "elementwise", "torch tags it pointwise"
    if torch.Tag.reduction in overload.tags or base in _REDUCES:
        return "reduction", "it brings a dimension down to one value"
    if base in _GATHERS:
        return "gather_scatter", "it reads or writes at places that depend on values, or orders them"
    lacking = [leaf.op for leaf in leaves if not leaf.supported]
    if lacking:
        return "decomposition", f"its composite is there; {', '.join(sorted(set(lacking)))} below it is lacking"
    if overload in torch._decomp.decomposition_table:
        return "decomposition", "torch has a decomposition of it"
    return "unknown", "torch neither tags it nor decomposes it; read what it does first"


def _sibling(op: str, entry: TraceEntry, profile: DeviceProfile) -> str:
    """Return the in-place or the ordinary form of an operator, if the device has that one."""
    base, dot, overload = op.partition(".")
    other = base[:-1] if base.endswith("_") else f"{base}_"
    name = f"{other}{dot}{overload}"
    try:
        resolve(name)
    except Day0Error:
        return ""
    found = supports(profile, name, leaf_dtypes(entry.signature), leaf_ranks(entry.signature))
    # Where a library lacks an operator, a profile rarely names its in-place form too: that has to have been seen.
    return name if found.supported and (base.endswith("_") or found.evidence == "probed") else ""


class Pricer:
    """Says what each way to close a gap would cost, once for each operator, tuple of dtypes and way.

    What a decomposition calls is watched on meta for one signature, and its price in rooflines of the operator is
    taken for the others too: a loop over 256 experts need not be walked for every shape.
    """

    def __init__(self, profile: DeviceProfile, seconds: Callable[[TraceEntry], float]) -> None:
        self._profile, self._seconds = profile, seconds
        self._prices: dict[tuple[str, str, tuple[str, ...]], _Price] = {}

    def ways(self, entry: TraceEntry, accepted: Sequence[Implementation]) -> tuple[Replacement, ...]:
        """Return what the registry has, torch's own decomposition where it runs, and the CPU with transfers."""
        ways = [self._of_implementation(one, entry) for one in accepted]
        known = operator_exists(entry.signature.op)  # not if another package brings it, which is not imported here
        run = torch._decomp.decomposition_table.get(resolve(entry.signature.op)) if known else None
        if not accepted and run is not None:
            price = self._price("torch._decomp", run, entry)
            if not price.lacking:
                ways.append(_replacement("torch._decomp", "torch_decomposition", price, self._seconds(entry)))
        return (*ways, _on_cpu(entry, self._profile))

    def _of_implementation(self, one: Implementation, entry: TraceEntry) -> Replacement:
        name, roofline = str(one.identity), self._seconds(entry)
        if one.kind == "kernel":
            return Replacement(name=name, kind="kernel", seconds=roofline, note="the roofline of the operator itself")
        kind: Literal["decomposition", "reference"] = "decomposition" if one.kind == "decomposition" else "reference"
        return _replacement(name, kind, self._price(name, one.run, entry), roofline)

    def _price(self, name: str, run: Callable[..., object], entry: TraceEntry) -> _Price:
        key = (name, entry.signature.op, leaf_dtypes(entry.signature))
        if key not in self._prices:
            self._prices[key] = _watch(run, entry, self._profile, self._seconds)
        return self._prices[key]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Price:
    """What one call of a way costs, in rooflines of the operator that it replaces."""

    ratio: float | None
    note: str
    lacking: tuple[str, ...] = ()
    """Operators that it calls and the device lacks too."""


class _TooMany(Exception):
    """It calls more than anybody would wait for here."""


class _Meter(TorchDispatchMode):
    """Adds up the rooflines of calls, each kind of call described once."""

    def __init__(self, price: Callable[[Any, Any, Any, Any], tuple[float, Signature]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        self._price = price
        self._known: dict[Any, float] = {}
        self.seconds, self.launches = 0.0, 0
        self.signatures: list[Signature] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        key = (func, tuple((x.shape, x.dtype) for x in tensors_in((args, kwargs or {}))))
        if key not in self._known:
            self._known[key], signature = self._price(func, args, kwargs or {}, result)
            self.signatures.append(signature)
        self.seconds += self._known[key]
        self.launches += self._known[key] > 0.0
        if self.launches > MAX_CALLS:
            raise _TooMany
        return result


MAX_CALLS = 4000


def _watch(
    run: Callable[..., object], entry: TraceEntry, profile: DeviceProfile, seconds: Callable[[TraceEntry], float]
) -> _Price:
    def price(func: Any, args: Any, kwargs: Any, result: Any) -> tuple[float, Signature]:
        signature = describe(func.name(), args, kwargs)
        row = TraceEntry(
            id="",
            signature=signature,
            outputs=(),
            counts={"": 1},
            flops=count_flops(func, args, kwargs, result),
            bytes=count_bytes(func, args, kwargs, result),
        )
        return seconds(row), signature

    meter = _Meter(price)
    args, kwargs = materialise(entry.signature, "meta")
    try:
        with torch.no_grad(), meter:
            run(*args, **kwargs)
    except _TooMany:
        return _Price(ratio=None, note=f"more than {MAX_CALLS:,} calls of its own for each")
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, AttributeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return _Price(ratio=None, note=f"what it calls depends on values: {first[:120]}")
    whole = seconds(entry) / (sum(entry.counts.values()) or 1)
    lacking = {one.op for one in meter.signatures if classify(profile, one).verdict in GAP_VERDICTS}
    note = f"{meter.launches:,} calls of its own for each"
    return _Price(ratio=meter.seconds / whole if whole else None, note=note, lacking=tuple(sorted(lacking)))


def _replacement(
    name: str, kind: Literal["decomposition", "reference", "torch_decomposition"], price: _Price, roofline: float
) -> Replacement:
    cost = None if price.ratio is None else price.ratio * roofline
    return Replacement(name=name, kind=kind, seconds=cost, note=price.note)


def _on_cpu(entry: TraceEntry, profile: DeviceProfile) -> Replacement:
    calls = sum(entry.counts.values())
    if profile.link_gb_s is None:
        note = f"{entry.bytes * calls / 1e9:,.3f} GB over a link whose rate the profile does not give"
        return Replacement(name="CPU with transfers", kind="cpu_fallback", note=note)
    cost = (entry.bytes / (profile.link_gb_s * 1e9) + profile.sync_us * 1e-6) * calls
    return Replacement(name="CPU with transfers", kind="cpu_fallback", seconds=cost, note="transfers alone")
