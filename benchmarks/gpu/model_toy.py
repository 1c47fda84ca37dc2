"""The toy at the widths of Kimi K3.1, for `model.py`: weights, caches of any length, one step, and a lock for it.

Nothing is prefilled for a long context: rows and keys of the cache are random, which costs what real ones cost.

Shape suffixes: B batch, S new tokens, T all tokens, V vocabulary, N tokens, D width, E experts, F features, H heads,
C row width, M pages of a request, K choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

from day0.analyzers.inventory import take_inventory
from day0.analyzers.trace import trace_model
from day0.converters.workspace import ExpertRound, PackedExperts
from day0.devices.profile import load_profile
from day0.implementation import Implementation
from day0.models.source import open_model
from day0.models.toy import mla
from day0.models.toy.cache import KdaCache, MlaCache, Placement
from day0.models.toy.calls import Calls, references
from day0.models.toy.model import MlaLayer, ToyConfig, ToyModel
from day0.models.toy.online import expert_layers
from day0.models.toy.variants import VARIANTS
from day0.models.workload import plan_phases
from day0.playbook import ModelPlan, PhasePlan, RegisterPlan, WorkloadPlan
from day0.records import Lock
from day0.reference_ops import gated_activation
from day0.reference_ops.torch_ops import register_operators
from day0.registry.collect import collect
from day0.registry.lock import make_lock
from day0.registry.namespaces import load_parents, search_path

PAGE = 64
KERNEL = "day0.kernels.triton.sparse_mla_decode"
K31 = ToyConfig(
    vocab_size=16384,
    hidden_size=7168,
    num_hidden_layers=5,
    mla_layers=(4, 5),
    kda_heads=96,
    kda_key_dim=128,
    kda_value_dim=128,
    kda_gate_rank=128,
    mla_heads=96,
    q_lora_rank=1536,
    kv_lora_rank=512,
    nope_head_dim=128,
    shared_head_dim=64,
    v_head_dim=128,
    index_heads=32,
    index_head_dim=128,
    index_topk=2048,
    intermediate_size=33792,
    n_experts=64,
    experts_per_token=16,
    latent_size=3584,
    moe_intermediate_size=3072,
    shared_intermediate_size=6144,
    routed_scaling_factor=1.0,
    vision=False,
    block_size=PAGE,
    max_positions=1 << 21,
)
"""Widths of Kimi K3.1 Pro; five of its 93 layers, 64 of its 896 experts, and a tenth of its vocabulary."""
TINY = ToyConfig(vision=False, block_size=4, index_topk=16, max_positions=1 << 12)


def scaled(scale: float, *, tiny: bool = False, experts: int = 0) -> ToyConfig:
    """Return K3.1's widths times `scale`: hidden sizes, numbers of heads and features; a head keeps its size."""
    if tiny:
        return replace(TINY, n_experts=experts or TINY.n_experts)

    def part(value: int, unit: int) -> int:
        return max(unit, round(value * scale / unit) * unit)

    return replace(
        K31,
        hidden_size=part(K31.hidden_size, 128),
        kda_heads=part(K31.kda_heads, 4),
        mla_heads=part(K31.mla_heads, 16),
        q_lora_rank=part(K31.q_lora_rank, 128),
        intermediate_size=part(K31.intermediate_size, 128),
        latent_size=part(K31.latent_size, 128),
        moe_intermediate_size=part(K31.moe_intermediate_size, 128),
        shared_intermediate_size=part(K31.shared_intermediate_size, 128),
        n_experts=experts or K31.n_experts,
    )


def deepseek(config: ToyConfig, *, tiny: bool = False) -> ToyConfig:
    """Return the same in DeepSeek-V3.2's shape: MLA with an indexer in every layer, its heads, experts of full width."""
    groups = {"n_experts": config.n_experts, "expert_groups": 1, "expert_groups_kept": 1}
    shaped = replace(config, **{**VARIANTS["deepseek-v3.2"], **groups})
    if tiny:
        return shaped
    return replace(
        shaped,
        mla_heads=config.mla_heads * 128 // 96,
        index_heads=64,
        index_rope_dim=64,
        intermediate_size=config.intermediate_size * 18432 // 33792 // 128 * 128,
        moe_intermediate_size=2048,
        shared_intermediate_size=2048,
        experts_per_token=8,
        expert_groups=8,
        expert_groups_kept=4,
    )


def random_model(config: ToyConfig, device: str, seed: int = 0) -> ToyModel:
    """Return the model in bfloat16 with weights drawn on the device, each layer's variance kept."""
    with torch.device("meta"):
        model = ToyModel(config).to(torch.bfloat16)
    model = model.to_empty(device=device).requires_grad_(False).eval()
    generator = torch.Generator(device).manual_seed(seed)
    for name, value in model.state_dict().items():
        if name.endswith(".codes"):
            _fill_bytes(value, generator)
        elif name.endswith(".scales"):
            # Codes have a mean square of about 8.5, so that weights of 2^-7 are about a row's length to the power -1/2.
            value.random_(119, 121, generator=generator)
        else:
            value.normal_(generator=generator)
            if name.endswith(("norm.weight", "_res.norm")):
                value.mul_(0.1).add_(1.0)
            elif value.dim() == 1 and not name.endswith("_res.proj"):
                value.mul_(0.3)
            elif name != "embed_tokens.weight":
                fan_in = value.shape[-2] if name.endswith((".k_b", ".v_b")) else value.shape[-1]
                value.mul_(fan_in**-0.5)
    return model


def _fill_bytes(value: torch.Tensor, generator: torch.Generator) -> None:
    # One expert after the other: a generator makes 64-bit numbers, eight times the bytes.
    for expert in value:
        expert.random_(0, 256, generator=generator)


class Resident:
    """All experts of a layer in bfloat16, as a service with room for them has: one round, and nothing to wait for."""

    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor) -> None:
        self.gate_up, self.down = gate_up, down

    def rounds(
        self, packed: Sequence[PackedExperts], chosen_NK: torch.Tensor, dtype: torch.dtype
    ) -> Iterator[ExpertRound]:
        """Give the only round."""
        yield ExpertRound(gate_up=self.gate_up, down=self.down, chosen_NK=chosen_NK)


def together(model: ToyModel) -> None:
    """Put gate and up of each expert one behind the other, as checkpoints have them: then no copy joins them."""
    for layer in expert_layers(model):
        for part in ("codes", "scales"):
            gate, up = getattr(layer.w1, part), getattr(layer.w3, part)
            both = torch.cat((gate, up), dim=1)
            setattr(layer.w1, part, both[:, : gate.shape[1]])
            setattr(layer.w3, part, both[:, gate.shape[1] :])


def decoded_experts(model: ToyModel) -> list[Resident]:
    """Return the experts of every layer in bfloat16, decoded one by one."""
    decode = references().mxfp4_decode
    found = []
    for layer in expert_layers(model):
        wide = [
            torch.stack(
                [decode(codes, scales, torch.bfloat16) for codes, scales in zip(w.codes, w.scales, strict=True)]
            )
            for w in (layer.w1, layer.w3, layer.w2)
        ]
        found.append(Resident(torch.cat(wide[:2], dim=1), wide[2]))
    return found


def use_experts(model: ToyModel, found: Sequence[Resident]) -> None:
    """Let every layer take its experts from there."""
    for layer, experts in zip(expert_layers(model), found, strict=True):
        layer.workspace = experts


@dataclass(frozen=True, kw_only=True)
class Context:
    """Requests with a cache of some tokens, and one new token each."""

    ids_B1: torch.Tensor
    caches: tuple[KdaCache | MlaCache, ...]
    where: Placement

    @property
    def kv_bytes(self) -> int:
        """What the cache of one request takes that grows with its length."""
        grown = [one for one in self.caches if isinstance(one, MlaCache)]
        pages = [page for one in grown for page in (one.kv_PGC, one.index_PGC) if page is not None]
        return sum(page.nbytes for page in pages) // len(self.ids_B1)


def make_context(model: ToyModel, batch: int, tokens: int, device: str, seed: int = 0) -> Context:
    """Return random caches; `tokens` counts the new one, and the pages of a request lie one behind the other."""
    config = model.config
    generator = torch.Generator(device).manual_seed(seed + tokens)
    page = config.block_size
    if tokens % page:
        raise ValueError(f"{tokens} tokens do not fill pages of {page}")

    def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device=device).normal_(generator=generator)

    def cache(layer: torch.nn.Module) -> KdaCache | MlaCache:
        if isinstance(layer, MlaLayer):
            width = config.kv_lora_rank + config.shared_head_dim
            pages = batch * tokens // page
            return MlaCache(kv_PGC=normal(pages, page, width), index_PGC=normal(pages, page, config.index_head_dim))
        heads, keys, values = config.kda_heads, config.kda_key_dim, config.kda_value_dim
        kept = config.conv_kernel - 1
        conv = tuple(normal(batch, kept, heads * width) for width in (keys, keys, values))
        return KdaCache(
            conv_BWC=(conv[0], conv[1], conv[2]),
            state_BHKV=normal(batch, heads, keys, values, dtype=torch.float32) * 0.1,
        )

    first_B1 = torch.arange(batch, device=device)[:, None] * tokens
    block_BM = torch.arange(batch * tokens // page, dtype=torch.int32, device=device).view(batch, -1)
    return Context(
        ids_B1=torch.randint(0, config.vocab_size, (batch, 1), device=device, generator=generator),
        caches=tuple(cache(layer) for layer in model.layers),
        where=Placement(
            blocks=batch * tokens // page,
            block_size=page,
            first=tokens - 1,
            new_N=(first_B1 + tokens - 1).flatten(),
            slot_BT=(first_B1 + torch.arange(tokens, device=device)).to(torch.int32),
            tables=((block_BM, torch.full((batch,), tokens, dtype=torch.int32, device=device), tokens),),
        ),
    )


def step(model: ToyModel, context: Context, chosen_BSK: torch.Tensor | None = None) -> torch.Tensor:
    """Return logits [B, 1, V] of one token on its cache: `ToyModel.forward` but for the host's page table."""
    stream, bank = model.output_res.spread(model.embed_tokens(context.ids_B1)), ()
    for layer, cache in zip(model.layers, context.caches, strict=True):
        stream, bank, chosen_BSK, _ = layer(stream, bank, chosen_BSK, cache, context.where)
    logits_BSV: torch.Tensor = model.lm_head(model.norm(model.output_res.gather(stream, bank)))
    return logits_BSV


@contextmanager
def keys_in_place() -> Iterator[None]:
    """Read the index keys where they lie: as a paged indexer does, and as the toy's gather does not."""
    before = mla.read_rows

    def view(calls: Calls, pages_PGC: torch.Tensor, where: Placement) -> torch.Tensor:
        return pages_PGC.view(len(where.slot_BT), -1, pages_PGC.shape[-1])

    mla.read_rows = view
    try:
        yield
    finally:
        mla.read_rows = before


@contextmanager
def dense(model: ToyModel, way: str) -> Iterator[None]:
    """Attend to every row: no indexer, no selection. `kernel` is ours given all rows, `products` is torch's own."""
    layers = [layer.self_attn for layer in model.layers if isinstance(layer, MlaLayer)]
    indexers = [one.indexer for one in layers]
    for one in layers:
        one.indexer = None
        one._decode = _all_rows(one) if way == "kernel" else _products(one)
    try:
        yield
    finally:
        for one, indexer in zip(layers, indexers, strict=True):
            one.indexer = indexer
            del one._decode


def _all_rows(layer: Any) -> Any:
    def attend(q_BSHC: torch.Tensor, chosen_BSK: torch.Tensor, held: Any) -> torch.Tensor:
        # Not by the lock: it knows the call with a bitmap of pages alone, and here every page is read.
        cuda = q_BSHC.device.type == "cuda"
        run = import_module(KERNEL).decode if cuda else layer.calls.sparse_mla_decode
        pages, rows_BSK = held.cache.kv_PGC, held.where.slot_BT[:, None]
        out: torch.Tensor = run(q_BSHC, pages, rows_BSK, layer.config.kv_lora_rank, layer.scale)[0]
        return out

    return attend


def _products(layer: Any) -> Any:
    def attend(q_BSHC: torch.Tensor, chosen_BSK: torch.Tensor, held: Any) -> torch.Tensor:
        kv_BTC = held.cache.kv_PGC.view(len(q_BSHC), -1, q_BSHC.shape[-1])
        score_BHT = torch.bmm(q_BSHC[:, 0], kv_BTC.transpose(1, 2)).float() * layer.scale
        weight_BHT = torch.softmax(score_BHT, dim=-1).to(kv_BTC.dtype)
        return torch.bmm(weight_BHT, kv_BTC[..., : layer.config.kv_lora_rank])[:, None]

    return attend


def all_rows(context: Context) -> torch.Tensor:
    """Return what a dense model is told that it chose: [B, 1, T]."""
    return context.where.slot_BT[:, None]


def lock_for(config: ToyConfig, device: str) -> tuple[Lock, tuple[Implementation, ...]]:
    """Trace the model on meta, take the inventory and choose, as `day0 run` does.

    On a CPU, which lacks nothing, our operators are asked to be replaced.
    """
    register_operators()
    default = ToyConfig()
    set_ = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in config.as_dict().items()
        if value != getattr(default, key)
    }
    spec = open_model(ModelPlan(source="toy", dtype="bfloat16", set=set_))
    phases = {"prefill": PhasePlan(tokens=2 * PAGE), "decode": PhasePlan(tokens=1, context=2 * PAGE)}
    trace = trace_model(spec, plan_phases(spec, WorkloadPlan(batch=2, phases=phases)))
    return chosen_for(trace, device, "kimi/k3.1")


def chosen_for(trace: Any, device: str, namespace: str) -> tuple[Lock, tuple[Implementation, ...]]:
    """Return the lock for a trace, and what it chose from."""
    profile, implementations = load_profile(device), collect()
    own = {one.operator for one in implementations if one.origin.startswith("kernels/torch/")}
    called = {entry.signature.op for entry in trace.entries}
    replaced = tuple(sorted(own & called)) if device == "cpu" else ()
    namespaces = search_path(namespace, load_parents(()))
    inventory = take_inventory(trace, profile, implementations, namespaces=namespaces)
    plan = RegisterPlan(namespace=namespace, fallback="device", replace=replaced)
    return make_lock(inventory, trace, implementations, profile, plan, namespaces), implementations


def speak(model: ToyModel, calls: Calls) -> None:
    """Let every part of a model call its operators in another way."""
    for module in model.modules():
        if hasattr(module, "calls"):
            module.calls = calls


def plain_calls() -> Calls:
    """Return what runs without any kernel of day0: references, and where those would wait for the host, plain torch."""
    found = vars(references()).copy()
    for one in collect():
        name = one.operator.removeprefix("day0::")
        if one.origin.startswith("kernels/torch/") and name in found and one.namespace == "base":
            found[name] = one.run
    found["fused_experts"] = plain_experts
    return SimpleNamespace(**found)


def plain_experts(
    x_ND: torch.Tensor,
    gate_up_EHD: torch.Tensor,
    down_EDF: torch.Tensor,
    weights_NK: torch.Tensor,
    chosen_NK: torch.Tensor,
    kind: str,
    interleaved: bool,
    weight_early: bool,
    limit: float,
    beta: float,
    linear_beta: float,
) -> torch.Tensor:
    """Return [N, D] expert by expert, as models in plain torch do; it waits for the host to know who is chosen."""
    total_ND = torch.zeros(x_ND.shape, dtype=torch.float32, device=x_ND.device)
    for expert in chosen_NK.unique().tolist():
        token_M, choice_M = torch.where(chosen_NK == expert)
        hidden = x_ND[token_M] @ gate_up_EHD[expert].t()
        active = gated_activation.reference(hidden, kind, interleaved, limit, beta, linear_beta)
        out = (active.to(x_ND.dtype) @ down_EDF[expert].t()).float() * weights_NK[token_M, choice_M, None].float()
        total_ND.index_add_(0, token_M, out)
    return total_ND.to(x_ND.dtype)
