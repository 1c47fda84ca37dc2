"""What a plugin does in every engine: check what it carries, define its operators, choose, count. No torch when loaded.

Inside a wheel these files stand in the plugin's own package. Everything that can fail is in functions: engines log
and ignore what goes wrong while a plugin is imported. day0 itself is installed beside the engine and imported late.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from day0.registry.export.runtime.aten import override
from day0.registry.export.runtime.manifest import BundleError, read_manifest
from day0.registry.export.runtime.receipts import ReceiptBook

__all__ = ["Bundle", "BundleError", "Choice", "open_bundle", "site_of_caller"]

BETWEEN = " @ "
"""Between target and site, in the text that an operator call carries."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One locked implementation, ready to run."""

    operator: str
    identity: str
    dtypes: tuple[str, ...]
    run: Callable[..., Any]
    devices: tuple[str, ...]
    admit: Callable[[tuple[Any, ...], dict[str, Any], str], str]
    """From arguments and a device type to why the implementation does not take them, or nothing."""
    contract: Any
    """The operator of day0, with reference and fake; None for one of torch's."""


@dataclass(kw_only=True)
class Bundle:
    """A verified lock with its implementations, in this process."""

    manifest: dict[str, Any]
    folder: Path
    book: ReceiptBook
    choices: dict[str, dict[tuple[Any, ...], Choice]]
    """By operator and torch dtypes of its tensors: what to run."""
    note: Callable[[str, str, str], None]
    """Writes down that the engine's own code runs; where that is compiled it is called once, while it is traced."""
    overloads: dict[str, Any] = field(default_factory=dict)
    """The plugin's torch operators, by our names."""
    sites: dict[tuple[str, str], int] = field(default_factory=dict)
    verdicts: dict[tuple[Any, ...], str] = field(default_factory=dict)
    """By implementation, shapes and plain arguments: why it does not take such a call. Grows with new shapes only."""
    library: Any = None
    """Holds the definitions; torch forgets them when it goes."""

    @property
    def title(self) -> str:
        """Name and version of the wheel, for messages."""
        return f"{self.manifest['distribution']} {self.manifest['version']}"

    @property
    def namespace(self) -> str:
        """Namespace of the plugin's torch operators; the lock's hash is part of it."""
        return str(self.manifest["namespace"])

    def target_names(self) -> tuple[str, ...]:
        """Return the targets that the export routed something through."""
        return tuple(one["name"] for one in self.manifest["targets"])

    def serves(self, model_type: str, architectures: tuple[str, ...]) -> bool:
        """Say whether a model is one that the lock was made for; a lock without models serves all."""
        models = self.manifest["models"]
        return not models or model_type in models or any(one in models for one in architectures)

    def bind(self, target: str, site: str) -> str:
        """Write down that an instance will call us; return what `call` takes as its place: target and a unique site."""
        number = self.sites[(target, site)] = self.sites.get((target, site), 0) + 1
        own = f"{site}#{number}" if number > 1 or not site else site
        self.book.bound(target, own)
        return f"{target}{BETWEEN}{own}"

    def refuse(self, operator: str, *tensors: Any) -> str:
        """Return why no locked implementation takes these tensors, or nothing: not locked, dtypes, device.

        It is traced under torch.compile, so it reads nothing that could be dynamic. Sizes and plain arguments are
        judged where the operator runs.
        """
        known = self.choices.get(operator)
        if known is None:
            return f"{operator} is not in the lock"
        one = known.get(tuple([tensor.dtype for tensor in tensors]))
        if one is None:
            return f"{operator} is not locked for {' '.join([str(tensor.dtype) for tensor in tensors])}"
        if "*" not in one.devices and tensors[0].device.type not in one.devices:
            return f"{one.identity} runs on {' '.join(one.devices)}, not on {tensors[0].device.type}"
        return ""

    def call(self, operator: str, place: str, *args: Any) -> Any:
        """Call the operator in the plugin's torch namespace; it is counted there, also in compiled graphs.

        Arguments are positional, as in the operator's schema, all of them. Results are as the contract says.
        """
        return self.overloads[operator](*args, site=place)

    def own(self, layer: Any, reason: str, *args: Any) -> Any:
        """Run the engine's own method, kept in `layer._day0_own`, and write down why (once, where it is compiled)."""
        self.note(layer._day0_site, "", reason)
        return layer._day0_own(*args)

    def override_aten(self) -> None:
        """Put the locked implementations of aten operators before torch's kernels, for the whole process."""
        for operator in sorted(self.choices):
            if operator.startswith("aten::"):
                override(self, operator, str(self.manifest["dispatch_key"]))

    def run(
        self,
        choice: Choice,
        place: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Any],
        otherwise: Callable[..., Any],
    ) -> Any:
        """Run an implementation and count it; `otherwise` where its constraints refuse the call, which is counted too.

        Raises BundleError for a result of another shape or dtype than the contract's, or one that shares memory with
        an argument.
        """
        target, _, site = place.partition(BETWEEN)
        shapes = " ".join([str(list(tensor.shape)) for tensor in tensors])
        plain = tuple([one for one in (*args, *kwargs.values()) if isinstance(one, (bool, int, float, str))])
        key = (choice.identity, choice.dtypes, shapes, plain)
        reason = self.verdicts.get(key)
        new = reason is None
        if reason is None:
            reason = self.verdicts[key] = choice.admit(args, kwargs, tensors[0].device.type if tensors else "cpu")
        if reason:
            self.book.declined(target, site, f"{choice.identity} does not take the call: {reason}")
            return otherwise(*args, **kwargs)
        result = choice.run(*args, **kwargs)
        if new and choice.contract is not None:
            _check_result(choice, result, args, tensors)
        self.book.ran(choice.identity, " ".join(choice.dtypes), target, site, shapes, captured=_capturing(tensors))
        return result


def open_bundle(folder: Path, *, engine_version: str, role: str) -> Bundle:
    """Read manifest and lock, check every hash, load the implementations and define the torch operators.

    Raises BundleError: a file is missing or has another hash, an implementation is not there or its source has
    changed, the engine's release was not tested, day0 or a distribution is not there or is another version.
    """
    manifest = read_manifest(folder, engine_version)
    choices = _choices(folder, manifest)
    torch = importlib.import_module("torch")
    book = ReceiptBook(
        Path(manifest["receipts"]).expanduser(),
        lock=manifest["lock"],
        engine=manifest["engine"],
        engine_version=engine_version,
        role=role,
    )

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def note(target: str, site: str, reason: str) -> None:
        name, _, inner = target.partition(BETWEEN)
        book.declined(name, site or inner, reason)

    bundle = Bundle(manifest=manifest, folder=folder, book=book, choices=choices, note=note)
    _define(bundle, torch)
    return bundle


def _choices(folder: Path, manifest: dict[str, Any]) -> dict[str, dict[tuple[Any, ...], Choice]]:
    """Load what the lock names, by way of day0's own loader, and compare sources with what was locked."""
    try:
        collect = importlib.import_module("day0.registry.collect").collect
        load = importlib.import_module("day0.reference_ops.load").load_operators
        dtype_of = importlib.import_module("day0.reference_ops.signatures").dtype_of
    except ImportError as error:
        raise BundleError(f"day0 cannot be imported beside the engine: {error}") from None
    errors = importlib.import_module("day0.errors").Day0Error
    files = sorted({entry["file"] for entry in manifest["entries"] if entry["file"]})
    try:
        known = {str(one.identity): one for one in collect(tuple(folder / name for name in files))}
    except errors as error:
        raise BundleError(f"the implementations cannot be loaded: {error}") from None
    operators = load()
    choices: dict[str, dict[tuple[Any, ...], Choice]] = {}
    for entry in manifest["entries"]:
        one = known.get(entry["identity"])
        if one is None:
            raise BundleError(f"{entry['identity']} is not there; it came from {entry['origin']}")
        if one.source_hash != entry["source_hash"]:
            raise BundleError(
                f"the source of {entry['identity']} is not what was locked: {entry['source_hash'][:19]} then, "
                f"{one.source_hash[:19]} in {one.origin} now"
            )
        made = Choice(
            operator=entry["operator"],
            identity=entry["identity"],
            dtypes=tuple(entry["dtypes"]),
            run=one.run,
            devices=tuple(one.devices),
            admit=_admit(one, entry["operator"]),
            contract=None if entry["operator"].startswith("aten::") else operators[entry["operator"]],
        )
        choices.setdefault(entry["operator"], {})[tuple(dtype_of(name) for name in entry["dtypes"])] = made
    return choices


def _admit(one: Any, operator: str) -> Callable[[tuple[Any, ...], dict[str, Any], str], str]:
    """Return what judges a call by the same rules that chose the implementation when locking."""
    judge = importlib.import_module("day0.registry.resolve").judge
    describe = importlib.import_module("day0.reference_ops.signatures").describe

    def admit(args: tuple[Any, ...], kwargs: dict[str, Any], device: str) -> str:
        if one.kind == "reference":
            return ""
        # Of a profile only the device's type is read, but for references, which need the whole of it.
        decision = judge(one, describe(operator, args, kwargs), SimpleNamespace(torch_device=device))
        return "" if decision.accepted else str(decision.reason)

    return admit


def _define(bundle: Bundle, torch: Any) -> None:
    """Define one torch operator for each of ours, with a fake kernel from the contract and the place as an argument."""
    contracts = importlib.import_module("day0.reference_ops.load").load_operators()
    bundle.library = torch.library.Library(bundle.namespace, "FRAGMENT")
    for operator in sorted(bundle.choices):
        if operator.startswith("aten::"):
            continue
        name, contract = operator.partition("::")[2], contracts[operator]
        # torch lets a second definition raise, and lets a second implementation win without a word.
        bundle.library.define(f"{name}{_with_site(contract.schema)}")
        bundle.library.impl(name, _body(bundle, operator), "CompositeExplicitAutograd")
        torch.library.register_fake(f"{bundle.namespace}::{name}", _fake(contract.fake), lib=bundle.library)
        bundle.overloads[operator] = getattr(getattr(torch.ops, bundle.namespace), name).default


def _with_site(schema: str) -> str:
    """Add `*, str site` to the arguments of a schema."""
    arguments, arrow, results = schema.partition(") ->")
    star = "" if "*, " in arguments else "*, "
    return f"{arguments}, {star}str site{arrow}{results}"


def _body(bundle: Bundle, operator: str) -> Callable[..., Any]:
    tensor = importlib.import_module("torch").Tensor

    def body(*args: Any, site: str) -> Any:
        tensors = [one for one in args if isinstance(one, tensor)]
        choice = bundle.choices[operator].get(tuple([one.dtype for one in tensors]))
        if choice is None:
            raise BundleError(f"{operator} is not locked for {' '.join(str(one.dtype) for one in tensors)}")
        return bundle.run(choice, site, args, {}, tensors, choice.contract.reference)

    return body


def _fake(fake: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, site: fake(*args)


def _check_result(choice: Choice, result: Any, args: tuple[Any, ...], tensors: list[Any]) -> None:
    want, have = _flat(choice.contract.fake(*args)), _flat(result)
    said = [f"{one.dtype} {list(one.shape)}" for one in want]
    got = [f"{one.dtype} {list(one.shape)}" if hasattr(one, "dtype") else type(one).__name__ for one in have]
    if said != got:
        raise BundleError(f"{choice.identity} returned {', '.join(got)}, and the contract says {', '.join(said)}")
    given = {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}
    if any(one.numel() and one.untyped_storage().data_ptr() in given for one in have):
        raise BundleError(f"{choice.identity} returned memory of an argument, and the contract says a new tensor")


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _capturing(tensors: list[Any]) -> bool:
    """Say whether a device graph is being captured: what is counted then runs on each replay, which nobody counts."""
    if not tensors or tensors[0].device.type != "cuda":
        return False
    return bool(importlib.import_module("torch").cuda.is_current_stream_capturing())


def site_of_caller(name: str) -> str:
    """Return the nearest local variable of that name up the stack: engines hand the path of a layer down as one."""
    frame = sys._getframe(1)
    while frame is not None:
        value = frame.f_locals.get(name)
        if isinstance(value, str) and value:
            return value
        frame = frame.f_back  # type: ignore[assignment]
    return ""
