"""Run the smoke checkpoint through SGLang, offline: `sglang_generate.py CHECKPOINT OUT.json`.

With SGLANG_PLATFORM=day0_cpu it runs on the out-of-tree platform that day0 brings, without on SGLang's own base one.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

# Processes that SGLang spawns import this file again, and need the same.
sys.path.insert(0, str(Path(__file__).parent))
import sglang_prelude  # type: ignore[import-not-found]  # tests/engines is no package

if not os.environ.get("SGLANG_PLATFORM"):
    sglang_prelude.stand_in_for_rotary()


def main(checkpoint: Path, out: Path) -> None:
    """Write the greedy tokens of every prompt."""
    import sglang  # type: ignore[import-not-found]  # only where the engine is

    baseline = json.loads((checkpoint / "baseline.json").read_text(encoding="utf-8"))
    engine = sglang.Engine(
        model_path=str(checkpoint),
        skip_tokenizer_init=True,
        device="cpu",
        dtype="float32",
        attention_backend="torch_native",
        sampling_backend="pytorch",
        disable_cuda_graph=True,
        disable_radix_cache=True,
        context_length=64,
        max_total_tokens=256,
        log_level="info",
    )
    asked = {"temperature": 0, "max_new_tokens": baseline["new_tokens"], "ignore_eos": True}
    tokens = [one["output_ids"] for one in engine.generate(input_ids=baseline["prompts"], sampling_params=asked)]
    out.write_text(json.dumps(tokens) + "\n", encoding="utf-8")
    engine.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
