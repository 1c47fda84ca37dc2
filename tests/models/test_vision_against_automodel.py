"""The vision branch is Kimi K3's tower and projector: the same weights give the same visual tokens."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from day0.models.toy.model import ToyConfig
from day0.models.toy.vision import VisionTower
from day0.reference_ops.agreement._comparison import load_file
from day0.reference_ops.agreement._widened import Widened
from tests.models.theirs import filled
from tests.models.toys import CONFIG, image, toy

VISION = "nemo_automodel/components/models/kimi_k3/vision.py"
NAMES = {
    "embed.proj.weight": "patch_proj.weight",
    "embed.pos_emb.weight": "position_table",
    "encoder.final_layernorm.weight": "final_norm.weight",
    "projector.proj.0.weight": "projector0.weight",
    "projector.proj.2.weight": "projector1.weight",
    "projector.post_norm.weight": "projector_norm.weight",
}


class Theirs(torch.nn.Module):
    """Their parts in their order. Their norms take eps from the dtype unless it is set; here it is the toy's."""

    def __init__(self, vision: Any, config: ToyConfig) -> None:
        super().__init__()
        width, grid, merge = config.vision_hidden_size, config.vision_grid, (config.vision_merge,) * 2
        self.config, self.vision = config, vision
        self.embed = vision.MoonVision3dPatchEmbed(
            width, config.vision_channels, config.vision_patch, grid, grid, 1,
            patch_embed_proj_bias=False, pos_emb_interpolation_mode="bilinear",
        )  # fmt: skip
        block = {
            "num_heads": config.vision_heads,
            "hidden_dim": width,
            "qkv_hidden_size": config.vision_heads * config.vision_head_dim,
            "mlp_dim": config.vision_intermediate_size,
            "norm_type": "rmsnorm",
            "activation": vision.PytorchGELUTanh(),
            "linear_bias": False,
            "attn_implementation": "eager",
        }
        self.encoder = vision.MoonViT3dEncoder(width, config.vision_layers, block)
        sizes = {"mm_hidden_size": width, "hidden_size": config.hidden_size, "merge_kernel_size": merge}
        self.projector = vision.PatchMergerMLPV2(SimpleNamespace(**sizes, projector_ln_eps=config.rms_norm_eps))
        for part in self.modules():
            if isinstance(part, torch.nn.RMSNorm):
                part.eps = config.rms_norm_eps

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        size, merge = self.config.vision_patch, (self.config.vision_merge,) * 2
        cut = pixels.unfold(2, size, size).unfold(3, size, size)
        images, _, rows, columns = cut.shape[:4]
        grids = torch.tensor([[1, rows, columns]]).expand(images, 3)
        patches = cut.permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
        merged = self.vision.tpool_patch_merger(self.encoder(self.embed(patches, grids), grids), grids, merge)
        return torch.stack(tuple(self.projector(merged)))


def pair(config: ToyConfig, monkeypatch: pytest.MonkeyPatch) -> tuple[Theirs, VisionTower]:
    """Return their tower and the toy's, with the same weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        vision = load_file("nemo-automodel", VISION)
    # It insists on complex numbers of float32.
    monkeypatch.setattr(vision, "_apply_rope_input_validation", lambda _x, _turns: None)
    with Widened():
        theirs: Theirs = filled(Theirs(vision, config), 7)
    named = {}
    for name, value in theirs.state_dict().items():
        mine = NAMES.get(name) or name.removeprefix("encoder.").replace(".mlp.", ".")
        named[mine] = value.flatten(1) if mine == "patch_proj.weight" else value
    ours = toy(config).vision_tower
    ours.load_state_dict(named, strict=True)
    return theirs, ours


def seen_by(theirs: Theirs, pixels: torch.Tensor) -> torch.Tensor:
    """Call their tower in float64; what it would compile runs as it is written."""
    with torch.no_grad(), Widened(), torch.compiler.set_stance("force_eager"):
        tokens_BGD: torch.Tensor = theirs(pixels)
    return tokens_BGD


@pytest.mark.parametrize("cells", [(4, 4), (1, 1), (3, 2), (5, 7)])
def test_visual_tokens_are_theirs(cells: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = pair(CONFIG, monkeypatch)
    expected = seen_by(theirs, image(2, cells))
    assert float(expected.std()) > 0.1
    torch.testing.assert_close(ours(image(2, cells)), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("change", [{"vision_window": 1}, {"rms_norm_eps": 1e-2}], ids=str)
def test_another_attribute_is_another_tower(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = pair(CONFIG, monkeypatch)
    other = toy(replace(CONFIG, **change)).vision_tower
    other.load_state_dict(ours.state_dict())
    expected = seen_by(theirs, image(2, (4, 4)))
    assert not torch.allclose(other(image(2, (4, 4))), expected, rtol=1e-4, atol=1e-4)
