"""Which weights a checkpoint holds: every tensor belongs to one, is kept as it is, or is named as a problem."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from day0.converters.architectures._architecture import Architecture
from day0.converters.folder import Folder
from day0.converters.formats.load import load_formats
from day0.converters.header import Stored
from day0.converters.weight import Weight
from day0.errors import Day0Error
from day0.records.convert import ConversionParameters

__all__ = ["Found", "find_weights", "quantisation_of"]

_PLAIN = "plain"
_SCALE_ENDS = ("_scales", ".scales", "_scale", "_scale_inv", ".scale_inv", "weight_scale_2", "weight_global_scale")
_PAYLOAD_ENDS = ("_blocks", ".blocks", "weight_packed")
_END = re.compile(r"(?:[_.](?:blocks|scales)|_packed|_scale(?:_inv|_2)?|_global_scale)$")
"""What quantised tensors have after the name of their weight."""
_NARROW = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0", "F4")
_ACTIVATIONS = (
    "input_scale",
    "input_activation_scale",
    "activation_scale",
    "input_global_scale",
    "output_scale",
    "k_scale",
    "v_scale",
)
"""Scales of what flows through the model, which have no meaning for the converted weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """All tensors of a checkpoint, sorted by what they are."""

    weights: tuple[Weight, ...]
    """Quantised ones, and plain matrices that may become narrower."""
    kept: tuple[Stored, ...]
    dropped: tuple[str, ...]


def quantisation_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `quantization_config` of a config, or of its text model; empty where there is none."""
    for one in (config, config.get("text_config")):
        for key in ("quantization_config", "compression_config"):
            found = one.get(key) if isinstance(one, Mapping) else None
            if isinstance(found, Mapping):
                return found
    return {}


def find_weights(folder: Folder, architecture: Architecture, parameters: ConversionParameters) -> Found:
    """Sort the tensors of a checkpoint.

    Raises Day0Error: a scale without its weight or the reverse, a scale that does not fit, a name that the architecture
    does not know (`keep_unknown` keeps such tensors as they are).
    """
    quantisation = quantisation_of(folder.config)
    claimed = _claimed(folder, quantisation, parameters)
    taken = {part.name for one in claimed for part in one.parts.values()}
    rest = {name: one for name, one in folder.tensors.items() if name not in taken}
    dropped = tuple(sorted(name for name in rest if name.rpartition(".")[2] in _ACTIVATIONS))
    rest = {name: one for name, one in rest.items() if name not in dropped}
    weights = [one for one in claimed if architecture.role(one.name)]
    strange = [one for one in claimed if not architecture.role(one.name)]
    for stored in rest.values():
        if architecture.role(_END.sub("", stored.name)):
            _refuse_orphan(stored)
    unknown = [name for name in rest if architecture.role(name) is None]
    if (strange or unknown) and not parameters.keep_unknown:
        raise _unknown(folder, architecture, [*(one.name for one in strange), *unknown])
    kept = [part for one in strange for part in one.parts.values()] + [rest[name] for name in unknown]
    plain = load_formats()[_PLAIN]
    for name, stored in rest.items():
        known = architecture.role(name)
        if known is None:
            continue
        # Nothing can become of no values: such a tensor stays what it is.
        found = plain.find(stored, folder.tensors, quantisation) if known.role != "keep" and stored.nbytes else None
        if found is None:
            kept.append(stored)
        else:
            weights.append(found)
    return Found(weights=tuple(weights), kept=tuple(kept), dropped=dropped)


def _claimed(folder: Folder, quantisation: Mapping[str, Any], parameters: ConversionParameters) -> list[Weight]:
    formats = [one for one in load_formats().values() if one.name != _PLAIN]
    found: list[Weight] = []
    owners: dict[str, str] = {}
    for stored in folder.tensors.values():
        # Without bytes, a shape may claim any number of experts.
        weight = (
            next((one for form in formats if (one := form.find(stored, folder.tensors, quantisation))), None)
            if stored.nbytes
            else None
        )
        if weight is None:
            continue
        for part in weight.parts.values():
            if part.name in owners:
                what = f"{part.name} would belong to {owners[part.name]} and to {weight.name}"
                raise Day0Error(str(part.file), what, hint="its names are ambiguous; rename one of them")
            owners[part.name] = weight.name
        if weight.format.mx is not None and parameters.nibbles != "low_first":
            weight = replace(weight, facts={**weight.facts, "order": parameters.nibbles})
        found.append(weight)
    return found


def _refuse_orphan(stored: Stored) -> None:
    """Refuse halves of a quantised weight: copied on, they would be garbage without an error."""
    kind = ""
    if not stored.nbytes and (stored.name.endswith((*_PAYLOAD_ENDS, *_SCALE_ENDS)) or stored.dtype in _NARROW):
        kind = "a part of a quantised weight without a value in it"
    elif stored.name.endswith(_PAYLOAD_ENDS) and stored.dtype in ("U8", "I8", "I32"):
        kind = "packed codes that no scales fit"
    elif stored.name.endswith(_SCALE_ENDS):
        kind = "a scale whose weight is missing, or does not fit it"
    elif stored.dtype in _NARROW:
        kind = f"{stored.dtype} without a scale that fits"
    if kind:
        what = f"{stored.name} {stored.dtype}{list(stored.shape)} is {kind}"
        raise Day0Error(str(stored.file), what, hint="fetch the checkpoint again; half a weight is never copied on")


def _unknown(folder: Folder, architecture: Architecture, names: list[str]) -> Day0Error:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return Day0Error(
        str(folder.path),
        f"the map of {architecture.name} does not know {len(names)} of its tensors",
        facts=(*sorted(names)[:5], *((more.strip(),) if more else ())),
        hint="--keep-unknown copies them as they are; --architecture NAME takes another map",
    )
