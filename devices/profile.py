"""Device profiles: what a device can do, as data, each line with its evidence."""

from __future__ import annotations

from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from day0.devices.profile_parts import DTYPES, Basis, Details, DtypeName, Grant, Lack, MatmulRule, Part, ProbedWith
from day0.errors import Day0Error, near_names
from day0.records import Evidence
from day0.yamlfile import YamlDocument, read_yaml, validate_yaml

__all__ = [
    "ALWAYS_ON_DEVICE",
    "DTYPES",
    "DeviceProfile",
    "Lack",
    "check_operators",
    "computes",
    "cpu_profile",
    "list_profiles",
    "load_profile",
]

ALWAYS_ON_DEVICE = frozenset(
    {
        "aten::alias",
        "aten::clone",
        "aten::copy_",
        "aten::detach",
        "aten::empty_like",
        "aten::lift",
        "aten::lift_fresh",
        "aten::_to_copy",
    }
)
"""Operators without which a device cannot hold a tensor: torch gives them to every backend through composites that
come down to allocation and copies."""

_VIEWS = (
    "as_strided as_strided_ diagonal expand permute _reshape_alias select slice split split_with_sizes squeeze "
    "squeeze_ t t_ transpose transpose_ unbind unfold _unsafe_view unsqueeze unsqueeze_ view"
)
_MOVES = (
    "cat empty empty_strided eq equal fill_ flip index _index_put_impl_ index_select isnan _local_scalar_dense "
    "masked_select ne resize_ resize_as_ roll set_ where zero_"
)
_SCALED = "_scaled_grouped_mm _scaled_mm _scaled_mm_v2"
_ON_STORAGE_DTYPES = ALWAYS_ON_DEVICE | {f"aten::{name}" for name in f"{_VIEWS} {_MOVES} {_SCALED}".split()}
"""What torch's own CPU kernels do with float8: views, moves, comparison for equality, and matmul with scales."""


class DeviceProfile(Part):
    """One device."""

    schema_: Literal["day0.device/1"] = Field(alias="schema")
    name: str
    title: str
    torch_device: str
    """Type of the device in torch: `cpu`, `cuda`, `sim`, or what a vendor's plugin registers."""
    import_module: str | None = Field(default=None, min_length=1)
    """Python module to import before the device can be used."""
    kernels: Literal["CPU", "CUDA", "PrivateUse1", "XPU", "MPS", "HPU", "XLA", "MTIA", "Meta", "VE", "IPU"]
    """Dispatch key whose registered kernels are the device's: `CPU`, `CUDA`, `PrivateUse1`."""
    evidence: Evidence = "static"
    source: str
    """Where the figures come from."""
    dtypes: tuple[DtypeName, ...]
    """What tensors may hold."""
    storage_dtypes: tuple[DtypeName, ...] = ()
    """Those of them that can be stored, cast, moved and fed to a matmul with scales, but not computed with."""
    devices: int = Field(default=1, ge=1, le=64)
    """How many of them a process sees."""
    memory_gib: float = Field(gt=0, le=1 << 30, allow_inf_nan=False)
    """Memory of one device."""
    bandwidth_gb_s: float = Field(gt=0, allow_inf_nan=False)
    """Peak rate of its memory."""
    tflops: dict[DtypeName, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default={})
    """Peak rate of matrix multiplication by dtype."""
    launch_us: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """What each kernel costs besides its work."""
    sync_us: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """What it costs the host to wait for the device."""
    link_gb_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Rate of copies between host and device; where it is not known, they are counted, but take no time."""
    matmul: dict[DtypeName, MatmulRule] = Field(default={})
    """How it multiplies matrices, by dtype of the factors; where it is not named, as the CPU does."""
    subnormals: Literal["keep", "flush"] = "keep"
    """Whether results smaller than the smallest normal number become zero."""
    fallback: Literal["raise", "cpu"] = "raise"
    """What the device itself does with an operator it lacks."""
    forward_refuses: tuple[Literal["item", "nonzero", "to"], ...] = ()
    """What is refused while a module's forward runs: values read back, sizes that depend on values, and transfers."""
    operators: dict[str, Grant] = Field(default={})
    """By operator, as in `lacks`: what it takes and what was seen of it. An operator that is not named takes all."""
    lacks: dict[str, Lack] = Field(default={})
    """By operator: `aten::topk` for all its overloads, `aten::topk.values` for one."""
    basis: dict[str, Basis] = Field(default={})
    """By field of this profile: how one knows it, where it is not as `evidence` and `source` say."""
    probed: ProbedWith | None = None
    """With what it was probed, if it was."""

    @cached_property
    def has_details(self) -> bool:
        """True where support depends on more than dtypes and ranks."""
        lacks = any(one.layouts or one.unless for one in self.lacks.values())
        return lacks or any(one.layouts or one.conditions for one in self.operators.values())

    def names(self, op: str) -> bool:
        """Say whether a line of this profile speaks of `aten::name.overload`; if none does, only dtypes matter."""
        return any(one in self.lacks or one in self.operators for one in (op, op.partition(".")[0]))

    def lack_of(
        self, op: str, dtypes: tuple[str, ...], ranks: tuple[int, ...], details: Details | None = None
    ) -> Lack | None:
        """Return what is missing for a call of `aten::name.overload`, or None."""
        for name in (op, op.partition(".")[0]):
            lack = self.lacks.get(name)
            if lack is not None and lack.applies(dtypes, ranks, details):
                return lack
            grant = self.operators.get(name)
            refusal = grant.refusal(dtypes, ranks, details) if grant is not None else None
            if refusal is not None:
                return refusal
        stored = next((dtype for dtype in dtypes if dtype in self.storage_dtypes), None)
        if stored is None or not op.startswith("aten::") or op.partition(".")[0] in _ON_STORAGE_DTYPES:
            return None
        return Lack(dtypes=(stored,), reason=f"{stored} is for storage: cast it before computing")


def computes(op: str) -> bool:
    """Say whether an operator computes with values; the others look at them, move them, or make views of them."""
    base = op.partition(".")[0]
    return base not in _ON_STORAGE_DTYPES or base.removeprefix("aten::") in _SCALED.split()


def list_profiles() -> tuple[str, ...]:
    """Return the names of the profiles that ship with day0."""
    return tuple(sorted(path.stem for path in _folder().glob("*.yaml")))


def load_profile(name: str) -> DeviceProfile:
    """Load a profile by name, or from a YAML file of your own.

    Raises Day0Error: no such profile, malformed YAML, a wrong field, an operator that torch does not know.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = _folder() / f"{name}.yaml"
        if "/" in name or not path.is_file():
            known = list_profiles()
            hint = near_names(name, known) or f"profiles: {', '.join(known)}; or give a YAML file"
            raise Day0Error(f"device '{name}'", "there is no such profile", hint=hint)
    document = read_yaml(path)
    profile = validate_yaml(DeviceProfile, document)
    _check_basis(profile, document)
    check_operators(profile, document)
    return profile


@cache
def cpu_profile() -> DeviceProfile:
    """Return what the host computes, which is asked for one call after the other."""
    return load_profile("cpu")


def _check_basis(profile: DeviceProfile, document: YamlDocument) -> None:
    fields = tuple(DeviceProfile.model_fields)
    for name in profile.basis:
        if name not in fields:
            raise Day0Error(
                f"{document.path}:{document.line_of(('basis', name))}: basis.{name}",
                f"there is no such field '{name}'",
                hint=near_names(name, fields) or f"fields are: {', '.join(fields)}",
            )
    for place, name in enumerate(profile.storage_dtypes):
        if name not in profile.dtypes:
            raise Day0Error(
                f"{document.path}:{document.line_of(('storage_dtypes', place))}: storage_dtypes[{place}]",
                f"'{name}' is not among the dtypes that the device holds",
                hint=f"add it to dtypes, or take one of: {', '.join(profile.dtypes)}",
            )


def _folder() -> Path:
    return Path(__file__).parent / "profiles"


def check_operators(profile: DeviceProfile, document: YamlDocument) -> None:
    """Refuse a profile that names an aten operator which torch does not have, or which no device can lack.

    Operators of other namespaces may come with a package that is not imported here, so they are not checked.
    """
    if not profile.lacks and not profile.operators:
        return
    import torch  # only here: listing profiles stays quick

    from day0.devices.leaves import is_metadata_view

    known = set(torch._C._dispatch_get_all_op_names())
    bases: dict[str, list[str]] = {}
    for one in known:
        bases.setdefault(one.partition(".")[0], []).append(one)
    for section, name in [
        *(("lacks", one) for one in profile.lacks),
        *(("operators", one) for one in profile.operators),
    ]:
        where = f"{document.path}:{document.line_of((section, name))}: {section}"
        ours = name.startswith("aten::") or "::" not in name
        if ours and name not in known and name not in bases:
            raise Day0Error(
                where,
                f"'{name}' is not an operator of torch {torch.__version__}",
                hint=near_names(name, tuple(sorted(bases))) or "write it like aten::topk or aten::add.Tensor",
            )
        covered = bases.get(name, [name] if name in known else [])
        _check_arguments(profile, document, section, name, covered)
        lack = profile.lacks.get(name) if section == "lacks" else None
        always = name.partition(".")[0] in ALWAYS_ON_DEVICE or any(is_metadata_view(one) for one in covered)
        if always and lack is not None and lack.is_whole:
            raise Day0Error(
                where,
                f"no device can lack '{name}': torch gives it to every device that can hold a tensor",
                hint="remove it, or give the dtypes that it does not take",
            )


def _check_arguments(
    profile: DeviceProfile, document: YamlDocument, section: str, name: str, covered: list[str]
) -> None:
    """Refuse a condition on an argument that no overload of the operator has."""
    if section == "lacks":
        field, conditions = "unless", profile.lacks[name].unless
    else:
        field, conditions = "conditions", profile.operators[name].conditions
    if not conditions or not covered:
        return
    from day0.reference_ops.signatures import resolve

    known = {argument.name for one in covered for argument in resolve(one)._schema.arguments}
    for place, condition in enumerate(conditions):
        if condition.argument not in known:
            line = document.line_of((section, name, field, place, "argument"))
            raise Day0Error(
                f"{document.path}:{line}: {section}.{name}.{field}[{place}].argument",
                f"'{name}' has no argument '{condition.argument}'",
                hint=f"arguments are: {', '.join(sorted(known))}",
            )
