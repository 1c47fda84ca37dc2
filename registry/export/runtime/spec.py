"""What an adapter says about one release of an engine. Plain data of the standard library: it travels in the wheel."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from dataclasses import dataclass
from typing import Any

__all__ = ["Adapter", "Target", "TargetError", "find_target", "signature_hash", "signature_text"]


class TargetError(Exception):
    """An engine does not have a target as the adapter describes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One class or function of an engine that can be made to call operators of ours."""

    name: str
    """What receipts and messages call it; unique within the adapter: `RMSNorm`."""
    path: str
    """`package.module:Class`, or `package.module:function`."""
    operators: tuple[str, ...]
    """What it may call; any one of them in the lock is enough for the target to be taken."""
    hook: str
    """The attribute of the class that the adapter overrides, sets or calls; empty for a function that is replaced."""
    method: str = ""
    """The method whose parameters the adapter hands on; empty for a function."""
    signature: str
    """`signature_text` of that method in the tested release."""
    arguments: str
    """One line: how the instance and its call become arguments of the operators."""
    optional: bool = False
    """Not every build has it: its absence is written down and is no error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """One tested range of releases of one engine."""

    engine: str
    """`vllm`, `sglang`."""
    module: str
    """What `import` calls it."""
    distributions: tuple[str, ...]
    """Names under which it is installed, any of which will do."""
    tested: str
    """Releases that were run, as `packaging` writes a range: `>=0.32.0,<0.33`."""
    entry_points: tuple[tuple[str, str], ...]
    """Group and function of the adapter's file: `("vllm.general_plugins", "register")`."""
    targets: tuple[Target, ...]
    removal: str
    """When this file can go."""


def find_target(target: Target) -> Any:
    """Import a target and return it.

    Raises TargetError if module, name, hook or method is not there or the signature is another one.
    """
    module_name, _, attribute = target.path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise TargetError(f"{target.path}: there is no module {module_name} ({error})") from None
    found = getattr(module, attribute, None)
    if found is None:
        raise TargetError(f"{target.path}: {module_name} has no '{attribute}'")
    if target.hook and not hasattr(found, target.hook):
        raise TargetError(f"{target.path}: it has no '{target.hook}'")
    called = getattr(found, target.method, None) if target.method else found
    if called is None:
        raise TargetError(f"{target.path}: it has no '{target.method}'")
    here = signature_text(called)
    if here != target.signature:
        raise TargetError(f"{target.path}: {target.method or attribute}{here}, and {target.signature} was tested")
    return found


def signature_text(function: Any) -> str:
    """Write down names, kinds and defaults of the parameters; annotations change without a change of meaning."""
    signature = inspect.signature(function)
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    return str(inspect.Signature(plain))


def signature_hash(text: str) -> str:
    """Hash a signature's text; this is what the manifest of a wheel holds."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
