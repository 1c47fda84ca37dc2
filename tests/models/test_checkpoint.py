"""Checkpoints in a folder: real weights, and everything that can be wrong with their files."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from day0.analyzers.trace import trace_model
from day0.converters.mxfp4 import decode_mxfp4, encode_mxfp4
from day0.errors import Day0Error
from day0.models.checkpoint import find_checkpoint
from day0.models.driver import step
from day0.models.source import open_model
from day0.models.spec import ModelSpec
from day0.models.workload import Phase
from day0.playbook import ModelPlan
from day0.records import TraceEntry

transformers = pytest.importorskip("transformers")

COMMON = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3_moe": {"head_dim": 16, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {
        "moe_intermediate_size": 32,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 32,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
    },
    "gpt_oss": {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
}
IDS_BS = torch.arange(10)[None]


def _made(kind: str, **changes: Any) -> Any:
    config = transformers.AutoConfig.for_model(kind, **{**COMMON, **KINDS[kind], **changes})
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def _saved(kind: str, folder: Path, *, shard: str = "5GB", **changes: Any) -> Any:
    model = _made(kind, **changes)
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def _open(folder: Path, **changes: Any) -> ModelSpec:
    return open_model(ModelPlan(source=f"hf:{folder}", **changes))


def _edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def _rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    file = folder / "model.safetensors"
    tensors = change(load_file(file))
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("checkpoints") / "llama"
    _saved("llama", folder)
    return folder


@pytest.fixture
def copied(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "copied"))


@pytest.mark.parametrize(
    ("kind", "shard", "changes"),
    [
        ("llama", "5GB", {}),
        ("llama", "5GB", {"tie_word_embeddings": True}),
        ("qwen3_moe", "60KB", {}),
        ("deepseek_v3", "40KB", {}),
        ("gpt_oss", "5GB", {}),
    ],
)
def test_a_saved_model_comes_back_with_its_own_weights(
    kind: str, shard: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    model = _saved(kind, tmp_path, shard=shard, **changes)
    spec = _open(tmp_path)
    loaded: Any = spec.build("cpu")
    assert spec.trained
    assert torch.equal(step(loaded, IDS_BS).logits_BSV, step(model, IDS_BS).logits_BSV)
    files = len(list(tmp_path.glob("*.safetensors")))
    assert (files > 2) == (shard != "5GB")
    assert spec.weights().startswith(f"loaded from {files} file")


def test_a_folder_without_weights_gets_random_ones_and_says_so(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    spec = _open(copied, seed=4)
    spec.build("cpu")
    assert not spec.trained
    assert spec.weights() == "random, seed 4"


def test_a_real_trace_names_its_weights_and_one_on_meta_has_none(llama: Path) -> None:
    spec = _open(llama)
    phase = Phase(name="prefill", batch=1, tokens=4, context=0, reason="test")
    real, meta = (trace_model(spec, (phase,), mode=mode) for mode in ("real", "meta"))
    assert real.model.weights.startswith("loaded from 1 file, 0.")
    assert meta.model.weights == ""


@pytest.mark.skipif("stats" not in TraceEntry.model_fields, reason="traces do not record values here")
def test_values_are_recorded_of_loaded_weights_only(copied: Path) -> None:
    phase = Phase(name="prefill", batch=1, tokens=4, context=0, reason="test")

    def recorded(mode: str) -> list[dict[str, Any]]:
        entries = trace_model(_open(copied), (phase,), mode=mode).entries
        return [entry.model_dump()["stats"] for entry in entries if entry.signature.op == "aten::mm"]

    assert all(stats for stats in recorded("real"))
    assert not any(recorded("meta"))
    (copied / "model.safetensors").unlink()
    assert not any(recorded("real"))


def test_other_weights_are_another_model(copied: Path) -> None:
    before = _open(copied).fingerprint
    assert _open(copied).fingerprint == before
    _rewrite(copied, lambda tensors: {name: value + 1 for name, value in tensors.items()})
    assert _open(copied).fingerprint != before


def test_tensors_without_a_place_are_named(copied: Path) -> None:
    _rewrite(copied, lambda tensors: {**tensors, "model.mtp.weight": torch.ones(3)})
    spec = _open(copied)
    spec.build("cpu")
    assert spec.weights().endswith("1 tensors unused: model.mtp.weight")


def _without(name: str) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (_without("model.layers.1.mlp.up_proj.weight"), "model.layers.1.mlp.up_proj.weight: missing"),
        (
            lambda tensors: {**tensors, "model.norm.weight": torch.ones(65)},
            "model.norm.weight: [65] in the checkpoint, [64] in the model",
        ),
    ],
)
def test_weights_that_do_not_fit_the_config_are_named(
    copied: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], fact: str
) -> None:
    _rewrite(copied, change)
    with pytest.raises(Day0Error, match="the weights do not fit the config") as caught:
        _open(copied).build("cpu")
    assert fact in caught.value.facts


def _header(document: object, data: bytes = b"") -> bytes:
    text = json.dumps(document).encode()
    return struct.pack("<Q", len(text)) + text + data


def _entry(**changes: Any) -> dict[str, Any]:
    return {"lm_head.weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "no safetensors file, or cut off"),
        (b"\xff" * 64, "no safetensors file, or cut off"),
        (struct.pack("<Q", 4) + b"{{{{", "its header is not JSON"),
        (struct.pack("<Q", 200_000) + b"[" * 200_000, "its header is not JSON"),
        (_header([1]), "its header is no JSON object"),
        (_header(_entry()), "it is cut off"),
        (_header(_entry(shape=[3]), b"0" * 8), "takes 12 bytes, and its place has 8"),
        (_header(_entry(shape=[-2]), b"0" * 8), "no list of whole numbers"),
        (_header(_entry(dtype="F2"), b"0" * 8), "does not know its dtype 'F2'"),
        (_header({"lm_head.weight": 3}), "incomplete"),
        (_header(_entry(shape=[10**12, 10**6], data_offsets=[0, 4 * 10**18])), "it is cut off"),
    ],
)
def test_a_damaged_file_is_named_when_its_weights_are_needed(copied: Path, content: bytes, text: str) -> None:
    (copied / "model.safetensors").write_bytes(content)
    spec = _open(copied)
    spec.build("meta")
    with pytest.raises(Day0Error) as caught:
        spec.build("cpu")
    assert text in caught.value.what
    assert caught.value.where.endswith("copied/model.safetensors")


def test_a_file_that_is_cut_in_half_is_named(copied: Path) -> None:
    file = copied / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(Day0Error, match="it is cut off"):
        _open(copied).build("cpu")


def test_pickled_weights_are_refused(copied: Path) -> None:
    (copied / "model.safetensors").rename(copied / "pytorch_model.bin")
    with pytest.raises(Day0Error, match="a pickle can run any code"):
        _open(copied).build("cpu")


@pytest.mark.parametrize(
    "target", ["../copied/model.safetensors", "/etc/passwd", "..\\x.safetensors", "a/../../x.safetensors", "x.bin", ""]
)
def test_an_index_that_points_elsewhere_is_refused(copied: Path, target: str) -> None:
    index = {"weight_map": {"lm_head.weight": target}}
    (copied / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(Day0Error, match="which is no safetensors file of this folder"):
        find_checkpoint(copied)


@pytest.mark.parametrize(
    ("index", "text"),
    [
        ({"weight_map": {"lm_head.weight": "gone.safetensors"}}, "1 of the 1 files that .* are missing: gone"),
        ({"weight_map": {"nobody.weight": "model.safetensors"}}, "does not hold nobody.weight"),
        ({"weight_map": {"a": 3}}, "no weight_map"),
        ([], "no weight_map"),
    ],
)
def test_an_index_that_does_not_fit_its_files_is_refused(copied: Path, index: object, text: str) -> None:
    (copied / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(Day0Error, match=text):
        find_checkpoint(copied)


def test_one_name_in_two_files_without_an_index_is_refused(copied: Path) -> None:
    (copied / "model.safetensors").rename(copied / "a.safetensors")
    shutil.copy(copied / "a.safetensors", copied / "b.safetensors")
    with pytest.raises(Day0Error, match="is also in a"):
        find_checkpoint(copied)


def test_a_model_that_does_not_fit_the_memory_is_refused_before_it_is_made(copied: Path) -> None:
    _edit(copied / "config.json", lambda config: config.update(intermediate_size=10**12))
    with pytest.raises(Day0Error, match=r"its weights take [\d,.]+ GiB, and this machine has"):
        _open(copied).build("cpu")
    (copied / "model.safetensors").unlink()
    with pytest.raises(Day0Error, match=r"its weights take [\d,.]+ GiB, and this machine has"):
        _open(copied).build("cpu")


def test_a_folder_called_like_a_model_type_is_written_with_its_path(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(llama.parent)
    with pytest.raises(Day0Error, match="is a model type, and there is a checkpoint folder") as caught:
        open_model(ModelPlan(source="hf:llama"))
    assert "hf:./llama" in caught.value.hint
    assert open_model(ModelPlan(source="hf:./llama")).trained


# ------------------------------------------------------------------------------------------------ quantised

BLOCK = (32, 24)


def _in_blocks(weight_OI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return FP8 codes, a scale for each block, and what they stand for, by a loop over the blocks."""
    rows, columns = weight_OI.shape
    scales = torch.ones(-(-rows // BLOCK[0]), -(-columns // BLOCK[1]))
    codes = torch.empty(weight_OI.shape, dtype=torch.float8_e4m3fn)
    meant = torch.empty(weight_OI.shape)
    for row in range(scales.shape[0]):
        for column in range(scales.shape[1]):
            part = (slice(row * BLOCK[0], (row + 1) * BLOCK[0]), slice(column * BLOCK[1], (column + 1) * BLOCK[1]))
            scale = weight_OI[part].float().abs().max() / 448
            codes[part] = (weight_OI[part].float() / scale).to(torch.float8_e4m3fn)
            meant[part] = codes[part].float() * scale
            scales[row, column] = scale
    return codes, scales, meant.to(torch.bfloat16)


def test_fp8_with_scales_of_blocks_is_decoded(copied: Path) -> None:
    meant: dict[str, torch.Tensor] = {}

    def quantise(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        made: dict[str, torch.Tensor] = {}
        for name, value in tensors.items():
            if "proj" in name:
                made[name], made[f"{name}_scale_inv"], meant[name] = _in_blocks(value)
            else:
                made[name] = meant[name] = value
        return made

    _rewrite(copied, quantise)
    method = {"quant_method": "fp8", "weight_block_size": list(BLOCK), "activation_scheme": "dynamic"}
    _edit(copied / "config.json", lambda config: config.update(quantization_config=method))
    loaded = _open(copied).build("cpu").state_dict()
    assert meant.keys() == loaded.keys()
    assert all(torch.equal(loaded[name], value) for name, value in meant.items())


@pytest.mark.parametrize("shape", ["tensor", "row"])
def test_fp8_of_compressed_tensors_is_decoded(copied: Path, shape: str) -> None:
    meant: dict[str, torch.Tensor] = {}

    def quantise(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        made = dict(tensors)
        for name in [name for name in tensors if "proj" in name]:
            value = tensors[name].float()
            scale = value.abs().max().reshape(1) / 448 if shape == "tensor" else value.abs().amax(1, True) / 448
            made[name] = (value / scale).to(torch.float8_e4m3fn)
            made[f"{name}_scale"] = scale
            meant[name] = (made[name].float() * scale).to(torch.bfloat16)
        return made

    _rewrite(copied, quantise)
    method = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {}}
    _edit(copied / "config.json", lambda config: config.update(quantization_config=method))
    loaded = _open(copied).build("cpu").state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in meant.items())


def test_mxfp4_as_gpt_oss_stores_it_is_decoded(tmp_path: Path) -> None:
    _saved("gpt_oss", tmp_path)
    meant: dict[str, torch.Tensor] = {}

    def quantise(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        made: dict[str, torch.Tensor] = {}
        for name, value in tensors.items():
            if not name.endswith(("gate_up_proj", "down_proj")):
                made[name] = value
                continue
            packed = encode_mxfp4(value.transpose(1, 2).contiguous())
            made[f"{name}_blocks"], made[f"{name}_scales"] = packed.codes.unflatten(-1, (-1, 16)), packed.scales
            meant[name] = decode_mxfp4(packed, torch.bfloat16).transpose(1, 2)
        return made

    _rewrite(tmp_path, quantise)
    _edit(tmp_path / "config.json", lambda config: config.update(quantization_config={"quant_method": "mxfp4"}))
    loaded = _open(tmp_path).build("cpu").state_dict()
    assert len(meant) == 4
    assert all(torch.equal(loaded[name], value) for name, value in meant.items())


def test_mxfp4_of_compressed_tensors_is_decoded(copied: Path) -> None:
    meant: dict[str, torch.Tensor] = {}

    def quantise(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        made: dict[str, torch.Tensor] = {}
        for name, value in tensors.items():
            if "proj" not in name:
                made[name] = value
                continue
            packed = encode_mxfp4(value)
            made[name.replace("weight", "weight_packed")] = packed.codes
            made[name.replace("weight", "weight_scale")] = packed.scales
            meant[name] = decode_mxfp4(packed, torch.bfloat16)
        return made

    _rewrite(copied, quantise)
    method = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "config_groups": {}}
    _edit(copied / "config.json", lambda config: config.update(quantization_config=method))
    loaded = _open(copied).build("cpu").state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in meant.items())


def test_a_format_that_cannot_be_decoded_is_named(copied: Path) -> None:
    _edit(copied / "config.json", lambda config: config.update(quantization_config={"quant_method": "awq", "bits": 4}))
    spec = _open(copied)
    spec.build("meta")
    with pytest.raises(Day0Error, match="quantised as awq, which day0 cannot decode"):
        spec.build("cpu")


def test_quantised_weights_that_the_config_does_not_mention_are_refused(copied: Path) -> None:
    _rewrite(copied, lambda tensors: {name: value.to(torch.float8_e4m3fn) for name, value in tensors.items()})
    with pytest.raises(Day0Error, match="has no quantization_config"):
        _open(copied).build("cpu")


def test_fp8_without_a_fitting_scale_is_refused(copied: Path) -> None:
    def quantise(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        name = "model.layers.0.mlp.up_proj.weight"
        return {**tensors, name: tensors[name].to(torch.float8_e4m3fn), f"{name}_scale_inv": torch.ones(3, 7)}

    _rewrite(copied, quantise)
    method = {"quant_method": "fp8", "weight_block_size": list(BLOCK)}
    _edit(copied / "config.json", lambda config: config.update(quantization_config=method))
    with pytest.raises(Day0Error, match="which does not fit model"):
        _open(copied).build("cpu")
