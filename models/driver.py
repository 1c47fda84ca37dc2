"""Run one phase of a workload on a module that follows the transformers call protocol."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

__all__ = ["CACHE_NAMES", "CallStyle", "StepOutput", "greedy", "step", "style_of"]

CACHE_NAMES = ("cache", "past_key_values", "cache_params", "state", "mems", "past_buckets_states")
"""What models call what they keep between calls. transformers renamed `past_key_values` to `cache` in release 5.24."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutput:
    """Logits of the last call [B, S, V], and the cache to give to the next call."""

    logits_BSV: torch.Tensor
    cache: Any
    encoded: Any = None
    """What the encoder of an encoder-decoder model returned, to give to the next call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallStyle:
    """How a model wants to be called."""

    cache_name: str | None
    """Name of the argument for what is kept between calls; None where the model keeps nothing."""
    switch: str | None
    """Name of the argument that asks for it."""
    encoder_decoder: bool = False
    """The prompt goes to the encoder, and new tokens to the decoder."""
    all_tokens: bool = False
    """Each call gets all token ids again, and the model skips those that its cache holds."""
    takes_ids: bool = True
    """False where the model is fed the states of another one (draft heads) and no token ids."""
    streams: int = 1
    """How many rows of ids make one sequence: audio decoders take one for each codebook."""
    extra: Mapping[str, Callable[[torch.Tensor], Any]] = field(default_factory=dict)
    """Inputs that the model cannot do without, made from the token ids."""


def style_of(model: nn.Module) -> CallStyle:
    """Read from a model's signature and config how it wants to be called."""
    names = inspect.signature(model.forward).parameters
    config = getattr(model, "config", None)
    open_ended = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in names.values())
    cache_name = next((name for name in CACHE_NAMES if name in names), None)
    switch = "use_mems" if "use_mems" in names else "use_cache" if "use_cache" in names or open_ended else None
    return CallStyle(
        cache_name=cache_name,
        switch=switch,
        encoder_decoder="decoder_input_ids" in names and bool(getattr(config, "is_encoder_decoder", False)),
        all_tokens=hasattr(config, "prompt_length") and hasattr(config, "prompt_types"),
        takes_ids="shared_kv_states" not in names,
        streams=_streams(model, config),
        extra=_extra_inputs(model, names, config),
    )


def _streams(model: nn.Module, config: Any) -> int:
    streams = getattr(model, "num_codebooks", None) or getattr(config, "num_codebooks", None)
    return streams if isinstance(streams, int) and hasattr(model, "lm_heads") else 1


def _extra_inputs(model: nn.Module, names: Mapping[str, Any], config: Any) -> dict[str, Callable[[torch.Tensor], Any]]:
    if "lang_ids" in names and getattr(config, "languages", None):
        return {"lang_ids": lambda ids_BS: ids_BS.new_zeros(ids_BS.shape[0])}
    if "shared_kv_states" in names:
        return {
            "inputs_embeds": lambda ids_BS: _states_of_main_model(model, ids_BS),
            "shared_kv_states": lambda ids_BS: _keys_of_main_model(model, config, ids_BS),
        }
    return {}


def _states_of_main_model(model: nn.Module, ids_BS: torch.Tensor) -> torch.Tensor:
    weight: torch.Tensor = model.pre_projection.weight  # type: ignore[union-attr,assignment]  # draft heads have one
    return torch.zeros(*ids_BS.shape, weight.shape[1], dtype=weight.dtype, device=weight.device)


def _keys_of_main_model(
    model: nn.Module, config: Any, ids_BS: torch.Tensor
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return the keys and values [B, heads, S, dim] of the last layer of each kind, as the main model would hand on."""
    text = config.get_text_config(decoder=True)
    weight = next(model.parameters())
    made = {}
    for number, kind in enumerate(text.layer_types):
        layer = text.per_layer_config[number] if hasattr(text, "per_layer_config") else text
        shape = (ids_BS.shape[0], layer.num_key_value_heads, ids_BS.shape[1], layer.head_dim)
        keys, values = (torch.zeros(shape, dtype=weight.dtype, device=weight.device) for _ in range(2))
        made[kind] = (keys, values)
    return made


def step(
    model: nn.Module,
    ids_BS: torch.Tensor,
    cache: Any = None,
    *,
    style: CallStyle | None = None,
    earlier: StepOutput | None = None,
    use_cache: bool = True,
    inputs: Mapping[str, Any] | None = None,
) -> StepOutput:
    """Call the model once with new tokens [B, S], after those that the cache holds.

    With a style whose `all_tokens` is set the ids are those of all tokens so far. `earlier` is the output of the call
    before, for models that also keep what their encoder returned; `inputs` are further arguments, such as images.
    """
    style = style or style_of(model)
    arguments = dict(inputs or {})
    for name, make in style.extra.items():
        arguments[name] = make(ids_BS)
    if style.cache_name is not None and cache is not None:
        arguments[style.cache_name] = cache
    if style.switch is not None:
        arguments[style.switch] = use_cache
    arguments |= _ids(style, ids_BS, earlier)
    with torch.no_grad():
        return _output(model(**arguments))


def _ids(style: CallStyle, ids_BS: torch.Tensor, earlier: StepOutput | None) -> dict[str, Any]:
    if not style.takes_ids:
        return {}
    if style.streams > 1:
        return {"input_ids": ids_BS.repeat_interleave(style.streams, dim=0)}
    if not style.encoder_decoder:
        return {"input_ids": ids_BS}
    if earlier is not None and earlier.encoded is not None:
        return {"decoder_input_ids": ids_BS, "encoder_outputs": (earlier.encoded,)}
    return {"input_ids": ids_BS, "decoder_input_ids": ids_BS}


def _output(output: Any) -> StepOutput:
    kept = next((value for name in CACHE_NAMES if (value := getattr(output, name, None)) is not None), None)
    logits = getattr(output, "logits", None)
    encoded = getattr(output, "encoder_last_hidden_state", None)
    return StepOutput(logits_BSV=output[0] if logits is None else logits, cache=kept, encoded=encoded)


def greedy(model: nn.Module, ids_BS: torch.Tensor, new_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Generate greedily. Returns token ids [B, new] and the logits [B, new, V] they were taken from, on the CPU."""
    output = step(model, ids_BS)
    rows, tokens = [], []
    for number in range(new_tokens):
        row_BV = output.logits_BSV[:, -1].float().cpu()
        rows.append(row_BV)
        # The choice is made on the CPU so that a device without argmax can generate too.
        token_B1 = row_BV.argmax(dim=-1, keepdim=True)
        tokens.append(token_B1)
        if number + 1 < new_tokens:
            output = step(model, token_B1.to(ids_BS.device), output.cache)
    return torch.cat(tokens, dim=1), torch.stack(rows, dim=1)
