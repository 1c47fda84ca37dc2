"""Names of model families: the traps that two loaders fell into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from day0.converters.architectures.kimi import ARCHITECTURE as KIMI
from day0.converters.architectures.kimi import check, layer_kind, meaning
from day0.converters.architectures.load import load_architectures, pick_architecture
from day0.errors import Day0Error

K3 = {
    "model_type": "kimi_k3",
    "text_config": {
        "model_type": "kimi_linear",
        "linear_attn_config": {"kda_layers": [1, 2, 3, 5], "full_attn_layers": [4, 6], "num_heads": 96},
    },
}
PREFIX = "language_model.model.layers"


@pytest.mark.parametrize(
    ("architecture", "name", "role"),
    [
        ("gpt-oss", "model.layers.3.mlp.experts.gate_up_proj", "expert"),
        ("gpt-oss", "model.layers.3.mlp.experts.gate_up_proj_bias", "keep"),
        ("gpt-oss", "block.3.mlp.mlp1_weight", "expert"),
        ("gpt-oss", "model.layers.3.self_attn.sinks", "keep"),
        ("deepseek", "model.layers.61.mlp.experts.255.down_proj.weight", "expert"),
        ("deepseek", "model.layers.61.eh_proj.weight", "keep"),
        ("deepseek", "model.layers.3.mlp.gate.weight", "keep"),
        ("deepseek", "model.layers.3.self_attn.kv_a_proj_with_mqa.weight", "linear"),
        ("deepseek", "model.layers.3.self_attn.indexer.weights_proj.weight", "keep"),
        ("deepseek", "model.layers.3.self_attn.indexer.k_norm.bias", "keep"),
        ("deepseek", "layers.3.ffn.experts.7.w2.weight", "expert"),
        ("deepseek", "layers.3.attn.compressor.ape", "keep"),
        ("deepseek", "layers.3.hc_attn_fn", "keep"),
        ("deepseek", "hc_head_scale", "keep"),
        ("kimi", f"{PREFIX}.4.block_sparse_moe.experts.895.w3.weight", "expert"),
        ("kimi", f"{PREFIX}.4.block_sparse_moe.routed_expert_down_proj.weight", "linear"),
        ("kimi", f"{PREFIX}.4.block_sparse_moe.routed_expert_norm.weight", "keep"),
        ("kimi", f"{PREFIX}.4.self_attn.A_log", "keep"),
        ("kimi", f"{PREFIX}.4.self_attn.g_proj.weight", "linear"),
        ("kimi", f"{PREFIX}.4.self_attention_res_proj.weight", "keep"),
        ("kimi", "language_model.lm_head.weight", "keep"),
        ("kimi", "vision_tower.encoder.blocks.0.wqkv.weight", "keep"),
        ("common", "model.layers.3.mlp.up_proj.weight", "linear"),
        ("common", "model.layers.3.block_sparse_moe.experts.1.w1.weight", "expert"),
    ],
)
def test_roles(architecture: str, name: str, role: str) -> None:
    found = load_architectures()[architecture].role(name)
    assert found is not None and found.role == role


def test_the_wrapper_counts_before_its_text_model() -> None:
    assert pick_architecture("auto", K3, keep_unknown=False) is KIMI
    with pytest.raises(Day0Error, match="its model_type says nothing_known") as caught:
        pick_architecture("auto", {"model_type": "nothing_known"}, keep_unknown=False)
    assert "--architecture NAME" in caught.value.hint
    assert pick_architecture("auto", {}, keep_unknown=True).name == "common"
    with pytest.raises(Day0Error, match="no such architecture"):
        pick_architecture("kimmi", {}, keep_unknown=False)


def test_layers_are_counted_from_1_in_the_config() -> None:
    assert [layer_kind(layer, K3) for layer in range(7)] == ["kda", "kda", "kda", "mla", "kda", "mla", ""]


def test_one_name_has_two_meanings() -> None:
    assert meaning(f"{PREFIX}.0.self_attn.g_proj.weight", K3) == "output gate of KDA"
    assert meaning(f"{PREFIX}.3.self_attn.g_proj.weight", K3) == "output gate of MLA"
    assert meaning(f"{PREFIX}.9.self_attn.g_proj.weight", K3) == "output gate of an unknown layer kind"
    assert meaning(f"{PREFIX}.3.self_attn.o_proj.weight", K3) == ""


def test_a_log_may_be_padded_and_nothing_else() -> None:
    name = f"{PREFIX}.0.self_attn.A_log"
    assert check({name: (96,)}, K3) == () and check({name: (1, 1, 96, 1)}, K3) == ()
    assert "padded to a multiple of 128" in check({name: (128,)}, K3)[0]
    with pytest.raises(Day0Error, match="has 100 values, and the config says 96 heads"):
        check({name: (100,)}, K3)
    with pytest.raises(Day0Error, match=r"layer 4 \(from 1\) is MLA"):
        check({f"{PREFIX}.3.self_attn.A_log": (96,)}, K3)


def test_k3_from_end_to_end(kit: Any, tmp_path: Path) -> None:
    """Experts in four bits become FP8; the padding of A_log stays, and the report says so."""
    stem = f"{PREFIX}.1.block_sparse_moe.experts.0"
    tensors = {
        f"{stem}.{part}.weight_{half}": one
        for part in ("w1", "w2", "w3")
        for half, one in zip(("packed", "scale"), kit.packed().values(), strict=True)
    }
    tensors[f"{PREFIX}.1.self_attn.A_log"] = torch.nn.functional.pad(torch.ones(96), (0, 32))
    source = kit.write(
        tmp_path / "s", tensors, **{key: one for key, one in K3.items() if key != "model_type"}, model_type="kimi_k3"
    )
    report = kit.run(source, tmp_path / "t", "fp8")
    assert report.architecture == "kimi" and {one.exactness for one in report.weights} == {"exact"}
    assert len(report.weights) == 3 and any("A_log" in note for note in report.notes)
