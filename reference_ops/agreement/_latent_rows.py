"""A second way to do what the latent cache does: byte by byte with Python's struct, row by row with torch's attention."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import torch

from day0.reference_ops.agreement._comparison import Comparison

__all__ = [
    "attention_with_sinks",
    "in_every_layout",
    "packed_page",
    "random_indices",
    "read_page",
    "scaled_attention",
]


def scale_exponent(group: list[float]) -> int:
    """Return k of the scale 2^k, from the definition, in Python's floats."""
    largest = max(abs(value) for value in group)
    return math.ceil(math.log2(max(largest / 448.0, 1e-4)))


def packed_page(rows: list[list[float]], latent: int, layout: str) -> bytes:
    """Return the bytes of one page that holds these rows, whose values bfloat16 can hold."""
    import ml_dtypes

    group = 128 if layout == "fp8_656" else 64
    data, behind = b"", b""
    for row in rows:
        codes, scales = b"", []
        for first in range(0, latent, group):
            values = row[first : min(first + group, latent)]
            exponent = scale_exponent(values)
            scales.append(exponent)
            codes += b"".join(ml_dtypes.float8_e4m3fn(value / 2.0**exponent).tobytes() for value in values)
        rope = b"".join(ml_dtypes.bfloat16(value).tobytes() for value in row[latent:])
        if layout == "fp8_656":
            data += codes + struct.pack(f"<{len(scales)}f", *(2.0**one for one in scales)) + rope
        else:
            data += codes + rope
            behind += bytes(one + 127 for one in scales) + bytes(-len(scales) % 8)
    whole = data + behind
    return whole if layout == "fp8_656" else whole + bytes(-len(whole) % 576)


def read_page(page: bytes, count: int, latent: int, width: int, layout: str) -> list[list[float]]:
    """Return the rows that one page of `count` rows holds."""
    import ml_dtypes
    import numpy

    group = 128 if layout == "fp8_656" else 64
    scales = math.ceil(latent / group)
    inside = 4 * scales if layout == "fp8_656" else 0
    size, behind = latent + inside + 2 * (width - latent), math.ceil(scales / 8) * 8
    rows = []
    for number in range(count):
        one = page[number * size : (number + 1) * size]
        if layout == "fp8_656":
            powers = struct.unpack(f"<{scales}f", one[latent : latent + inside])
        else:
            place = count * size + number * behind
            powers = tuple(2.0 ** (byte - 127) for byte in page[place : place + scales])
        codes = numpy.frombuffer(one[:latent], dtype=ml_dtypes.float8_e4m3fn)
        rope = numpy.frombuffer(one[latent + inside :], dtype=ml_dtypes.bfloat16)
        values = [float(code) * powers[place // group] for place, code in enumerate(codes)]
        rows.append(values + [float(value) for value in rope])
    return rows


def in_every_layout(operator: str, against_bytes: Callable[[int, int, int, str], float]) -> tuple[Comparison, ...]:
    """Return comparisons of real and of odd sizes; `against_bytes` takes latent, rope, rows in a page and layout."""
    return tuple(
        Comparison(
            operator=operator,
            variant=f"{layout}, {latent} + {rope}",
            against="struct and ml_dtypes, byte by byte, written from FlashMLA's documented layout",
            distribution="ml_dtypes",
            limit=0.0,
            run=partial(against_bytes, latent, rope, page, layout),
        )
        for layout, latent, rope, page in (
            ("fp8_656", 512, 64, 4),
            ("fp8_656", 130, 3, 3),
            ("fp8_584:64", 448, 64, 64),
            ("fp8_584:3", 515, 5, 3),
        )
    )


def random_indices(batch: int, queries: int, chosen: int, rows: int, generator: torch.Generator) -> torch.Tensor:
    """Return distinct row numbers [B, S, K] int32, all of them valid."""
    order = torch.rand(batch, queries, rows, generator=generator).argsort(dim=-1)
    return order[..., :chosen].to(torch.int32)


def scaled_attention(
    q_BSHC: torch.Tensor, kv_BTC: torch.Tensor, indices_BSK: torch.Tensor, latent: int, scale: float
) -> torch.Tensor:
    """Gather the rows of each query and let torch's scaled_dot_product_attention attend to them, [B, S, H, L]."""
    out_BSHL = q_BSHC.new_zeros((*q_BSHC.shape[:3], latent))
    for b in range(q_BSHC.shape[0]):
        for s in range(q_BSHC.shape[1]):
            rows_KC = kv_BTC[b, [index for index in indices_BSK[b, s].tolist() if 0 <= index < kv_BTC.shape[1]]]
            out_BSHL[b, s] = torch.nn.functional.scaled_dot_product_attention(
                q_BSHC[b, s], rows_KC, rows_KC[:, :latent], scale=scale
            )
    return out_BSHL


def attention_with_sinks(
    q_BSHC: torch.Tensor,
    kv_BTC: torch.Tensor,
    indices_BSK: torch.Tensor,
    latent: int,
    scale: float,
    attn_sink_H: torch.Tensor,
) -> torch.Tensor:
    """Gather the rows of each query and let the eager attention of gpt_oss attend to them, [B, S, H, L]."""
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    heads = q_BSHC.shape[2]
    module = SimpleNamespace(num_key_value_groups=heads, sinks=attn_sink_H, training=False)
    out_BSHL = q_BSHC.new_zeros((*q_BSHC.shape[:3], latent))
    for b in range(q_BSHC.shape[0]):
        for s in range(q_BSHC.shape[1]):
            rows_KC = kv_BTC[b, [index for index in indices_BSK[b, s].tolist() if 0 <= index < kv_BTC.shape[1]]]
            query, keys = q_BSHC[b, s][None, :, None], rows_KC[None, None]
            # Its annotation asks for a module; it reads three attributes.
            out = eager_attention_forward(module, query, keys, keys[..., :latent], None, scale)[0]  # type: ignore[arg-type]
            out_BSHL[b, s] = out[0, 0]
    return out_BSHL
