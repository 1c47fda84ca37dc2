"""The export to SGLang, tried in SGLang: `run_sglang.py ENGINE_PYTHON WORK [CASE…]`.

Makes the smoke checkpoint, a lock, the plugin, installs it beside SGLang and runs it: in SGLang's engine on both kinds
of platform, with faults planted in the kernels, and with every way planted on which a registration is taken and never
called. Each case says what it expects of the tokens and of `day0 ops receipts`; the exit code is 1 if one is not so.
Some run SGLang's layers without its engine: the same answers in a third of the time.
ENGINE_PYTHON is the interpreter of an environment made from sglang.txt and sglang-nodeps.txt.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from bench import HERE, Bench, Case, Plant  # type: ignore[import-not-found]  # tests/engines is no package

GROUP = "sglang.srt.plugins"
MODEL = ("day0::rms_norm", "day0::fused_add_rms_norm", "day0::gated_activation")
OUT_OF_TREE = {"SGLANG_PLATFORM": "day0_cpu"}

# Each is the whole of another plugin that runs before ours. They reach into ours, as a mistake in it would.
ROUTES = "import day0_sglang_base.sglang as routes\n"
ENGINE = "import day0_sglang_base.engine as engine\n"
SWAP = ROUTES + (
    "one, other = routes._in_tree, routes._out_of_tree\n"
    "def route(plugin, target, cls):\n"
    "    import dataclasses\n"
    "    there = dataclasses.replace(plugin, key=plugin.key or 'day0')\n"
    "    (other if plugin.key is None else one)(there, target, cls)\n"
    "routes._route = route\n"
)
UNASKED = "routes._blank = lambda cls: None\nasked = routes._taken\n" + (
    "routes._taken = lambda plugin, layer: (True, '') if layer is None else asked(plugin, layer)\n"
)

LAYERS = ("day0::rms_norm", "day0::gated_activation")
CASES = (
    Case(
        name="out-of-tree",
        title="platform from outside, register_oot_forward",
        operators=LAYERS,
        env=OUT_OF_TREE,
        traced=True,
    ),
    Case(
        name="in-tree",
        title="platform of SGLang's, forward_plugin",
        operators=LAYERS,
        traced=True,
    ),
    Case(
        name="fault-out-of-tree",
        title="the same with an activation that returns zeros",
        operators=MODEL,
        env=OUT_OF_TREE,
        kernels="zero",
        tokens="other",
    ),
    Case(
        name="fault-in-tree",
        title="the same with a norm that returns its input",
        operators=MODEL,
        kernels="identity",
        tokens="other",
    ),
    Case(
        name="oot-in-tree",
        title="planted: register_oot_forward on a platform of SGLang's",
        operators=MODEL,
        plant=Plant(source=SWAP + UNASKED),
        receipts=1,
        reported=("inert", "RMSNorm.forward_native", "SiluAndMul.forward_native"),
    ),
    Case(
        name="plugin-out-of-tree",
        title="planted: forward_plugin on a platform from outside",
        operators=MODEL,
        env=OUT_OF_TREE,
        plant=Plant(source=SWAP + UNASKED),
        receipts=1,
        reported=("inert", "RMSNorm.forward_native", "SiluAndMul.forward_native"),
    ),
    Case(
        name="forced",
        title="planted: the torch backend is forced",
        operators=MODEL,
        env={**OUT_OF_TREE, "SGLANG_FORCE_FUSED_OP_BACKEND": "torch"},
        receipts=1,
        reported=("inert", "SGLANG_FORCE_FUSED_OP_BACKEND"),
    ),
    Case(
        name="ports",
        title="the call of every target, computed by the references, against SGLang's own forward",
        arguments=("ports",),
        operators=LAYERS,
        plugin=False,
        receipts=1,
        reported=("the plugin was not loaded",),
    ),
    Case(
        name="asked",
        title="planted: the wrong route, and the plugin asks the class as it always does",
        arguments=("layers",),
        operators=LAYERS,
        plant=Plant(source=SWAP),
        refused="not taken",
        receipts=1,
        reported=("inert",),
    ),
    Case(
        name="wrong-name",
        title="planted: SGLang has renamed the class",
        arguments=("layers",),
        operators=LAYERS,
        plant=Plant(
            source="import sglang.srt.layers.activation as a\na.SiluAndMulFused = a.SiluAndMul\ndel a.SiluAndMul\n"
        ),
        refused="has no 'SiluAndMul'",
        receipts=1,
        reported=("inert",),
    ),
    Case(
        name="failed-check",
        title="planted: a check of the plugin's fails",
        arguments=("layers",),
        operators=LAYERS,
        plant=Plant(
            source=ENGINE + "def install(*_):\n    raise RuntimeError('a check failed')\nengine.install = install\n"
        ),
        refused="a check failed",
        receipts=1,
        reported=("inert",),
    ),
    Case(
        name="swallowed",
        title="planted: the plugin raises what SGLang swallows",
        arguments=("layers",),
        operators=LAYERS,
        plant=Plant(
            source=ENGINE
            + "def register():\n    raise RuntimeError('lost')\nengine.register.__code__ = register.__code__\n"
        ),
        receipts=1,
        reported=("inert", "the plugin was not loaded"),
    ),
    Case(
        name="not-listed",
        title="planted: SGLANG_PLUGINS does not list the plugin",
        arguments=("layers",),
        operators=LAYERS,
        env={"SGLANG_PLUGINS": "aa_planted"},
        receipts=1,
        reported=("inert", "the plugin was not loaded"),
    ),
    Case(
        name="subclass",
        title="planted: subclasses, of which one computes something else",
        arguments=("subclasses",),
        operators=("day0::rms_norm",),
        env=OUT_OF_TREE,
        receipts=1,
        reported=("partly", "Other has a forward_native of its own"),
    ),
    Case(
        name="pinned",
        title="planted: a layer that its constructor has pinned",
        arguments=("pinned",),
        operators=("day0::rms_norm",),
        receipts=1,
        reported=("partly", "pinned to RMSNorm.forward_native"),
    ),
    Case(
        name="function",
        title="a function that no class stands for, REPLACE hook",
        arguments=("router",),
        operators=("day0::moe_router",),
    ),
    Case(
        name="old-binding",
        title="planted: the hook stands on a name that callers do not use",
        arguments=("router",),
        operators=("day0::moe_router",),
        plant=Plant(
            source=ENGINE + "import dataclasses\n"
            "old, new = 'topk:biased_grouped_topk', 'topk:biased_grouped_topk_gpu'\n"
            "moved = [dataclasses.replace(t, path=t.path.replace(old, new)) for t in engine.ADAPTER.targets]\n"
            "engine.ADAPTER = dataclasses.replace(engine.ADAPTER, targets=tuple(moved))\n"
        ),
        receipts=1,
        reported=("inert", "topk.biased_grouped_topk: this name still holds"),
    ),
)


class Sglang(Bench):  # type: ignore[misc]
    """SGLang's bench: what its import needs, a router beside the kernels, layers without the engine."""

    def __init__(self, python: Path, work: Path) -> None:
        super().__init__("sglang", python, work)
        self.looking = self._looking()
        router = (HERE / "sglang_router.py").read_text(encoding="utf-8")
        router = router.partition("from __future__ import annotations\n")[2]
        self.more_kernels = router.replace("IMPLEMENTATIONS = (", "IMPLEMENTATIONS += (")

    def _looking(self) -> Path:
        """Return an interpreter that has what sglang_prelude.py declares from its start, to look targets up with."""
        script: Path = self.work / "python"
        start = self.work / "start"
        start.mkdir(exist_ok=True)
        prelude = f"import sys\nsys.path.append({str(HERE)!r})\nimport sglang_prelude\n"
        (start / "sitecustomize.py").write_text(prelude, encoding="utf-8")
        script.write_text(f'#!/bin/sh\nPYTHONPATH="{start}" exec "{self.python}" "$@"\n', encoding="utf-8")
        script.chmod(0o755)
        return script

    def compared(self, case: Case) -> str:
        """Layers are compared with the same layers as SGLang computes them."""
        return "layers as SGLang's own" if case.arguments else str(super().compared(case))

    def tokens(self, case: Case, wrote: Any) -> list[list[int]]:
        """Return the tokens; layers without an engine have none, and agree or not with SGLang's own."""
        if isinstance(wrote, dict):
            return self.expected if wrote["agree"] else []
        return list(wrote)


def main() -> int:
    """Run the cases that were asked for, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("engine", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("case", nargs="*")
    asked = parser.parse_args()
    unknown = set(asked.case) - {one.name for one in CASES}
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(one.name for one in CASES)}")
    for name in [name for name in os.environ if name.startswith("SGLANG_")]:
        del os.environ[name]
    asked.work.mkdir(parents=True, exist_ok=True)
    bench = Sglang(asked.engine, asked.work.absolute())
    bench.prepare()
    failed = 0
    for case in CASES:
        if not asked.case or case.name in asked.case:
            script = "sglang_ops.py" if case.arguments else "sglang_generate.py"
            failed += bool(bench.run(case, script, GROUP))
    print("all as expected" if not failed else f"{failed} not as expected")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
