"""Other people's functions that `benchmarks/gpu/kernels.py` times beside a kernel compute what the operator means."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from day0.reference_ops.load import load_operators
from tests.benchmarks.beside import load

kernel_cases, peers = load("kernel_cases"), load("peers")

ON_A_CPU = [
    (operator, name)
    for operator, found in peers.PEERS.items()
    for name in found
    if name != "flash_linear_attention"  # its kernels are for GPUs
]


def tiny(operator: str) -> tuple[Any, Any]:
    """Return a small call and what the operator gives for it."""
    args, kwargs = kernel_cases.CASES[operator][0].make(kernel_cases.Maker(device="cpu", tiny=True))
    return args, peers.first(load_operators()[f"day0::{operator}"].reference(*args, **kwargs))


@pytest.mark.parametrize(("operator", "name"), ON_A_CPU)
def test_a_peer_computes_what_the_operator_means(operator: str, name: str) -> None:
    args, right = tiny(operator)
    try:
        found = peers.first(peers.PEERS[operator][name](*args))
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    peers.refuse_other(found, right)


def test_a_peer_that_computes_something_else_is_refused() -> None:
    _, right = tiny("rms_norm")
    with pytest.raises(ValueError, match="something else"):
        peers.refuse_other(right * 1.2, right)
    with pytest.raises(ValueError, match="something else"):
        peers.refuse_other(right[:1], right)
    with pytest.raises(ValueError, match="something else"):
        peers.refuse_other(torch.full_like(right, float("nan")), right)
