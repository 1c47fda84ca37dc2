"""Read a description: a model source and the fields that differ."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from day0.errors import Day0Error, near_names
from day0.playbook import ModelPlan
from day0.yamlfile import read_yaml, validate_yaml

__all__ = ["DescribedModel", "list_described", "read_described"]


class DescribedModel(BaseModel):
    """A model by name, built from another source with other sizes."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    schema_: Literal["day0.model/1"] = Field(alias="schema")
    name: str
    title: str
    source: str
    """What can be built: `toy`, `hf:<model_type>`."""
    dtype: str = "bfloat16"
    set: dict[str, JsonValue] = {}
    """Fields of its config."""
    format: str = ""
    """How its weights are published, as `--format` takes it."""
    facts: tuple[str, ...] = ()
    """Where the sizes come from, and what differs from the model itself."""

    def plan(self, changes: dict[str, JsonValue]) -> ModelPlan:
        """Return what to build, with `changes` over the described fields."""
        return ModelPlan(source=self.source, set={**self.set, **changes}, dtype=self.dtype)


def list_described() -> tuple[str, ...]:
    """Return the names of the descriptions that ship with day0."""
    return tuple(sorted(path.stem for path in Path(__file__).parent.glob("*.yaml")))


def read_described(name: str) -> DescribedModel:
    """Read a description by name, or a YAML file of your own.

    Raises Day0Error: no such description, malformed YAML, a wrong field.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        known = list_described()
        if name not in known:
            hint = near_names(name, known) or f"described models: {', '.join(known)}; or toy, hf:NAME, a YAML file"
            raise Day0Error(f"model '{name}'", "there is no such description", hint=hint)
        path = Path(__file__).parent / f"{name}.yaml"
    return validate_yaml(DescribedModel, read_yaml(path))
