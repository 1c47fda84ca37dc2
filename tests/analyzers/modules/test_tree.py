"""Tensors in arguments: all of them found, copies that share nothing, caches that stay their own."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import torch
from torch import nn

from day0.analyzers.modules.tree import held_tensors, rebuilt, tensors_of


@dataclass(frozen=True, slots=True)
class Frozen:
    first: torch.Tensor
    rest: tuple[torch.Tensor, ...]


class Cache:
    def __init__(self) -> None:
        self.layers: list[Frozen] = []
        self.seen = 0
        self.me = self


Pair = namedtuple("Pair", "left right")


def test_every_tensor_is_found_in_order() -> None:
    cache = Cache()
    cache.layers.append(Frozen(torch.ones(1), (torch.ones(2), torch.ones(3))))
    value = [torch.ones(4), {"b": (torch.ones(5), None)}, cache, Pair(torch.ones(6), 3), "text"]
    assert [one.numel() for one in tensors_of(value)] == [4, 5, 1, 2, 3, 6]
    assert [one.numel() for one in held_tensors(value)] == [1, 2, 3]


def test_a_copy_is_converted_and_its_cache_is_its_own() -> None:
    cache = Cache()
    cache.layers.append(Frozen(torch.ones(1), (torch.ones(2),)))
    shared = torch.ones(3)
    made = rebuilt((cache, [shared, Pair(shared, 1)]), lambda one: one.to(torch.float64))
    copy, (first, pair) = made
    copy.layers.append(Frozen(torch.ones(1), ()))
    copy.seen = 7
    assert (len(cache.layers), cache.seen) == (1, 0)
    assert copy.me is copy and first is pair.left
    assert {one.dtype for one in tensors_of(made)} <= {torch.float64, torch.float32}
    assert all(one.dtype == torch.float32 for one in tensors_of(cache))


def test_modules_and_functions_are_handed_on_as_they_are() -> None:
    module, function = nn.Linear(2, 2), torch.relu
    assert rebuilt({"m": module, "f": function}, torch.clone) == {"m": module, "f": function}
    assert tensors_of([module, function]) == []
