"""Figures of operators, intervals from samples, and what goes to other tools, parsed by independent means."""

from __future__ import annotations

import itertools
import json
import math
import re
from typing import Any

import pytest
import torch

from day0.analyzers.canary.dense import dense_attention
from day0.analyzers.canary.export import chrome_trace, prometheus
from day0.analyzers.canary.gates import Figure
from day0.analyzers.canary.operators import Event, OperatorWatch, Timeline, clock_of, operator_figures, seconds_of
from day0.analyzers.canary.quiet import Control, token_variation
from day0.analyzers.canary.spread import bootstrap, variation
from day0.devices.open import open_torch_device
from day0.devices.profile import load_profile
from day0.models.source import open_model
from day0.playbook import ModelPlan
from day0.records import CanaryReport, FigureResult, GateResult, Lock, StageResult

EMPTY = Lock(device="sim", namespace="base", model="x", entries=())


def _timeline(device: str) -> Timeline:
    profile = load_profile(device)
    place = open_torch_device(profile)
    x = torch.ones(64, 32).to(place)
    watch = OperatorWatch(place)
    with watch:
        watch.phase = "prefill"
        for _ in range(3):
            y = torch.mm(x, x.t())
        y.t()
    return watch.timeline()


def test_the_simulated_device_times_operators_by_its_roofline() -> None:
    profile = load_profile("sim")
    timeline = _timeline("sim")
    (mm,) = operator_figures(timeline, EMPTY, profile)
    assert (mm.operator, mm.calls, mm.clock, mm.implementation) == ("aten::mm", 3, "sim", "native")
    assert mm.flops == 3 * 2 * 64 * 64 * 32
    assert mm.bytes == 3 * 4 * (64 * 32 + 64 * 32 + 64 * 64)
    one = mm.bytes / 3 / (profile.bandwidth_gb_s * 1e9) + profile.launch_us * 1e-6
    assert mm.seconds == pytest.approx(3 * one, rel=1e-3) and mm.worst_seconds == pytest.approx(one, rel=1e-3)
    assert mm.bandwidth_share == pytest.approx(mm.bytes / mm.seconds / (profile.bandwidth_gb_s * 1e9))
    assert mm.compute_share == pytest.approx(mm.flops / mm.seconds / (profile.tflops["float32"] * 1e12))
    assert [event.begin for event in timeline.events] == sorted(event.begin for event in timeline.events)


def test_a_device_that_is_the_host_is_timed_by_the_host() -> None:
    (mm,) = operator_figures(_timeline("cpu"), EMPTY, None)
    assert (mm.clock, mm.calls) == ("wall", 3)
    assert mm.seconds > 0.0 and mm.bandwidth_share is None and mm.compute_share is None
    assert clock_of(torch.device("cpu")).name == "wall"
    result, seconds = seconds_of(torch.device("cpu"), lambda: 7)
    assert result == 7 and seconds >= 0.0


def _report() -> CanaryReport:
    gates = tuple(
        GateResult(metric="m", rule="<=", limit=1.0, value=1.0, verdict=verdict, passed=True)
        for verdict in ("successful", "failed", "inconclusive")
    )
    profile = load_profile("sim")
    stage = StageResult(
        name='na"me\\', title="t", status="pass", reason="", gates=gates, metrics={"kl": 0.5, "inf": math.inf},
        figures={"kl": FigureResult(value=0.5)}, operators=operator_figures(_timeline("sim"), EMPTY, profile),
    )  # fmt: skip
    return CanaryReport(device="sim", lock="sha256:0", allow_unverified=False, stages=(stage,))


SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:\\.|[^"\\\n])*",?)*)\} (\S+)')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:\\.|[^"\\])*)"')


def test_the_prometheus_text_follows_the_grammar_of_the_format() -> None:
    kinds: dict[str, str] = {}
    values: dict[tuple[str, str], float] = {}
    text = prometheus(_report(), "hf:mo\ndel")
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds, "one family, one TYPE line"
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            found = SAMPLE.fullmatch(line)
            assert found, line
            labels = dict(LABEL.findall(found[2]))
            assert found[1] in kinds and {"model", "device", "stage"} <= labels.keys()
            assert labels["model"] == r"hf:mo\ndel" and labels["stage"] == r"na\"me\\"
            values[found[1], labels.get("metric") or labels.get("operator") or labels.get("status") or ""] = float(
                found[3].replace("Inf", "inf")
            )
    assert values["day0_canary_metric", "kl"] == 0.5
    assert values["day0_canary_metric", "inf"] == math.inf
    assert values["day0_canary_operator_calls_total", "aten::mm"] == 3
    assert values["day0_canary_stage", "pass"] == 1 and values["day0_canary_stage", "fail"] == 0
    assert set(kinds.values()) == {"gauge", "counter"}
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in kinds.items())


def test_the_chrome_trace_has_what_perfetto_asks_for() -> None:
    timeline = _timeline("sim")
    trace = json.loads(json.dumps(chrome_trace(timeline, _report()), allow_nan=False))
    events = trace["traceEvents"]
    for event in events:
        assert {"name", "ph", "pid", "tid"} <= event.keys()
        assert event["ph"] in ("M", "X")
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0
    calls = [event for event in events if event["ph"] == "X" and event["tid"] == 2]
    (phase,) = [event for event in events if event["ph"] == "X" and event["tid"] == 1]
    assert [call["name"] for call in calls] == ["aten::mm"] * 3 and phase["name"] == "prefill"
    for before, after in itertools.pairwise(calls):
        assert before["ts"] + before["dur"] <= after["ts"] + 1e-9
    assert phase["ts"] <= calls[0]["ts"] and phase["ts"] + phase["dur"] >= calls[-1]["ts"] + calls[-1]["dur"] - 1e-9
    assert trace["otherData"]["clock"] == "sim"
    assert calls[0]["dur"] == pytest.approx(timeline.events[0].seconds * 1e6)


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = torch.Generator().manual_seed(3)
    covered = 0
    for _ in range(60):
        samples_N = torch.randn(40, generator=generator, dtype=torch.float64) + 2.0
        figure = bootstrap(samples_N, lambda drawn: drawn.mean(dim=-1))
        assert figure.low is not None and figure.high is not None and figure.samples == 40
        covered += figure.low <= 2.0 <= figure.high
    assert 50 <= covered <= 60
    assert bootstrap(torch.ones(1), lambda drawn: drawn.mean(dim=-1)).value is None
    same = bootstrap(torch.full((5,), 2.0), lambda drawn: drawn.mean(dim=-1))
    assert (same.value, same.low, same.high) == (2.0, 2.0, 2.0)


def test_the_variation_of_times() -> None:
    quiet, loud = variation([1.0] * 10), variation([1.0, 1.0, 1.0, 2.0] * 3)
    assert quiet == Figure(0.0, 0.0, 0.0, 10)
    assert loud.value == pytest.approx(torch.tensor([1.0, 1.0, 1.0, 2.0] * 3, dtype=torch.float64).std().item() / 1.25)
    assert variation([]).why and variation([0.0, 0.0]).why


def _top_k(model: torch.nn.Module) -> set[int]:
    configs: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    return {config.index_topk for config in configs if config is not None}


def test_dense_attention_is_asked_for_in_every_place_and_put_back() -> None:
    model = open_model(ModelPlan(source="toy", dtype="float32")).build("cpu")
    with dense_attention(model, 99) as places:
        assert places > 0
        assert _top_k(model) == {128}
    assert _top_k(model) == {8}
    with dense_attention(torch.nn.Linear(2, 2), 99) as places:
        assert places == 0


def test_an_event_is_plain_data() -> None:
    event = Event(operator="aten::mm", dtypes=("float32",), begin=0.0, seconds=1.0, bytes=4, flops=2, phase="decode")
    (one,) = operator_figures(Timeline(clock="events", events=[event]), EMPTY, load_profile("sim"))
    assert (one.clock, one.worst_seconds) == ("events", 1.0)


@pytest.mark.parametrize(
    ("control", "value"), [([1.0] * 7, True), ([], True), ([1.0, 1.0, 1.02, 1.0], True), ([1.0, 1.0, 1.0, 2.0], False)]
)
def test_tokens_are_blamed_for_their_times_only_on_a_quiet_device(control: list[float], value: bool) -> None:
    unsteady = token_variation([1.0, 1.3, 0.7, 1.4, 0.6, 1.0, 1.2], control)
    assert (unsteady.value is not None) is value
    if not value:
        assert "not quiet: the time of equal work varies by 0.4" in unsteady.why
    elif unsteady.value is not None:
        assert unsteady.value > 0.05


def test_equal_work_is_as_long_as_a_token_and_stays_so() -> None:
    simulated = Control(device=torch.device("cpu"))
    simulated.repeat(1.0)
    assert simulated.seconds == []
    meta = Control(device=torch.device("meta"))
    meta.repeat(1e-6)
    kernels = meta.kernels
    meta.repeat(5.0)
    assert (len(meta.seconds), meta.kernels) == (2, kernels)
    assert kernels == 32, "no fewer than were tried"
    longer = Control(device=torch.device("meta"))
    longer.repeat(0.01)
    assert longer.kernels > 32
