"""Run the smoke checkpoint through vLLM, offline: `vllm_generate.py CHECKPOINT OUT.json [eager|compiled] [IMPL]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(checkpoint: Path, out: Path, mode: str, implementation: str) -> None:
    """Write the greedy tokens of every prompt."""
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]  # only where the engine is

    baseline = json.loads((checkpoint / "baseline.json").read_text(encoding="utf-8"))
    llm = LLM(
        str(checkpoint),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=mode == "eager",
        model_impl=implementation,
        max_model_len=64,
        max_num_seqs=4,
        kv_cache_memory_bytes=64 << 20,
        disable_log_stats=True,
    )
    asked = SamplingParams(temperature=0.0, max_tokens=baseline["new_tokens"], ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": prompt} for prompt in baseline["prompts"]]
    tokens = [list(one.outputs[0].token_ids) for one in llm.generate(prompts, asked, use_tqdm=False)]
    out.write_text(json.dumps(tokens) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else "auto")
