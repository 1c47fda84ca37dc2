"""A tiny random model with a tokenizer, saved as a transformers folder; and the same with one weight changed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import transformers as typed
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

transformers: Any = typed
"""Much of it has no annotations, and some has wrong ones."""

VISION_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endif %}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TEXT = """The reference runs twice on the same tokens: once in its own dtype, and once in a wider one. What the two are
apart is the noise that rounding makes. The server takes a token, and the reference would have taken another; if the margin
between them is smaller than the noise, nobody is wrong. def add(a, b): return a + b # import Path from "the folder", {0-9}
<|user|>, <|assistant|>; return text, save the model with one weight changed! 1, 2, 3 / 4 = 0.75 & (5 * 6) - 7 >= 8?
Which colors? Compare them. ABCDEFGHIJKLMNOPQRSTUVWXYZ abcdefghijklmnopqrstuvwxyz 0123456789 _%$@^~[]'"""
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer_of(vocabulary: int = 300, text: str = TEXT) -> Any:
    """Train a byte-level tokenizer on ASCII: each of its tokens is a text of its own."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<image>"]
    made.train_from_iterator(
        [text], trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=special, show_progress=False)
    )
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, chat_template=TEMPLATE, clean_up_tokenization_spaces=False, **tokens
    )


def save_tiny(folder: Path, *, dtype: torch.dtype = torch.float32, vocabulary: int = 300, text: str = TEXT) -> Path:
    """Save a llama of one layer, whose weights are large enough that its choices are clear."""
    tokenizer = tokenizer_of(vocabulary, text)
    config = _text_config(len(tokenizer))
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).to(dtype)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_tiny_vision(folder: Path) -> Path:
    """Save a llava with two towers of one layer: an image of 16 by 16 is four patches and one place before them."""
    tokenizer = tokenizer_of()
    size = {"height": 16, "width": 16}
    processor = transformers.LlavaProcessor(
        image_processor=transformers.CLIPImageProcessorPil(size=size, crop_size=size),
        tokenizer=tokenizer,
        patch_size=8,
        vision_feature_select_strategy="full",
        image_token="<image>",  # noqa: S106 - a token of a vocabulary
        num_additional_image_tokens=1,
        chat_template=VISION_TEMPLATE,
    )
    vision = transformers.CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=16,
        patch_size=8,
        initializer_range=0.3,
    )
    config = transformers.LlavaConfig(
        vision_config=vision,
        text_config=_text_config(len(tokenizer)),
        image_token_id=2,
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
    )
    torch.manual_seed(0)
    transformers.LlavaForConditionalGeneration(config).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _text_config(vocabulary: int) -> Any:
    return transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )


def perturbed(folder: Path, copy: Path, *, name: str = "model.layers.0.mlp.down_proj.weight", by: float = 4.0) -> Path:
    """Copy a folder and change a single weight in it."""
    shutil.copytree(folder, copy)
    tensors = load_file(copy / "model.safetensors")
    tensors[name][3, 5] += by
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    return copy
