"""Sequences of the toy over one pool of pages: admitted and let go at any time, batched with others of their length.

The page table and what is in the pages are the toy's own (day0.models.paging, day0.models.toy.cache). A call of the
model sees those sequences of the pool that it continues; what it made of them goes back into the pool.

Shape suffixes: B sequences, S tokens, V vocabulary, H heads, K key, V value, W kept tokens, C channels, P pages, G
tokens in a page.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

import torch

from day0.analyzers.soak.held import Held
from day0.models.driver import step
from day0.models.paging import PageTable, make_pages, metrics, release
from day0.models.toy.cache import KdaCache, MlaCache, ToyCache
from day0.models.toy.model import ToyModel

__all__ = ["PoolBatch", "PoolEngine"]

KIND = "text"


@dataclass(frozen=True, kw_only=True, eq=False)
class PoolBatch:
    """Sequences of one length: their numbers in the pool, and the states of the KDA layers, which are no pages."""

    requests: tuple[int, ...]
    states: tuple[KdaCache | None, ...]
    """By layer; None where a layer has pages."""
    length: int


class PoolEngine:
    """One pool for all sequences."""

    title = "one pool of pages for all sequences"
    joins = True

    def __init__(self, model: ToyModel, device: torch.device) -> None:
        self.model, self.device = model, device
        self.numbers = count()
        first = self._begun()
        self.fresh = tuple(_zeros(one) if isinstance(one, KdaCache) else None for one in first.layers)
        self.layers = [one if isinstance(one, MlaCache) else None for one in first.layers]
        # What the first call wrote into the pool's pages nobody owns.
        self.pages: PageTable = make_pages(first.pages.block_size, first.pages.blocks)
        self._alive: weakref.WeakSet[PoolBatch] = weakref.WeakSet()

    def _begun(self) -> ToyCache:
        cache: ToyCache = step(self.model, torch.zeros(1, 1, dtype=torch.int64).to(self.device)).cache
        return cache

    def prefill(self, ids_BS: torch.Tensor) -> tuple[torch.Tensor, PoolBatch]:
        """Begin sequences with the pool's free pages."""
        requests = tuple(next(self.numbers) for _ in range(ids_BS.shape[0]))
        states = tuple(_repeated(one, len(requests)) if one is not None else None for one in self.fresh)
        return self._call(ids_BS, PoolBatch(requests=requests, states=states, length=0))

    def decode(self, tokens_B1: torch.Tensor, batch: PoolBatch) -> tuple[torch.Tensor, PoolBatch]:
        """Continue them by one token each."""
        return self._call(tokens_B1, batch)

    def _call(self, ids_BS: torch.Tensor, batch: PoolBatch) -> tuple[torch.Tensor, PoolBatch]:
        cache = ToyCache(
            layers=tuple(self._layer(number, batch) for number in range(len(self.layers))),
            pages=self._seen(batch.requests),
            length=batch.length,
        )
        output = step(self.model, ids_BS.to(self.device), cache)
        made: ToyCache = output.cache
        # Only now: a call that raises leaves the pool as it was.
        self._taken_back(batch.requests, made)
        states = tuple(one if isinstance(one, KdaCache) else None for one in made.layers)
        after = PoolBatch(requests=batch.requests, states=states, length=made.length)
        self._alive.add(after)
        return output.logits_BSV[:, -1].float().cpu(), after

    def _layer(self, number: int, batch: PoolBatch) -> KdaCache | MlaCache:
        found = self.layers[number] or batch.states[number]
        assert found is not None  # noqa: S101 - every layer has the one or the other
        return found

    def _seen(self, requests: tuple[int, ...]) -> PageTable:
        """Return the table as a call sees it: with its own sequences, numbered from 0, and all free pages."""
        mine = {one.request: one for one in self.pages.sequences if one.request in requests}
        order = (mine[number] for number in requests if number in mine)
        return replace(self.pages, sequences=tuple(replace(one, request=row) for row, one in enumerate(order)))

    def _taken_back(self, requests: tuple[int, ...], made: ToyCache) -> None:
        others = tuple(one for one in self.pages.sequences if one.request not in requests)
        mine = tuple(replace(one, request=requests[one.request]) for one in made.pages.sequences)
        self.pages = replace(made.pages, sequences=(*others, *mine))
        self.layers = [one if isinstance(one, MlaCache) else None for one in made.layers]

    def keep(self, batch: PoolBatch, rows: list[int]) -> PoolBatch:
        """Give back the pages of all rows but these."""
        self._release([number for row, number in enumerate(batch.requests) if row not in rows])
        requests = tuple(batch.requests[row] for row in rows)
        states = tuple(_rows(one, rows) if one is not None else None for one in batch.states)
        return self._made(PoolBatch(requests=requests, states=states, length=batch.length))

    def join(self, batches: list[PoolBatch]) -> PoolBatch:
        """Make one batch of several of the same length."""
        requests = tuple(number for one in batches for number in one.requests)
        layers = zip(*(one.states for one in batches), strict=True)
        states = tuple(_joined([one for one in layer if one is not None]) for layer in layers)
        return self._made(PoolBatch(requests=requests, states=states, length=batches[0].length))

    def free(self, batch: PoolBatch) -> None:
        """Give back all pages of a batch."""
        self._release(list(batch.requests))

    def held(self) -> Held:
        """Return what is held now."""
        found = metrics(self.pages)
        return Held(
            blocks=found.used_blocks,
            pool_blocks=self.pages.blocks,
            sequences=len(self.pages.sequences),
            caches=len(self._alive),
            wasted_share=found.wasted_share,
            scattered_share=found.scattered_share,
        )

    def _release(self, requests: list[int]) -> None:
        owned = {one.request for one in self.pages.sequences}
        for number in requests:
            if number in owned:  # one whose first call raised owns nothing
                self.pages = release(self.pages, number, KIND)

    def _made(self, batch: PoolBatch) -> PoolBatch:
        self._alive.add(batch)
        return batch


def _zeros(state: KdaCache) -> KdaCache:
    """Return the state before any token, made on the CPU: a young device need not have the operators for it."""
    return _each(state, lambda one: torch.zeros(one.shape, dtype=one.dtype).to(one.device))


def _repeated(state: KdaCache, rows: int) -> KdaCache:
    return _each(state, lambda one: torch.cat([one] * rows))


def _rows(state: KdaCache, rows: list[int]) -> KdaCache:
    return _each(state, lambda one: torch.cat([one[row : row + 1] for row in rows]))


def _joined(states: list[KdaCache]) -> KdaCache | None:
    if not states:
        return None
    convs = list(zip(*(one.conv_BWC for one in states), strict=True))
    q_BWC, k_BWC, v_BWC = (torch.cat(parts) for parts in convs)
    return KdaCache(conv_BWC=(q_BWC, k_BWC, v_BWC), state_BHKV=torch.cat([one.state_BHKV for one in states]))


def _each(state: KdaCache, change: Callable[[torch.Tensor], torch.Tensor]) -> KdaCache:
    q_BWC, k_BWC, v_BWC = (change(one) for one in state.conv_BWC)
    return KdaCache(conv_BWC=(q_BWC, k_BWC, v_BWC), state_BHKV=change(state.state_BHKV))
