"""What `day0 doctor` says of one thing, and the packages that day0 can use and does without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["EXTRAS", "Extra", "Finding", "Status"]

Status = Literal["works", "missing", "broken"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line."""

    area: str
    name: str
    status: Status
    says: str
    """What it gives where it works, else what is wrong."""
    version: str = ""
    hint: str = ""
    """What to do: a command where there is one."""
    needed: bool = False
    """day0 cannot work without it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Extra:
    """A package that day0 uses where it is there."""

    module: str
    gives: str
    install: str


EXTRAS: dict[str, Extra] = {
    "transformers": Extra(module="transformers", gives="models by `hf:`", install="pip install 'day0[hf]'"),
    "httpx2": Extra(module="httpx2", gives="`day0 canary --endpoint`", install="pip install 'day0[hf]'"),
    "triton": Extra(
        module="triton",
        gives="kernels for GPUs in kernels/triton/; CUDA builds of torch bring it",
        install="pip install triton",
    ),
    "vllm": Extra(module="vllm", gives="the engine of `day0 ops export --to vllm`", install="pip install vllm"),
    "sglang": Extra(module="sglang", gives="the engine of `day0 ops export --to sglang`", install="pip install sglang"),
    "ray": Extra(
        module="ray", gives="engines over several hosts; day0 itself does not use it", install="pip install ray"
    ),
    "fla-core": Extra(
        module="fla", gives="other people's KDA for `day0 ops verify`", install="pip install --no-deps fla-core"
    ),
    "compressed-tensors": Extra(
        module="compressed_tensors",
        gives="other people's formats for `day0 ops verify`",
        install="pip install compressed-tensors",
    ),
    "pillow": Extra(module="PIL", gives="image processors of vision models", install="pip install pillow"),
}
"""By the name of the distribution."""
