"""A local transformers folder as the reference: on the CPU, in its own dtype and in a wider one, the golden.

Both see the tokens that the server chose (teacher forcing), so that one early difference does not hide what comes after.
The own dtype's distance from the golden is the yardstick: what the dtype explains.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from day0.analyzers.endpoint.case import make_case, meet_golden, meet_same
from day0.analyzers.endpoint.held import hold, typical_noise
from day0.analyzers.endpoint.places import Judged, Replies
from day0.analyzers.endpoint.protocol import Api
from day0.analyzers.endpoint.vocabulary import Vocabulary
from day0.errors import USER_ERRORS, Day0Error
from day0.models.source import open_model
from day0.models.spec import ModelSpec
from day0.playbook import ModelPlan
from day0.reference_ops.signatures import dtype_of

__all__ = ["LocalReference", "open_reference"]

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class LocalReference:
    """A folder that can be judged against. Its weights are loaded twice, one after the other."""

    folder: Path
    spec: ModelSpec
    vocabulary: Vocabulary
    dtype: torch.dtype
    """What the server is taken to compute in."""
    golden: torch.dtype

    @property
    def title(self) -> str:
        """The reference in words."""
        names = [str(one).removeprefix("torch.") for one in (self.golden, self.dtype)]
        return f"{self.folder} on the CPU in {names[0]}; yardstick {names[1]}"

    def judge(self, asked: Sequence[Replies], api: Api, progress: Progress) -> tuple[Judged, ...]:
        """Hold all answers against the reference. Those without an answer are left out."""
        answered = [(one, main) for one in asked if (main := one.main) is not None]
        cases = [make_case(one, main, self.vocabulary, api) for one, main in answered]
        model = self._load(self.golden)
        for number, case in enumerate(cases):
            cases[number] = meet_golden(case, model, self.golden, self.vocabulary)
            progress("reference", number + 1, len(cases))
        del model  # before the other is loaded: large models do not fit twice
        model = self._load(self.dtype)
        for number, case in enumerate(cases):
            cases[number] = meet_same(case, model, self.dtype)
            progress("yardstick", number + 1, len(cases))
        noise = typical_noise(cases)
        return tuple(hold(case, self.vocabulary, self.dtype, noise) for case in cases)

    def _load(self, dtype: torch.dtype) -> nn.Module:
        # From float32 weights on: a wider dtype changes none of them.
        name = "float32" if dtype == torch.float64 else str(dtype).removeprefix("torch.")
        model = open_model(_plan(self.folder, name)).build("cpu")
        return model.double() if dtype == torch.float64 else model


def open_reference(folder: Path, served_dtype: str) -> LocalReference:
    """Open a folder with config.json, safetensors and a tokenizer. Nothing is downloaded, and no code of it is run.

    Raises Day0Error: what the model's own source refuses, no weights, a tokenizer that cannot be read.
    """
    if not folder.is_dir():
        hint = "name the checkpoint's folder, with config.json and its tokenizer"
        raise Day0Error("--reference", f"there is no folder {str(folder)!r}", hint=hint)
    name = served_dtype or _own_dtype(folder)
    spec = open_model(_plan(folder, name))
    if not spec.trained:
        raise Day0Error(str(folder), "there are no weights in this folder", hint="name the checkpoint's own folder")
    dtype = dtype_of(name)
    return LocalReference(
        folder=folder,
        spec=spec,
        vocabulary=_vocabulary(folder, spec),
        dtype=dtype,
        golden=torch.float64 if dtype == torch.float32 else torch.float32,
    )


def _plan(folder: Path, dtype: str) -> ModelPlan:
    # Absolute: a relative name may also be that of a model type.
    return ModelPlan(source=f"hf:{folder.resolve()}", dtype=dtype)


def _own_dtype(folder: Path) -> str:
    """Return the dtype that config.json names; what else is wrong with it, the model's source says."""
    try:
        document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return "bfloat16"
    fields = document if isinstance(document, dict) else {}
    text = fields.get("text_config")
    for one in (fields, text if isinstance(text, dict) else {}):
        found = one.get("dtype") or one.get("torch_dtype")
        if found in ("float32", "bfloat16", "float16"):
            return str(found)
    return "bfloat16"


def _vocabulary(folder: Path, spec: ModelSpec) -> Vocabulary:
    import transformers

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except USER_ERRORS as error:
        text = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise Day0Error(str(folder), f"its tokenizer cannot be read: {text}", hint="copy its files too") from None
    return Vocabulary(
        tokenizer=tokenizer,
        processor=_processor(folder) if spec.image_inputs is not None else None,
        where=str(folder),
        size=spec.vocab_size,
        ends=_ends(folder, tokenizer),
    )


def _processor(folder: Path) -> Any:
    import transformers

    try:
        processors: Any = transformers.AutoProcessor  # it annotates nothing
        return processors.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except USER_ERRORS:
        return None  # then a prompt with images is refused, by name


def _ends(folder: Path, tokenizer: Any) -> frozenset[int]:
    """Return the ids that end a text: those of generation_config.json and config.json, and the tokenizer's."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        try:
            document = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        value = document.get("eos_token_id") if isinstance(document, dict) else None
        found |= {one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int)}
    return frozenset(found | {one for one in (tokenizer.eos_token_id,) if isinstance(one, int)})
