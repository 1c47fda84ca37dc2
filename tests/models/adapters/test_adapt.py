"""What an adapter may do to a module, how it is undone, and what it refuses."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from day0.analyzers.canary.context import CanaryContext
from day0.analyzers.canary.run import run_stages
from day0.analyzers.trace import trace_model
from day0.errors import Day0Error
from day0.models.adapters import adapt as adapting
from day0.models.adapters import fused_experts, gated_mlp, moe_router, rms_norm, rope
from day0.models.adapters._adapter import Adapter, Candidate, Refused
from day0.models.adapters._proof import prove
from day0.models.adapters.adapt import adapt, adapted, restore
from day0.models.adapters.load import adapter_hash, choose_adapters, load_adapters
from day0.models.adapters.opened import with_adapters
from day0.models.spec import ModelSpec
from day0.models.workload import plan_phases
from day0.playbook import CanaryPlan, ModelPlan, WorkloadPlan
from day0.records import Lock
from day0.reference_ops.load import load_operators
from day0.registry.dispatch import activate
from tests.models.adapters.models import ids, logits, opened, small


def part(model: nn.Module, ending: str) -> Any:
    """Return the first module of a class."""
    return next(one for one in model.modules() if type(one).__name__.endswith(ending))


# ------------------------------------------------------------------------------------------------ the files


@pytest.mark.parametrize("name", load_adapters())
def test_an_adapter_names_operators_of_ours_and_classes(name: str) -> None:
    adapter = load_adapters()[name]
    assert adapter.name == name
    assert adapter.title
    assert adapter.classes
    assert all(pattern.startswith("transformers.models.") for pattern in adapter.classes)
    assert set(adapter.operators) <= set(load_operators())
    assert adapter_hash(name).startswith("sha256:")


def test_an_unknown_name_shows_the_near_one_and_all_of_them() -> None:
    with pytest.raises(Day0Error) as found:
        choose_adapters(("rms_nrm",))
    assert "there is no adapter 'rms_nrm'" in str(found.value)
    assert "rms_norm" in (found.value.hint or "")
    assert len(found.value.facts) == len(load_adapters())


def test_an_adapter_that_fits_nothing_says_why_and_which_would() -> None:
    model = small("gemma3_text")
    with pytest.raises(Day0Error) as found:
        adapt(model, ("gated_mlp",))
    assert found.value.what == "adapter 'gated_mlp' fits no module of Gemma3ForCausalLM"
    assert "its activation is GELUTanh" in found.value.facts[0]
    assert found.value.hint == "adapters that fit it: rms_norm, rope"
    assert not any("forward" in vars(one) for one in model.modules())
    with pytest.raises(Day0Error, match="no adapter fits a module of Linear"):
        adapt(nn.Linear(2, 2), ("all",))


# ------------------------------------------------------------------------------------------- on the instance


def test_only_this_model_is_adapted_and_nothing_stays_behind() -> None:
    model, other = small("llama"), small("llama")
    before = {name: dict(vars(one)) for name, one in model.named_modules()}
    kind, own = type(part(model, "RMSNorm")), type(part(model, "RMSNorm")).forward
    with adapted(model, ("rms_norm", "rope")) as done:
        assert done.classes == {"rms_norm": {"LlamaRMSNorm": 5}, "rope": {"LlamaAttention": 2}}
        assert done.paths["model.norm"] == "rms_norm"
        assert "forward" in vars(part(model, "RMSNorm"))
        assert not any("forward" in vars(one) for one in other.modules())
        assert kind.forward is own
    assert {name: dict(vars(one)) for name, one in model.named_modules()} == before
    with pytest.raises(ValueError, match="inside"), adapted(model, ("rms_norm",)):
        raise ValueError("inside")
    assert not any("forward" in vars(one) for one in model.modules())


def test_a_copy_of_an_adapted_module_reads_its_own_weights() -> None:
    norm = part(small("llama"), "RMSNorm")
    x_XD = torch.randn(2, norm.weight.shape[0])
    with torch.no_grad():
        adapt(norm, ("rms_norm",))
        twin = copy.deepcopy(norm).double()
        twin.weight.fill_(2.0)
        torch.testing.assert_close(twin(x_XD.double()), 2.0 * norm(x_XD).double(), rtol=1e-5, atol=1e-6)
        assert twin.forward.__self__ is twin
        restore(twin)
        assert "forward" not in vars(twin)
        assert "forward" in vars(norm)


def test_hooks_still_run_around_it() -> None:
    norm = part(small("llama"), "RMSNorm")
    seen: list[str] = []
    norm.register_forward_pre_hook(lambda *_: seen.append("before"))
    norm.register_forward_hook(lambda *_: seen.append("after"))
    adapt(norm, ("rms_norm",))
    with torch.no_grad():
        norm(torch.randn(2, norm.weight.shape[0]))
    assert seen == ["before", "after"]


def test_a_forward_that_somebody_else_replaced_stays_theirs() -> None:
    norm = part(small("llama"), "RMSNorm")
    theirs = norm.forward = lambda x: x
    with pytest.raises(Day0Error) as found:
        adapt(norm, ("rms_norm",))
    assert "its forward was replaced on the instance already" in found.value.facts[0]
    restore(norm)
    assert norm.forward is theirs


def test_under_autograd_it_stops_instead_of_computing_no_gradient() -> None:
    model = small("llama")
    adapt(model, ("rms_norm",))
    with pytest.raises(Day0Error) as found:
        model(input_ids=ids("llama", 4))
    assert "day0::rms_norm, which has no backward" in found.value.what
    assert "torch.no_grad()" in (found.value.hint or "")
    with torch.inference_mode():
        model(input_ids=ids("llama", 4))
    model.requires_grad_(False)
    model(input_ids=ids("llama", 4))


def test_the_indexer_computes_no_gradient_by_itself() -> None:
    model = small("deepseek_v32")
    adapt(model, ("lightning_indexer",))
    assert model(input_ids=ids("deepseek_v32", 4)).logits.requires_grad


# ----------------------------------------------------------------------------------------------- the proof


def wrong_norm(eps: float = 1e-6, offset: float | None = 0.0, round_first: bool = True) -> list[Candidate]:
    return [rms_norm._candidate(eps, offset, round_first)]


WRONG: dict[str, tuple[str, str, Adapter, Any]] = {
    "eps off": ("llama", "RMSNorm", rms_norm.ADAPTER, lambda _: wrong_norm(eps=1e-5)),
    "offset forgotten": ("gemma3_text", "RMSNorm", rms_norm.ADAPTER, lambda _: wrong_norm(round_first=False)),
    "offset invented": ("llama", "RMSNorm", rms_norm.ADAPTER, lambda _: wrong_norm(offset=1.0)),
    "other gate": (
        "llama", "MLP", gated_mlp.ADAPTER,
        lambda m: [Candidate(text="", forward=gated_mlp._forward(("up_proj", "gate_proj", "down_proj"), "swiglu", 0.0))],
    ),
    "no limit": (
        "gpt_oss", "Experts", fused_experts.ADAPTER,
        lambda m: [Candidate(text="", forward=fused_experts._forward("swiglu_oai", 1e9, True))],
    ),
    "halves": (
        "gpt_oss", "Experts", fused_experts.ADAPTER,
        lambda m: [Candidate(text="", forward=fused_experts._forward("swiglu_oai", 7.0, False))],
    ),
    "scale": (
        "deepseek_v32", "TopkRouter", moe_router.ADAPTER,
        lambda m: [Candidate(text="", forward=moe_router._forward("sigmoid", True, 1.0, True, True))],
    ),
    "other score": (
        "deepseek_v32", "TopkRouter", moe_router.ADAPTER,
        lambda m: [Candidate(text="", forward=moe_router._forward("sqrtsoftplus", True, 2.5, True, True))],
    ),
    "other pairing": ("llama", "Attention", rope.ADAPTER, lambda m: rope.candidates(m)[-1:]),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
def test_the_proof_refuses_a_wrong_adapter_with_a_figure(fault: str) -> None:
    name, ending, adapter, candidates = WRONG[fault]
    module = part(opened(name).build("meta"), ending)
    with pytest.raises(Refused, match=r"differ from the module's own by|is infinite|it is .* away"):
        prove(adapter, module, candidates(module), torch.float32)


def test_a_class_with_other_code_is_refused() -> None:
    model = small("llama")
    kind = type(part(model, "RMSNorm"))

    class LaterRMSNorm(kind):  # type: ignore[misc,valid-type]  # found at run time
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return 1.001 * super().forward(hidden_states)  # type: ignore[no-any-return]  # as above

    with pytest.raises(Day0Error) as found:
        adapt(LaterRMSNorm(8), ("rms_norm",))
    assert "in float64 its results differ from the module's own by 0.001" in found.value.facts[0]


@pytest.mark.parametrize(
    ("name", "ending", "change", "reason"),
    [
        ("mixtral", "Router", {"norm_topk_prob": False}, "norm_topk_prob is false"),
        (
            "gpt_oss",
            "Experts",
            {"alpha": 1.5},
            "its alpha is 1.5, and swiglu_oai of day0::gated_activation means 1.702",
        ),
        ("gpt_oss", "Experts", {"has_post_expert_norm": True}, "it normalises behind each expert"),
        ("deepseek_v32", "Indexer", {"softmax_scale": 1.0}, "its softmax_scale is 1.0"),
        ("llama", "RMSNorm", {"variance_epsilon": None}, "it has no variance_epsilon and no eps"),
        ("llama", "MLP", {"act_fn": nn.GELU()}, "its activation is GELU"),
        ("llama", "MLP", {"act_fn": torch.tanh}, "its activation is tanh"),
    ],
)
def test_what_an_operator_cannot_express_is_refused(
    name: str, ending: str, change: dict[str, Any], reason: str
) -> None:
    module = part(opened(name).build("meta"), ending)
    for key, value in change.items():
        if isinstance(value, nn.Module) or key not in module._modules:
            setattr(module, key, value)
        else:
            del module._modules[key]
            object.__setattr__(module, key, value)
    with pytest.raises(Day0Error) as found:
        adapt(module, ("all",))
    assert any(reason in fact for fact in found.value.facts), found.value.facts


# ------------------------------------------------------------------------------------- trace and canary


def test_a_trace_has_our_operators_in_every_mode_and_says_so() -> None:
    spec = with_adapters(opened("deepseek_v32"), ModelPlan(source="hf:deepseek_v32", shrink=True, adapt=("all",)))
    plain = opened("deepseek_v32")
    assert spec.fingerprint != plain.fingerprint
    for mode in ("meta", "fake", "real"):
        trace = trace_model(spec, plan_phases(spec, WorkloadPlan())[:2], mode=mode)
        seen = {entry.signature.op for entry in trace.entries}
        wanted = {one for name in trace.model.adapted for one in load_adapters()[name].operators}
        assert wanted <= {one.partition(".")[0] for one in seen}
        assert trace.model.adapted["lightning_indexer"] == "2 DeepseekV32Indexer"
    assert not trace_model(plain, plan_phases(plain, WorkloadPlan())[:1], mode="meta").model.adapted


def test_without_adapters_a_spec_is_what_it_was() -> None:
    assert with_adapters(opened("llama"), ModelPlan(source="hf:llama")) is opened("llama")


def canary(spec: ModelSpec, folder: Path) -> dict[str, str]:
    """Run the stages on the CPU as a device of its own; return what became of them."""
    cpu = torch.device("cpu")
    with activate(Lock(device="cpu", namespace="base", model="x", entries=()), cpu, []) as active:
        context = CanaryContext(spec=spec, device=cpu, active=active, evidence=folder, prompt_tokens=20, new_tokens=4)
        assert any("forward" in vars(one) for one in context.on_device().modules())
        assert not any("forward" in vars(one) for one in (*context.reference().modules(), *context.golden().modules()))
        found = run_stages(context, CanaryPlan(prompt_tokens=20, new_tokens=4))
        return {one.name: one.status for one in found if one.skip != "unfit"}


def adapted_spec(name: str, *names: str) -> ModelSpec:
    """Return a small adapted model in float32, which leaves an adapter's mistake nowhere to hide."""
    base = opened(name)
    base = replace(base, build=lambda device: opened(name).build(device).float())
    return with_adapters(base, ModelPlan(source=f"hf:{name}", adapt=names))


def test_a_right_adapter_passes_the_canary(tmp_path: Path) -> None:
    assert set(canary(adapted_spec("gemma3_text", "all"), tmp_path).values()) == {"pass"}


@pytest.mark.parametrize("fault", ["eps off", "offset forgotten"])
def test_a_wrong_adapter_that_nobody_proved_is_stopped_by_the_canary(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the canary holds it against is the model's own code."""
    name, _, adapter, candidates = WRONG[fault]
    eps = 1e-2 if fault == "eps off" else 1e-6
    wrong = replace(
        adapter, name="rms_norm", candidates=lambda _: wrong_norm(eps) if fault == "eps off" else candidates(_)
    )
    monkeypatch.setattr(adapting, "prove", lambda adapter, module, candidates, dtype: candidates[0])
    monkeypatch.setattr(adapting, "choose_adapters", lambda names: (wrong,))
    found = canary(adapted_spec(name, "rms_norm"), tmp_path)
    assert found["load"] == "pass"
    assert found["one_layer"] == "fail"


def test_two_models_in_one_process_differ() -> None:
    one, other = small("llama"), small("llama")
    adapt(one, ("all",))
    with torch.no_grad():
        ours, own = logits(one, ids("llama", 9)), logits(other, ids("llama", 9))
    torch.testing.assert_close(ours, own, rtol=1e-4, atol=1e-5)
    assert not torch.equal(ours[0], own[0])
