"""`fit` against cases worked out by hand and figures that others have published."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from day0.analyzers.fit import activations
from day0.analyzers.fit.activations import ActivationSet, Growing, Measured
from day0.analyzers.fit.cache import CacheTensor
from day0.analyzers.fit.cards import Demand, card_of, weight_bytes
from day0.analyzers.fit.fit import FitRequest, Study, fit_model, fit_study, study_model
from day0.analyzers.fit.formats import FORMATS
from day0.analyzers.fit.layouts import Layout, check_layout, layouts_of, parse_layout, stages_of
from day0.analyzers.fit.lifetimes import LifetimeRecorder, WeightMark
from day0.analyzers.fit.weights import ModelShape, Weight, active_parameters, count_weights, shape_of
from day0.errors import Day0Error
from day0.models.described.read import read_described
from day0.models.source import open_model
from day0.playbook import ModelPlan
from day0.records import FitReport, FitRow
from day0.reference_ops.torch_ops import register_operators

GIB = 1 << 30
SHAPE = ModelShape(
    hidden=8, layers=10, heads=8, kv_heads=2, latent_rank=0, experts=6, experts_per_token=2, expert_width=8, window=0
)


@cache
def _study(source: str, context: int, chunk: int) -> Study:
    register_operators()
    described = read_described(source) if ":" not in source and source != "toy" else None
    spec = open_model(described.plan({}) if described else ModelPlan(source=source))
    return study_model(spec, context=context, chunk=chunk)


def _report(source: str, **asked: Any) -> FitReport:
    request = FitRequest(**{"memory": 80 * GIB, "device": "test", "counts": (), **asked})
    return fit_study(_study(source, request.context, request.chunk), request)


def _row(rows: tuple[FitRow, ...], name: str) -> FitRow:
    return next(one for one in rows if one.name == name)


# ---------------------------------------------------------------------------------------------- formats


@pytest.mark.parametrize(
    ("name", "shape", "size"),
    [
        ("bf16", (3, 5), 30),
        ("fp32", (7,), 28),
        ("mxfp4", (2, 64), 2 * (32 + 2)),
        ("mxfp4", (2, 33), 2 * (17 + 2)),  # rows are packed each by itself
        ("nvfp4", (1, 32), 16 + 2),
        ("int4", (1, 64), 32 + 2 * 2),
        ("fp8", (128, 128), 128 * 128 + 4),
        ("fp8", (129, 257), 129 * 257 + 2 * 3 * 4),  # ragged squares have a scale too
        ("fp8", (2, 128, 128), 2 * (128 * 128 + 4)),
        ("mxfp8", (1, 32), 33),
    ],
)
def test_bytes_of_a_format(name: str, shape: tuple[int, ...], size: int) -> None:
    assert FORMATS[name].bytes_of(shape) == size


def test_packed_experts_take_what_their_own_buffers_take() -> None:
    model = open_model(ModelPlan(source="toy")).build("meta")
    experts = [one for one in count_weights(model) if one.kind == "experts"]
    stored = sum(value.nbytes for name, value in model.state_dict().items() if ".experts." in name)
    assert sum(weight_bytes(one, {}) for one in experts) == stored
    assert sum(one.values for one in experts) == 4 * 10 * (3 * 64 * 32)  # layers x experts x w1, w2, w3


# ---------------------------------------------------------------------------------------------- layouts


def test_layers_of_stages() -> None:
    assert [len(one) for one in stages_of(10, 4)] == [3, 3, 2, 2]
    assert [one.start for one in stages_of(10, 4)] == [0, 3, 6, 8]


def test_a_layout_spreads_experts_as_far_as_it_can() -> None:
    assert parse_layout("tp=4,dp=2", SHAPE) == Layout(tp=4, dp=2, ep=4)  # 8 cards, and only 6 experts


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("tp=3", "8 attention heads cannot be divided by tp=3"),
        ("tp=2,ep=3", "ep=3 does not divide the 2 cards"),
        ("tp=8,ep=8", "ep=8 is more than the 6 experts"),
        ("pp=11", "pp=11 is more than the 10 layers"),
        ("qp=2", "there is no parallelism 'qp'"),
        ("tp=0", "tp is '0'"),
        ("tp=two", "tp is 'two'"),
        ("tp=\u00b2", "tp is '\u00b2'"),
        ("tp=" + "1" * 5000, "tp is '1111"),
        ("tp=2,tp=2", "tp stands twice"),
        ("tp=8,dp=65536", "524,288 cards are more than 65,536"),
        ("", "it is empty"),
    ],
)
def test_a_layout_that_contradicts_itself(text: str, what: str) -> None:
    with pytest.raises(Day0Error, match=what.replace("(", r"\(")):
        parse_layout(text, SHAPE)


def test_pipeline_stages_are_whole_nodes() -> None:
    found = list(layouts_of(16, SHAPE, 8))
    assert {one.pp for one in found} == {1, 2}
    assert all(one.cards == 16 for one in found)
    for one in found:
        check_layout(one, SHAPE)
    assert {one.pp for one in layouts_of(4, SHAPE, 8)} == {1}


# ---------------------------------------------------------------------------------------------- cards


def _weight(name: str, kind: Any, shape: tuple[int, ...], layer: int | None = 0, **more: Any) -> Weight:
    return Weight(name=name, kind=kind, layer=layer, shape=shape, dtype="bfloat16", **more)


def _demand(*weights: Weight, **more: Any) -> Demand:
    measured = _measured()
    return Demand(weights=weights, shape=SHAPE, measured=measured, formats={}, context=64, batch=4, chunk=16, **more)


def _measured() -> Measured:
    row = CacheTensor(
        layer=0, name="keys", kind="kv", per_token=Fraction(10), fixed=0, window=None, row=5, dtype="bfloat16", heads=2
    )
    state = CacheTensor(
        layer=1,
        name="state",
        kind="state",
        per_token=Fraction(0),
        fixed=64,
        window=None,
        row=4,
        dtype="float32",
        heads=4,
    )
    window = CacheTensor(
        layer=2, name="keys", kind="window", per_token=Fraction(3), fixed=0, window=8, row=3, dtype="bfloat16", heads=1
    )
    growing = Growing(begin=0, end=1, fixed=512, per_token=32.0, sharded=True, inside=False)
    found = ActivationSet(storages=(growing,), chunk=16, exact=True, note="")
    return Measured(cache=(row, state, window), activations=found, chunk=16)


def test_a_card_by_hand() -> None:
    demand = _demand(
        _weight("q_proj", "attention", (8, 10), cut="out", units=8),
        _weight("k_proj", "attention", (2, 10), cut="out", units=2),
        _weight("norm", "norm", (7,)),
        _weight("experts", "experts", (6, 4, 5), cut="experts", units=6),
        _weight("head.lm_head", "embedding", (9, 4), layer=None, cut="vocab", units=9),
    )
    card = card_of(demand, Layout(tp=4, ep=4))
    assert card.weights == {
        "attention": 160 // 4 + 40 // 2,  # two key heads: a card holds one, and two cards the same
        "norm": 14,
        "experts": 2 * 40,  # six over four cards: two at most
        "embedding": 3 * 4 * 2,  # nine words over four cards: three at most
    }
    assert card.replicated == 14
    assert card.cache == {"kv": 4 * 64 * 10 * 2 // 2, "state": 4 * 64 * 4 // 4, "window": 4 * 8 * 3 * 2}
    assert card.activations == 512  # (512 + 32 x 48) / 4
    assert card.communication == 2 * 16 * 8 * 2 + 4 * (16 * 2 // 4) * 8 * 2
    assert card.rounded == ("6 experts over 4 cards: 2 each at most", "9 words over 4 cards: 3 each at most")
    assert card.total == sum(card.weights.values()) + sum(card.cache.values()) + 512 + card.communication


def test_data_parallelism_divides_sequences_and_experts_but_not_attention() -> None:
    demand = _demand(
        _weight("q_proj", "attention", (8, 10), cut="out", units=8),
        _weight("experts", "experts", (6, 4, 5), cut="experts", units=6),
    )
    card = card_of(demand, Layout(dp=2, ep=2))
    assert card.weights == {"attention": 160, "experts": 3 * 40}
    assert card.cache["kv"] == 2 * 64 * 10 * 2


def test_the_fullest_stage_counts_and_a_tied_head_is_copied() -> None:
    demand = _demand(
        _weight("embed_tokens", "embedding", (9, 4), layer=None, cut="vocab", units=9, tied=True),
        _weight("a", "other", (10_000,), layer=9),
        _weight("b", "other", (10,), layer=0),
    )
    card = card_of(demand, Layout(pp=2))
    assert card.stage == 1
    assert card.weights == {"embedding": 72, "other": 20_000}


def test_the_workspace_holds_the_experts_of_one_layer_and_a_fifth_more() -> None:
    experts = [
        _weight(f"experts.{n}", "experts", (6, 128, 128), layer=n, cut="experts", units=6, native="mxfp4")
        for n in range(2)
    ]
    card = card_of(_demand(*experts, workspace="fp8"), Layout(dp=2, ep=2))
    assert card.workspace == -(-3 * (128 * 128 + 4) * 12 // 10)
    assert card_of(_demand(*experts), Layout(dp=2, ep=2)).workspace == 0


@pytest.mark.slow
def test_fp8_rows_of_the_cache_have_their_scales() -> None:
    found = _report("hf:deepseek_v32", format="fp8", kv_format="fp8", cards=16)
    assert _row(found.cache, "latent").bytes_per_token == 61 * 656  # 512 e4m3, 4 float32, 64 bfloat16
    assert _row(found.cache, "index").bytes_per_token == 61 * 132


# ---------------------------------------------------------------------------------------------- lifetimes


class _Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(256, 512, bias=False)
        self.down = nn.Linear(512, 256, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.up(x))
        result: torch.Tensor = self.down(hidden)
        return result


def test_lifetimes_of_a_small_model() -> None:
    with torch.device("meta"):
        model, x = _Two(), torch.empty(4, 256)
    marks = {
        model.up.weight.untyped_storage()._cdata: WeightMark(cut="out"),
        model.down.weight.untyped_storage()._cdata: WeightMark(cut="in"),
        x.untyped_storage()._cdata: WeightMark(cut="given"),
    }
    recorder = LifetimeRecorder(marks)
    with torch.no_grad(), recorder:
        result = model(x)
    up, relu, down = recorder.storages
    assert [one.bytes for one in recorder.storages] == [8192, 8192, 4096]
    assert up.end is not None and up.end <= relu.end  # type: ignore[operator]  # relu has ended, or this fails
    assert up.end == relu.begin + 1
    assert down.end is None
    assert [one.sharded for one in recorder.storages] == [True, True, False]
    assert recorder.results([result]) == [down]


def test_what_is_made_of_weights_alone_is_no_activation() -> None:
    with torch.device("meta"):
        weight, x = torch.empty(8, 8), torch.empty(8)
    marks = {
        weight.untyped_storage()._cdata: WeightMark(experts=True),
        x.untyped_storage()._cdata: WeightMark(cut="given"),
    }
    recorder = LifetimeRecorder(marks)
    with recorder:
        decoded = weight.double()
        kept = (decoded + 1) @ x.double()
    assert [one.of_experts for one in recorder.storages] == [True, True, False, False]
    assert kept.shape == (8,)


# ---------------------------------------------------------------------------------------------- real models


@pytest.mark.parametrize(
    ("source", "parameters", "active"),
    [
        ("hf:deepseek_v32", 671.0e9, 37e9),
        ("hf:gpt_oss", 116.83e9, 5.13e9),
        ("hf:kimi_linear", 49.1e9, 3.1e9),
        ("hf:glm_moe_dsa", 744e9, 40e9),
        ("kimi-k3.1", 2.78e12, 104e9),
    ],
)
def test_parameters_are_those_that_were_announced(source: str, parameters: float, active: float) -> None:
    plan = ModelPlan(source=source) if ":" in source else read_described(source).plan({})
    model = open_model(plan).build("meta")
    weights = count_weights(model)
    assert sum(one.values for one in weights if one.parameter) == pytest.approx(parameters, rel=2e-3)
    assert active_parameters(weights, shape_of(model, weights)) == pytest.approx(active, rel=0.03)


@pytest.mark.parametrize("source", ["toy", "hf:gpt_oss", "hf:kimi_linear"])
def test_every_parameter_is_counted_once(source: str) -> None:
    model = open_model(ModelPlan(source=source)).build("meta")
    weights = count_weights(model)
    plain = sum(one.values for one in weights if one.parameter and not one.native)
    assert plain == sum(value.numel() for value in model.parameters())


def test_gpt_oss_takes_what_its_model_card_says() -> None:
    assert _report("hf:gpt_oss", format="mxfp4", cards=8).weight_bytes / GIB == pytest.approx(60.8, abs=0.05)


@pytest.mark.slow
def test_deepseek_v32_takes_what_its_checkpoint_does_without_the_layer_for_prediction() -> None:
    found = _report("hf:deepseek_v32", format="fp8", cards=16)
    # Published with one more layer: 685.4 B parameters, 642.1 GiB. That layer has experts like the others,
    # embedding and head of its own and a projection; with as many bytes a parameter the rest is this model.
    assert found.weight_bytes / found.parameters == pytest.approx(642.1 * GIB / 685.4e9, rel=3e-3)


@pytest.mark.slow
def test_latent_rows_of_deepseek_v32() -> None:
    row = _row(_report("hf:deepseek_v32", format="fp8", cards=16).cache, "latent")
    # FlashMLA's 8.72 GiB for a request of 128 K counts the layer for prediction too.
    assert row.bytes * 62 / 61 / GIB == pytest.approx(8.72, abs=0.005)


def test_a_sliding_window_bounds_the_cache() -> None:
    found = _report("hf:gpt_oss", format="mxfp4", cards=8)
    assert _row(found.cache, "window").bytes == 18 * 128 * 2 * 8 * 64 * 2
    assert _row(found.cache, "kv").bytes == 18 * 131072 * 2 * 8 * 64 * 2
    assert _row(found.cache, "kv").layers == _row(found.cache, "window").layers == 18


K3 = "kimi-k3.1"


@pytest.mark.slow
def test_the_figures_of_kimi_k3() -> None:
    found = _report(K3, cards=24)
    experts = _row(found.weights, "experts")
    one_expert = 3 * 3584 * 3072
    assert experts.values == 82_432 * one_expert
    assert experts.bytes / 82_432 == pytest.approx(17.5e6, rel=3e-3)
    assert experts.bytes == pytest.approx(1.44e12, rel=5e-3)
    assert experts.bytes / 80e9 == pytest.approx(18, rel=5e-3)  # cards of 80 GB for these weights alone
    assert found.weight_bytes / 2**40 == pytest.approx(1.42, abs=0.005)  # the download, which counts in TiB
    state, latent = _row(found.cache, "state"), _row(found.cache, "latent")
    assert state.layers == 69
    assert state.bytes == 69 * 96 * 128 * 128 * 4
    assert state.bytes / 69 == pytest.approx(6.29e6, rel=1e-3)
    assert state.bytes == pytest.approx(434e6, rel=1e-3)
    assert latent.layers == 24
    assert latent.bytes_per_token == pytest.approx(27.6e3, rel=2e-3)
    assert state.bytes / latent.bytes_per_token == pytest.approx(15.7e3, rel=2e-3)


@pytest.mark.slow
def test_kimi_k3_fits_where_it_is_served() -> None:
    """SGLang's list of deployments: four nodes of eight H100, two nodes of eight H200."""
    assert _report(K3, cards=32).fits
    assert _report(K3, memory=141 * 10**9, cards=16).fits
    assert not _report(K3, cards=16).fits
    smallest = _report(K3)
    assert smallest.card is not None
    assert smallest.card.cards == 24


@pytest.mark.slow
def test_the_cards_of_a_layout_hold_the_model_together() -> None:
    found = _report(K3, cards=24)
    assert found.card is not None
    assert found.card.cards * sum(found.card.weights.values()) >= found.weight_bytes
    assert found.plan is not None
    assert found.plan.bound <= found.plan.planned < found.plan.unplanned
    # the workspace: 112 experts of a layer in FP8, and a fifth more
    one = 2 * (3072 * 3584 + 24 * 28 * 4) + 3584 * 3072 + 28 * 24 * 4
    assert found.card.workspace == pytest.approx(112 * one * 1.2, rel=1e-6)


def test_an_extended_plan_is_that_of_the_context_itself() -> None:
    register_operators()
    spec = open_model(ModelPlan(source="toy"))
    extended = _report("toy", context=512, chunk=16, cards=1)
    model = spec.build("meta")
    weights = count_weights(model)
    stored = activations._recorded(spec, model, weights, 496, 16, {})[0]
    exact = activations._paired([stored, stored], (495, 496), 496, 16)
    plan = activations.plan_activations(exact, context=512, tokens=16, parts=1)
    assert extended.plan is not None
    assert "extended" in extended.plan.note
    assert extended.plan.written == plan.written.planned


@pytest.mark.slow
def test_expert_batches_and_formats_say_what_they_save() -> None:
    found = _report("hf:deepseek_v32", format="fp8", layout="tp=8,ep=8")
    assert not found.fits
    saved = {one.title: one.bytes_saved for one in found.proposals}
    experts = _row(found.weights, "experts").bytes // 8
    assert saved["load expert weights in batches"] == pytest.approx(experts * 56 / 58, rel=1e-3)
    assert saved["cache in FP8"] == 61 * 131072 * (1152 - 656)
    assert saved["context 65,536 instead of 131,072"] > 61 * 65536 * (1152 + 132)


def test_training_proposes_checkpointing_with_what_it_saves() -> None:
    found = _report("hf:llama", train=True, batch=4, chunk=512, layout="tp=2,dp=2")
    assert found.card is not None
    weights = sum(found.card.weights.values())
    assert (found.card.gradients, found.card.optimizer) == (weights, 6 * weights)
    saved = {one.title: one.bytes_saved for one in found.proposals}
    # two sequences; what stays is the input of each of 32 layers, and one layer worked out again
    stays = found.card.saved - saved["activation checkpointing"]
    assert 2 * 32 * 512 * 4096 * 2 < stays < found.card.saved / 5
    assert saved["optimizer states divided among replicas"] == 3 * weights


# ---------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (lambda: _report("hf:deepseek_v32", context=200_000), "163,840 positions"),
        (lambda: _report("hf:gpt_oss", format="mxfp5", cards=1), "there is no weight format 'mxfp5'"),
        (lambda: _report("hf:gpt_oss", format="exprts=mxfp4", cards=1), "there is no kind of weight 'exprts'"),
        (lambda: _report("hf:gpt_oss", layout="tp=2,ep=2", cards=3), "takes 2 cards, and --cards says 3"),
        (lambda: _report("kimi-k2"), "there is no such description"),
        (lambda: _report("toy", train=True), "four-bit codes, which have no gradients"),
    ],
)
def test_bad_input(act: Callable[[], object], what: str) -> None:
    with pytest.raises(Day0Error, match=what):
        act()


def test_absurd_sizes_are_refused_with_the_figure() -> None:
    with pytest.raises(Day0Error, match=r"900,000,000 experts are more than"):
        open_model(ModelPlan(source="hf:deepseek_v32", set={"n_routed_experts": 900_000_000}))
    # A module that nobody looked at before it was built.
    spec = dataclasses.replace(
        open_model(ModelPlan(source="toy")), build=lambda _: nn.Linear(1 << 26, 1 << 26, bias=False, device="meta")
    )
    with pytest.raises(Day0Error, match=r"4\.5e\+15 parameters"):
        fit_model(spec, FitRequest(memory=80 * GIB, device="test"))


class _Stops(nn.Module):
    """A model that reads a value back, which meta cannot give."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8, bias=False)])

    def forward(self, input_ids: torch.Tensor, past_key_values: Any = None, use_cache: bool = True) -> Any:
        return self.layers[0](input_ids.float()) if input_ids.sum().item() else None


def test_a_model_that_does_not_run_on_meta_has_its_weights_counted() -> None:
    spec = dataclasses.replace(open_model(ModelPlan(source="toy")), build=lambda device: _Stops().to(device))
    found = fit_model(spec, FitRequest(memory=GIB, device="test", context=64, counts=()))
    assert "does not run on meta" in found.unread
    assert found.weight_bytes == 64 * 4
    assert found.cache == ()
