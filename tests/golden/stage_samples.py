"""One record of each stage, with every field set."""

from __future__ import annotations

from day0.records import (
    CallEntry,
    CanaryReport,
    CaseResult,
    Collective,
    Decision,
    FigureResult,
    FloatStats,
    Gap,
    GateResult,
    Identity,
    ImportedText,
    Inventory,
    InventoryBlock,
    InventoryEntry,
    LastGood,
    Leaf,
    ListValue,
    Lock,
    LockEntry,
    LogitsResult,
    ModelCheck,
    ModelInfo,
    ModuleError,
    ModuleResult,
    NonFinite,
    NumericsReport,
    OperatorFigures,
    ParallelInfo,
    PhaseInfo,
    Receipt,
    Replacement,
    ScalarValue,
    Signature,
    Site,
    StageResult,
    TensorValue,
    TextLine,
    Trace,
    TraceEntry,
    WaysResult,
)

__all__ = ["IDENTITY", "canary", "inventory", "lock", "numerics", "trace"]

IDENTITY = Identity(operator="aten::topk", contract=1, namespace="kimi/k3.1", id="sort", version="1.10")
DECISION = Decision(candidate=str(IDENTITY), accepted=True, reason="sorts")
SIGNATURE = Signature(
    op="aten::index.Tensor",
    args=(
        TensorValue(shape=(2, 0, 3), dtype="bfloat16", stride=(3, 3, 1), offset=4, alias=0),
        ListValue(
            items=(
                ScalarValue(type="none", value="None"),
                TensorValue(shape=(2,), dtype="int64", stride=(1,), range=(-1, 7)),
            )
        ),
    ),
    kwargs={"eps": ScalarValue(type="float", value="1e-05")},
)


def trace() -> Trace:
    """A trace."""
    return Trace(
        model=ModelInfo(
            source="hf:deepseek_v32",
            overrides={"num_hidden_layers": "2"},
            dtype="bfloat16",
            class_name="DeepseekV32ForCausalLM",
            parameters=10,
            parameter_bytes=20,
            fingerprint="sha256:00",
            adapted={"rms_norm": "2 LlamaRMSNorm"},
        ),
        mode="meta",
        mode_reason="asked for",
        device="meta",
        phases=(PhaseInfo(name="decode", batch=1, tokens=1, context=8, calls=3, reason="asked for"),),
        entries=(_trace_entry(),),
        calls=(_call_entry(),),
        parallel=ParallelInfo(
            world_size=8, plan={"layers.*.x": "colwise"}, unused=("layers.*.y",), parameters=5, parameter_bytes=10
        ),
        imported=ImportedText(
            file="in.txt",
            sha256="00",
            lines=(
                TextLine(text="Operator: aten.index.Tensor"),
                TextLine(entry="0123456789abcdef", count=3),
                TextLine(count=1, text="cnt: 1, ((), {})", refused="it lacks an argument"),
            ),
        ),
    )


def _trace_entry() -> TraceEntry:
    return TraceEntry(
        id="0123456789abcdef",
        signature=SIGNATURE,
        outputs=(TensorValue(shape=(2,), dtype="bfloat16", stride=(1,)),),
        counts={"decode": 3},
        mutates=("self",),
        module="model.layers.0",
        module_class="Layer",
        modules=2,
        source="transformers/models/x.py:1",
        host_sync=True,
        flops=5,
        bytes=6,
        output_aliases=(("self",),),
        calls=("fedcba9876543210",),
        stats={"self": FloatStats(min=-1.0, max=2.0, absmax=2.0, nonfinite=1)},
        collective=Collective(kind="all_reduce", ranks=8, bytes=64, wire_bytes=112),
        sites=(
            Site(
                number=7,
                classes="Model/Layer",
                counts={"decode": 3},
                modules=2,
                source="transformers/models/x.py:1",
                inputs={"3": 2},
            ),
        ),
    )


def _call_entry() -> CallEntry:
    return CallEntry(
        id="fedcba9876543210",
        signature=Signature(op="torch.Tensor.__getitem__", args=SIGNATURE.args),
        outputs=(TensorValue(shape=(2,), dtype="bfloat16", stride=(1,)),),
        counts={"decode": 3},
        ops={"0123456789abcdef": 3},
        output_aliases=(("0",),),
        module="model.layers.0",
        module_class="Layer",
        modules=2,
        source="transformers/models/x.py:1",
        host_sync=True,
        flops=5,
        bytes=6,
    )


def inventory() -> Inventory:
    """An inventory."""
    return Inventory(
        device="sim", model="hf:deepseek_v32", entries=(_inventory_entry(),), roofline_seconds=0.5, blocks=(_block(),)
    )


def _inventory_entry() -> InventoryEntry:
    return InventoryEntry(
        id="0123456789abcdef",
        op="aten::topk",
        dtypes=("float32",),
        shapes="float32[2, 8]",
        verdict="replaced",
        device_verdict="missing",
        reason="no kernel",
        evidence="claimed",
        leaves=(Leaf(op="aten::topk.values", supported=False, reason="no kernel", host_sync=False),),
        options=(str(IDENTITY),),
        calls=3,
        phases=("decode",),
        module="model.layers.0",
        source="x.py:1",
        share=0.25,
        effort="gather_scatter",
        effort_why="it orders values",
        replacements=(Replacement(name=str(IDENTITY), kind="kernel", seconds=0.5, note="the roofline"),),
    )


def _block() -> InventoryBlock:
    return InventoryBlock(
        name="moe_router",
        title="expert router",
        kind="block",
        operators=("day0::moe_router",),
        recognised="module",
        reason="module class Router",
        module_classes=("Router",),
        sites=2,
        calls={"decode": 2},
        entries=("0123456789abcdef",),
        launches=6,
        share=0.25,
        gaps={"aten::topk": 3},
        closes=("aten::topk",),
        bytes_saved=64,
        saved=0.125,
        options=("day0::moe_router@1 base:reference==1.0",),
    )


def lock() -> Lock:
    """A lock."""
    chosen = LockEntry(
        operator="aten::topk",
        dtypes=("float32",),
        signatures=("0123456789abcdef",),
        identity=IDENTITY,
        kind="decomposition",
        source_hash="sha256:11",
        origin="kernels/torch/topk.py",
        decisions=(DECISION,),
    )
    gap = Gap(
        operator="aten::silu",
        dtypes=("float32",),
        signatures=("fedcba9876543210",),
        calls=2,
        module="model.layers.1",
        reason="no kernel",
        decisions=(DECISION.model_copy(update={"accepted": False}),),
    )
    return Lock(device="sim", namespace="kimi/k3.1", model="sha256:00", entries=(chosen,), gaps=(gap,))


def numerics() -> NumericsReport:
    """A numerics report."""
    return NumericsReport(device="sim", lock="sha256:22", seed=0, cases=(_case(),), model=_model_check())


def _case() -> CaseResult:
    return CaseResult(
        case="0123456789abcdef-wide-0",
        signature="0123456789abcdef",
        op="aten::topk",
        shapes="float32[2, 8]",
        implementation=str(IDENTITY),
        regime="wide",
        seed=0,
        status="fail",
        rule="relative_l2",
        reason="too far",
        golden="float64 on cpu",
        error=float("inf"),
        yardstick=1e-7,
        limit=3e-7,
        worst_index=(1, 2),
        worst_got="nan",
        worst_expected="1",
        needed=2e-6,
        notes=("it printed 1 line: x",),
        seconds=0.25,
        reproducer="evidence/a",
    )


def _model_check() -> ModelCheck:
    right = ModuleError(status="pass", rule="relative_l2", error=0.003, yardstick=0.003, limit=0.009)
    wrong = ModuleError(status="fail", rule="choice", reason="3 of 40 rows choose otherwise", error=0.5, limit=0.1)
    module = ModuleResult(
        phase="prefill", module="layers.3.mlp.gate", class_name="Router", call=0, fresh=wrong, cumulative=right
    )
    holes = NonFinite(phase="decode", module="layers.0", class_name="KdaLayer", elements=4, also_on_cpu=False)
    way = WaysResult(
        name="prefill against decode", positions=40, status="warning", reason="near ties", difference=0.01,
        yardstick=0.002, limit=0.008, flips=2, unexplained_flips=0,
    )  # fmt: skip
    logits = LogitsResult(
        decoding="sampled", seed=5, prompt_tokens=40, new_tokens=4, status="fail", reason="new token 2 would be 7",
        kl_mean=0.2, kl_max=0.4, kl_mean_cpu=0.002, kl_max_cpu=0.01, kl_limit=0.018, overlap=0.6, overlap_cpu=0.98,
        first_divergent=2, expected_token=9, got_token=7, margin=0.3, explained=0.04,
    )  # fmt: skip
    return ModelCheck(
        status="fail", reason="first divergent module", golden="float64 on cpu", seed=5, prompt_tokens=40,
        first_divergent="layers.3.mlp.gate (Router) in prefill", non_finite=holes, choices=200, choices_moved=2,
        choices_wrong=3, choices_lost=True, modules=(module,), ways=(way,), logits=(logits,), notes=("x",),
    )  # fmt: skip


def canary() -> CanaryReport:
    """A canary report."""
    return CanaryReport(
        device="sim",
        lock="sha256:22",
        allow_unverified=True,
        stages=(_stage(),),
        last_good=LastGood(lock="sha256:23", file="locks/23.lock", when="2026-11-30T08:00:00+00:00"),
    )


def _stage() -> StageResult:
    return StageResult(
        name="load",
        title="load",
        status="fail",
        reason="changed_tensors is 1",
        gates=(
            GateResult(
                metric="changed_tensors",
                rule="==",
                limit=0.0,
                value=1.0,
                low=0.5,
                high=1.5,
                samples=4,
                verdict="failed",
                inconclusive="fail",
                passed=False,
                reason="is 1",
            ),
        ),
        warnings=("w",),
        figures={"changed_tensors": FigureResult(value=1.0, low=0.5, high=1.5, samples=4, unit="B", why="y")},
        metrics={"changed_tensors": 1.0},
        receipts=(Receipt(identity=str(IDENTITY), operator="aten::topk", kind="kernel", device="sim:0", calls=4),),
        operators=(
            OperatorFigures(
                operator="aten::mm",
                calls=2,
                clock="sim",
                seconds=1e-5,
                worst_seconds=6e-6,
                bytes=4096,
                flops=512,
                bandwidth_share=0.25,
                compute_share=0.125,
                implementation="native",
            ),
        ),
        evidence="evidence/b",
        diverged="layers.0 (KdaLayer) in prefill",
        kept=True,
        next_command="day0 check",
    )
