"""Find the model that a source text names."""

from __future__ import annotations

from day0.errors import Day0Error
from day0.models.spec import ModelSpec
from day0.playbook import ModelPlan

__all__ = ["open_model"]


def open_model(plan: ModelPlan) -> ModelSpec:
    """Open the source that a plan names.

    `toy`, `toy:<variant>`, `hf:<model_type or folder>`, `py:<module or file>:<factory>`, `export:<file>`,
    `inputs:<text file>`.

    With adapters in the plan, modules of the model call our operators.
    Raises Day0Error for a source of another form, and what the sources themselves raise.
    """
    spec = _open(plan)
    if not plan.adapt:
        return spec
    from day0.models.adapters.opened import with_adapters

    return with_adapters(spec, plan)


def _open(plan: ModelPlan) -> ModelSpec:
    kind, _, rest = plan.source.partition(":")
    if plan.shrink and kind != "hf":
        raise Day0Error("--shrink", f"only models of transformers are shrunk, not '{plan.source}'", hint="use --set")
    if kind == "toy" and (rest or plan.source == "toy"):
        from day0.models.toy.source import open_toy

        return open_toy(plan)
    if kind == "hf" and rest:
        from day0.models.hf import open_hf
        from day0.models.hf_weights import refuse_two_meanings, with_weights

        refuse_two_meanings(plan)
        return with_weights(open_hf(plan), plan)
    if kind == "inputs" and rest:
        from day0.models.inputs import open_inputs

        return open_inputs(plan)
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
        "`py:path/to/file.py:make_model`, `export:program.pt2` or `inputs:calls.txt`",
    )
