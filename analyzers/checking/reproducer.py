"""A failed case as a folder: the inputs as they were, what is right, what was said, and a script that runs it.

`case.json` names everything and says how tensors lie over the rows of `inputs.safetensors`: strides, offsets and shared
memory are kept. It is data that may come from elsewhere: it is checked, and nothing in it is run but files of the user
that it names by an absolute path.
"""

from __future__ import annotations

import dataclasses
import json
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError

from day0 import __version__
from day0.analyzers.cases.case import Case, CaseInputs, Unfillable
from day0.analyzers.cases.copies import copy_to
from day0.analyzers.cases.fill import make_inputs
from day0.analyzers.checking.case import Bench, judge_case
from day0.analyzers.checking.setting import Loaded, Setting, load
from day0.analyzers.judging.reference import RUN_ERRORS, references
from day0.devices.profile import DeviceProfile
from day0.errors import USER_ERRORS, Day0Error
from day0.hashing import hash_file
from day0.playbook import CheckPlan
from day0.records import CaseResult, Lock, LockEntry, ScalarValue, Signature
from day0.reference_ops.load import contract_of
from day0.reference_ops.signatures import describe_value, dtype_name, dtype_of, materialise, resolve, tensors_in
from day0.registry.collect import collect
from day0.registry.dispatch import ActiveLock, activate, suspended
from day0.registry.fallback import cpu_fallback

__all__ = ["MOST_BYTES", "Opened", "Reproducer", "UserFile", "judge", "opened", "read", "with_present_sources", "write"]

MOST_BYTES = 64 << 20
"""Larger inputs are not written; the case can be made again from the run folder."""
MOST_TEXT = 16 << 20
SCHEMA = "day0.repro/1"


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class UserFile(_Data):
    """A file with implementations, as it was."""

    path: str
    sha256: str


class _Tensor(_Data):
    kind: Literal["tensor"] = "tensor"
    storage: int = Field(ge=0)
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = Field(ge=0)


class _List(_Data):
    kind: Literal["list"] = "list"
    items: tuple[_Node, ...]


class _Scalar(_Data):
    kind: Literal["scalar"] = "scalar"
    value: ScalarValue


_Node = _Tensor | _List | _Scalar


class Reproducer(_Data):
    """What `case.json` holds."""

    schema_: Literal["day0.repro/1"] = Field(alias="schema")
    made_by: str
    torch: str
    case: dict[str, Any]
    """The fields of the case but its signature."""
    signature: Signature
    result: CaseResult
    """What the check said."""
    profile: DeviceProfile
    lock: Lock
    """The entry that the call goes to."""
    plan: CheckPlan
    files: tuple[UserFile, ...]
    without: tuple[str, ...]
    plants: tuple[str, ...]
    args: tuple[_Node, ...]
    kwargs: dict[str, _Node]

    def made_case(self, where: str) -> Case:
        """Return the case. Raises Day0Error for fields that cases do not have."""
        try:
            return Case(signature=self.signature, **self.case)
        except TypeError as error:
            raise _damaged(where, f"case: {error}") from None


def write(folder: Path, case: Case, result: CaseResult, loaded: Loaded, extra: dict[str, Any]) -> str:
    """Write a reproducer and return an empty text, or say why it is left out.

    `extra` holds what only the run knows: `profile`, `plan`, `files`, `without`, `plants`, and whether to add the golden.
    """
    contract = contract_of(case.signature.op)
    inputs = make_inputs(case, contract)
    if isinstance(inputs, Unfillable):
        return inputs.reason
    storages = _storages(inputs)
    size = sum(row.numel() for row in storages.values())
    if size > MOST_BYTES:
        return f"its inputs take {size >> 20} MiB, more than {MOST_BYTES >> 20}"
    places = {key: number for number, key in enumerate(storages)}
    document = {
        "schema": SCHEMA,
        "made_by": f"day0 {__version__}",
        "torch": torch.__version__,
        "case": {one.name: getattr(case, one.name) for one in dataclasses.fields(case) if one.name != "signature"},
        "signature": case.signature.model_dump(mode="json"),
        "result": json.loads(result.model_dump_json()),
        "lock": _only(loaded.lock, case).model_dump(mode="json"),
        "args": [_node(value, places).model_dump(mode="json") for value in inputs.args],
        "kwargs": {name: _node(value, places).model_dump(mode="json") for name, value in inputs.kwargs.items()},
        **{name: extra[name] for name in ("profile", "plan", "files", "without", "plants")},
    }
    folder.mkdir(parents=True, exist_ok=True)
    rows = {f"storage_{number}": row for number, row in enumerate(storages.values())}
    safetensors.torch.save_file(rows, folder / "inputs.safetensors")
    if extra["golden"]:
        _write_golden(folder, case, inputs)
    (folder / "repro.py").write_text(_script(case, result, loaded), encoding="utf-8")
    (folder / "case.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return ""


def _write_golden(folder: Path, case: Case, inputs: CaseInputs) -> None:
    contract = contract_of(case.signature.op)
    try:
        with suspended():
            golden = references(case.signature, inputs, contract).golden
    except RUN_ERRORS:
        return
    rows = {f"golden_{number}": one.detach().clone().contiguous() for number, one in enumerate(golden)}
    safetensors.torch.save_file(rows, folder / "golden.safetensors")


def _storages(inputs: CaseInputs) -> dict[int, torch.Tensor]:
    """Return the memory behind the arguments as rows of bytes, in the order in which it is met."""
    found: dict[int, torch.Tensor] = {}
    for tensor in tensors_in((inputs.args, inputs.kwargs)):
        storage = tensor.untyped_storage()
        if storage._cdata not in found:
            row = torch.empty(0, dtype=torch.uint8).set_(storage)
            found[storage._cdata] = row.clone()
    return found


def _node(value: Any, places: dict[int, int]) -> _Node:
    if isinstance(value, torch.Tensor):
        return _Tensor(
            storage=places[value.untyped_storage()._cdata],
            dtype=dtype_name(value.dtype),
            shape=tuple(value.shape),
            stride=tuple(value.stride()),
            offset=value.storage_offset(),
        )
    if isinstance(value, (list, tuple)):
        return _List(items=tuple(_node(item, places) for item in value))
    scalar = describe_value(value)
    assert isinstance(scalar, ScalarValue)  # noqa: S101 - neither a tensor nor a list
    return _Scalar(value=scalar)


def _only(lock: Lock, case: Case) -> Lock:
    """Return the lock with what this call can reach: the entries of its operator, and those of what they may call."""
    mine = [one for one in lock.entries if one.operator == case.signature.op]
    bare = [one.model_copy(update={"signatures": _without_others(one, case), "decisions": ()}) for one in mine]
    others = [one.model_copy(update={"signatures": (), "decisions": ()}) for one in lock.entries if one not in mine]
    # A kernel may call other locked operators; those keep their choices and lose the calls that do not concern us.
    return lock.model_copy(update={"entries": (*bare, *others), "gaps": (), "holes": (), "ambiguities": ()})


def _without_others(entry: LockEntry, case: Case) -> tuple[str, ...]:
    return tuple(one for one in entry.signatures if one == case.signature_id)


def read(folder: Path) -> Reproducer:
    """Read `case.json`. Raises Day0Error: no such folder, damaged, of a later day0."""
    path = folder / "case.json"
    try:
        if path.stat().st_size > MOST_TEXT:
            raise _damaged(str(path), "it is larger than any that day0 writes")
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "give a folder below repro/ of a run folder"
        raise Day0Error(str(folder), "there is no reproducer here: no case.json", hint=hint) from None
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(str(path), f"it cannot be read: {type(error).__name__}") from None
    found = document.get("schema") if isinstance(document, dict) else None
    if found != SCHEMA:
        raise Day0Error(str(path), f"expected schema {SCHEMA}, got {str(found)[:40]!r}", hint="is it of a later day0?")
    try:
        return Reproducer.model_validate(document)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in fault["loc"])
        raise _damaged(str(path), f"{field}: {fault['msg'].lower()}") from None


def _damaged(where: str, what: str) -> Day0Error:
    return Day0Error(where, what, hint="make it again with `day0 check --run DIR --force`")


def read_inputs(folder: Path, about: Reproducer) -> CaseInputs:
    """Lay the arguments over the stored rows. Raises Day0Error where they do not fit."""
    path = folder / "inputs.safetensors"
    try:
        if path.stat().st_size > 2 * MOST_BYTES:
            raise _damaged(str(path), "it is larger than any that day0 writes")
        rows = safetensors.torch.load_file(path)
        storages = [rows[f"storage_{number}"].clone().untyped_storage() for number in range(len(rows))]
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise _damaged(str(path), f"it cannot be read: {type(error).__name__}: {error}") from None
    try:
        args = tuple(_value(one, storages) for one in about.args)
        kwargs = {name: _value(one, storages) for name, one in about.kwargs.items()}
    except USER_ERRORS as error:
        raise _damaged(str(path), f"its rows do not fit case.json: {str(error).splitlines()[0][:150]}") from None
    return CaseInputs(args=args, kwargs=kwargs)


def _value(node: _Node, storages: list[torch.UntypedStorage]) -> Any:
    if isinstance(node, _List):
        return [_value(item, storages) for item in node.items]
    if isinstance(node, _Scalar):
        one = Signature(op="", args=(node.value,), kwargs={})
        return materialise(one, "cpu")[0][0]
    dtype, storage = dtype_of(node.dtype), storages[node.storage]
    last = node.offset + sum(max(size - 1, 0) * step for size, step in zip(node.shape, node.stride, strict=True))
    negative = min((*node.shape, *node.stride), default=0) < 0
    beyond = (last + 1) * dtype.itemsize > storage.nbytes() and 0 not in node.shape
    if negative or beyond:
        raise ValueError(f"a tensor of {list(node.shape)} reaches beyond its {storage.nbytes()} bytes")
    made = torch.empty(0, dtype=dtype)
    return made.set_(storage, node.offset, node.shape, node.stride)


def with_present_sources(about: Reproducer, files: tuple[Path, ...]) -> tuple[Setting, tuple[str, ...]]:
    """Return the setting with the implementations as they are now, and what has changed since, in words.

    A kernel that was repaired is what a reproducer is run for: another version of the same implementation is taken.
    Raises Day0Error where there is none.
    """
    known = {(one.operator, one.namespace, one.id): one for one in collect(files, without=about.without)}
    notes, entries = [], []
    for entry in about.lock.entries:
        own = entry.identity
        one = (
            cpu_fallback(entry.operator)
            if entry.kind == "cpu_fallback"
            else known.get((own.operator, own.namespace, own.id))
        )
        if one is None and not entry.signatures:
            continue  # it was another operator's
        if one is None:
            hint = "give its file with --with"
            raise Day0Error("reproducer", f"the implementation {own} is not there", facts=(entry.origin,), hint=hint)
        if one.source_hash != entry.source_hash and entry.signatures:
            notes.append(f"{one.identity} has changed since the check: {one.origin}")
        entries.append(entry.model_copy(update={"identity": one.identity, "source_hash": one.source_hash}))
    setting = Setting(
        profile=about.profile,
        lock=about.lock.model_copy(update={"entries": tuple(entries)}),
        trace=None,
        plan=about.plan,
        files=tuple(str(one) for one in files),
        without=about.without,
    )
    return setting, tuple(notes)


def judge(folder: Path, bench: Bench) -> CaseResult:
    """Run the case of a reproducer on a bench and judge it as the check does."""
    about = read(folder)
    return judge_case(about.made_case(str(folder)), bench, read_inputs(folder, about))


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A reproducer that is ready to be run in this process, without guards: for a debugger."""

    about: Reproducer
    operator: Any
    inputs: CaseInputs
    golden: tuple[torch.Tensor, ...]
    """What is right, in float64 where that could be computed; empty where nothing was stored."""
    loaded: Loaded

    def on_device(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments on the device; strides and shared memory are kept."""
        moved = copy_to(self.inputs, self.loaded.device)
        return moved.args, moved.kwargs

    def active(self) -> AbstractContextManager[ActiveLock]:
        """Let the locked implementations stand in for the operators."""
        return activate(self.loaded.lock, self.loaded.device, self.loaded.implementations)


def opened(folder: Path) -> Opened:
    """Open the reproducer in a folder. Raises Day0Error for one that is damaged, and for files that are gone."""
    about = read(folder)
    setting, _ = with_present_sources(about, present_files(folder, about))
    path = folder / "golden.safetensors"
    golden = safetensors.torch.load_file(path) if path.is_file() else {}
    loaded = load(setting)
    return Opened(
        about=about,
        operator=resolve(about.signature.op),
        inputs=read_inputs(folder, about),
        golden=tuple(golden[name] for name in sorted(golden)),
        loaded=loaded,
    )


def present_files(folder: Path, about: Reproducer) -> tuple[Path, ...]:
    """Return the user's files that a reproducer names. Raises Day0Error for one that is gone, or that came with it."""
    found = []
    for one in about.files:
        path = Path(one.path)
        if not path.is_absolute() or path.resolve().is_relative_to(folder.resolve()):
            raise Day0Error(str(folder), f"code that comes with it is not run: {one.path}", hint="name it with --with")
        if not path.is_file():
            raise Day0Error(str(folder), f"the kernels' file {path} is not there", hint="give it with --with FILE")
        found.append(path)
    return tuple(found)


def changed_files(about: Reproducer) -> tuple[str, ...]:
    """Say which of the user's files are not what they were."""
    return tuple(
        f"{one.path} has changed since the check"
        for one in about.files
        if Path(one.path).is_file() and hash_file(Path(one.path)) != one.sha256
    )


def _script(case: Case, result: CaseResult, loaded: Loaded) -> str:
    said = f"{result.status} by {result.rule}: {result.reason}".replace("\\", "/").replace('"""', "'''")
    return f'''"""{case.signature.op} {result.shapes} ({case.regime}) on {loaded.device.type}, {result.implementation}

{said}

`day0 repro .` in this folder gives the verdict, in a process of its own.
This script makes the call in the process that runs it, for a debugger: python repro.py
"""

from pathlib import Path

import torch

from day0.analyzers.checking.reproducer import opened
from day0.reference_ops.signatures import tensors_in

call = opened(Path(__file__).parent)
args, kwargs = call.on_device()
with call.active(), torch.no_grad():
    results = tuple(tensors_in(call.operator(*args, **kwargs)))
for number, (got, right) in enumerate(zip(results, call.golden)):
    print(f"result {{number}}: {{got.dtype}} {{list(got.shape)}}, right: {{right.dtype}} {{list(right.shape)}}")
    if got.shape == right.shape and not got.is_complex():
        print("  largest difference", (got.cpu().double() - right.double()).abs().max().item() if got.numel() else 0.0)
'''
