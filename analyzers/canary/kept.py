"""Passes of the golden and the yardstick on disk, by what they depend on: made once, then read.

A file holds tensors and a text (safetensors metadata) that names the model, its weights, its dtype, torch and the inputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from day0.errors import Day0Error
from day0.hashing import hash_bytes, hash_json

__all__ = ["Kept", "Stored", "hash_of_tensors"]

FORMAT = "day0.reference/1"
MOST_BYTES = 4 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """One pass: its tensors, and what else belongs to it as JSON."""

    tensors: dict[str, torch.Tensor]
    facts: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A folder of passes of one model."""

    folder: Path
    model: Mapping[str, str]
    """What all of them depend on: the model's fingerprint, the hash of its weights, its dtype, torch."""
    strict: bool = False
    """The user named the folder: passes of another model in it are an error and not only of no use."""

    def find(self, name: str, inputs: object) -> Stored | None:
        """Return the pass of this name and inputs; None where there is none, or only one that is cut off.

        Raises Day0Error for a file that says of itself that it belongs to another model.
        """
        path = self._path(name, inputs)
        if not path.is_file():
            self._refuse_others(name)
            return None
        try:
            if path.stat().st_size > MOST_BYTES:
                return None
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {}).get("day0", "{}"))
                self._refuse_other_model(path, about)
                return Stored(tensors={key: file.get_tensor(key) for key in file.keys()}, facts=about["facts"])  # noqa: SIM118 - not a dict
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def keep(self, name: str, inputs: object, stored: Stored) -> None:
        """Write a pass, so that at any moment the file is whole or not there."""
        path = self._path(name, inputs)
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {"format": FORMAT, "model": dict(self.model), "name": name, "facts": stored.facts}
        part = path.with_name(f".{path.name}.part")
        rows = {key: value.contiguous().clone() for key, value in stored.tensors.items()}
        safetensors.torch.save_file(rows, part, metadata={"day0": json.dumps(about, sort_keys=True)})
        part.replace(path)

    def _path(self, name: str, inputs: object) -> Path:
        digest = hash_json([FORMAT, dict(self.model), name, inputs]).partition(":")[2]
        return self.folder / f"{name}-{digest[:16]}.safetensors"

    def _refuse_other_model(self, path: Path, about: Any) -> None:
        there = about.get("model") if isinstance(about, dict) else None
        if there == dict(self.model):
            return
        wrong = [key for key, value in self.model.items() if not isinstance(there, dict) or there.get(key) != value]
        raise Day0Error(
            str(path),
            f"the reference belongs to another model: it differs in {', '.join(wrong) or 'what it was made from'}",
            facts=tuple(
                f"{key}: {str((there or {}).get(key, 'nothing'))[:80]} there, {self.model[key][:80]} here"
                for key in wrong
            )
            if isinstance(there, dict) or there is None
            else (),
            hint="remove the file, or name the folder of this model with --reference",
        )

    def _refuse_others(self, name: str) -> None:
        """In a folder that the user named, a pass of this name that is of another model is a mistake."""
        for path in sorted(self.folder.glob(f"{name}-*.safetensors")) if self.strict else ():
            try:
                with safe_open(path, framework="pt") as file:
                    about = json.loads((file.metadata() or {}).get("day0", "{}"))
            except (SafetensorError, OSError, ValueError):
                continue
            self._refuse_other_model(path, about)


def hash_of_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """Hash names, dtypes, shapes and bits."""
    rows = []
    for name, value in sorted(tensors.items()):
        plain = value.detach().cpu().contiguous()
        bits = plain.reshape(-1).view(torch.uint8) if plain.numel() else torch.empty(0, dtype=torch.uint8)
        rows.append([name, str(plain.dtype), list(plain.shape), hash_bytes(bits.numpy().tobytes())])
    return hash_json(rows)
