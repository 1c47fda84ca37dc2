"""What was converted loads in transformers, and gives the logits that transformers' own dequantisation gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from day0.converters.mxfp4 import encode_mxfp4
from day0.models.source import open_model
from day0.playbook import ModelPlan

transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.conversion_mapping")
pytest.importorskip("transformers.integrations.finegrained_fp8")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of transformers and what it imports
]
TOKENS = torch.arange(24).view(2, 12) % 96
SIZES = {"num_hidden_layers": 2, "hidden_size": 256, "vocab_size": 96, "dtype": "bfloat16"}


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@pytest.fixture
def accelerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let transformers read FP8 without accelerate: it asks for it before it finds that it will only dequantise."""
    module = pytest.importorskip("transformers.quantizers.quantizer_finegrained_fp8")
    monkeypatch.setattr(module, "is_accelerate_available", lambda: True)


def logits(folder: Path, **options: Any) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **options).eval()
    with torch.no_grad():
        found: torch.Tensor = model(TOKENS).logits
    return found


def dequantised() -> Any:
    return transformers.FineGrainedFP8Config(dequantize=True)


def rewrite(folder: Path, tensors: dict[str, torch.Tensor], quantisation: dict[str, Any]) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantisation}))


# ------------------------------------------------------------------------------------------------------- gpt-oss


@pytest.fixture
def gpt_oss(tmp_path: Path) -> Path:
    """A model and config of transformers, its experts in MXFP4 under the names that transformers reads."""
    torch.manual_seed(0)
    config = transformers.GptOssConfig(
        **SIZES,
        intermediate_size=128,
        num_local_experts=4,
        num_experts_per_tok=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        layer_types=["sliding_attention", "full_attention"],
    )
    model = transformers.GptOssForCausalLM(config).to(torch.bfloat16)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, 0, 0.05) if weight.dim() == 3 else None
    folder = tmp_path / "gpt-oss"
    model.save_pretrained(folder)
    tensors = {}
    for name, one in load_file(folder / "model.safetensors").items():
        if name.endswith(("gate_up_proj", "down_proj")):
            packed = encode_mxfp4(one.transpose(1, 2).contiguous())
            tensors[name + "_blocks"] = packed.codes.unflatten(-1, (-1, 16))
            tensors[name + "_scales"] = packed.scales
        else:
            tensors[name] = one
    rewrite(folder, tensors, {"quant_method": "mxfp4"})
    return folder


def test_gpt_oss_as_bf16(kit: Any, gpt_oss: Path, tmp_path: Path) -> None:
    """Bit for bit: weights and logits."""
    wanted = transformers.Mxfp4Config(dequantize=True)
    kit.run(gpt_oss, tmp_path / "t", "bf16")
    assert torch.equal(logits(tmp_path / "t"), logits(gpt_oss, quantization_config=wanted))


def fused_fp8() -> list[Any]:
    """What transformers has to be told: the scale of a stack is called after it."""
    loading = transformers.core_model_loading
    base: Any = transformers.integrations.finegrained_fp8.Fp8Dequantize

    def convert(self: Any, input_dict: Any, full_layer_name: Any = None, **_: Any) -> Any:
        (_, weight), (_, scales) = sorted(input_dict.items(), key=lambda pair: len(pair[0]))
        return {full_layer_name: self._dequantize_one(weight[0], scales[0], torch.bfloat16)}

    kind = type("Fused", (base,), {"convert": convert})
    names = [f"experts.{part}" for part in ("gate_up_proj", "down_proj")]
    return [loading.WeightConverter([f"{one}$", f"{one}_scale_inv$"], one, operations=[kind(None)]) for one in names]


def test_gpt_oss_as_fp8(
    kit: Any, gpt_oss: Path, tmp_path: Path, accelerated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers has no FP8 experts with biases, so it is told how to read them; day0's own loader knows."""
    wanted = logits(gpt_oss, quantization_config=transformers.Mxfp4Config(dequantize=True))
    report = kit.run(gpt_oss, tmp_path / "t", "fp8")
    assert {one.exactness for one in report.weights} == {"exact"}
    mapping = transformers.conversion_mapping
    mapping.get_checkpoint_conversion_mapping("gpt_oss")  # fills the cache
    with monkeypatch.context() as patch:
        patch.setattr(
            mapping, "_checkpoint_conversion_mapping_cache", dict(mapping._checkpoint_conversion_mapping_cache)
        )
        mapping.register_checkpoint_conversion_mapping("gpt_oss", fused_fp8(), overwrite=True)
        assert torch.equal(logits(tmp_path / "t", quantization_config=dequantised()), wanted)
    mapping.USER_REGISTERED_MAPPINGS.discard("gpt_oss")
    for to in ("fp8", "fp8-tensor"):
        kit.run(gpt_oss, tmp_path / f"d-{to}", to)
        model = open_model(ModelPlan(source=f"hf:{tmp_path / f'd-{to}'}")).build("cpu").eval()
        with torch.no_grad():
            assert torch.equal(model(TOKENS).logits, wanted), to


# ------------------------------------------------------------------------------------------------------ DeepSeek


def test_deepseek_fp8(kit: Any, tmp_path: Path, accelerated: None) -> None:
    """FP8 to BF16 is rounded as transformers rounds; FP8 to the same FP8 is copied."""
    torch.manual_seed(0)
    config = transformers.DeepseekV3Config(
        **SIZES,
        intermediate_size=256,
        moe_intermediate_size=128,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=128,
        kv_lora_rank=96,
        qk_rope_head_dim=32,
        qk_nope_head_dim=32,
        v_head_dim=32,
        n_shared_experts=1,
    )
    source = tmp_path / "s"
    transformers.DeepseekV3ForCausalLM(config).to(torch.bfloat16).save_pretrained(source)
    tensors = {}
    for name, one in load_file(source / "model.safetensors").items():
        tensors[name] = one
        if name.endswith(("proj.weight", "mqa.weight")) and not any(size % 128 for size in one.shape):
            blocks = one.float().unflatten(0, (-1, 128)).unflatten(2, (-1, 128))
            scale = blocks.abs().amax(dim=(1, 3)) / 448
            stored = (blocks / scale[:, None, :, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
            tensors[name], tensors[name + "_scale_inv"] = stored.view(one.shape), scale
    rewrite(source, tensors, {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]})
    wanted = logits(source, quantization_config=dequantised())
    kit.run(source, tmp_path / "bf16", "bf16", allow_bounded=True)
    assert torch.equal(logits(tmp_path / "bf16"), wanted)
    report = kit.run(source, tmp_path / "fp8", "fp8")
    assert {one.exactness for one in report.weights} == {"exact"}
    assert torch.equal(logits(tmp_path / "fp8", quantization_config=dequantised()), wanted)


# --------------------------------------------------------------------------------------------- compressed-tensors


def packed(folder: Path, form: str, **weights: Any) -> Path:
    """A Llama that compressed-tensors itself has quantised and written."""
    ct = pytest.importorskip("compressed_tensors")
    compressors = pytest.importorskip("compressed_tensors.compressors")
    calculate = pytest.importorskip("compressed_tensors.quantization.utils").calculate_qparams
    quantising = ct.quantization

    torch.manual_seed(1)
    config = transformers.LlamaConfig(**SIZES, intermediate_size=384, num_attention_heads=4, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    arguments = quantising.QuantizationArgs(num_bits=4, strategy="group", group_size=32, symmetric=True, **weights)
    scheme = quantising.QuantizationScheme(targets=["Linear"], weights=arguments, format=form)
    quantisation = quantising.QuantizationConfig(
        config_groups={"group_0": scheme}, ignore=["lm_head"], format=form, quantization_status="frozen"
    )
    quantising.apply_quantization_config(model, quantisation)
    for module in model.modules():
        if hasattr(module, "weight_scale"):
            groups = module.weight.unflatten(-1, (-1, 32))
            scale, _ = calculate(groups.amin(-1), groups.amax(-1), arguments)
            module.weight_scale.data.copy_(scale)
    compressor = compressors.ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(str(folder))
    return folder


def test_compressed_tensors_mxfp4(kit: Any, tmp_path: Path, accelerated: None) -> None:
    source = packed(tmp_path / "s", "mxfp4-pack-quantized", type="float", scale_dtype=torch.uint8)
    wanted = logits(source)
    for to in ("bf16", "fp8-row", "fp8-tensor", "mxfp4"):
        report = kit.run(source, tmp_path / to, to)
        assert {one.exactness for one in report.weights} == {"exact"}, to
        assert torch.equal(logits(tmp_path / to), wanted), to
    for to in ("fp8-128x128", "fp8-1x128", "mxfp8"):
        kit.run(source, tmp_path / to, to)
        assert torch.equal(logits(tmp_path / to, quantization_config=dequantised()), wanted), to


def test_compressed_tensors_int4(kit: Any, tmp_path: Path, accelerated: None) -> None:
    """BF16 bit for bit; FP8 and INT4 g128 round, so their logits are near, and their weights within the bound."""
    source = packed(tmp_path / "s", "pack-quantized", type="int")
    wanted = logits(source)
    kit.run(source, tmp_path / "bf16", "bf16", allow_bounded=True)
    assert torch.equal(logits(tmp_path / "bf16"), wanted)
    exact = load_file(tmp_path / "bf16" / "model.safetensors")
    kit.run(source, tmp_path / "fp8", "fp8", allow_bounded=True)
    found = load_file(tmp_path / "fp8" / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    scale = found[name + "_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
    error = (found[name].float() * scale - exact[name].float()).abs()
    # 2^-4 of the FP8 rounding, and 2^-8 of the BF16 value that stands for the exact one here.
    assert bool((error <= exact[name].float().abs() * (2.0**-4 + 2.0**-7) + scale * 2.0**-10).all())
    for to, options in (("fp8", {"quantization_config": dequantised()}), ("int4-g128", {})):
        if to != "fp8":
            kit.run(source, tmp_path / to, to, allow_bounded=True)
        near = logits(tmp_path / to, **options)
        assert (
            float(torch.nn.functional.cosine_similarity(near.flatten().float(), wanted.flatten().float(), dim=0)) > 0.95
        )
