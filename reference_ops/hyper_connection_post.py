"""Manifold-constrained hyper-connections, after a sub-layer: its result and the old streams into new streams.

Shape suffixes: B batch, S tokens, n residual streams, D hidden.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance
from day0.reference_ops.hyper_connection_pre import doubly_stochastic

__all__ = ["NAME", "OP", "fake", "reference", "validate"]

NAME = "day0::hyper_connection_post"


def validate(streams_BSnD: torch.Tensor, y_BSD: torch.Tensor, post_BSn: torch.Tensor, comb_BSnn: torch.Tensor) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    for name, tensor, letters in (
        ("streams", streams_BSnD, "BSnD"),
        ("y", y_BSD, "BSD"),
        ("post", post_BSn, "BSn"),
        ("comb", comb_BSnn, "BSnn"),
    ):
        check.shape(name, tensor, letters)
        check.floating(name, tensor)


def reference(
    streams_BSnD: torch.Tensor, y_BSD: torch.Tensor, post_BSn: torch.Tensor, comb_BSnn: torch.Tensor
) -> torch.Tensor:
    """Return the new streams [B, S, n, D] in the dtype of streams: new_m = post_m y + sum_j comb[j, m] stream_j.

    comb is used transposed: it is doubly stochastic, so the other direction also looks right. Computed wide.
    """
    validate(streams_BSnD, y_BSD, post_BSn, comb_BSnn)
    wide = torch.float64 if streams_BSnD.dtype == torch.float64 else torch.float32
    written_BSnD = post_BSn.to(wide)[..., None] * y_BSD.to(wide)[:, :, None]
    mixed_BSnD = comb_BSnn.to(wide).transpose(-1, -2) @ streams_BSnD.to(wide)
    return (written_BSnD + mixed_BSnD).to(streams_BSnD.dtype).contiguous()


def fake(
    streams_BSnD: torch.Tensor, y_BSD: torch.Tensor, post_BSn: torch.Tensor, comb_BSnn: torch.Tensor
) -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(streams_BSnD, y_BSD, post_BSn, comb_BSnn)
    return streams_BSnD.new_empty(streams_BSnD.shape)


def flops(streams_BSnD: torch.Tensor, y_BSD: torch.Tensor, post_BSn: torch.Tensor, comb_BSnn: torch.Tensor) -> int:
    """A small matrix times the streams, and the result of the sub-layer on top."""
    return int(2 * streams_BSnD.numel() * (streams_BSnD.shape[2] + 1))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Four streams, three of odd sizes, one stream alone, no tokens, and the streams of GLM-5.3-Flash."""
    for kind, (batch, tokens, streams, hidden) in (
        ("small", (1, 2, 4, 6)),
        ("odd", (2, 3, 3, 5)),
        ("corner", (1, 1, 1, 2)),
        ("corner", (1, 0, 4, 3)),
        ("traced", (1, 2, 4, 4096)),
    ):
        streams_BSnD = torch.randn(batch, tokens, streams, hidden, generator=generator)
        y_BSD = torch.randn(batch, tokens, hidden, generator=generator)
        post_BSn = 2.0 * torch.rand(batch, tokens, streams, generator=generator)
        logits_BSnn = torch.randn(batch, tokens, streams, streams, generator=generator)
        yield Sample(
            kind=kind, args=(streams_BSnD, y_BSD, post_BSn, doubly_stochastic(logits_BSnn, 1e-6, 20)), kwargs={}
        )


OP = Operator(
    name=NAME,
    version=1,
    summary="hyper-connection after a sub-layer: write its result into n mixed streams",
    schema="(Tensor streams, Tensor y, Tensor post, Tensor comb) -> Tensor",
    mathematics="new_m = post_m y + sum_j comb[j, m] stream_j",
    source="mHC: manifold-constrained hyper-connections; transformers glm5_next and deepseek_v4",
    reference=reference,
    fake=fake,
    flops=flops,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=4.0,
        reason="a sum of n + 1 products, rounded once; rounding post and comb to the streams' dtype first, as models in "
        "BF16 do, is within three times the rounding of the result",
    ),
    attributes=(
        Attribute(name="direction", meaning="comb[old, new], summed over the old streams"),
        Attribute(name="dtype of post and comb", meaning="float32 here; some round them to the streams' dtype first"),
    ),
    verified_against="transformers glm5_next decoder layer",
)
