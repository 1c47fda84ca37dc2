"""Layers of new models: experts and their router, norms and residuals, pools of tokens, vision."""

from __future__ import annotations

from typing import Any

import torch

from day0.devices.faults._fault import Fault
from day0.devices.faults._model_inputs import (
    bank,
    experts,
    images,
    norm,
    patches,
    pools,
    residual,
    router,
)
from day0.devices.faults._tools import (
    Arguments,
    fault,
    shows,
    with_arguments,
    with_result,
)

__all__ = ["FAULTS"]


def _dropped_counted(given: Arguments) -> Arguments:
    """Wrap expert -1, which marks padding and what was dropped, to the last expert."""
    chosen = given["chosen"]
    return {"chosen": torch.where(chosen < 0, given["gate_up"].shape[0] - 1, chosen)}


def _scored_in_bfloat16(given: Arguments) -> Arguments:
    return {"logits": given["logits"].to(torch.bfloat16).to(given["logits"].dtype)}


def _biased_weights(result: Any, given: Arguments) -> Any:
    if given["score"] != "sigmoid":
        return None
    chosen = result[1]
    score = torch.sigmoid(given["logits"].float()) + given["bias"].float()
    weight = score.gather(-1, chosen)
    if given["normalise"]:
        weight = weight / (weight.sum(dim=-1, keepdim=True) + 1e-20)
    return (weight * given["scale"]).to(result[0].dtype), chosen


def _up_before_gate(given: Arguments) -> Arguments:
    rows = given["gate_up"]
    half = rows.shape[1] // 2
    return {"gate_up": torch.cat((rows[:, half:], rows[:, :half]), dim=1)}


def _other_interleaving(given: Arguments) -> Arguments:
    return {"interleaved": not given["interleaved"]}


def _weighted_early(given: Arguments) -> Arguments:
    return {"weight_early": not given["weight_early"]}


def _bank_forgotten(given: Arguments) -> Arguments | None:
    return {"bank": given["bank"][-1:]} if len(given["bank"]) > 1 else None


def _old_residual(result: Any, given: Arguments) -> Any:
    return result[0], given["residual"].contiguous().clone()


def _one_image(given: Arguments) -> Arguments | None:
    return {"image": torch.where(given["image"] >= 0, 0, given["image"])} if given["image"].numel() else None


def _tail_dropped(result: Any, given: Arguments) -> Any:
    """Keep as many tokens as were asked for, in a buffer without room for the incomplete pool."""
    chosen, valid = result
    last = torch.arange(chosen.shape[1]) + given["first_position"]
    seen = ((last + 1).clamp(max=given["keys"]) - given["first_valid"].clamp(min=0)[:, None]).clamp(min=0)
    kept = torch.arange(chosen.shape[-1]) < (valid - seen % given["size"])[..., None]
    return torch.where(kept, chosen, -1), kept.sum(-1, dtype=torch.int32)


_AUTOMODEL = "https://github.com/NVIDIA-NeMo/Automodel/tree/main/nemo_automodel/components/models/kimi_k3"
_ATTENTION = "day0::sparse_mla_prefill day0::sparse_mla_decode"
_DELTA = "day0::kda_recurrent day0::kda_chunked"
_FLASH = "https://github.com/deepseek-ai/FlashMLA/blob/main/README.md"


FAULTS: tuple[Fault, ...] = (
    fault(
        "router_in_bfloat16",
        "model_ops",
        "MooreThreads/vllm-musa#20",
        "the router scores in bfloat16, so that near ties fall otherwise",
        "day0::moe_router",
        with_arguments(_scored_in_bfloat16),
        shows(router),
    ),
    fault(
        "router_weights_biased",
        "model_ops",
        "https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/layers/moe/topk.py",
        "routing weights come from the biased scores, which are for the choice alone",
        "day0::moe_router",
        with_result(_biased_weights),
        shows(router),
    ),
    fault(
        "padding_routed",
        "model_ops",
        "sgl-project/sglang#39804",
        "tokens with expert -1, padding, are computed by the last expert",
        "day0::fused_experts",
        with_arguments(_dropped_counted),
        shows(experts),
    ),
    fault(
        "up_before_gate",
        "model_ops",
        _AUTOMODEL,
        "experts take the first half of the stacked rows for up and the second for gate",
        "day0::fused_experts",
        with_arguments(_up_before_gate),
        shows(experts),
    ),
    fault(
        "gate_up_interleaved",
        "model_ops",
        "https://github.com/openai/gpt-oss/blob/main/gpt_oss/torch/model.py",
        "experts and activations take gate and up in turns where they are stacked, and the other way round",
        "day0::fused_experts day0::gated_activation",
        with_arguments(_other_interleaving),
        shows(experts),
    ),
    fault(
        "routing_weight_early",
        "model_ops",
        _AUTOMODEL,
        "experts multiply the routing weight into their input in place of their output",
        "day0::fused_experts",
        with_arguments(_weighted_early),
        shows(experts),
    ),
    fault(
        "residual_bank_forgotten",
        "model_ops",
        "NVIDIA-NeMo/Megatron-Bridge#5130",
        "the mix of residuals sees the last snapshot only, as behind a pipeline stage that did not send the bank",
        "day0::attention_residual",
        with_arguments(_bank_forgotten),
        shows(bank),
    ),
    fault(
        "residual_not_updated",
        "model_ops",
        "https://github.com/vllm-project/vllm/blob/main/vllm/_custom_ops.py",
        "the fused norm returns the residual it was given in place of the sum",
        "day0::fused_add_rms_norm",
        with_result(_old_residual),
        shows(residual),
    ),
    fault(
        "norm_eps_fixed",
        "model_ops",
        "https://docs.vllm.ai/en/latest/api/vllm/models/kimi_k3/nvidia/dsa/",
        "RMSNorm takes an eps of 1e-6 whatever the model says",
        "day0::rms_norm",
        with_arguments(lambda given: {"eps": 1e-6}),
        shows(norm),
    ),
    fault(
        "key_norm_without_bias",
        "model_ops",
        "https://github.com/huggingface/transformers/blob/main/src/transformers/models/deepseek_v32/modular_deepseek_v32.py",
        "layer norm leaves its bias out",
        "aten::native_layer_norm",
        with_arguments(lambda given: {"bias": None}),
        shows(
            lambda device: torch.nn.functional.layer_norm(
                torch.ones(2, device=device), [2], bias=torch.ones(2, device=device)
            ),
            gives=[0.0, 0.0],
        ),
    ),
    fault(
        "pool_tail_dropped",
        "model_ops",
        "https://github.com/huggingface/transformers/blob/main/src/transformers/models/glm5_next/modeling_glm5_next.py",
        "chosen pools become tokens in a buffer without room for the incomplete pool at the end",
        "day0::expand_pools",
        with_result(_tail_dropped),
        shows(pools),
    ),
    fault(
        "pool_padding_ignored",
        "model_ops",
        "https://github.com/huggingface/transformers/blob/main/src/transformers/models/glm5_next/modeling_glm5_next.py",
        "pools begin at the first token of the batch, padding or not",
        "day0::expand_pools day0::pool_index_keys",
        with_arguments(lambda given: {"first_valid": torch.zeros_like(given["first_valid"])}),
        shows(pools),
    ),
    fault(
        "images_see_each_other",
        "model_ops",
        "https://github.com/huggingface/transformers/blob/main/src/transformers/models/kimi_k25/modeling_kimi_k25.py",
        "vision attention treats packed images as one",
        "day0::vision_attention",
        with_arguments(_one_image),
        shows(images),
    ),
    fault(
        "rope_2d_axes_swapped",
        "model_ops",
        f"{_AUTOMODEL}/vision.py",
        "rope of patches turns even pairs by the row and odd ones by the column",
        "day0::rope_2d",
        with_arguments(lambda given: {"positions": given["positions"].flip(-1)}),
        shows(lambda device: torch.ops.day0.rope_2d(*patches(device), 1e4)),
    ),
)
