"""The weights of a transformers checkpoint in a folder, put into the module that its config makes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from day0.errors import USER_ERRORS, Day0Error
from day0.hashing import hash_json
from day0.models.checkpoint import Checkpoint, find_checkpoint
from day0.models.memory import has_values, module_bytes, refuse_too_large
from day0.models.quantised import readable_tensors
from day0.models.spec import ModelSpec
from day0.playbook import ModelPlan

__all__ = ["refuse_two_meanings", "with_weights"]


def refuse_two_meanings(plan: ModelPlan) -> None:
    """Raise Day0Error for a name that is a model type and a checkpoint folder too: the wrong one would be traced."""
    name = plan.source.removeprefix("hf:")
    if "/" in name or not (Path(name) / "config.json").is_file():
        return
    import transformers

    if name in transformers.CONFIG_MAPPING:
        what = f"'{name}' is a model type, and there is a checkpoint folder of that name here"
        raise Day0Error(plan.source, what, hint=f"write hf:./{name} for the folder; for the type, run day0 elsewhere")


def with_weights(spec: ModelSpec, plan: ModelPlan) -> ModelSpec:
    """Let `build` load the weights of the folder that a source names, if it names one and it has any."""
    folder = Path(plan.source.removeprefix("hf:"))
    found = _folder_weights(folder) if folder.is_dir() else None
    if found is None or not found.there:
        return replace(spec, build=_within_memory(spec), weights=lambda: f"random, seed {plan.seed}")

    def build(device: str) -> nn.Module:
        if device == "meta" or not has_values():
            return spec.build(device)
        return found.load(spec.build("meta"), spec.dtype, plan.source).to(device)

    fingerprint = hash_json([spec.fingerprint, found.fingerprint()])
    return replace(
        spec,
        build=build,
        fingerprint=fingerprint,
        weights=found.text,
        trained=True,
        notes=(),
        read_weights=lambda: found.reader(spec.build("meta"), spec.dtype),
    )


def _within_memory(spec: ModelSpec) -> Callable[[str], nn.Module]:
    def build(device: str) -> nn.Module:
        if device != "meta" and has_values():
            refuse_too_large(module_bytes(spec.build("meta")), spec.source)
        return spec.build(device)

    return build


@dataclass(kw_only=True)
class FolderWeights:
    """What is known of a folder's weights: a checkpoint, or why there is none to load."""

    folder: Path
    checkpoint: Checkpoint | None
    problem: Day0Error | None = None
    """Raised when the weights are needed: a trace on meta does without."""
    unused: list[str] = field(default_factory=list)
    """Tensors that the model has no place for; known after loading."""

    @property
    def there(self) -> bool:
        """True where there are weights, even if they cannot be loaded: then nothing random takes their place."""
        return self.checkpoint is not None or self.problem is not None

    def fingerprint(self) -> str:
        """Return a hash of the weights; of the problem where they cannot be read."""
        return self.checkpoint.fingerprint() if self.checkpoint is not None else str(self.problem or "none")

    def text(self) -> str:
        """Say which weights were loaded."""
        if self.checkpoint is None:
            return ""
        files = len(self.checkpoint.files)
        size = _size(self.checkpoint.bytes)
        said = f"loaded from {files} file{'s' * (files != 1)}, {size}"
        return said + (f"; {len(self.unused)} tensors unused: {_some(self.unused)}" if self.unused else "")

    def load(self, model: nn.Module, dtype: torch.dtype, where: str) -> nn.Module:
        """Return a module like `model`, which is on meta, with the weights, on the CPU.

        Tensors are read one after the other. Raises Day0Error: the problem of the folder, too little memory, a format
        that day0 cannot decode, tensors that are missing or have another shape.
        """
        if self.problem is not None:
            raise self.problem
        assert self.checkpoint is not None  # noqa: S101 - asked for by callers only if `there`
        refuse_too_large(module_bytes(model), where)
        plain = copy.deepcopy(model.config)
        quantisation = _quantisation(plain)
        tensors = readable_tensors(self.checkpoint, quantisation, dtype)
        loaded, info = _from_pretrained(type(model), plain, tensors, dtype, self.checkpoint.folder)
        _refuse_gaps(self.checkpoint.folder, info)
        self.unused = sorted(info["unexpected_keys"])
        return loaded

    def reader(self, model: nn.Module, dtype: torch.dtype) -> Callable[[str], torch.Tensor]:
        """Return what reads one weight by its name in the module, decoded where it must be.

        Reading raises Day0Error for a name that the checkpoint does not have: transformers fuses and renames some.
        """
        if self.problem is not None:
            raise self.problem
        assert self.checkpoint is not None  # noqa: S101 - asked for by callers only if `there`
        folder = self.checkpoint.folder
        tensors = readable_tensors(self.checkpoint, _quantisation(copy.deepcopy(model.config)), dtype)

        def read(name: str) -> torch.Tensor:
            if name not in tensors:
                what = f"the checkpoint has no tensor '{name}': transformers makes it from others"
                raise Day0Error(
                    str(folder), what, hint="such a model has to be built whole, where there is more memory"
                )
            tensor: torch.Tensor = tensors[name][...]
            return tensor

        return read


def _folder_weights(folder: Path) -> FolderWeights:
    """Look for the weights of a folder. What is wrong with them is kept for when they are needed."""
    try:
        return FolderWeights(folder=folder, checkpoint=find_checkpoint(folder))
    except Day0Error as error:
        return FolderWeights(folder=folder, checkpoint=None, problem=error)


def _quantisation(config: Any) -> Mapping[str, Any] | None:
    """Take the quantisation out of a config, so that the plain model is made, and return it."""
    found = None
    for one in (config, getattr(config, "get_text_config", lambda: config)()):
        value = getattr(one, "quantization_config", None)
        if value is not None:
            found = value
            del one.quantization_config
    if found is None or isinstance(found, Mapping):
        return found
    made: Mapping[str, Any] = found.to_dict()
    return made


def _from_pretrained(
    kind: Any, config: Any, tensors: Any, dtype: torch.dtype, folder: Path
) -> tuple[nn.Module, dict[str, Any]]:
    """Let transformers place the tensors: it knows which names changed, which are fused and which are tied."""
    with _quiet():
        try:
            loaded, info = kind.from_pretrained(
                None,
                config=config,
                state_dict=tensors,
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        except Day0Error:
            raise
        except USER_ERRORS as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            what = f"its weights cannot be loaded into {kind.__name__}: {lines[0][:300]}"
            raise Day0Error(str(folder), what, hint="are config.json and weights of one checkpoint?") from error
    return loaded.eval(), info


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from writing bars and tables: what they say is in the result."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers annotates most, not this
    logging.set_verbosity(50)  # critical
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _refuse_gaps(folder: Path, info: dict[str, Any]) -> None:
    """Refuse to go on with random values where the checkpoint has none, or has others."""
    missing, other = sorted(info["missing_keys"]), sorted(info["mismatched_keys"])
    errors = [str(one).strip().splitlines()[0] for one in info.get("error_msgs", ()) if str(one).strip()]
    if not (missing or other or errors):
        return
    facts = [f"{name}: {list(got)} in the checkpoint, {list(want)} in the model" for name, got, want in other[:5]]
    facts += [f"{name}: missing" for name in missing[:5]] + errors[:3]
    unused = sorted(info["unexpected_keys"])
    facts += [f"{name}: in the checkpoint, and the model has no place for it" for name in unused[:5]]
    what = f"the weights do not fit the config: {len(missing)} tensors are missing, {len(other)} have another shape"
    raise Day0Error(
        str(folder),
        what,
        facts=tuple(facts),
        hint="take config.json and weights from one checkpoint; --set can change sizes that the weights have",
    )


def _size(count: int) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 2**30 else f"{count / 2**20:,.2f} MiB"


def _some(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
