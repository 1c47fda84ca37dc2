"""Find the model that a source text names."""

from __future__ import annotations

from day0.errors import Day0Error
from day0.models.spec import ModelSpec
from day0.playbook import ModelPlan

__all__ = ["open_model"]


def open_model(plan: ModelPlan) -> ModelSpec:
    """Open `toy`, `toy:<variant>`, `hf:<model_type or folder>`, `py:<module or file>:<factory>` or `export:<file>`.

    Raises Day0Error for a source of another form, and what the sources themselves raise.
    """
    kind, _, rest = plan.source.partition(":")
    if kind == "toy" and (rest or plan.source == "toy"):
        from day0.models.toy.source import open_toy

        return open_toy(plan)
    if kind == "hf" and rest:
        from day0.models.hf import open_hf
        from day0.models.hf_weights import refuse_two_meanings, with_weights

        refuse_two_meanings(plan)
        return with_weights(open_hf(plan), plan)
    if kind == "py" and rest.strip(":."):
        from day0.models.factory import open_factory

        return open_factory(plan)
    if kind == "export" and rest:
        from day0.models.exported import open_export

        return open_export(plan)
    raise Day0Error(
        "model source",
        f"'{plan.source}' is of no known form",
        hint="use `toy`, `toy:glm-5`, `hf:deepseek_v32`, `hf:path/to/folder`, `py:my_module:make_model`, "
        "`py:path/to/file.py:make_model` or `export:program.pt2`",
    )
