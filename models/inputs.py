"""`inputs:<file>`: a text of traced inputs as a source. It has calls and no model."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from day0.errors import Day0Error
from day0.hashing import hash_file
from day0.models.spec import ModelSpec
from day0.playbook import ModelPlan

__all__ = ["PREFIX", "inputs_path", "no_model", "open_inputs"]

PREFIX = "inputs:"


def inputs_path(source: str) -> Path | None:
    """Return the file that a source names, or None for a source of another kind."""
    return Path(source.removeprefix(PREFIX)) if source.startswith(PREFIX) and source != PREFIX else None


def open_inputs(plan: ModelPlan) -> ModelSpec:
    """Return a spec that knows its file and cannot be built. Raises Day0Error: no such file, options it cannot take."""
    path = inputs_path(plan.source)
    if path is None or not path.is_file():
        raise Day0Error(plan.source, "there is no such file", hint="give the path of a text: inputs:path/to/file.txt")
    if plan.set:
        raise Day0Error("--set", "a text of traced inputs has no config to change", hint="leave --set away")

    def build(device: str) -> nn.Module:
        raise no_model(plan.source)

    return ModelSpec(
        source=plan.source,
        dtype=torch.float32,
        class_name="imported calls",
        fingerprint=hash_file(path),
        vocab_size=1,
        sparse_top_k=None,
        max_positions=None,
        build=build,
    )


def no_model(source: str) -> Day0Error:
    """Return the error of whatever needs the model itself."""
    return Day0Error(
        source,
        "these calls were imported from a text: there is no model that could be run",
        facts=("inventory, register and check need the calls alone; canary runs the model",),
        hint="trace the model itself into another run folder, for example `day0 trace hf:llama --run runs/llama`",
    )
