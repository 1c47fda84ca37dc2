"""The export to SGLang, tried in SGLang: `run_sglang.py ENGINE_PYTHON WORK [CASE…]`.

Makes the smoke checkpoint, a lock, the plugin, installs it beside SGLang and runs it: in SGLang's engine on both kinds
of platform, with faults planted in the kernels, and with every way planted on which a registration is taken and never
called. Each case says what it expects of the tokens and of `day0 ops receipts`; the exit code is 1 if one is not so.
ENGINE_PYTHON is the interpreter of an environment made from sglang.txt and sglang-nodeps.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent.resolve()
REPOSITORY = HERE.parents[1]
NORMS = ("day0::rms_norm", "day0::fused_add_rms_norm")
ACTIVATION = "day0::gated_activation"
SECONDS = 400
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


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run and what has to come of it."""

    name: str
    title: str
    scene: str = "engine"
    env: dict[str, str] = field(default_factory=dict)
    plant: str = ""
    kernels: Literal["right", "zero", "identity"] = "right"
    operators: tuple[str, ...] = (*NORMS, ACTIVATION)
    ends: Literal["well", "refused"] = "well"
    says: str = ""
    """What the refusal has to name."""
    tokens: Literal["same", "other", "any"] = "same"
    receipts: int = 0
    """Exit code of `day0 ops receipts`."""
    reported: tuple[str, ...] = ()
    """What it has to print."""


LAYERS = ("day0::rms_norm", ACTIVATION)
CASES = (
    Case(name="out-of-tree", title="platform from outside, register_oot_forward", env=OUT_OF_TREE),
    Case(name="in-tree", title="platform of SGLang's, forward_plugin"),
    Case(
        name="fault-out-of-tree",
        title="the same with an activation that returns zeros",
        env=OUT_OF_TREE,
        kernels="zero",
        tokens="other",
    ),
    Case(name="fault-in-tree", title="the same with a norm that returns its input", kernels="identity", tokens="other"),
    Case(
        name="oot-in-tree",
        title="planted: register_oot_forward on a platform of SGLang's",
        plant=SWAP + UNASKED,
        receipts=1,
        reported=("inert", "RMSNorm.forward_native", "SiluAndMul.forward_native"),
    ),
    Case(
        name="plugin-out-of-tree",
        title="planted: forward_plugin on a platform from outside",
        env=OUT_OF_TREE,
        plant=SWAP + UNASKED,
        receipts=1,
        reported=("inert", "RMSNorm.forward_native", "SiluAndMul.forward_native"),
    ),
    Case(
        name="forced",
        title="planted: the torch backend is forced",
        env={**OUT_OF_TREE, "SGLANG_FORCE_FUSED_OP_BACKEND": "torch"},
        receipts=1,
        reported=("inert", "SGLANG_FORCE_FUSED_OP_BACKEND"),
    ),
    Case(
        name="asked",
        title="planted: the wrong route, and the plugin asks the class as it always does",
        scene="layers",
        operators=LAYERS,
        plant=SWAP,
        ends="refused",
        says="not taken",
        receipts=1,
        reported=("inert",),
    ),
    Case(
        name="wrong-name",
        title="planted: SGLang has renamed the class",
        scene="layers",
        operators=LAYERS,
        plant="import sglang.srt.layers.activation as a\na.SiluAndMulFused = a.SiluAndMul\ndel a.SiluAndMul\n",
        ends="refused",
        says="has no 'SiluAndMul'",
        receipts=1,
        reported=("inert",),
    ),
    Case(
        name="failed-check",
        title="planted: a check of the plugin's fails",
        scene="layers",
        operators=LAYERS,
        plant=ENGINE + "def install(*_):\n    raise RuntimeError('a check failed')\nengine.install = install\n",
        ends="refused",
        says="a check failed",
        receipts=1,
        reported=("inert",),
    ),
    Case(
        name="swallowed",
        title="planted: the plugin raises what SGLang swallows",
        scene="layers",
        operators=LAYERS,
        plant=ENGINE + "def register():\n    raise RuntimeError('lost')\nengine.register.__code__ = register.__code__\n",
        receipts=1,
        reported=("inert", "the plugin was not loaded"),
    ),
    Case(
        name="not-listed",
        title="planted: SGLANG_PLUGINS does not list the plugin",
        scene="layers",
        operators=LAYERS,
        env={"SGLANG_PLUGINS": "planted"},
        receipts=1,
        reported=("inert", "the plugin was not loaded"),
    ),
    Case(
        name="subclass",
        title="planted: subclasses, of which one computes something else",
        scene="subclasses",
        operators=("day0::rms_norm",),
        env=OUT_OF_TREE,
        receipts=1,
        reported=("partly", "Other has a forward_native of its own"),
    ),
    Case(
        name="pinned",
        title="planted: a layer that its constructor has pinned",
        scene="pinned",
        operators=("day0::rms_norm",),
        receipts=1,
        reported=("partly", "pinned to RMSNorm.forward_native"),
    ),
    Case(
        name="function",
        title="a function that no class stands for, REPLACE hook",
        scene="router",
        operators=("day0::moe_router",),
    ),
    Case(
        name="old-binding",
        title="planted: the hook stands on a name that callers do not use",
        scene="router",
        operators=("day0::moe_router",),
        plant=ENGINE
        + (
            "import dataclasses\n"
            "old, new = 'topk:biased_grouped_topk', 'topk:biased_grouped_topk_gpu'\n"
            "moved = [dataclasses.replace(t, path=t.path.replace(old, new)) for t in engine.ADAPTER.targets]\n"
            "engine.ADAPTER = dataclasses.replace(engine.ADAPTER, targets=tuple(moved))\n"
        ),
        receipts=1,
        reported=("inert", "topk.biased_grouped_topk still holds"),
    ),
)


class Bench:
    """The folders and interpreters of one round."""

    def __init__(self, engine: Path, work: Path) -> None:
        self.engine, self.work = engine, work
        self.checkpoint, self.receipts, self.logs = work / "checkpoint", work / "receipts", work / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)

    def ours(self, *command: str, log: str = "") -> subprocess.CompletedProcess[str]:
        """Run something of this repository with this interpreter."""
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, check=False)
        if log:
            (self.logs / log).write_text(done.stdout + done.stderr, encoding="utf-8")
        return done

    def must(self, *command: str) -> str:
        """Run something that has to work."""
        done = self.ours(*command)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def site(self, kernels: str, operators: tuple[str, ...]) -> tuple[Path, Path]:
        """Return a folder with the plugin for these operators, installed, and its wheel."""
        name = "-".join((kernels, *(one.partition("::")[2] for one in operators)))
        folder = self.work / "sites" / name
        run, dist = folder / "run", folder / "dist"
        if dist.is_dir():
            return folder / "site", next(dist.glob("*.whl"))
        mine = self._kernels(kernels, folder)
        self.must(str(HERE / "lock.py"), str(run), str(mine), *operators)
        command = ["-m", "day0", "ops", "export", "--to", "sglang", str(run), str(dist), "--with", str(mine)]
        command += ["--receipts", str(self.receipts), "--allow-unverified", "--python", str(self._looking())]
        self.must(*command)
        wheel = next(dist.glob("*.whl"))
        _pip(self.engine, "--no-deps", "--target", str(folder / "site"), str(wheel))
        return folder / "site", wheel

    def _looking(self) -> Path:
        """Return an interpreter that has what sglang_prelude.py declares from its start, to look targets up with."""
        script, start = self.work / "python", self.work / "start"
        start.mkdir(exist_ok=True)
        prelude = f"import sys\nsys.path.append({str(HERE)!r})\nimport sglang_prelude\n"
        (start / "sitecustomize.py").write_text(prelude, encoding="utf-8")
        script.write_text(f'#!/bin/sh\nPYTHONPATH="{start}" exec "{self.engine}" "$@"\n', encoding="utf-8")
        script.chmod(0o755)
        return script

    def _kernels(self, kind: str, folder: Path) -> Path:
        text = (HERE / "kernels.py").read_text(encoding="utf-8")
        faults = {
            "zero": ("silu(gate) * up)", "silu(gate) * up * 0.0)"),
            "identity": ("torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)", "x.clone()"),
        }
        for old, new in [faults[kind]] if kind in faults else []:
            if old not in text:
                raise SystemExit(f"kernels.py has no {old!r} to plant a fault in")
            text = text.replace(old, new)
        folder.mkdir(parents=True, exist_ok=True)
        # Implementations are found in one file; the router stands in its own.
        router = (HERE / "sglang_router.py").read_text(encoding="utf-8").partition("from __future__ import annotations\n")[2]
        path = folder / "kernels.py"
        path.write_text(text + router.replace("IMPLEMENTATIONS = (", "IMPLEMENTATIONS += ("), encoding="utf-8")
        return path

    def planted(self, source: str) -> Path:
        """Return a folder with a plugin of this source, which SGLang runs before ours."""
        folder = self.work / "planted"
        shutil.rmtree(folder, ignore_errors=True)
        info = folder / "aa_planted-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: aa-planted\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nplanted = aa_planted:plant\n", encoding="utf-8")
        body = "".join(f"    {line}\n" for line in source.splitlines()) or "    pass\n"
        (folder / "aa_planted.py").write_text(f"def plant():\n{body}", encoding="utf-8")
        return folder


def _pip(python: Path, *command: str) -> None:
    done = subprocess.run(
        [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)


def run_case(bench: Bench, case: Case, expected: list[list[int]]) -> list[str]:
    """Run one case; return what is not as it should be, and print what came."""
    site, wheel = bench.site(case.kernels, case.operators)
    shutil.rmtree(bench.receipts, ignore_errors=True)
    bench.receipts.mkdir(parents=True)
    out = bench.work / "out.json"
    out.unlink(missing_ok=True)
    paths = [str(bench.planted(case.plant)), str(site), str(bench.work / "day0")]
    env = {key: value for key, value in os.environ.items() if not key.startswith("SGLANG_")}
    env |= {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **case.env}
    inputs = [str(bench.checkpoint), str(out)] if case.scene == "engine" else [str(out), case.scene]
    script = "sglang_generate.py" if case.scene == "engine" else "sglang_ops.py"
    began = time.monotonic()
    with (bench.logs / f"{case.name}.log").open("w", encoding="utf-8") as log:
        command = [str(bench.engine), str(HERE / script), *inputs]
        code = subprocess.run(command, stdout=log, stderr=log, env=env, timeout=SECONDS, check=False).returncode
    seconds = time.monotonic() - began
    said = (bench.logs / f"{case.name}.log").read_text(encoding="utf-8", errors="replace")
    gate = bench.ours("-m", "day0", "ops", "receipts", str(wheel), log=f"{case.name}.receipts")
    wrong = _judge(case, code, said, out, expected, gate)
    where = "engine" if case.scene == "engine" else "layers"
    print(f"{'ok  ' if not wrong else 'FAIL'} {case.name:<20} {where}  {seconds:4.0f} s  {case.title}")
    if case.ends == "refused":
        print("     " + next((line for line in said.splitlines() if "must not start" in line), "")[:190])
    for line in (gate.stdout + gate.stderr).rstrip().splitlines():
        print(f"     {line}")
    return wrong


def _judge(
    case: Case,
    code: int,
    said: str,
    out: Path,
    expected: list[list[int]],
    gate: subprocess.CompletedProcess[str],
) -> list[str]:
    wrong = []
    if (code == 0) != (case.ends == "well"):
        wrong.append(f"SGLang ended with {code}")
    if case.says and case.says not in said:
        wrong.append(f"nothing said {case.says!r}")
    if case.scene == "engine" and out.is_file():
        same = json.loads(out.read_text(encoding="utf-8")) == expected
        if case.tokens != "any" and same != (case.tokens == "same"):
            wrong.append(f"the tokens are {'the same' if same else 'other ones'}")
    if gate.returncode != case.receipts:
        wrong.append(f"`day0 ops receipts` ended with {gate.returncode}, not {case.receipts}")
    flat = " ".join((gate.stdout + gate.stderr).split())
    wrong += [f"it does not say {text!r}" for text in case.reported if text not in flat]
    return wrong


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
    bench = Bench(asked.engine.absolute(), asked.work.absolute())
    if not (bench.work / "day0").is_dir():
        # Built by this interpreter: a package of the engine's is called `kernels`, and so is a folder here.
        bench.must("-m", "build", "--wheel", "--no-isolation", "-o", str(bench.work / "dist"), str(REPOSITORY))
        wheel = next((bench.work / "dist").glob("*.whl"))
        _pip(bench.engine, "--no-deps", "--target", str(bench.work / "day0"), str(wheel))
    if not bench.checkpoint.is_dir():
        print(bench.must(str(HERE / "checkpoint.py"), str(bench.checkpoint)).rstrip())
    expected = json.loads((bench.checkpoint / "baseline.json").read_text(encoding="utf-8"))["tokens"]
    failed = 0
    for case in CASES:
        if not asked.case or case.name in asked.case:
            wrong = run_case(bench, case, expected)
            failed += bool(wrong)
            for one in wrong:
                print(f"     not so: {one}")
    print(f"{'all as expected' if not failed else f'{failed} not as expected'}")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
