"""The same way on a real architecture of transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.canary_ready import canary, make_ready, stages_of
from tests.flow.conftest import PLAYBOOKS, Day0


@pytest.mark.parametrize("short", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_deepseek_v32_reaches_a_verdict_in_all_five_stages(day0: Day0, tmp_path: Path, short: bool) -> None:
    playbook = PLAYBOOKS / "deepseek-v32-tiny-on-sim.yaml"
    done = day0("run", _in_short(playbook, tmp_path) if short else playbook)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "runs" / "deepseek-v32-tiny-on-sim"
    gaps = {entry["operator"] for entry in json.loads((folder / "ops.lock").read_text())["body"]["entries"]}
    assert {"aten::topk", "aten::histc", "aten::_grouped_mm", "aten::rsqrt", "aten::silu"} <= gaps
    stages = json.loads((folder / "canary.json").read_text())["body"]["stages"]
    assert {stage["name"] for stage in stages if stage["status"] != "pass"} == {
        "vision",
        "forward",
        "compiled",
        "captured",
    }
    assert {stage["skip"] for stage in stages if stage["status"] != "pass"} == {"unfit"}


def _in_short(playbook: Path, folder: Path) -> Path:
    """Write a playbook with two phases, ordinary values, no whole model in the check, and few tokens in the canary."""
    plan = yaml.safe_load(playbook.read_text())
    plan["workload"] = {"batch": 2, "phases": {"prefill": {"tokens": 12}, "decode": {"tokens": 1, "context": 12}}}
    plan["check"] |= {"regimes": ["ordinary"], "level": "ops"}
    plan["canary"] = {"prompt_tokens": 12, "new_tokens": 3, "soak_s": 0.1}
    path = folder / playbook.name
    path.write_text(yaml.safe_dump(plan, sort_keys=False))
    return path


def test_the_671_billion_parameter_config_is_traced_on_meta(day0: Day0, tmp_path: Path) -> None:
    done = day0("trace", "hf:deepseek_v32", "--run", "v32")
    assert done.returncode == 0, done.stderr
    body = json.loads((tmp_path / "v32" / "trace.json").read_text())["body"]
    assert body["mode"] == "meta"
    assert body["model"]["parameters"] > 670e9
    assert [phase["name"] for phase in body["phases"]] == ["prefill", "decode", "prefill_long", "decode_long"]
    assert all(phase["calls"] > 10_000 for phase in body["phases"])
    assert "peak memory" in done.stdout
    grouped = [entry for entry in body["entries"] if entry["signature"]["op"] == "aten::_grouped_mm"]
    rows = {phase: entry["signature"]["args"][0]["shape"][0] for entry in grouped for phase in entry["counts"]}
    assert rows == {"prefill": 64 * 8, "decode": 8, "prefill_long": 3072 * 8, "decode_long": 8}


def test_a_trace_on_the_cpu_records_the_ranges_of_integers(day0: Day0, tmp_path: Path) -> None:
    sizes = ("num_hidden_layers=1", "hidden_size=32", "intermediate_size=48", "vocab_size=50", "num_attention_heads=2")
    options = [word for size in sizes for word in ("--set", size)]
    done = day0("trace", "hf:llama", "--mode", "real", "--run", "r", *options, "--set", "num_key_value_heads=2")
    assert done.returncode == 0, done.stderr
    entries = json.loads((tmp_path / "r" / "trace.json").read_text())["body"]["entries"]
    embedding = next(entry for entry in entries if entry["signature"]["op"] == "aten::embedding")
    low, high = embedding["signature"]["args"][1]["range"]
    assert 0 <= low < high < 50
    assert embedding["source"].startswith("transformers/models/llama/modeling_llama.py:")
    assert embedding["module"] == "model.embed_tokens"


@pytest.mark.slow  # the playbook without adapters, above, runs each time
def test_a_model_with_adapters_reaches_a_verdict_and_its_operators_run(day0: Day0, tmp_path: Path) -> None:
    done = day0("run", PLAYBOOKS / "deepseek-v32-adapted-on-sim.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lightning_indexer 3 DeepseekV32Indexer" in done.stdout
    folder = tmp_path / "runs" / "deepseek-v32-adapted-on-sim"
    locked = {entry["operator"] for entry in json.loads((folder / "ops.lock").read_text())["body"]["entries"]}
    ours = {
        "day0::fused_experts", "day0::gated_activation", "day0::lightning_indexer", "day0::moe_router",
        "day0::rms_norm", "day0::rope", "day0::sparse_mla_decode", "day0::sparse_mla_prefill", "day0::topk_tokens",
    }  # fmt: skip
    assert locked == ours
    stages = json.loads((folder / "canary.json").read_text())["body"]["stages"]
    assert {stage["name"] for stage in stages if stage["status"] != "pass"} == {
        "vision",
        "forward",
        "compiled",
        "captured",
    }
    assert {stage["skip"] for stage in stages if stage["status"] != "pass"} == {"unfit"}
    generate = next(stage for stage in stages if stage["name"] == "generate")
    ran = {receipt["operator"]: receipt["calls"] for receipt in generate["receipts"]}
    assert set(ran) == ours
    # Three layers, and an indexer in each.
    assert ran["day0::lightning_indexer"] == ran["day0::topk_tokens"] > 0
    assert ran["day0::topk_tokens"] % 3 == 0
    assert ran["day0::sparse_mla_prefill"] + ran["day0::sparse_mla_decode"] == ran["day0::topk_tokens"]
    report = (folder / "report" / "report.md").read_text()
    assert "Adapted by `lightning_indexer`: 3 DeepseekV32Indexer" in report


@pytest.mark.slow
def test_every_stage_of_glm5_next_has_a_verdict_the_one_with_an_image_too(tmp_path: Path) -> None:
    make_ready(tmp_path / "r", "sim", [], (), model="hf:glm5_next", dtype="bfloat16", prompt_tokens=12, new_tokens=3)
    assert canary(tmp_path / "r") == 0
    found = stages_of(tmp_path / "r")
    assert {name for name, stage in found.items() if stage["skip"] == "unfit"} >= {"forward", "compiled", "captured"}
    assert found["vision"]["status"] == found["past_topk"]["status"] == found["generate"]["status"] == "pass"


def test_an_adapter_that_fits_nothing_is_the_users_to_repair(day0: Day0) -> None:
    done = day0("trace", "hf:gpt2", "--shrink", "--adapt", "rms_norm", "--run", "r")
    assert done.returncode == 2
    assert "error: --adapt: adapter 'rms_norm' fits no module of GPT2LMHeadModel" in done.stderr
    assert "Traceback" not in done.stderr
