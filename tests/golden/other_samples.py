"""One record of each kind that is no stage, with every field set."""

from __future__ import annotations

from day0.records import (
    Alarm,
    ConversionParameters,
    ConvertedFile,
    ConvertedWeight,
    ConvertReport,
    EndpointFailure,
    EndpointPrompt,
    EndpointReport,
    EvidenceProblem,
    FaultScore,
    FigureResult,
    FitCard,
    FitOption,
    FitPlan,
    FitProposal,
    FitReport,
    FitRow,
    Found,
    GateResult,
    Manifest,
    ManifestFile,
    RankCollective,
    RankResult,
    RankScale,
    RanksReport,
    RanksRun,
    RightScore,
    SelftestReport,
    VerifyReport,
)

__all__ = ["converted", "endpoint", "fit", "manifest", "ranks", "selftest", "verified"]

GATE = GateResult(
    metric="unexplained_tokens", rule="<=", limit=0.0, value=1.0, low=0.5, high=1.5, samples=4, verdict="failed",
    inconclusive="fail", passed=False, reason="unexplained_tokens is 1",
)  # fmt: skip
FIGURE = FigureResult(value=1.0, low=0.5, high=1.5, samples=4, unit="nats", why="")


def fit() -> FitReport:
    """What `day0 fit` says."""
    card = FitCard(
        cards=24, tp=8, ep=24, pp=1, dp=3, stage=0, weights={"routed experts": 1000}, replicated=10,
        cache={"latent rows of MLA": 200}, workspace=30, workspace_format="fp8", activations=40, communication=5,
        saved=1, gradients=2, optimizer=3, total=1281, usable=1500, free=219, sequences=7, rounded=("6 experts",),
    )  # fmt: skip
    row = FitRow(name="latent", title="latent rows of MLA", format="bf16", values=9, bytes=18, shared_by="every card",
                 layers=24, bytes_per_token=27.6)  # fmt: skip
    return FitReport(
        model="kimi-k3.1", class_name="ToyModel", overrides={"n_experts": "896"}, device="cards of 80 GiB",
        memory_bytes=1600, reserve_bytes=100, context=4096, batch=2, chunk=64, parameters=12, active_parameters=4,
        weights=(row,), weight_bytes=18, cache=(row,), asked="smallest", fits=True, card=card,
        plan=FitPlan(planned=40, unplanned=90, bound=40, written=60, tensors=9, strategy="largest first", note="x"),
        options=(FitOption(cards=24, layout="tp=8", bytes_per_card=1281, fits=True, sequences=7),),
        proposals=(FitProposal(title="cache in FP8", why="--kv-format fp8", bytes_saved=9),), unread="y",
    )  # fmt: skip


def endpoint() -> EndpointReport:
    """A server held against a reference."""
    failure = EndpointFailure(
        prompt="capitals", round="together", outcome="timeout", detail="no answer in 60 s", earlier=("refused",),
        answered=True,
    )  # fmt: skip
    prompt = EndpointPrompt(
        name="capitals", status="fail", reason="token 3", compared="tokens", tokens=8, position=3, got=" Rome",
        expected=" Paris", got_id=5, expected_id=7, margin=2.5, explained=0.1, text="It is Rome",
        expected_text="It is Paris", logprob_error=0.02, prompt_tokens=9, reference_prompt_tokens=10, right=False,
        reference_right=True, differs={"again": "token 4"}, body="evidence/endpoint/00000.json", reproduce="curl x",
    )  # fmt: skip
    return EndpointReport(
        endpoint="http://127.0.0.1:8000/v1", model="m", api="completions", reference="folder tiny", prompts="text",
        prompts_sha256="sha256:44", concurrency=4, verdict="failed", reason="unexplained_tokens is 1", gates=(GATE,),
        left_out={"kl": "no logprobs"}, figures={"unexplained_tokens": FIGURE}, outcomes={"answered": 8, "timeout": 1},
        failures=(failure,), results=(prompt,), facts={"tokenizer": "sha256:45"}, notes=("x",),
    )  # fmt: skip


def ranks() -> RanksReport:
    """A model on several ranks."""
    collective = RankCollective(
        kind="all_reduce", dtype="bfloat16", elements=64, status="fail", reason="too far", error=0.1, yardstick=0.001,
        limit=0.003, digest="sha256:46",
    )  # fmt: skip
    result = RankResult(
        rank=1, status="raised", reason="RuntimeError: x", phase="decode", exit_code=1, log_tail=("last words",),
        metrics={"prefill_s": 0.5}, first_divergent="layers.3", divergence="error 0.1", tokens=(3, 4),
        collectives=(collective,),
    )  # fmt: skip
    run = RanksRun(
        ranks=2, whole_experts=True, planted="rank_skips_reduce", status="fail", reasons=("rank 1 raised",),
        gates=(GATE,), metrics={"ranks_lost": 1.0}, plan={"layers.*.x": "colwise"}, results=(result,),
    )  # fmt: skip
    scale = RankScale(
        ranks=2, prefill_s=0.5, decode_s=0.05, prefill_efficiency=0.9, decode_efficiency=0.4, collective_share=0.2,
        weight_bytes=1024,
    )  # fmt: skip
    return RanksReport(
        model="toy", class_name="ToyModel", overrides={"n_experts": "8"}, dtype="bfloat16", seed=1, device="cpu",
        backend="gloo", prompt_tokens=8, new_tokens=4, runs=(run,), scaling=(scale,), notes=("x",),
    )  # fmt: skip


def selftest() -> SelftestReport:
    """How good the check is."""
    seen = Found(how="values", rule="relative_l2", reached=4, found=3, first="aten::mm wide", reason="too far")
    fault = FaultScore(
        name="all_nan", family="values", source="an issue", does="gives NaN", operators=("aten::mm",), held_out=True,
        operator=seen, model=Found(how="not_measured", reason="one level"), usual={"cosine": False},
    )  # fmt: skip
    alarm = Alarm(
        op="aten::mm", shapes="float32[2, 2]", implementation="native", case="0123456789abcdef-wide-0", status="fail",
        rule="exact", reason="other bits",
    )  # fmt: skip
    right = RightScore(
        subject="clean device", level="model", judged=9, alarms=(alarm,), usual_judged=8, usual={"cosine": 1}
    )
    return SelftestReport(device="null", seeds=2, usual=("cosine",), faults=(fault,), right=(right,))


def converted() -> ConvertReport:
    """What a conversion did."""
    asked = ConversionParameters(
        to="fp8", scales="e8m0", fnuz=True, finer=True, allow_bounded=True, no_subnormal=True, keep_nan=True,
        keep_unknown=True, nibbles="high_first", order="high_first", architecture="gpt_oss", transpose=True,
        gate_up="split", experts="split", only="x", skip="y",
    )  # fmt: skip
    weight = ConvertedWeight(
        name="layers.0.w", shape=(4, 32), source="mxfp4", target="fp8", exactness="bounded", changed=1, bound="1 ULP",
        subnormal=2, nan=32, why="finer", source_bytes=68, bytes=132,
    )  # fmt: skip
    file = ConvertedFile(name="model.safetensors", bytes=132, kind="weights")
    return ConvertReport(
        source="sha256:50", parameters=asked, architecture="gpt_oss", done=True, weights=(weight,), kept=("norm",),
        dropped=("scale",), left=("x.bin",), files=(file,), source_bytes=68, bytes=132, notes=("x",),
    )  # fmt: skip


def manifest() -> Manifest:
    """Files of a run folder."""
    file = ManifestFile(path="trace.json", bytes=9, sha256="sha256:47", parts={"body.entries": "sha256:48"})
    link = ManifestFile(path="reference", kind="link", bytes=0, sha256="sha256:49")
    return Manifest(files=(link, file))


def verified() -> VerifyReport:
    """What `day0 report verify` found."""
    problem = EvidenceProblem(file="trace.json", field="body.entries", what="not as the report saw it")
    return VerifyReport(problems=(problem,), checked={"kept locks": 1}, unchecked=("the source of x: nothing has it",))
