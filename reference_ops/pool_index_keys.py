"""One index key for every pool of tokens: a learned average, so that a query scores pools instead of tokens.

Shape suffixes: B batch, T tokens, D index dimension, P tokens in a pool, N = T // P pools.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance
from day0.reference_ops._write import write

__all__ = ["NAME", "OP", "fake", "reference", "validate"]

NAME = "day0::pool_index_keys"


def validate(
    k_BTD: torch.Tensor, gate_BTD: torch.Tensor, table_PD: torch.Tensor, first_valid_B: torch.Tensor, size: int
) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("k", k_BTD, "BTD")
    check.shape("gate", gate_BTD, "BTD")
    check.shape("table", table_PD, "PD")
    check.shape("first_valid", first_valid_B, "B")
    for name, tensor in (("k", k_BTD), ("gate", gate_BTD), ("table", table_PD)):
        check.floating(name, tensor)
    check.dtype("first_valid", first_valid_B, torch.int32, torch.int64)
    check.true("size", size >= 1, "at least 1", size)
    check.true("table", table_PD.shape[0] == size, f"size {size} in dimension P", list(table_PD.shape))


def reference(
    k_BTD: torch.Tensor, gate_BTD: torch.Tensor, table_PD: torch.Tensor, first_valid_B: torch.Tensor, size: int
) -> torch.Tensor:
    """Return pool keys [B, T // P, D] in the dtype of k; rows after the last complete pool are 0.

    Pool n of a batch row holds the tokens `first_valid + n P` to `first_valid + n P + P - 1`. A first valid token
    below 0 is 0, one at or beyond T means that there is none.
    """
    validate(k_BTD, gate_BTD, table_PD, first_valid_B, size)
    wide = torch.float64 if k_BTD.dtype == torch.float64 else torch.float32
    batch, tokens, dim = k_BTD.shape
    pools = tokens // size
    offset_R = torch.arange(pools * size, device=k_BTD.device)
    token_BR = first_valid_B.to(torch.int64).clamp(min=0, max=k_BTD.shape[1])[:, None] + offset_R
    row_BR1 = token_BR.clamp(max=max(0, tokens - 1))[..., None]
    k_BNPD, gate_BNPD = (
        x_BTD.to(wide).gather(1, row_BR1.expand(-1, -1, dim)).reshape(batch, pools, size, dim)
        for x_BTD in (k_BTD, gate_BTD)
    )
    # Every dimension has weights of its own.
    weight_BNPD = torch.softmax(gate_BNPD + table_PD.to(wide), dim=2)
    pooled_BND = (weight_BNPD * k_BNPD).sum(dim=2)
    complete_BN1 = token_BR.reshape(batch, pools, size)[..., -1:] < tokens
    return torch.where(complete_BN1, pooled_BND, 0.0).to(k_BTD.dtype)


def fake(
    k_BTD: torch.Tensor, gate_BTD: torch.Tensor, table_PD: torch.Tensor, first_valid_B: torch.Tensor, size: int
) -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(k_BTD, gate_BTD, table_PD, first_valid_B, size)
    return k_BTD.new_empty((k_BTD.shape[0], k_BTD.shape[1] // size, k_BTD.shape[2]))


def flops(
    k_BTD: torch.Tensor, gate_BTD: torch.Tensor, table_PD: torch.Tensor, first_valid_B: torch.Tensor, size: int
) -> int:
    """For every value: the table, exponential and its sum, the division, the product and its sum."""
    return int(6 * k_BTD.numel())


def fill(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> None:
    """Left padding of another length for every row: from none to less than half."""
    k_BTD, first_valid_B = args[0], args[3] if len(args) > 3 else kwargs["first_valid"]
    values = torch.randint(0, max(1, k_BTD.shape[1] // 2), first_valid_B.shape, generator=generator)
    values[:1] = 0
    write(first_valid_B, values)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, a tail and padding, pools of one token, more padding than tokens, no tokens, and GLM-5.3-Flash."""
    for kind, (batch, tokens, dim, size), dtype in (
        ("small", (1, 8, 4, 4), torch.int64),
        ("odd", (3, 17, 5, 3), torch.int32),
        ("corner", (2, 3, 2, 1), torch.int64),
        ("corner", (1, 2, 3, 4), torch.int64),
        ("corner", (2, 0, 3, 4), torch.int64),
        ("traced", (2, 70, 128, 16), torch.int64),
    ):
        k_BTD, gate_BTD = (torch.randn(batch, tokens, dim, generator=generator) for _ in range(2))
        table_PD = torch.randn(size, dim, generator=generator)
        args = (k_BTD, gate_BTD, table_PD, torch.zeros(batch, dtype=dtype), size)
        fill(args, {}, generator)
        yield Sample(kind=kind, args=args, kwargs={})
    k_BTD, gate_BTD = (torch.randn(4, 9, 3, generator=generator) for _ in range(2))
    table_PD = 1e3 * torch.randn(2, 3, generator=generator)
    strange = torch.tensor([-5, 8, 9, 2**40])
    yield Sample(kind="corner", args=(k_BTD, gate_BTD, table_PD, strange, 2), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="index keys of token pools (k-pool)",
    schema="(Tensor k, Tensor gate, Tensor table, Tensor first_valid, int size) -> Tensor",
    mathematics="p = softmax over the P tokens of a pool, for every dimension, of gate + table; key = sum_j p_j k_j",
    source="transformers models/glm5_next (GLM-5.3-Flash)",
    reference=reference,
    fake=fake,
    flops=flops,
    fill=fill,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=8.0,
        reason="a softmax and a sum over one pool in float32; 8 ULP cover another exponential and another order",
    ),
    attributes=(
        Attribute(name="size", meaning="tokens in a pool: 16 in GLM-5.3-Flash"),
        Attribute(name="first_valid", meaning="left padding shifts the pools: they begin at the first real token"),
        Attribute(name="padding", meaning="on the left only; a hole inside the tokens is another contract"),
        Attribute(name="key norm", meaning="k comes normalised from the caller, by a LayerNorm with bias"),
        Attribute(name="rounding", meaning="once at the end; transformers rounds the weights to the dtype of k first"),
    ),
    verified_against="transformers glm5_next Glm5NextTextIndexer.get_pooled_states; loops in Python",
)
