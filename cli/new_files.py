"""What `day0 ops new` writes: every file with its text, decided before anything is written."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from jinja2 import Environment, FunctionLoader, StrictUndefined

from day0.cli.new_signature import find_schema, write_signature
from day0.errors import Day0Error, near_names

__all__ = ["Kind", "Scaffold", "is_checkout", "plan_kernel", "plan_operator"]

Kind = Literal["operator", "kernel"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaffold:
    """New files, relative to a folder, and what to do next."""

    kind: Kind
    operator: str
    files: dict[str, str]
    next: tuple[str, ...]


def is_checkout(folder: Path) -> bool:
    """Say whether a folder is a checkout of day0, where files are found by their place."""
    return all((folder / name).is_dir() for name in ("day0", "reference_ops", "kernels/torch", "tests/kernels"))


def plan_operator(name: str, *, checkout: bool) -> Scaffold:
    """Plan an operator with its meaning, a kernel and tests. Raises Day0Error for a name that cannot be used."""
    _refuse_name(name)
    _refuse_known_operator(name)
    if not checkout:
        raise Day0Error(
            "--kind operator",
            "operators stand in reference_ops/ of a checkout of day0, and this folder is none",
            hint=f"go there, or write a kernel: day0 ops new {name} --for OPERATOR",
        )
    words = {"name": name, "title": name.replace("_", " ")}
    operator = f"day0::{name}"
    test = {"operator": operator, "id": "by_division", "contract": name, "inside": True}
    return Scaffold(
        kind="operator",
        operator=operator,
        files={
            f"reference_ops/{name}.py": _render("operator.py.j2", **words),
            f"kernels/torch/{name}.py": _render("operator_kernel.py.j2", **words),
            f"tests/reference_ops/test_{name}.py": _render("operator_test.py.j2", **words),
            f"tests/kernels/test_{name}.py": _render("kernel_test.py.j2", module=f"day0.kernels.torch.{name}", **test),
        },
        next=(
            f"python -m pytest tests/reference_ops/test_{name}.py tests/kernels/test_{name}.py",
            f"python -m pytest tests/reference_ops tests/kernels -k {name}",
            f"day0 ops show {operator}",
        ),
    )


def plan_kernel(name: str, operator: str, *, checkout: bool) -> Scaffold:
    """Plan a kernel of an operator that exists, with its test; outside a checkout as a package of its own.

    Raises Day0Error for a name that cannot be used, an operator that torch does not have or that nobody can test.
    """
    _refuse_name(name)
    words = _kernel_words(name, operator, checkout=checkout)
    if checkout:
        return Scaffold(
            kind="kernel",
            operator=operator,
            files={
                f"kernels/torch/{name}.py": _render("kernel.py.j2", **words),
                f"tests/kernels/test_{name}.py": _render(
                    "kernel_test.py.j2", module=f"day0.kernels.torch.{name}", **words
                ),
            },
            next=(f"python -m pytest tests/kernels/test_{name}.py", f"day0 ops show {operator}"),
        )
    return _package(name, operator, words)


def _package(name: str, operator: str, words: dict[str, object]) -> Scaffold:
    distribution = name.replace("_", "-")
    about = {"distribution": distribution, "package": name, "operator": operator, "own": False}
    files = {
        "pyproject.toml": _render("package.toml.j2", **about),
        "README.md": _render("package.md.j2", **about),
        f"src/{name}/__init__.py": f'"""{operator} for day0."""\n',
        f"src/{name}/kernels.py": _render("kernel.py.j2", **words),
        f"tests/test_{name}.py": _render("kernel_test.py.j2", module=f"{name}.kernels", **words),
    }
    return Scaffold(
        kind="kernel",
        operator=operator,
        files={f"{distribution}/{path}": text for path, text in files.items()},
        next=(
            f"python -m pytest {distribution}/tests",
            f"day0 ops show {operator} --with {distribution}/src/{name}/kernels.py",
            f"python -m pip install --no-deps ./{distribution}",
        ),
    )


def _kernel_words(name: str, operator: str, *, checkout: bool) -> dict[str, object]:
    from day0.analyzers.kernel_check import calls_of
    from day0.reference_ops.load import load_operators, operator_file

    schema = find_schema(operator)
    contract = load_operators().get(operator.partition(".")[0])
    if not calls_of(operator):
        raise Day0Error(
            f"--for {operator}",
            "day0 knows no call of it, so the test would have nothing to run",
            hint="begin from kernels/torch/rsqrt.py by hand, and give check_kernel calls of your own",
        )
    stem = operator_file(contract.name).stem if contract else ""
    packet, _, overload = operator.partition("::")[2].partition(".")
    target = "reference" if contract else f"torch.ops.aten.{packet}.{overload or 'default'}"
    written = write_signature(name, schema, target)
    text = f"{written.head}\n{written.body}"
    return {
        "id": name,
        "operator": operator,
        "contract": stem,
        "version": contract.version if contract else 1,
        "kind": "decomposition" if checkout else "kernel",
        "inside": checkout,
        "head": written.head,
        "body": written.body,
        "needs_torch": "torch." in text,
    }


_NAME = re.compile(r"[a-z][a-z0-9_]{1,47}")


def _refuse_name(name: str) -> None:
    from day0.reference_ops.load import HELPERS

    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name.endswith("_") or "__" in name:
        hint = (
            "write it like scaled_norm; the namespace day0:: is added" if "::" in name else "write it like scaled_norm"
        )
        raise Day0Error(f"name '{name}'", "it is no name of lower-case letters, digits and single _", hint=hint)
    if name in HELPERS or name in ("torch", "day0", "reference"):
        raise Day0Error(f"name '{name}'", "this name has another meaning here", hint="say more: what is special in it?")


def _refuse_known_operator(name: str) -> None:
    from day0.reference_ops.load import load_operators, operator_file

    known = {one.partition("::")[2]: one for one in sorted(load_operators())}
    same = next((full for short, full in known.items() if short.replace("_", "") == name.replace("_", "")), None)
    if same is not None:
        what = "it exists" if same.endswith(f"::{name}") else f"it reads like {same}, which exists"
        raise Day0Error(
            f"operator '{name}'",
            what,
            facts=(f"{same} stands in reference_ops/{operator_file(same).name}",),
            hint=f"write a kernel of it: day0 ops new KERNEL_NAME --for {same}",
        )


def near(name: str) -> str:
    """Return known operators of nearly that name, as a remark; an empty text without any."""
    from day0.reference_ops.load import load_operators

    return near_names(f"day0::{name}", tuple(sorted(load_operators())))


def _render(template: str, **words: object) -> str:
    environment = Environment(
        loader=FunctionLoader(_template),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - Python and TOML, from names that have been checked
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(**words)


def _template(name: str) -> str:
    return resources.files("day0.cli").joinpath("templates", name).read_text(encoding="utf-8")
