"""Converted checkpoints, tried in vLLM: `run_convert.py ENGINE_PYTHON WORK`.

A small gpt-oss of transformers' own gets its experts in MXFP4, `day0 convert` makes BF16 of it, and vLLM has to say the
tokens that transformers says of the MXFP4 source. A result with one exponent changed has to say others.
FP8 results are left out: vLLM 0.32 has no kernel for FP8 blocks on a CPU without AMX tiles.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from checkpoint import NEW_TOKENS, greedy  # type: ignore[import-not-found]  # beside this script, which is no package
from safetensors.torch import load_file, save_file

from day0.converters.mxfp4 import encode_mxfp4

HERE = Path(__file__).parent
PROMPTS = [[3, 41, 59, 26, 53], [58, 7, 93, 38, 46, 64, 38]]
LAYER = "model.layers.0.mlp.experts.down_proj"


def main(engine: Path, work: Path) -> int:
    """Print a line a case; the exit code is 1 if one is not so."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    source = make_source(work / "source")
    reading: Any = transformers.utils.quantization_config.Mxfp4Config(dequantize=True)
    model: Any = transformers.GptOssForCausalLM.from_pretrained(
        source, dtype=torch.float32, quantization_config=reading
    )
    wanted = [greedy(model.eval(), prompt) for prompt in PROMPTS]
    day0("convert", source, work / "bf16", "--to", "bf16")
    shutil.copytree(work / "bf16", work / "changed")
    tensors = load_file(work / "changed" / "model.safetensors")
    tensors[LAYER] = tensors[LAYER] * 8
    save_file(tensors, work / "changed" / "model.safetensors", metadata={"format": "pt"})
    cases = {"bf16": True, "changed": False}
    found = {name: tokens_of(engine, work / name, wanted) for name in cases}
    for name, same in cases.items():
        print(f"{name:8} {'ok' if (found[name] == wanted) is same else 'WRONG'}  vLLM: {found[name]}")
    print(f"         transformers: {wanted}")
    return int(any((found[name] == wanted) is not same for name, same in cases.items()))


def make_source(folder: Path) -> Path:
    """Write a gpt-oss with random weights, its experts in MXFP4."""
    torch.manual_seed(0)
    config = transformers.GptOssConfig(
        vocab_size=96,
        hidden_size=256,
        intermediate_size=128,
        num_hidden_layers=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        layer_types=["sliding_attention", "full_attention"],
        dtype="bfloat16",
    )
    model: Any = transformers.GptOssForCausalLM(config)
    model = model.to(torch.bfloat16)
    for weight in model.parameters():
        if weight.dim() == 3:
            torch.nn.init.normal_(weight, 0, 0.05)
    model.save_pretrained(folder)
    tensors: dict[str, Any] = {}
    for name, one in load_file(folder / "model.safetensors").items():
        if name.endswith(("gate_up_proj", "down_proj")):
            packed = encode_mxfp4(one.transpose(1, 2).contiguous())
            tensors[name + "_blocks"] = packed.codes.unflatten(-1, (-1, 16))
            tensors[name + "_scales"] = packed.scales
        else:
            tensors[name] = one
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config_file = folder / "config.json"
    config_file.write_text(
        json.dumps({**json.loads(config_file.read_text()), "quantization_config": {"quant_method": "mxfp4"}})
    )
    return folder


def day0(*arguments: object) -> None:
    """Run the command; what it says is of interest where it fails."""
    subprocess.run([sys.executable, "-m", "day0", *map(str, arguments)], check=True)


def tokens_of(engine: Path, folder: Path, wanted: list[list[int]]) -> Any:
    """Return what vLLM says."""
    baseline = {"prompts": PROMPTS, "new_tokens": NEW_TOKENS, "tokens": wanted}
    (folder / "baseline.json").write_text(json.dumps(baseline))
    out = folder.with_suffix(".json")
    with folder.with_suffix(".log").open("w") as log:
        # -P: beside the script lie modules that have names of packages which vLLM imports.
        command = [str(engine), "-P", str(HERE / "vllm_generate.py"), str(folder), str(out), "eager"]
        subprocess.run(command, check=True, stdout=log, stderr=log, timeout=900)
    return json.loads(out.read_text())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
