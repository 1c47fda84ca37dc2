"""The Hadamard transform against matrices and transforms that others make."""

from __future__ import annotations

import torch

from day0.reference_ops import hadamard
from day0.reference_ops.agreement._comparison import Comparison, load_file, worst
from day0.reference_ops.agreement._modules import automodel

__all__ = ["COMPARISONS"]

SIZES = (1, 2, 4, 32, 128)


def rows(size: int) -> torch.Tensor:
    """Return random rows [3, 2, D] in float64."""
    return torch.randn(3, 2, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)


def against_kron() -> float:
    """Kronecker products of the two-by-two matrix."""
    import numpy

    errors = []
    for size in SIZES:
        matrix = numpy.ones((1, 1))
        while matrix.shape[0] < size:
            matrix = numpy.kron(numpy.array([[1.0, 1.0], [1.0, -1.0]]), matrix)
        expected = rows(size) @ torch.from_numpy(matrix) / size**0.5
        errors.append(worst((hadamard.reference(rows(size)), expected)))
    return max(errors)


def against_compressed_tensors() -> float:
    """The matrix that compressed-tensors transforms weights with."""
    module = load_file("compressed-tensors", "compressed_tensors/transform/utils/hadamard.py")
    errors = []
    for size in SIZES:
        matrix = module.deterministic_hadamard_matrix(size, dtype=torch.float64)
        errors.append(worst((hadamard.reference(rows(size)), rows(size) @ matrix.T / size**0.5)))
    return max(errors)


def against_nemo() -> float:
    """The transform of NeMo AutoModel's indexer, called as that calls it."""
    layers = automodel("deepseek_v32.layers")
    return max(
        worst((hadamard.reference(rows(size)), layers.hadamard_transform(rows(size), scale=size**-0.5)))
        for size in SIZES
    )


COMPARISONS = tuple(
    Comparison(operator=hadamard.NAME, variant="", against=what, distribution=package, limit=6e-15, run=run)
    for what, package, run in (
        ("numpy.kron of [[1, 1], [1, -1]]", "numpy", against_kron),
        ("transform/utils/hadamard.py deterministic_hadamard_matrix", "compressed-tensors", against_compressed_tensors),
        ("models/deepseek_v32/layers.py hadamard_transform", "nemo-automodel", against_nemo),
    )
)
