"""What SGLang asks for when it is imported and a test environment on a CPU does not have. Import it before SGLang."""

from __future__ import annotations

import importlib.machinery
import sys
import types

import torch

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
"""torchvision is linked for accelerators, and its import looks up two operators: here they have a schema, no kernel."""
LIBRARY.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
LIBRARY.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def stand_in_for_rotary() -> None:
    """On a platform of its own kind without accelerator, SGLang's rotary layers look up a kernel of vLLM's.

    They never call it there: they compute natively.
    """

    def rotary_embedding(*args: object, **kwargs: object) -> None:
        raise RuntimeError("the stand-in of a rotary kernel was called")

    package, module = types.ModuleType("vllm"), types.ModuleType("vllm._custom_ops")
    package.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    package.__path__ = []
    module.rotary_embedding = rotary_embedding  # type: ignore[attr-defined]
    sys.modules["vllm._custom_ops"] = module
