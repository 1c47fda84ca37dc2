"""What every model source gives: facts for planning, and a way to build the module on any device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

__all__ = ["ImageInputs", "ModelSpec", "OwnPhase", "decoder_layers"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnPhase:
    """One call that a model's source brings with it, for models that take more or other things than token ids."""

    name: str
    reason: str
    """Where the inputs come from."""
    prepare: Callable[[nn.Module, str], Callable[[], object]]
    """Makes the inputs on a device and returns the call, so that making them is not part of the trace."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageInputs:
    """What a model with a vision branch is called with for a prompt with images."""

    ids_BS: torch.Tensor
    """Token ids, with as many placeholders as the image has visual tokens."""
    arguments: Mapping[str, Any]
    """`pixel_values` and what else the model wants to know of its images."""
    text: str
    """The image in words: its size and its number of visual tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """A model that can be built, not one that is.

    `build(device)` makes the module in eval mode; on `meta` nothing is allocated, elsewhere the weights are the
    model's own or drawn from a seed, the same on every call. The module is called the way transformers calls its
    causal models: `module(input_ids=ids_BS, past_key_values=None, use_cache=True)` with `.logits` and
    `.past_key_values` in the result.
    """

    source: str
    overrides: dict[str, str] = field(default_factory=dict)
    dtype: torch.dtype
    class_name: str
    fingerprint: str
    vocab_size: int
    """0 for a model with phases of its own, which need not know tokens."""
    sparse_top_k: int | None
    """How many tokens sparse attention selects; below it the model takes dense paths."""
    max_positions: int | None
    build: Callable[[str], nn.Module]
    notes: tuple[str, ...] = ()
    weights: Callable[[], str] = lambda: ""
    """Says, after `build`, which weights it made: loaded from where, or random from which seed."""
    trained: bool = False
    """True where `build` loads the model's own weights: then the values in a real trace mean something."""
    phases: tuple[OwnPhase, ...] = ()
    """The model's own calls; empty for one that is called with token ids."""
    image_inputs: Callable[[nn.Module, torch.Tensor, Callable[[torch.Tensor], torch.Tensor]], ImageInputs] | None = None
    """Makes the inputs for one image per sequence of token ids [B, S]; the last argument moves a tensor to where the
    model runs. None for a model without a vision branch."""
    shrink: Callable[[], ModelSpec] | None = None
    """Gives the same model in a small size; None where nobody knows how."""
    shrunk: dict[str, str] = field(default_factory=dict)
    """Config fields that were made smaller, `before -> after`; empty for the model as it is."""
    draw: Callable[[str], nn.Module] | None = None
    """Builds the model with weights drawn on the device itself: other values than `build` makes, and much sooner."""
    own: Callable[[str], nn.Module] | None = None
    """Builds the model with nothing but its own code, where `build` makes modules of it call our operators."""
    read_weights: Callable[[], Callable[[str], torch.Tensor]] | None = None
    """Opens the weights, to be read one by one by their names in the module; None where they cannot be."""
    adapted: Callable[[], dict[str, str]] = dict
    """Says, after `build`, which modules call our operators: adapter to `9 LlamaRMSNorm`."""

    def build_own(self, device: str) -> nn.Module:
        """Build the model with its own code alone: what an adapted one is held against."""
        return (self.own or self.build)(device)


def decoder_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the decoder layers by path: the members of the longest ModuleList, outermost where equal.

    Empty for a model without any list of modules.
    """
    best_path, best = "", nn.ModuleList()
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) > len(best) and not _inside(path, best_path):
            best_path, best = path, module
    return {f"{best_path}.{name}": layer for name, layer in best.named_children()}


def _inside(path: str, outer: str) -> bool:
    # Experts are a longer list than layers, but they stand inside a layer.
    return bool(outer) and path.startswith(outer + ".")
