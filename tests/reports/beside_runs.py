"""Records beside the stages, and figures of speed, made by hand; every foreign text in them is `text`."""

from __future__ import annotations

from dataclasses import replace

from day0.records import (
    CaseResult,
    EndpointPrompt,
    EndpointReport,
    FigureResult,
    FitCard,
    FitOption,
    FitProposal,
    FitReport,
    FitRow,
    GateResult,
    OperatorFigures,
    RankResult,
    RankScale,
    RanksReport,
    RanksRun,
    StageResult,
)
from day0.reports.bundle import Bundle, Peaks

__all__ = ["with_all"]


def with_all(base: Bundle, text: str = "x", path: str = "evidence/one layer", *, model: str = "toy") -> Bundle:
    """Add warnings, measured operators, decoding, a soak, fit, endpoint and ranks to a run."""
    assert base.canary is not None
    assert base.numerics is not None
    stages = (*base.canary.stages, _forward(text), _generate(), _soak(text, path))
    cases = tuple(_warned(case, text) for case in base.numerics.cases)
    return replace(
        base,
        canary=base.canary.model_copy(update={"stages": stages}),
        numerics=base.numerics.model_copy(update={"cases": cases}),
        fit=_fit(text, model),
        endpoint=_endpoint(text, path),
        ranks=_ranks(text, model),
        peaks=Peaks(bandwidth=1.6e12, rates={"bfloat16": 2e14, "float32": 2.5e13}),
    )


def _warned(case: CaseResult, text: str) -> CaseResult:
    return case.model_copy(update={"notes": (f"warning: other bits in more rows {text}", f"printed {text}")})


def _forward(text: str) -> StageResult:
    def did(name: str, seconds: float, flops: int) -> OperatorFigures:
        return OperatorFigures(
            operator=name, calls=4, clock="sim", seconds=seconds, worst_seconds=seconds, bytes=1 << 20, flops=flops,
            bandwidth_share=0.25, compute_share=0.1 if flops else None, implementation=text,
        )  # fmt: skip

    figures = (did("aten::mm", 2e-6, 1 << 24), did("aten::topk", 1e-6, 0), did(f"aten::{text}", 5e-7, 1 << 16))
    return StageResult(name="all_layers", title="all layers", status="pass", reason="", operators=figures)


def _generate() -> StageResult:
    rate = FigureResult(value=500.0, low=400.0, high=625.0, samples=5, unit="1/s")
    return StageResult(
        name="generate", title="generate", status="pass", reason="", figures={"tokens_per_second": rate},
        metrics={"tokens_per_second": 500.0, "cache_hit_rate": 0.85, "sim_seconds": 0.01},
    )  # fmt: skip


def _soak(text: str, path: str) -> StageResult:
    undecided = GateResult(
        metric="host_growth", rule="<=", limit=1024.0, value=None, verdict="inconclusive", passed=True, reason=text
    )
    return StageResult(
        name="soak", title=text, status="pass", reason="", gates=(undecided,), evidence=path,
        metrics={"token_s": 0.0035, "tokens": 40.0, "steps": 9.0, "sequences": 7.0, "wasted_share": 0.25},
    )  # fmt: skip


def _fit(text: str, model: str) -> FitReport:
    card = FitCard(
        cards=24, tp=8, ep=24, pp=1, dp=3, stage=0, weights={text: 1 << 30}, replicated=10, cache={"latent": 1 << 20},
        workspace=30, workspace_format="fp8", activations=40, communication=5, total=1281, usable=1500, free=1 << 29,
        sequences=7,
    )  # fmt: skip
    row = FitRow(name="latent", title=text, format="bf16", values=9, bytes=18, shared_by=text)
    return FitReport(
        model=model, class_name=text, overrides={"num_layers": "4"}, device=text, memory_bytes=80 << 30,
        reserve_bytes=8 << 30, context=4096, batch=2, chunk=64, parameters=12, active_parameters=4, weights=(row,),
        weight_bytes=18, cache=(row,), asked="smallest", fits=True, card=card,
        options=(FitOption(cards=24, layout=text, bytes_per_card=1281, fits=True, sequences=7),),
        proposals=(FitProposal(title=text, why=text, bytes_saved=9),),
    )  # fmt: skip


def _endpoint(text: str, path: str) -> EndpointReport:
    gate = GateResult(
        metric="first_token_p95", rule="<=", limit=0.5, value=0.7, low=0.6, high=0.8, verdict="failed", passed=False,
        reason=text,
    )  # fmt: skip
    wrong = EndpointPrompt(
        name=text, status="fail", reason=text, compared="tokens", position=3, text=text, expected_text=text, body=path
    )
    return EndpointReport(
        endpoint="http://127.0.0.1/v1", model=text, api="chat", reference=text, prompts="text",
        prompts_sha256="sha256:0", concurrency=1, verdict="failed", gates=(gate,),
        figures={"first_token_p95": FigureResult(value=0.7, low=0.6, high=0.8, samples=30, unit="s", why="")},
        results=(wrong, EndpointPrompt(name="good", status="pass")),
    )  # fmt: skip


def _ranks(text: str, model: str) -> RanksReport:
    lost = RankResult(rank=1, status="died", reason=text, phase=text, log_tail=("one", text))
    scale = RankScale(
        ranks=2, prefill_s=0.02, decode_s=0.004, prefill_efficiency=0.9, decode_efficiency=0.8, collective_share=0.3,
        weight_bytes=1 << 20,
    )  # fmt: skip
    run = RanksRun(ranks=2, planted=text, status="fail", reasons=(f"rank 1 died: {text}",), results=(lost,))
    return RanksReport(
        model=model, class_name=text, dtype="bfloat16", seed=0, device="cpu", backend="gloo", prompt_tokens=8,
        new_tokens=4, runs=(run,), scaling=(scale,),
    )  # fmt: skip
