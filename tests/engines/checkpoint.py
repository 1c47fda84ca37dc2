"""Make a small real checkpoint offline, and what transformers says to it: `checkpoint.py FOLDER`.

Dummy weights hide broken kernels: with them an activation that returns zeros gives the same tokens. Random weights of
this spread do not, and the runs prove it with planted faults.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

PROMPTS = [[3, 141, 59, 26, 53], [58, 97, 93, 238, 46, 264, 338]]
NEW_TOKENS = 8
SPREAD = 0.15


def main(folder: Path) -> None:
    """Write weights, config and `baseline.json` with prompts and the greedy tokens of each."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=SPREAD,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        dtype="float32",
        architectures=["LlamaForCausalLM"],
    )
    model = LlamaForCausalLM(config)
    model.train(False)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Norms of ones would hide a kernel that leaves the weight out.
            weight.normal_(1.0 if "norm" in name else 0.0, SPREAD)
    model.save_pretrained(folder)
    tokens = [greedy(model, prompt) for prompt in PROMPTS]
    baseline = {"prompts": PROMPTS, "new_tokens": NEW_TOKENS, "tokens": tokens}
    (folder / "baseline.json").write_text(json.dumps(baseline) + "\n", encoding="utf-8")
    parameters = sum(weight.numel() for weight in model.parameters())
    print(f"checkpoint  {parameters:,} parameters in {folder}")
    print(f"baseline    transformers: {tokens}")


def greedy(model: LlamaForCausalLM, prompt: list[int]) -> list[int]:
    """Return the tokens that transformers says after a prompt."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
        )
    return [int(token) for token in out[0, len(prompt) :]]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
