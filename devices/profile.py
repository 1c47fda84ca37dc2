"""Device profiles: what a device can do, as data, each line with its evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from day0.errors import Day0Error, near_names
from day0.records import Evidence
from day0.yamlfile import YamlDocument, read_yaml, validate_yaml

__all__ = ["ALWAYS_ON_DEVICE", "DTYPES", "DeviceProfile", "Lack", "check_operators", "list_profiles", "load_profile"]

DTYPES: tuple[str, ...] = (
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
    "bfloat16",
    "float16",
    "float32",
    "float64",
    "complex32",
    "complex64",
    "complex128",
)
"""Dtypes a profile may name; torch's own names."""


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


def _known_dtype(name: str) -> str:
    if name not in DTYPES:
        raise ValueError(f"not a dtype; dtypes are: {', '.join(DTYPES)}")
    return name


DtypeName = Annotated[str, AfterValidator(_known_dtype)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Lack(_Model):
    """What is missing of one operator. Neither dtypes nor ranks: all of it."""

    reason: str
    dtypes: tuple[DtypeName, ...] = ()
    ranks: tuple[int, ...] = ()
    evidence: Evidence | None = None

    def applies(self, dtypes: tuple[str, ...], ranks: tuple[int, ...]) -> bool:
        """Say whether a call with these tensors runs into it."""
        if self.dtypes and not set(dtypes) & set(self.dtypes):
            return False
        return not self.ranks or any(rank in self.ranks for rank in ranks)


class DeviceProfile(_Model):
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
    memory_gib: float = Field(gt=0, allow_inf_nan=False)
    bandwidth_gb_s: float = Field(gt=0, allow_inf_nan=False)
    tflops: dict[DtypeName, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = {}
    launch_us: float = Field(default=0.0, ge=0)
    sync_us: float = Field(default=0.0, ge=0)
    fallback: Literal["raise", "cpu"] = "raise"
    """What the device itself does with an operator it lacks."""
    lacks: dict[str, Lack] = {}
    """By operator: `aten::topk` for all its overloads, `aten::topk.values` for one."""

    def lack_of(self, op: str, dtypes: tuple[str, ...], ranks: tuple[int, ...]) -> Lack | None:
        """Return what is missing for a call of `aten::name.overload`, or None."""
        for name in (op, op.partition(".")[0]):
            lack = self.lacks.get(name)
            if lack is not None and lack.applies(dtypes, ranks):
                return lack
        stored = next((dtype for dtype in dtypes if dtype in self.storage_dtypes), None)
        if stored is None or not op.startswith("aten::") or op.partition(".")[0] in _ON_STORAGE_DTYPES:
            return None
        return Lack(dtypes=(stored,), reason=f"{stored} is for storage: cast it before computing")


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
    check_operators(profile, document)
    return profile


def _folder() -> Path:
    return Path(__file__).parent / "profiles"


def check_operators(profile: DeviceProfile, document: YamlDocument) -> None:
    """Refuse a profile that names an aten operator which torch does not have, or which no device can lack.

    Operators of other namespaces may come with a package that is not imported here, so they are not checked.
    """
    if not profile.lacks:
        return
    import torch  # only here: listing profiles stays quick

    from day0.devices.leaves import is_metadata_view

    known = set(torch._C._dispatch_get_all_op_names())
    bases = {name.partition(".")[0] for name in known}
    for name, lack in profile.lacks.items():
        where = f"{document.path}:{document.line_of(('lacks', name))}: lacks"
        ours = name.startswith("aten::") or "::" not in name
        if ours and name not in known and name not in bases:
            raise Day0Error(
                where,
                f"'{name}' is not an operator of torch {torch.__version__}",
                hint=near_names(name, tuple(sorted(bases))) or "write it like aten::topk or aten::add.Tensor",
            )
        covered = [one for one in known if one == name or one.partition(".")[0] == name]
        always = name.partition(".")[0] in ALWAYS_ON_DEVICE or any(is_metadata_view(one) for one in covered)
        if always and not lack.dtypes and not lack.ranks:
            raise Day0Error(
                where,
                f"no device can lack '{name}': torch gives it to every device that can hold a tensor",
                hint="remove it, or give the dtypes that it does not take",
            )
