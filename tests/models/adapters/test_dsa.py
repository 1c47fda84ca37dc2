"""Sparse attention over latents: what it hands to the operators, against the attention's own code, and its refusals.

Shape suffixes: B batch, S queries, T keys, K chosen tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from day0.analyzers.canary.context import CanaryContext
from day0.analyzers.canary.run import run_stages
from day0.analyzers.kernel_check import Call, check_kernel
from day0.analyzers.parallel import trace_one_rank
from day0.analyzers.trace import trace_model
from day0.errors import Day0Error
from day0.kernels.triton import sparse_mla_decode as triton_decode
from day0.kernels.triton import sparse_mla_prefill as triton_prefill
from day0.models.adapters import dsa
from day0.models.adapters._absorbed import PAGE, attend
from day0.models.adapters._adapter import Refused
from day0.models.adapters._proof import prove
from day0.models.adapters.adapt import adapt, adapted, restore
from day0.models.adapters.opened import with_adapters
from day0.models.driver import step
from day0.models.hf import open_hf
from day0.models.workload import plan_phases
from day0.playbook import CanaryPlan, ModelPlan, WorkloadPlan
from day0.records import Signature
from day0.reference_ops import sparse_mla_decode, sparse_mla_prefill
from day0.reference_ops.agreement._widened import Widened
from day0.reference_ops.load import load_operators
from day0.reference_ops.torch_ops import register_operators
from day0.registry.dispatch import activate
from day0.registry.resolve import refusal
from tests.models.adapters.models import ids, opened, small
from tests.registry.locking import implementation, lock_of

PREFILL, DECODE = sparse_mla_prefill.NAME, sparse_mla_decode.NAME
TOPK = 7


def part(model: nn.Module, ending: str) -> Any:
    """Return the first module of a class."""
    return next(one for one in model.modules() if type(one).__name__.endswith(ending))


def model_of(name: str, dtype: torch.dtype = torch.float64) -> Any:
    """Return a small model whose indexers choose few of the tokens."""
    model = small(name, dtype)
    for one in model.modules():
        if type(one).__name__.endswith("Indexer") and hasattr(one, "index_topk"):
            one.index_topk = TOPK
    return model


class Calls:
    """What the operators were called with, and what runs there."""

    def __init__(self) -> None:
        register_operators()
        self.seen: dict[str, list[tuple[Any, ...]]] = {PREFILL: [], DECODE: []}
        self.device = torch.device("cpu")

    def active(self, changed: Callable[[str, list[Any]], Any] | None = None) -> Any:
        """Return a context in which calls are kept, and change their arguments where asked."""
        ones = [implementation(name, self._run(name, changed), id=name[6:]) for name in (PREFILL, DECODE)]
        lock = lock_of(*((one, (wide, wide, "int32")) for one in ones for wide in ("float32", "float64")))
        return activate(lock, self.device, ones)

    def _run(self, name: str, changed: Callable[[str, list[Any]], Any] | None) -> Callable[..., Any]:
        reference = load_operators()[name].reference

        def run(*args: Any) -> Any:
            self.seen[name].append(tuple(one.clone() if isinstance(one, torch.Tensor) else one for one in args))
            return reference(*(args if changed is None else changed(name, list(args))))

        return run


# ------------------------------------------------------------------------------- against the attention's own code


def outputs(model: Any, ids_BS: torch.Tensor, mask_BS: torch.Tensor | None) -> list[torch.Tensor]:
    """Return logits of a prompt, of four more tokens at once, and of two tokens one after the other."""
    found, cache, done = [], None, 0
    for tokens in (ids_BS.shape[1] - 6, 4, 1, 1):
        given: dict[str, Any] = {} if mask_BS is None else {"attention_mask": mask_BS[:, : done + tokens]}
        result = model(input_ids=ids_BS[:, done : done + tokens], cache=cache, use_cache=True, **given)
        cache, done = result.cache, done + tokens
        found.append(result.logits)
    return found


@pytest.mark.parametrize(
    ("name", "names", "padded"),
    [
        ("deepseek_v32", ("dsa",), "none"),
        ("deepseek_v32", ("dsa",), "left"),
        ("deepseek_v32", ("dsa", "lightning_indexer"), "left"),
        ("deepseek_v32", ("dsa", "lightning_indexer"), "within"),
        ("glm_moe_dsa", ("dsa", "lightning_indexer"), "left"),
    ],
)
def test_prompt_and_decode_agree_with_its_own_code(name: str, names: tuple[str, ...], padded: str) -> None:
    """Fewer tokens than are chosen, as many, and more; with a cache, two sequences, and holes in one of them.

    The last token of the padded prompt sees fewer than are chosen: an indexer fills its row up.
    """
    model, ids_BS = model_of(name), ids(name, 24)
    mask_BS = None if padded == "none" else torch.ones_like(ids_BS)
    if mask_BS is not None:
        mask_BS[0, slice(0, 13) if padded == "left" else slice(3, 15)] = 0
    kept = torch.ones_like(ids_BS, dtype=torch.bool) if mask_BS is None else mask_BS.bool()
    calls = Calls()
    with torch.no_grad(), Widened():
        own = torch.cat(outputs(model, ids_BS, mask_BS), dim=1)
        with adapted(model, names), calls.active():
            ours = torch.cat(outputs(model, ids_BS, mask_BS), dim=1)
    # In float64, by the rule for adapters: 1e-10. The rounding of both forms is six orders below.
    torch.testing.assert_close(ours[kept], own[kept], rtol=1e-10, atol=1e-11)
    assert len(calls.seen[PREFILL]) == len(calls.seen[DECODE]) == 2 * 2
    for _, rows, chosen_BSK, *_ in (*calls.seen[PREFILL], *calls.seen[DECODE]):
        assert chosen_BSK.dtype == torch.int32
        assert chosen_BSK.max() < rows.shape[0] * rows.shape[1]
        for row in chosen_BSK.flatten(0, 1).tolist():
            valid = [one for one in row if one >= 0]
            # A kernel that gathers rows counts one twice that is named twice.
            assert len(valid) == len(set(valid))


def test_a_row_that_sees_few_tokens_reads_no_hidden_one() -> None:
    """Their choice is filled with tokens of the future, which a kernel without a mask would read."""
    model, calls = model_of("deepseek_v32"), Calls()
    adapt(model, ("dsa",))
    with torch.no_grad(), Widened(), calls.active():
        step(model, ids("deepseek_v32", 12))
    chosen_BSK = calls.seen[PREFILL][0][2]
    position_S1 = torch.arange(12)[:, None]
    assert (chosen_BSK <= position_S1).all()
    assert torch.equal((chosen_BSK >= 0).sum(dim=-1)[0], (torch.arange(12) + 1).clamp(max=TOPK))


def test_decode_gives_each_sequence_pages_of_its_own() -> None:
    model, calls = model_of("deepseek_v32"), Calls()
    adapt(model, ("dsa",))
    ids_BS = ids("deepseek_v32", 67)
    with torch.no_grad(), Widened(), calls.active():
        cache = step(model, ids_BS[:, :-1]).cache
        step(model, ids_BS[:, -1:], cache)
    q_BSHC, pages_PGC, slots_BSK, latent, *_ = calls.seen[DECODE][0]
    assert list(pages_PGC.shape) == [4, PAGE, q_BSHC.shape[-1]]
    assert latent == part(model, "Attention").kv_lora_rank
    assert (slots_BSK[0] < 67).all()
    assert ((slots_BSK[1] >= 128) & (slots_BSK[1] < 128 + 67)).all()


def test_its_rotation_is_an_operator_too_whoever_else_is_asked_for() -> None:
    model = model_of("deepseek_v32", torch.float32)
    assert adapt(model, ("rope", "dsa")).classes == {"dsa": {"DeepseekV32Attention": 2}}
    restore(model)
    assert adapt(model, ("rope",)).classes == {"rope": {"DeepseekV32Attention": 2}}


def test_torch_compile_takes_it_whole() -> None:
    model, kept = model_of("deepseek_v32", torch.float32), []
    attention = part(model, "Attention")
    hook = attention.register_forward_hook(lambda *given: kept.append(given), with_kwargs=True)
    with torch.no_grad():
        model(input_ids=ids("deepseek_v32", 12), use_cache=False)
        hook.remove()
        (_, args, kwargs, own), calls = kept[0], Calls()
        adapt(model, ("dsa", "lightning_indexer"))
        with calls.active():
            compiled: Any = torch.compile(attention, backend="eager", fullgraph=True)
            ours = compiled(*args, **kwargs)
    torch._dynamo.reset()
    # float32: the absorbed form rounds elsewhere; a wrong token or scale is off by a tenth.
    torch.testing.assert_close(ours[0], own[0], rtol=1e-4, atol=1e-5)


# -------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda one: setattr(one, "kv_b_proj", nn.Linear(8, 8)), "its weight is absorbed, so it has to be a plain"),
        (lambda one: setattr(one, "kv_b_proj", nn.Identity()), "its kv_b_proj is Identity()"),
        (lambda one: setattr(one, "indexer", None), "it has no indexer: it reads every key"),
        (lambda one: delattr(one, "kv_lora_rank"), "it has no kv_lora_rank"),
        (lambda one: setattr(one.config, "_attn_implementation", "flash"), "it attends by flash"),
        (lambda one: one.add_module("extra", nn.Linear(2, 2)), "it has a part extra (Linear)"),
    ],
)
def test_what_cannot_be_expressed_is_refused(change: Callable[[Any], None], reason: str) -> None:
    module = part(open_hf(ModelPlan(source="hf:deepseek_v32", shrink=True)).build("meta"), "Attention")
    change(module)
    with pytest.raises(Day0Error) as found:
        adapt(module, ("dsa",))
    assert any(reason in fact for fact in found.value.facts), found.value.facts


def test_keys_of_other_layers_are_refused() -> None:
    kinds = pytest.importorskip("transformers.models.mistral_large4.modeling_mistral_large4")
    module = object.__new__(kinds.MistralLarge4TextAttention)
    nn.Module.__init__(module)
    own = part(opened("deepseek_v32").build("meta"), "Attention")
    vars(module).update({name: value for name, value in vars(own).items() if not name.startswith("_")})
    for name, child in own.named_children():
        module.add_module(name, child)
    with pytest.raises(Refused, match="its forward takes shared_kv_states"):
        prove(dsa.ADAPTER, module, dsa.ADAPTER.candidates(module), torch.float32)


def test_weights_and_dropout_are_not_lost_silently() -> None:
    model = model_of("deepseek_v32", torch.float32)
    model.set_attn_implementation("eager")
    ids_BS = ids("deepseek_v32", 9)
    with torch.no_grad():
        own = model(input_ids=ids_BS).logits
        adapt(model, ("dsa",))
        # float32, as above: both forms round, at other places.
        torch.testing.assert_close(model(input_ids=ids_BS).logits, own, rtol=1e-4, atol=1e-5)
        with pytest.raises(Day0Error, match="is asked for its weights"):
            model(input_ids=ids_BS, output_attentions=True)
        attention = part(model, "Attention")
        attention.attention_dropout = 0.1
        attention.train()
        with pytest.raises(Day0Error, match="drops weights at random"):
            model(input_ids=ids_BS)
    with pytest.raises(Day0Error, match="has no backward"):
        model(input_ids=ids_BS)


# ----------------------------------------------------------------------------------------------------- faults


def wrong(**changes: Any) -> Callable[..., Any]:
    """Return `attend` with a mistake in what it makes of its arguments."""

    def mistaken(seen: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        if "scaling" in changes:
            kwargs["scaling"] *= changes["scaling"]
        if changes.get("unmasked"):
            mask = torch.ones_like(mask)
        if changes.get("shifted"):
            kwargs["indices"] = (kwargs["indices"] - 1).clamp(min=0)
        if changes.get("swapped"):
            query = torch.cat((query[..., 6:], query[..., :6]), dim=-1)
        return attend(seen, query, key, value, mask, **kwargs)

    return mistaken


MISTAKES: dict[str, dict[str, Any]] = {
    "scale of the latent width": {"scaling": 1.1},
    "reads the future": {"unmasked": True},
    "one row off": {"shifted": True},
    "rotated part first": {"swapped": True},
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_proof_refuses_a_mistake(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = part(opened("deepseek_v32").build("meta"), "Attention")
    monkeypatch.setattr(dsa, "attend", wrong(**MISTAKES[mistake]))
    with pytest.raises(Refused, match=r"in float64 its results differ from the module's own by"):
        prove(dsa.ADAPTER, module, dsa.ADAPTER.candidates(module), torch.float32)


def off_by_one(name: str, args: list[Any]) -> list[Any]:
    """Read the row before each one that was chosen."""
    args[2] = torch.where(args[2] > 0, args[2] - 1, args[2])
    return args


def wrong_scale(name: str, args: list[Any]) -> list[Any]:
    """Scale by the width of a latent row, as if queries were not absorbed."""
    args[4] = args[0].shape[-1] ** -0.5
    return args


def test_a_wrong_kernel_is_caught_by_the_check_and_the_canary(tmp_path: Path) -> None:
    """On calls of the model, and in the model, which is held against its own code."""
    base, calls = opened("deepseek_v32"), Calls()
    base = replace(base, build=lambda device: opened("deepseek_v32").build(device).float())
    spec = with_adapters(base, ModelPlan(source="hf:deepseek_v32", adapt=("dsa",)))
    model = spec.build("cpu")
    with torch.no_grad(), calls.active():
        step(model, ids("deepseek_v32", 3), step(model, ids("deepseek_v32", 40)).cache)
        step(model, ids("deepseek_v32", 1), step(model, ids("deepseek_v32", 40)).cache)
    for name in (PREFILL, DECODE):
        given: list[Call] = [(args, {}) for args in calls.seen[name][:1]]
        for changed, status in ((None, "pass"), (off_by_one, "fail"), (wrong_scale, "fail")):
            one = implementation(name, calls._run(name, changed))
            assert [found.status for found in check_kernel(one, calls=given)] == [status]
    with calls.active(off_by_one) as active:
        context = CanaryContext(
            spec=spec, device=calls.device, active=active, evidence=tmp_path, prompt_tokens=12, new_tokens=2
        )
        stages = run_stages(context, CanaryPlan(prompt_tokens=12, new_tokens=2))
    assert {one.name: one.status for one in stages}["one_layer"] == "fail"


# ---------------------------------------------------------------------------------------------- real dimensions


def test_each_rank_absorbs_the_rows_of_its_own_heads() -> None:
    spec = with_adapters(opened("deepseek_v32"), ModelPlan(source="hf:deepseek_v32", shrink=True, adapt=("dsa",)))
    trace = trace_one_rank(spec, plan_phases(spec, WorkloadPlan())[:1], 2)
    heads = {one.signature.args[0].shape[2] for one in trace.entries if one.signature.op == PREFILL}  # type: ignore[union-attr]  # a tensor comes first
    assert heads == {part(spec.build("meta"), "Attention").num_heads // 2}


def test_our_kernels_take_the_calls_of_the_whole_model() -> None:
    """128 heads, latents of 512 and 64 rotated values, 2048 of 3072 tokens: from the config, two of 61 layers."""
    plan = ModelPlan(source="hf:deepseek_v32", set={"num_hidden_layers": 2, "first_k_dense_replace": 2}, adapt=("dsa",))
    spec = with_adapters(open_hf(plan), plan)
    trace = trace_model(spec, plan_phases(spec, WorkloadPlan())[2:], mode="meta")
    found: dict[str, Signature] = {
        entry.signature.op: entry.signature for entry in trace.entries if "sparse_mla" in entry.signature.op
    }
    shapes = {op: [list(one.shape) for one in found[op].args[:3]] for op in sorted(found)}  # type: ignore[union-attr]  # tensors come first
    assert shapes == {
        DECODE: [[1, 1, 128, 576], [49, 64, 576], [1, 1, 2048]],
        PREFILL: [[1, 3072, 128, 576], [1, 3072, 576], [1, 3072, 2048]],
    }
    for one in (*triton_prefill.IMPLEMENTATIONS, *triton_decode.IMPLEMENTATIONS):
        # Whether Triton is installed here is not asked.
        kernel, signature = replace(one, predicate=None), found[one.operator]
        assert refusal(kernel, signature, "cuda") == ""
        wide = signature.model_validate_json(signature.model_dump_json().replace("bfloat16", "float32"))
        assert "float32" in refusal(kernel, wide, "cuda")
