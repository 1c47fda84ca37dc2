"""One training step of the toy as a model of its own: `py:day0.models.toy.one_step:training_step`.

Shape suffixes: B batch, S tokens, V vocabulary, E experts, O output rows, I inputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from day0.converters.workspace import PackedExperts
from day0.models.own import Inputs, OwnModel
from day0.models.toy.config import ToyConfig
from day0.models.toy.layers import Experts
from day0.models.toy.model import ToyModel
from day0.models.toy.training import RoundedExperts, TrainingCalls, first_weights

__all__ = ["TrainingStep", "training_step"]

SEED = 3


class _Weights:
    """A workspace that gives the float weights of experts as they are."""

    def __init__(self, weights: nn.ParameterDict) -> None:
        self._weights = weights

    def expert_weights(self, packed: PackedExperts, dtype: torch.dtype) -> torch.Tensor:
        """Return the weights [E, O, I]."""
        weight: torch.Tensor = self._weights[_key(packed.name)]
        return weight


def _key(name: str) -> str:
    return name.replace(".", "_")  # torch allows no dots in names of parameters


class Checkpointed(nn.Module):
    """A layer that keeps its inputs alone, and runs again in the backward pass."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Any) -> Any:
        """Return what the layer returns."""
        return checkpoint(self.layer, *inputs, use_reentrant=False)


class TrainingStep(nn.Module):
    """Loss and gradients of one batch; weights stay as they are, so that the step can be repeated."""

    def __init__(self, config: ToyConfig, *, checkpointing: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(SEED)
        self.calls = TrainingCalls()
        self.model = ToyModel(config, self.calls)
        first_weights(self.model, generator)
        drawn = RoundedExperts(self.model, generator).weights
        self.experts = nn.ParameterDict({_key(name): value for name, value in drawn.items()})
        for module in self.model.modules():
            if isinstance(module, Experts):
                module.workspace = _Weights(self.experts)
        if checkpointing:
            self.model.layers = nn.ModuleList(Checkpointed(layer) for layer in self.model.layers)

    def forward(self, ids_BS: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of guessing each next token, and the gradients of all weights in one row."""
        weights = tuple(self.parameters())
        with torch.enable_grad():
            for value in weights:
                value.requires_grad_(True)
            logits_BSV = self.model(input_ids=ids_BS[:, :-1], use_cache=False).logits
            loss = nn.functional.cross_entropy(logits_BSV.flatten(0, 1), ids_BS[:, 1:].flatten())
            gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        self.calls.forget()
        return loss.detach(), torch.cat([one.flatten() for one in gradients if one is not None])


def training_step(*, checkpointing: bool = True, batch: int = 2, tokens: int = 33) -> OwnModel:
    """Return one step on random tokens [batch, tokens]. The indexer and the vision branch get no gradients here."""
    config = ToyConfig(vision=False)
    generator = torch.Generator().manual_seed(SEED)
    ids_BS = torch.randint(0, config.vocab_size, (batch, tokens), generator=generator)
    module = TrainingStep(config, checkpointing=checkpointing)
    return OwnModel(module=module, inputs={"training": Inputs(args=(ids_BS,))}, dtype=torch.float32)
