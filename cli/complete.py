"""What a shell offers for an argument. Nothing heavy is imported: a key press must not load torch."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path

__all__ = ["devices", "faults", "models", "operators", "playbooks", "run_folders"]

_RECORDS = ("plan.json", "trace.json", "ops.lock")


def models(incomplete: str) -> list[str]:
    """Offer the toy and its variants, model types of transformers, and the ways to name something else."""
    kinds = ["toy", "hf:", "py:", "export:", "inputs:"]
    if incomplete.startswith("toy:"):
        return [f"toy:{name}" for name in _keys_of("VARIANTS", _folder("models") / "toy" / "variants.py")]
    if incomplete.startswith("hf:"):
        return [f"hf:{name}" for name in _model_types()]
    return [*kinds, *(f"toy:{name}" for name in _keys_of("VARIANTS", _folder("models") / "toy" / "variants.py"))]


def devices(incomplete: str) -> list[str]:
    """Offer the profiles that ship with day0, and YAML files."""
    shipped = sorted(path.stem for path in (_folder("devices") / "profiles").glob("*.yaml"))
    return [*shipped, *_files(incomplete, (".yaml", ".yml"))]


def operators(incomplete: str) -> list[str]:
    """Offer the operators that have a contract."""
    files = sorted((_folder("reference_ops")).glob("*.py"))
    found = (path.stem for path in files if "\nOP = " in path.read_text(encoding="utf-8"))
    return [f"aten::{name.removeprefix('aten_')}" if name.startswith("aten_") else f"day0::{name}" for name in found]


def run_folders(incomplete: str) -> list[str]:
    """Offer run folders, and folders in which some may be."""
    return [
        name if any((Path(name) / record).is_file() for record in _RECORDS) else f"{name}/"
        for name in _folders(incomplete)
    ]


def playbooks(incomplete: str) -> list[str]:
    """Offer the playbooks that ship with day0, YAML files, and folders in which some may be."""
    shipped = sorted(path.stem for path in _folder("playbooks").glob("*.yaml"))
    return [*shipped, *_files(incomplete, (".yaml", ".yml")), *(f"{name}/" for name in _folders(incomplete))]


def faults(incomplete: str) -> list[str]:
    """Offer the faults that can be planted."""
    found: set[str] = set()
    for path in (_folder("devices") / "faults").glob("[!_]*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "fault" and node.args:
                first = node.args[0]
                found |= {first.value} if isinstance(first, ast.Constant) and isinstance(first.value, str) else set()
    return sorted(found)


def _folder(name: str) -> Path:
    """Return a folder of day0 without importing what is in it."""
    spec = find_spec(f"day0.{name}")
    return Path(next(iter(spec.submodule_search_locations or ("",)))) if spec else Path()


def _keys_of(name: str, file: Path) -> list[str]:
    """Return the keys of a dict that a file assigns to a name."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == name and isinstance(node, ast.AnnAssign):
            keys = node.value.keys if isinstance(node.value, ast.Dict) else []
            return [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    return []


def _model_types() -> list[str]:
    """Return the model types of the installed transformers, as its table of configs has them."""
    spec = find_spec("transformers")
    folder = Path(next(iter(spec.submodule_search_locations or ("",)))) if spec else Path()
    found: set[str] = set()
    for name in ("auto_mappings.py", "configuration_auto.py"):
        file = folder / "models" / "auto" / name
        if spec and file.is_file():
            found |= set(re.findall(r'\("([a-z0-9_.-]+)", "\w+Config"\)', file.read_text(encoding="utf-8")))
            found |= set(re.findall(r'"([a-z0-9_.-]+)": "\w+Config"', file.read_text(encoding="utf-8")))
    return sorted(found)


def _files(incomplete: str, ends: tuple[str, ...]) -> list[str]:
    return [name for name, path in _beside(incomplete) if path.suffix in ends and path.is_file()]


def _folders(incomplete: str) -> list[str]:
    return [name for name, path in _beside(incomplete) if path.is_dir()]


def _beside(incomplete: str) -> list[tuple[str, Path]]:
    """Return what lies beside a half-written path, named as it was begun; hidden ones only if asked for."""
    head, _, tail = incomplete.rpartition("/")
    folder = Path(f"{head}/") if "/" in incomplete else Path()
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return []
    prefix = f"{head}/" if "/" in incomplete else ""
    return [(prefix + path.name, path) for path in found if tail.startswith(".") or not path.name.startswith(".")]
