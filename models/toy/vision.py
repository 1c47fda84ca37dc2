"""The vision branch of the toy model, shaped like MoonViT: patches, 2-D rope, merge, projector.

Shape suffixes: B images, I channels, Y rows of pixels, X columns of pixels, N = B * M patches, M patches of an image,
U patch rows, W patch columns, C vision width, H heads, E head dimension, G merged patches, Q = merge^2 * C, D hidden.
"""

from __future__ import annotations

import torch
from torch import nn

from day0.errors import Day0Error
from day0.models.toy.calls import Calls
from day0.models.toy.config import ToyConfig
from day0.models.toy.layers import RmsNorm, wide_dtype

__all__ = ["VisionTower"]

THETA = 10000.0


class VisionBlock(nn.Module):
    """Attention inside each image, then a tanh-GELU network."""

    def __init__(self, config: ToyConfig, calls: Calls) -> None:
        super().__init__()
        self.config, self.calls = config, calls
        width, inner = config.vision_hidden_size, config.vision_heads * config.vision_head_dim
        self.norm0, self.norm1 = (RmsNorm(width, config.rms_norm_eps) for _ in range(2))
        self.wqkv = nn.Linear(width, 3 * inner, bias=False)
        self.wo = nn.Linear(inner, width, bias=False)
        self.fc0 = nn.Linear(width, config.vision_intermediate_size, bias=False)
        self.fc1 = nn.Linear(config.vision_intermediate_size, width, bias=False)

    def forward(self, x_NC: torch.Tensor, image_N: torch.Tensor, position_N2: torch.Tensor) -> torch.Tensor:
        """Return [N, C]."""
        config, calls = self.config, self.calls
        qkv = self.wqkv(self.norm0(x_NC)).unflatten(-1, (3, config.vision_heads, config.vision_head_dim))
        q_NHE, k_NHE, v_NHE = qkv.unbind(1)
        q_NHE, k_NHE = (calls.rope_2d(x_NHE, position_N2, THETA) for x_NHE in (q_NHE, k_NHE))
        mixed_NHE = calls.vision_attention(
            q_NHE, k_NHE, v_NHE.contiguous(), image_N, position_N2, config.vision_head_dim**-0.5,
            config.vision_window, config.vision_global_tokens,
        )  # fmt: skip
        x_NC = x_NC + self.wo(mixed_NHE.flatten(-2))
        out_NC: torch.Tensor = x_NC + self.fc1(nn.functional.gelu(self.fc0(self.norm1(x_NC)), approximate="tanh"))
        return out_NC


class VisionTower(nn.Module):
    """Images to visual tokens in the decoder's width."""

    def __init__(self, config: ToyConfig, calls: Calls) -> None:
        super().__init__()
        self.config, self.calls = config, calls
        width, hidden, merge = config.vision_hidden_size, config.hidden_size, config.vision_merge
        self.patch_proj = nn.Linear(config.vision_channels * config.vision_patch**2, width, bias=False)
        self.position_table = nn.Parameter(torch.empty(config.vision_grid, config.vision_grid, width))
        self.blocks = nn.ModuleList(VisionBlock(config, calls) for _ in range(config.vision_layers))
        self.final_norm = RmsNorm(width, config.rms_norm_eps)
        # The projector takes the exact GELU, unlike the blocks, and its norm stands last.
        self.projector0 = nn.Linear(merge * merge * width, merge * merge * width, bias=False)
        self.projector1 = nn.Linear(merge * merge * width, hidden, bias=False)
        self.projector_norm = RmsNorm(hidden, config.rms_norm_eps)
        if config.vision_keep:
            self.importance = nn.Linear(hidden, 1, bias=False)

    def tokens(self, pixels_BIYX: torch.Tensor) -> int:
        """Return how many visual tokens each image becomes.

        Raises Day0Error for images that cannot be cut into whole merged patches, or hold whole numbers.
        """
        config = self.config
        cell = config.vision_patch * config.vision_merge
        if pixels_BIYX.dim() != 4 or pixels_BIYX.shape[1] != config.vision_channels:
            what = f"expected [images, {config.vision_channels}, height, width], got {list(pixels_BIYX.shape)}"
            raise Day0Error("pixel_values", what, hint="give one image for each prompt of the batch")
        if not pixels_BIYX.is_floating_point():
            what = f"expected floating-point values of about 0 to 1, got {pixels_BIYX.dtype}"
            raise Day0Error("pixel_values", what, hint="divide whole numbers by 255")
        height, width = pixels_BIYX.shape[2:]
        if height % cell or width % cell or not height or not width:
            what = f"expected height and width to be multiples of {cell}, got {height} x {width}"
            raise Day0Error("pixel_values", what, hint="resize or pad the image")
        merged = (height // cell) * (width // cell)
        return min(config.vision_keep, merged) if config.vision_keep else merged

    def forward(self, pixels_BIYX: torch.Tensor) -> torch.Tensor:
        """Return [B, G, D]."""
        config, calls = self.config, self.calls
        self.tokens(pixels_BIYX)
        patch, images = config.vision_patch, pixels_BIYX.shape[0]
        rows, columns = pixels_BIYX.shape[2] // patch, pixels_BIYX.shape[3] // patch
        # Images come in float32 from whoever reads them, whatever the model computes in.
        pixels_BIYX = pixels_BIYX.to(self.patch_proj.weight.dtype)
        cut = pixels_BIYX.unflatten(3, (columns, patch)).unflatten(2, (rows, patch))
        patch_BMC = self.patch_proj(cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2))
        table_MC = calls.resize_positions(self.position_table, rows, columns, "bilinear").flatten(0, 1)
        x_NC = (patch_BMC + table_MC).flatten(0, 1)
        image_N, position_N2 = _places(images, rows, columns, x_NC.device)
        for block in self.blocks:
            x_NC = block(x_NC, image_N, position_N2)
        x_BMC = self.final_norm(x_NC).unflatten(0, (images, -1))
        merged_BGQ = torch.stack([calls.merge_patches(x_MC, rows, columns, config.vision_merge) for x_MC in x_BMC])
        x_BGD = self.projector_norm(self.projector1(nn.functional.gelu(self.projector0(merged_BGQ))))
        return self._prune(x_BGD) if config.vision_keep else x_BGD

    def _prune(self, x_BGD: torch.Tensor) -> torch.Tensor:
        """Keep the most important tokens in their order."""
        keep = min(self.config.vision_keep, x_BGD.shape[1])
        score_B1G = self.importance(x_BGD).transpose(1, 2).to(wide_dtype(x_BGD))
        chosen_B1K = self.calls.topk_tokens(score_B1G, keep)[0]
        kept_BK = torch.sort(chosen_B1K[:, 0].to(torch.int64), dim=-1).values
        return x_BGD.gather(1, kept_BK[..., None].expand(-1, -1, x_BGD.shape[-1]))


def _places(images: int, rows: int, columns: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the image of each patch [N] and its row and column [N, 2], int32."""
    number_N = torch.arange(images * rows * columns, device=device)
    inside_N = number_N % (rows * columns)
    image_N = torch.div(number_N, rows * columns, rounding_mode="floor")
    row_N = torch.div(inside_N, columns, rounding_mode="floor")
    return image_N.to(torch.int32), torch.stack((row_N, inside_N % columns), dim=-1).to(torch.int32)
