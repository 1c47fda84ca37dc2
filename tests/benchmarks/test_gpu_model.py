"""The benchmark of whole models: what it compares it can tell apart, and its ways are one computation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from day0.reference_ops.torch_ops import register_operators
from tests.benchmarks.beside import FOLDER, load

rows, toy, contexts, experts = (load(name) for name in ("model_rows", "model_toy", "model_contexts", "model_experts"))


@pytest.fixture(scope="module")
def model() -> Any:
    """The toy in bfloat16 with random weights, all experts decoded."""
    register_operators()
    made = toy.random_model(toy.scaled(1.0, tiny=True), "cpu")
    toy.use_experts(made, toy.decoded_experts(made))
    return made


def test_another_computation_is_refused_and_another_order_is_not() -> None:
    right = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    near = right * (1 + 0.01 * torch.randn(40, 64, generator=torch.Generator().manual_seed(1)))
    assert rows.refuse_difference("near", near, right) < 0.02
    # Most tokens chose another expert, some the same.
    mixed = torch.cat((near[:10], right[10:] * 1.4))
    assert rows.refuse_difference("mixed", mixed, right) == pytest.approx(0.4, abs=0.01)
    for wrong in (right * 1.1, torch.cat((near[:10], -right[10:])), torch.full_like(right, float("nan"))):
        with pytest.raises(SystemExit, match="wrong: a token differs"):
            rows.refuse_difference("wrong", wrong, right)


def test_sparse_is_dense_where_all_tokens_are_chosen_and_keys_may_stay_where_they_lie(model: Any) -> None:
    context = toy.make_context(model, 3, model.config.index_topk, "cpu")
    sparse = toy.step(model, context)
    with toy.keys_in_place():
        assert torch.equal(toy.step(model, context), sparse)
    for way in ("kernel", "products"):
        with toy.dense(model, way):
            rows.refuse_difference(way, toy.step(model, context, toy.all_rows(context)), sparse)
    assert torch.equal(toy.step(model, context), sparse)


def test_dense_differs_where_tokens_are_left_out(model: Any) -> None:
    context = toy.make_context(model, 12, 4 * model.config.index_topk, "cpu")
    sparse = toy.step(model, context)
    with toy.dense(model, "products"):
        dense = toy.step(model, context, toy.all_rows(context))
    assert rows.differ(dense, sparse)[1] > 2e-2


def test_bytes_of_a_cache_are_those_of_its_pages(model: Any) -> None:
    config, context = model.config, toy.make_context(model, 2, 16, "cpu")
    row = config.kv_lora_rank + config.shared_head_dim + config.index_head_dim
    assert context.kv_bytes == len(config.mla_layers) * 16 * row * 2
    assert contexts.bytes_of_heads(config, 16) == config.num_hidden_layers * 16 * config.mla_heads * (16 + 20) * 2


def test_experts_that_compute_something_else_are_refused(model: Any) -> None:
    right = toy.decoded_experts(model)[0]
    experts.refuse_other_experts("right", model, right, "cpu")
    wrong = toy.Resident(right.gate_up, right.down.flip(0))
    with pytest.raises(SystemExit, match="wrong: a layer of experts differs"):
        experts.refuse_other_experts("wrong", model, wrong, "cpu")


def test_gate_and_up_together_are_the_same_weights(model: Any) -> None:
    one = experts.expert_layers(model)[0]
    before = one.w1.codes.clone(), one.w3.codes.clone(), one.w1.scales.clone()
    toy.together(model)
    assert torch.equal(one.w1.codes, before[0]) and torch.equal(one.w3.codes, before[1])
    assert torch.equal(one.w1.scales, before[2])
    assert one.w1.codes[2].data_ptr() + one.w1.codes[2].nbytes == one.w3.codes[2].data_ptr()


@pytest.mark.slow
@pytest.mark.parametrize("part", ["paths", "contexts", "experts", "transformers"])
def test_a_part_runs_without_a_gpu(part: str, tmp_path: Path) -> None:
    out = tmp_path / "model.json"
    command = [sys.executable, str(FOLDER / "model.py"), "--device", "cpu", "--tiny", "--only", part, "--out", str(out)]
    done = subprocess.run(
        [*command, "--minutes", "8", "--seconds", "400"],
        capture_output=True,
        text=True,
        check=False,
        cwd=FOLDER.parents[1],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())["model"][part]
    assert found["status"] == "done" and found["rows"] and found["figures"]
