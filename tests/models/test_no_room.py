"""A model that does not fit on the device: the message says so, and what to ask next."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from day0.errors import Day0Error
from day0.models.hf import _build
from day0.playbook import ModelPlan


class Large(nn.Module):
    """Moves to a device that is too small for it."""

    def to(self, *_: Any, **__: Any) -> Large:
        raise torch.OutOfMemoryError("sim out of memory. Tried to allocate 2.00 GiB.")


def test_weights_that_do_not_fit_are_no_fault_of_the_config() -> None:
    plan = ModelPlan(source="hf:llama")
    with pytest.raises(Day0Error) as caught:
        _build(lambda *_, **__: Large(), None, torch.float32, "sim", plan, "LlamaForCausalLM")
    assert caught.value.what.startswith("the weights of LlamaForCausalLM do not fit on sim: sim out of memory.")
    assert caught.value.hint.startswith("`day0 fit hf:llama --device PROFILE`")
