"""How the cosines and sines stand that a model makes: the operator takes each of them once."""

from __future__ import annotations

import inspect
import sys
import warnings
from typing import Any

import torch
from torch import nn

from day0.errors import USER_ERRORS
from day0.models.adapters._adapter import Refused

__all__ = ["angle_form", "laid_out", "read"]


def angle_form(module: nn.Module) -> str:
    """Return how the angles of a module's rotary embedding stand: `twice`, `alternating` or `once`.

    Twice means one half after the other, alternating each angle beside itself.
    The functions multiply by what they get, and the operator reads each angle once: what is not given twice may not be
    taken for it. The embeddings of the module's file are made anew from its config, and called with positions that
    differ in every dimension. Raises Refused where there is none to ask.
    """
    config = getattr(module, "config", None)
    if config is None:
        raise Refused("it has no config from which its rotary embedding could be made")
    file = sys.modules[type(module).__module__]
    kinds = [one for name, one in vars(file).items() if name.endswith("RotaryEmbedding") and inspect.isclass(one)]
    made = [angles for kind in kinds for angles in _angles(kind, config)]
    if not made:
        raise Refused("no rotary embedding of its file can be made from its config")
    forms = {_form(angles) for angles in made}
    if len(forms) > 1:
        raise Refused(f"the rotary embeddings of its file give angles in several forms: {', '.join(sorted(forms))}")
    return forms.pop()


def laid_out(angle_ASP: torch.Tensor, form: str) -> torch.Tensor:
    """Return angles as a model gives them."""
    if form == "twice":
        return torch.cat((angle_ASP, angle_ASP), dim=-1)
    return angle_ASP.repeat_interleave(2, dim=-1) if form == "alternating" else angle_ASP


def read(angles: torch.Tensor, form: str) -> torch.Tensor:
    """Return each angle once."""
    if form == "twice":
        return angles[..., : angles.shape[-1] // 2]
    return angles[..., 0::2] if form == "alternating" else angles


def _form(angles: torch.Tensor) -> str:
    half = angles.shape[-1] // 2
    if angles.shape[-1] % 2 == 0:
        if torch.equal(angles[..., :half], angles[..., half:]):
            return "twice"
        if torch.equal(angles[..., 0::2], angles[..., 1::2]):
            return "alternating"
    return "once"


def _angles(kind: Any, config: Any) -> list[torch.Tensor]:
    """Return cosines and sines of all calls that an embedding takes; none for one that is of another part's config."""
    found: list[torch.Tensor] = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            embedding = kind(config)
        except USER_ERRORS:
            return []
        x = torch.zeros(1, 6, 4)
        flat = torch.tensor([[0, 3, 7, 50, 51, 4000]])
        # The second: places in an image. In such models the halves may turn by different positions.
        for positions in (flat, torch.stack((flat, flat + 5, 2 * flat))):
            for more in ({}, *({"layer_type": one} for one in _layer_types(embedding, config))):
                try:
                    result = embedding(x, positions, **more)
                except USER_ERRORS:
                    continue
                if isinstance(result, tuple) and all(isinstance(one, torch.Tensor) for one in result):
                    found += result
    return found


def _layer_types(embedding: Any, config: Any) -> list[str]:
    types = getattr(embedding, "layer_types", None) or getattr(config, "layer_types", None) or ()
    return sorted({one for one in types if isinstance(one, str)})
