"""The export to vLLM, tried in vLLM: `run_vllm.py ENGINE_PYTHON WORK [CASE…]`.

Runs the smoke checkpoint with the plugin, eager and compiled; with faults planted in the kernels, which have to change
the tokens; and with every way planted on which a registration is taken and never called. Each case says what it
expects of the tokens and of `day0 ops receipts`; the exit code is 1 if one is not so. ENGINE_PYTHON is the interpreter
of an environment made from vllm.txt.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from bench import Bench, Case, Plant  # type: ignore[import-not-found]  # beside this script, which is no package

LAYERS = ("day0::rms_norm", "day0::gated_activation")
NORM, GATED = (f"{name}@1 base:smoke==1.0" for name in LAYERS)
BOTH = (f"inert {NORM}", f"inert {GATED}")

# They reach into our plugin, as a mistake in it would.
ENGINE = "import day0_vllm_base.engine as engine\n"
FORWARD_OOT = ENGINE + (
    "def ported(bundle, target, base):\n"
    "    port = engine._PORTS[target.path.partition(':')[2]]\n"
    "    class Ported(base):\n"
    "        day0_folder, day0_title = str(bundle.folder), bundle.title\n"
    "        def forward_oot(self, *args, **kwargs):\n"
    "            return port(bundle, self, *args, **kwargs)\n"
    "    return Ported\n"
    "engine._ported = ported\n"
)
ONE_REGISTRY = ENGINE + (
    "import dataclasses\n"
    "here = tuple(one for one in engine.ADAPTER.targets if not one.name.startswith('hw_agnostic.'))\n"
    "engine.ADAPTER = dataclasses.replace(engine.ADAPTER, targets=here)\n"
)
TAKEN = (
    "from vllm.model_executor.custom_op import CustomOp\n"
    "from vllm.model_executor.layers.layernorm import RMSNorm\n"
    "class Theirs(RMSNorm):\n"
    "    pass\n"
    "CustomOp.register_oot(_decorated_op_cls=Theirs, name='RMSNorm')\n"
)
GONE = "import vllm.model_executor.layers.activation as module\ndel module.SiluAndMul\n"
CLAIMS = Plant(
    source=FORWARD_OOT,
    module="def platform():\n    return 'aa_planted.platform_class'\n\n"
    "def __getattr__(name):\n"
    "    if name != 'platform_class':\n"
    "        raise AttributeError(name)\n"
    "    from vllm.platforms.cpu import CpuPlatform\n"
    "    class Claims(CpuPlatform):\n"
    "        def is_out_of_tree(self):\n"
    "            return True\n"
    "        def __init__(self):\n"
    "            print('planted: this platform claims to be out of tree', flush=True)\n"
    "    globals()[name] = Claims\n"
    "    return Claims\n",
    entry_points="[vllm.platform_plugins]\naa_planted = aa_planted:platform\n",
)

CASES = (
    Case(name="eager", title="dispatch_forward", operators=LAYERS, arguments=("eager",), traced=True),
    Case(
        name="compiled",
        title="dispatch_forward under torch.compile",
        operators=LAYERS,
        arguments=("compiled",),
        traced=True,
    ),
    Case(
        name="fused",
        title="with fused_add_rms_norm in the lock",
        operators=("day0::rms_norm", "day0::fused_add_rms_norm", "day0::gated_activation"),
        arguments=("compiled",),
    ),
    Case(name="aten", title="an operator of torch", operators=("aten::silu",), arguments=("eager",)),
    Case(
        name="aten-compiled",
        title="planted: an operator of torch under torch.compile, which makes its own code of it",
        operators=("aten::silu",),
        arguments=("compiled",),
        receipts=1,
        reported=("inert aten::silu@1 base:smoke==1.0", "compiled graphs do not"),
    ),
    Case(
        name="fault-zero",
        title="fault: the activation returns zeros",
        operators=LAYERS,
        arguments=("eager",),
        kernels="zero",
        tokens="other",
    ),
    Case(
        name="fault-identity",
        title="fault: the norm returns its input",
        operators=LAYERS,
        arguments=("compiled",),
        kernels="identity",
        tokens="other",
    ),
    Case(
        name="oot-eager",
        title="planted: forward_oot only",
        operators=LAYERS,
        arguments=("eager",),
        plant=Plant(source=FORWARD_OOT),
        receipts=1,
        reported=BOTH,
    ),
    Case(
        name="oot-compiled",
        title="planted: forward_oot only, under torch.compile",
        operators=LAYERS,
        arguments=("compiled",),
        plant=Plant(source=FORWARD_OOT),
        receipts=1,
        reported=BOTH,
    ),
    Case(
        name="transformers",
        title="planted: the model of transformers, whose norms are a class of their own",
        operators=LAYERS,
        arguments=("eager", "transformers"),
        receipts=1,
        reported=(f"inert {NORM}", f"called {GATED}"),
    ),
    Case(
        name="agnostic",
        title="planted: hardware-agnostic layers, and a plugin that knows one registry only",
        operators=LAYERS,
        arguments=("eager", "transformers"),
        env={"VLLM_USE_HW_AGNOSTIC": "1"},
        plant=Plant(source=ONE_REGISTRY),
        says="Using hw-agnostic layer: RMSNorm",
        receipts=1,
        reported=BOTH,
    ),
    Case(
        name="claims-oot",
        title="planted: a platform of the CPU that claims to be out of tree, forward_oot only",
        operators=LAYERS,
        arguments=("eager",),
        plant=CLAIMS,
        says="planted: this platform claims to be out of tree",
        receipts=1,
        reported=BOTH,
    ),
    Case(
        name="partly",
        title="planted: the lock has the fused norm only, and the first norm of a model has no residual",
        operators=("day0::fused_add_rms_norm",),
        arguments=("eager",),
        receipts=1,
        reported=("partly day0::fused_add_rms_norm", "day0::rms_norm is not in the lock"),
    ),
    Case(
        name="other-model",
        title="planted: the plugin serves another model than the one that runs",
        operators=LAYERS,
        arguments=("eager",),
        export=("--model", "qwen3"),
        receipts=1,
        reported=(*BOTH, "the model is llama"),
    ),
    Case(
        name="not-listed",
        title="planted: VLLM_PLUGINS does not list the plugin",
        operators=LAYERS,
        arguments=("eager",),
        env={"VLLM_PLUGINS": "aa_planted"},
        receipts=1,
        reported=(*BOTH, "the plugin was not loaded"),
    ),
    Case(
        name="taken",
        title="another plugin has replaced RMSNorm",
        operators=LAYERS,
        arguments=("eager",),
        plant=Plant(source=TAKEN),
        refused="RMSNorm of vLLM has two owners: aa_planted.plant.<locals>.Theirs",
        receipts=1,
        reported=BOTH,
    ),
    Case(
        name="gone",
        title="vLLM has no such class any more",
        operators=LAYERS,
        arguments=("eager",),
        plant=Plant(source=GONE),
        refused="vllm.model_executor.layers.activation has no 'SiluAndMul'",
        receipts=1,
        reported=BOTH,
    ),
)


def ports(bench: Bench) -> int:
    """Hold what each target hands to our operators against vLLM's own methods; return 1 if one differs."""
    env = {**os.environ, "PYTHONPATH": str(bench.work / "day0"), "OMP_NUM_THREADS": "1"}
    script = str(Path(__file__).with_name("vllm_ports.py"))
    done = subprocess.run([str(bench.python), script], capture_output=True, text=True, env=env, check=False)
    (bench.logs / "ports.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    lines = [line for line in done.stdout.splitlines() if line.startswith(("ok  ", "FAIL")) or " targets, " in line]
    print(f"{'FAIL' if done.returncode else 'ok  '} ports: what is handed to our operators, against vLLM's own methods")
    print("".join(f"     {line}\n" for line in lines or done.stderr.splitlines()[-3:]), end="")
    return int(done.returncode != 0)


def main() -> int:
    """Run the cases that were asked for, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("engine", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("case", nargs="*")
    asked = parser.parse_args()
    names = [one.name for one in CASES]
    unknown = sorted(set(asked.case) - set(names))
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(names)}")
    asked.work.mkdir(parents=True, exist_ok=True)
    os.environ["VLLM_CACHE_ROOT"] = str(asked.work.absolute() / "cache")
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    bench = Bench("vllm", asked.engine, asked.work.absolute())
    bench.prepare()
    failed = 0 if asked.case else ports(bench)
    wanted = [one for one in CASES if not asked.case or one.name in asked.case]
    failed += sum(bool(bench.run(one, "vllm_generate.py", "vllm.general_plugins")) for one in wanted)
    print(f"{len(wanted)} cases, {f'{failed} not' if failed else 'all'} as expected")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
