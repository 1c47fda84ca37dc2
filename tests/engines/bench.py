"""What the engine runs share: folders, interpreters, plugins installed beside an engine, faults and planted plugins."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).parent.resolve()
REPOSITORY = HERE.parents[1]
SECONDS = 900
"""Idle, a run takes a minute and a half at most; machines that do other things too take long."""
ADAPTERS = ("rms_norm", "gated_mlp")
"""What the modules of the checkpoint's model are adapted by, so that they call operators of ours."""
FAULTS = {
    "zero": ("silu(gate) * up)", "silu(gate) * up * 0.0)"),
    "identity": ("torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)", "x.clone()"),
}
"""What is replaced in kernels.py, and by what."""


@dataclass(frozen=True, kw_only=True)
class Plant:
    """A plugin that is loaded before ours and reaches into it, or another platform: how a kernel becomes inert."""

    source: str = ""
    """Body of a function that the engine calls before our plugin's."""
    module: str = ""
    """Text of the module beside that function."""
    entry_points: str = ""
    """More of them: `[group]` and `name = aa_planted:function`."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run of an engine, and what has to come of it."""

    name: str
    title: str
    operators: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    """For the script that runs in the engine's interpreter, behind checkpoint and output."""
    env: dict[str, str] = field(default_factory=dict)
    plant: Plant | None = None
    kernels: Literal["right", "zero", "identity"] = "right"
    traced: bool = False
    """Make the lock as one does: trace the checkpoint with adapted modules, register, check. Else by lock.py."""
    export: tuple[str, ...] = ()
    """More arguments of `day0 ops export`."""
    tokens: Literal["same", "other"] = "same"
    receipts: int = 0
    """Exit code of `day0 ops receipts`."""
    reported: tuple[str, ...] = ()
    """What it has to print."""
    refused: str = ""
    """The engine must not start, and has to say this."""
    says: str = ""
    """What the engine's log has to hold, so that what is planted is known to have been there."""
    plugin: bool = True
    """Whether the plugin is installed in this run."""


class Bench:
    """One engine's interpreter and the folders of one round."""

    def __init__(self, engine: str, python: Path, work: Path) -> None:
        self.engine, self.python, self.work = engine, python.absolute(), work.absolute()
        self.checkpoint, self.receipts, self.logs = work / "checkpoint", work / "receipts", work / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.expected: list[list[int]] = []
        self.looking = self.python
        """What looks targets up; an engine may need more than its interpreter to be imported."""
        self.more_kernels = ""
        """Text behind that of kernels.py."""
        self.made: dict[Path, Path] = {}
        """By folder of a plugin: its wheel. Cases that differ in what is planted share one."""

    def prepare(self) -> None:
        """Build day0 and install it beside the engine, in a folder of its own; make checkpoint and baseline."""
        site = self.work / "day0"
        if site.is_dir():
            shutil.rmtree(site)
        with tempfile.TemporaryDirectory() as name:
            # A copy: setuptools leaves its build folder in the tree that it builds.
            tree = Path(name) / "tree"
            left = shutil.ignore_patterns(".*", "__pycache__", "runs", "build", "dist", "*.egg-info", "tests", "docs")
            shutil.copytree(REPOSITORY, tree, symlinks=True, ignore=left)
            self.must("-m", "build", "--wheel", "--no-isolation", "-o", name, str(tree))
            self.pip("--no-deps", "--target", str(site), str(next(Path(name).glob("*.whl"))))
        if not self.checkpoint.is_dir():
            print(self.must(str(HERE / "checkpoint.py"), str(self.checkpoint)).rstrip())
        self.expected = json.loads((self.checkpoint / "baseline.json").read_text(encoding="utf-8"))["tokens"]

    def ours(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run something of this repository with this interpreter."""
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
        return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, check=False)

    def must(self, *command: str) -> str:
        """Run something that has to work."""
        done = self.ours(*command)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def pip(self, *command: str) -> None:
        """Install with the engine's pip."""
        full = [str(self.python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *command]
        done = subprocess.run(full, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)

    def plugin(self, case: Case) -> tuple[Path, Path]:
        """Return the folder in which the plugin of a case is installed, and its wheel."""
        parts = (case.kernels, *(one.partition("::")[2] for one in case.operators), *case.export)
        parts += ("traced",) * case.traced
        folder = self.work / "plugins" / "-".join(part.strip("-") for part in parts)
        if folder in self.made:
            return folder / "site", self.made[folder]
        run, dist, kernels = folder / "run", folder / "dist", folder / "kernels.py"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        kernels.write_text(_faulty(case.kernels) + self.more_kernels, encoding="utf-8")
        command = ["-m", "day0", "ops", "export", "--to", self.engine, str(run), str(dist), "--with", str(kernels)]
        command += ["--receipts", str(self.receipts), "--python", str(self.looking)]
        if case.traced:
            self._trace(run, kernels, case.operators)
        else:
            self.must(str(HERE / "lock.py"), str(run), str(kernels), *case.operators)
            command.append("--allow-unverified")
        said = self.must(*command, *case.export)
        if case.traced:
            print("".join(f"     {line}\n" for line in said.splitlines()), end="")
        wheel = next(dist.glob("*.whl"))
        self.pip("--no-deps", "--target", str(folder / "site"), str(wheel))
        self.made[folder] = wheel
        return folder / "site", wheel

    def _trace(self, run: Path, kernels: Path, operators: tuple[str, ...]) -> None:
        """Trace the checkpoint with adapted modules, lock the operators and verify them."""
        place = ("--run", str(run))
        adapted = [word for name in ADAPTERS for word in ("--adapt", name)]
        source = f"hf:{self.checkpoint}"
        self.must("-m", "day0", "trace", source, "--mode", "real", "--dtype", "float32", *adapted, *place)
        self.must("-m", "day0", "inventory", "--device", "cpu", *place)
        replaced = [word for name in operators for word in ("--replace", name)]
        self.must("-m", "day0", "register", "--with", str(kernels), *replaced, *place)
        self.must("-m", "day0", "check", *place)

    def planted(self, plant: Plant | None, group: str) -> Path:
        """Return a folder with a plugin that the engine runs before ours; it does nothing unless something is planted."""
        folder = self.work / "planted"
        shutil.rmtree(folder, ignore_errors=True)
        plant = plant or Plant()
        info = folder / "aa_planted-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: aa-planted\nVersion: 1.0\n", encoding="utf-8")
        points = f"[{group}]\naa_planted = aa_planted:plant\n\n{plant.entry_points}"
        (info / "entry_points.txt").write_text(points, encoding="utf-8")
        body = "".join(f"    {line}\n" for line in plant.source.splitlines()) or "    pass\n"
        (folder / "aa_planted.py").write_text(f"{plant.module}\n\ndef plant():\n{body}", encoding="utf-8")
        return folder

    def run(self, case: Case, script: str, group: str) -> list[str]:
        """Run one case; print what came and return what is not as it should be."""
        site, wheel = self.plugin(case)
        shutil.rmtree(self.receipts, ignore_errors=True)
        self.receipts.mkdir(parents=True)
        out, log = self.work / "out.json", self.logs / f"{case.name}.log"
        out.unlink(missing_ok=True)
        paths = [self.planted(case.plant, group), *([site] if case.plugin else []), self.work / "day0"]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
        env |= {"HF_HUB_OFFLINE": "1", **case.env}
        began = time.monotonic()
        with log.open("w", encoding="utf-8") as file:
            command = [str(self.python), str(HERE / script), str(self.checkpoint), str(out), *case.arguments]
            code = subprocess.run(command, stdout=file, stderr=file, env=env, timeout=SECONDS, check=False).returncode
        seconds = time.monotonic() - began
        gate = self.ours("-m", "day0", "ops", "receipts", str(wheel))
        said = log.read_text(encoding="utf-8", errors="replace")
        tokens = self.tokens(case, json.loads(out.read_text(encoding="utf-8"))) if out.is_file() else None
        wrong = self._judge(case, code, said, tokens, gate)
        same = "no tokens" if tokens is None else self.compared(case) if tokens == self.expected else "other tokens"
        print(
            f"{'ok  ' if not wrong else 'FAIL'} {case.name}: {case.title}; {same}, receipts {gate.returncode}, {seconds:.0f} s"
        )
        for line in (gate.stdout + gate.stderr).rstrip().splitlines():
            print(f"     {line}")
        for line in wrong:
            print(f"     not so: {line}")
        sys.stdout.flush()
        return wrong

    def compared(self, case: Case) -> str:
        """Say of the right tokens what they are."""
        return "tokens as transformers"

    def tokens(self, case: Case, wrote: Any) -> list[list[int]]:
        """Return the tokens in what a run wrote."""
        return list(wrote)

    def _judge(
        self,
        case: Case,
        code: int,
        said: str,
        tokens: list[list[int]] | None,
        gate: subprocess.CompletedProcess[str],
    ) -> list[str]:
        wrong = []
        if case.refused:
            if code == 0:
                wrong.append("the engine started")
            if case.refused not in said:
                wrong.append(f"nothing said {case.refused!r}")
        elif tokens is None:
            wrong.append(f"the engine ended with {code} and without tokens")
        elif (tokens == self.expected) != (case.tokens == "same"):
            wrong.append(
                "the tokens are other ones" if case.tokens == "same" else "inconclusive: the fault changed nothing"
            )
        if case.says and case.says not in said:
            wrong.append(f"the engine did not say {case.says!r}")
        if gate.returncode != case.receipts:
            wrong.append(f"`day0 ops receipts` ended with {gate.returncode}, not {case.receipts}")
        flat = " ".join((gate.stdout + gate.stderr).split())
        return wrong + [f"it does not say {text!r}" for text in case.reported if text not in flat]


def _faulty(kind: str) -> str:
    text = (HERE / "kernels.py").read_text(encoding="utf-8")
    if kind in FAULTS:
        old, new = FAULTS[kind]
        if old not in text:
            raise SystemExit(f"kernels.py has no {old!r} to plant a fault in")
        text = text.replace(old, new)
    return text
