"""What config.json says of converted weights, in the words that transformers and the serving engines read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from day0.records.convert import ConversionParameters

__all__ = ["block_config", "packed_config", "scheme"]


def block_config(rows: int, columns: int) -> Callable[[ConversionParameters], dict[str, Any]]:
    """Return what makes the entry of FP8 in blocks."""

    def entry(parameters: ConversionParameters) -> dict[str, Any]:
        return {
            "quant_method": "fp8",
            "fmt": "e4m3fnuz" if parameters.fnuz else "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [rows, columns],
            "scale_fmt": "ue8m0" if parameters.scales == "e8m0" else "float",
        }

    return entry


def scheme(**weights: Any) -> dict[str, Any]:
    """Return the fields of a compressed-tensors scheme; what is not named has its default there."""
    return {"targets": ["Linear"], "weights": {"symmetric": True, "dynamic": False, **weights}}


def packed_config(form: str, group: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of compressed-tensors with one scheme for all linear layers."""
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {**group, "format": form}},
        "ignore": [],
    }
