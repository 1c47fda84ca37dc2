"""How far right ways to compute an operator are from the limits of `day0 check`, and wrong ones.

Each row is one way to compute one operator on the CPU: its error over its limit, the largest of several seeds for right
ways (below 1 passes), the smallest for wrong ones (above 1 fails). The limits are those of
docs/decisions/0011-what-passes-as-right.md.

Run it with `.venv/bin/python benchmarks/judging_limits.py [--seeds N]`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.judging.compare import compare_results
from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.reference import references
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import describe

CPU = torch.device("cpu")
Make = Callable[[Callable[..., torch.Tensor]], tuple[Any, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way to compute an operator."""

    says: str
    op: str
    make: Make
    """Arguments, from a function that draws normal numbers of a shape and dtype."""
    run: Callable[..., Any]
    right: bool = True


def fewer_bits(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Keep so many bits of float32's mantissa, rounded to the nearest."""
    step = 1 << (23 - bits)
    return ((x.contiguous().view(torch.int32) + step // 2) & -step).view(torch.float32)


def in_blocks(left: torch.Tensor, right: torch.Tensor, block: int, kept: torch.dtype) -> torch.Tensor:
    """Multiply in blocks of the inner dimension and keep the sum of them in one dtype."""
    total = torch.zeros(left.shape[0], right.shape[1], dtype=kept)
    for begin in range(0, left.shape[1], block):
        part = left[:, begin : begin + block].float() @ right[begin : begin + block].float()
        total = (total.float() + part).to(kept)
    return total.to(left.dtype)


def tree_scan(x: torch.Tensor) -> torch.Tensor:
    """Sum up along the last dimension in a tree, each sum rounded to the dtype."""
    total, step = x.clone(), 1
    while step < x.shape[-1]:
        longer = total.clone()
        longer[:, step:] = (total[:, step:].float() + total[:, :-step].float()).to(x.dtype)
        total, step = longer, 2 * step
    return total


def one_by_one(x: torch.Tensor, kept: torch.dtype) -> torch.Tensor:
    """Sum up along the last dimension from the first to the last."""
    total = torch.zeros(x.shape[0], dtype=kept)
    for place in range(x.shape[1]):
        total = (total.float() + x[:, place].float()).to(kept)
    return total.to(x.dtype)


def softmax(x: torch.Tensor, exp: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Softmax with a given exponential, in float32."""
    weight = exp(x.float() - x.float().amax(-1, keepdim=True))
    return (weight / weight.sum(-1, keepdim=True)).to(x.dtype)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, block: int = 16) -> torch.Tensor:
    """Attention as fused kernels do it: blocks of keys, a running maximum, float32 inside."""
    q, k, v, dtype = q.float(), k.float(), v.float(), q.dtype
    top = torch.full((*q.shape[:-1], 1), float("-inf"))
    total, out = torch.zeros_like(top), torch.zeros(*q.shape[:-1], v.shape[-1])
    for begin in range(0, k.shape[-2], block):
        scores = q @ k[..., begin : begin + block, :].transpose(-1, -2) * scale
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        weight, old = torch.exp(scores - higher), torch.exp(top - higher)
        total, out = total * old + weight.sum(-1, keepdim=True), out * old + weight @ v[..., begin : begin + block, :]
        top = higher
    return (out / total).to(dtype)


def layer_norm(x: torch.Tensor, shape: list[int], w: torch.Tensor, b: torch.Tensor, eps: float, less: int = 0) -> Any:
    """Layer normalisation in one pass: the mean of the squares minus the square of the mean."""
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    variance = (wide.square().mean(-1, keepdim=True) - mean.square()) * (x.shape[-1] / (x.shape[-1] - less))
    scale = torch.rsqrt(variance + eps)
    return ((wide - mean) * scale * w.float() + b.float()).to(x.dtype), mean, scale


def ways() -> Iterator[Way]:
    """Yield every row of the table."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        kind = str(dtype).removeprefix("torch.")
        for depth in (96, 1024):
            make = _shapes(dtype, (24, depth), (depth, 20))
            name = f"{kind} product of {depth}"
            yield Way(says=f"{name}, blocks of 32", op="aten::mm", make=make, run=_blocks(32, torch.float32))
            yield Way(says=f"{name}, one after another", op="aten::mm", make=make, run=_blocks(1, torch.float32))
            wide = _shapes(dtype, (24, depth), (depth, 20), decades=6.0)
            if dtype != torch.float16:  # six decades overflow it
                yield Way(says=f"{name} over six decades", op="aten::mm", make=wide, run=_blocks(32, torch.float32))
        product = _shapes(dtype, (24, 4096), (4096, 20))
        if dtype == torch.float32:
            tensor_float = _bits(10)
            yield Way(
                says="float32 product of 96 in TF32",
                op="aten::mm",
                make=_shapes(dtype, (24, 96), (96, 20)),
                run=tensor_float,
                right=False,
            )
            yield Way(
                says="float32 product of 4096 in TF32", op="aten::mm", make=product, run=tensor_float, right=False
            )
        else:
            yield Way(
                says=f"{kind} product of 4096, four parts in {kind}",
                op="aten::mm",
                make=product,
                run=_blocks(1024, dtype),
            )
            yield Way(
                says=f"{kind} product of 4096, summed in {kind}",
                op="aten::mm",
                make=product,
                run=_blocks(16, dtype),
                right=False,
            )
            yield Way(
                says=f"{kind} sum of 2048 in {kind}",
                op="aten::sum.dim_IntList",
                make=_one(dtype, 16, 2048, positive=True),
                run=lambda x, dim: one_by_one(x, x.dtype),
                right=False,
            )
        yield Way(
            says=f"{kind} sum of 2048, one after another",
            op="aten::sum.dim_IntList",
            make=_one(dtype, 16, 2048),
            run=lambda x, dim: one_by_one(x, torch.float32),
        )
        yield Way(
            says=f"{kind} running sum of 300 in a tree",
            op="aten::cumsum",
            make=_one(dtype, 16, 300, last=(1,)),
            run=lambda x, dim: tree_scan(x),
        )
        yield Way(
            says=f"{kind} running sum without its own value",
            op="aten::cumsum",
            make=_one(dtype, 16, 300, last=(1,)),
            run=lambda x, dim: x.cumsum(1) - x,
            right=False,
        )
        logits = _one(dtype, 16, 64, factor=20.0, last=(-1, False))
        yield Way(
            says=f"{kind} softmax by exp2",
            op="aten::_softmax",
            make=logits,
            run=lambda x, *_: softmax(x, lambda y: torch.exp2(y * 1.4426950408889634)),
        )
        yield Way(
            says=f"{kind} softmax of exponentials of four bits",
            op="aten::_softmax",
            make=logits,
            run=lambda x, *_: softmax(x, lambda y: fewer_bits(torch.exp(y), 4)),
            right=False,
        )
        heads = _shapes(dtype, (2, 4, 33, 16), (2, 4, 50, 16), (2, 4, 50, 16))
        sdpa = "aten::scaled_dot_product_attention"
        yield Way(says=f"{kind} attention in blocks", op=sdpa, make=heads, run=lambda q, k, v: attention(q, k, v, 0.25))
        yield Way(
            says=f"{kind} attention, scale 2 % off",
            op=sdpa,
            make=heads,
            run=lambda q, k, v: attention(q, k, v, 0.255),
            right=False,
        )
        norm = _norm(dtype)
        yield Way(says=f"{kind} layer norm in one pass", op="aten::native_layer_norm", make=norm, run=layer_norm)
        yield Way(
            says=f"{kind} layer norm, variance over n - 1",
            op="aten::native_layer_norm",
            make=norm,
            run=lambda *given: layer_norm(*given, less=1),
            right=False,
        )
    yield from _functions()


def _functions() -> Iterator[Way]:
    numbers, positive = _one(torch.float32, 64, 64, factor=3.0), _one(torch.float32, 64, 64, positive=True)
    yield Way(says="silu by division", op="aten::silu", make=numbers, run=lambda x: x / (1.0 + torch.exp(-x)))
    yield Way(says="sigmoid by tanh", op="aten::sigmoid", make=numbers, run=lambda x: 0.5 * torch.tanh(0.5 * x) + 0.5)
    yield Way(
        says="gelu by erfc", op="aten::gelu", make=numbers, run=lambda x: 0.5 * x * torch.erfc(-x * 0.7071067811865476)
    )
    yield Way(
        says="gelu by tanh",
        op="aten::gelu",
        make=numbers,
        run=lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        right=False,
    )
    yield Way(says="rsqrt by division", op="aten::rsqrt", make=positive, run=lambda x: 1.0 / x.sqrt())
    yield Way(
        says="rsqrt of twelve bits",
        op="aten::rsqrt",
        make=positive,
        run=lambda x: fewer_bits(x.rsqrt(), 12),
        right=False,
    )
    pair = _shapes(torch.float32, (64, 64), (64, 64))
    yield Way(says="division by a reciprocal", op="aten::div.Tensor", make=pair, run=lambda x, y: x * y.reciprocal())
    yield Way(
        says="division by a reciprocal of twelve bits",
        op="aten::div.Tensor",
        make=pair,
        run=lambda x, y: x * fewer_bits(y.reciprocal(), 12),
        right=False,
    )
    yield Way(
        says="exp by exp2",
        op="aten::exp",
        make=numbers,
        run=lambda x: torch.exp2(x.double() * 1.4426950408889634).float(),
    )
    yield Way(
        says="exp of sixteen bits", op="aten::exp", make=numbers, run=lambda x: fewer_bits(x.exp(), 16), right=False
    )
    yield Way(
        says="logsumexp without the maximum",
        op="aten::logsumexp",
        make=_one(torch.float32, 64, 64, last=([1],)),
        run=lambda x, dim: x.exp().sum(1).log(),
    )


def _shapes(dtype: torch.dtype, *shapes: tuple[int, ...], decades: float = 0.0) -> Make:
    def make(draw: Callable[..., torch.Tensor]) -> tuple[Any, ...]:
        return tuple((draw(*one) * 10.0 ** (draw(*one).clamp(-2, 2) / 4 * decades)).to(dtype) for one in shapes)

    return make


def _one(
    dtype: torch.dtype, *shape: int, factor: float = 1.0, positive: bool = False, last: tuple[Any, ...] = ()
) -> Make:
    def make(draw: Callable[..., torch.Tensor]) -> tuple[Any, ...]:
        x = factor * draw(*shape)
        dims: tuple[Any, ...] = ([1],) if not last and shape[-1] == 2048 else last
        return ((x.abs() + 0.01 if positive else x).to(dtype), *dims)

    return make


def _norm(dtype: torch.dtype) -> Make:
    def make(draw: Callable[..., torch.Tensor]) -> tuple[Any, ...]:
        return draw(96, 32).to(dtype), [32], draw(32).to(dtype), draw(32).to(dtype), 1e-5

    return make


def _blocks(block: int, kept: torch.dtype) -> Callable[..., torch.Tensor]:
    return lambda left, right: in_blocks(left, right, block, kept)


def _bits(bits: int) -> Callable[..., torch.Tensor]:
    return lambda left, right: (fewer_bits(left, bits).double() @ fewer_bits(right, bits).double()).float()


def judge(way: Way, seed: int) -> Judgement:
    """Judge one way with one seed."""
    generator = torch.Generator().manual_seed(seed)
    args = way.make(lambda *shape: torch.randn(*shape, generator=generator))
    inputs, signature = CaseInputs(args=args, kwargs={}), describe(way.op, args, {})
    contract = load_operators().get(way.op.partition(".")[0])
    got = way.run(*args)
    results = got if isinstance(got, tuple) else (got,)
    return compare_results(signature, inputs, results, references(signature, inputs, contract), contract, CPU)


def distance(judged: Judgement) -> float:
    """Return the error over the limit; infinity for a failure that has no distance."""
    if judged.error is None or not judged.limit:
        return 0.0 if judged.passed else float("inf")
    return judged.error / judged.limit


def main() -> None:
    """Print the table, then what it comes to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    nearest: dict[bool, list[float]] = {True: [], False: []}
    alarms = missed = 0
    for way in ways():
        judged = [judge(way, seed) for seed in range(seeds)]
        found = [distance(one) for one in judged]
        worst = max(found) if way.right else min(found)
        nearest[way.right].append(worst)
        alarms += sum(not one.passed for one in judged) if way.right else 0
        missed += 0 if way.right else sum(one.passed for one in judged)
        rules = ", ".join(sorted({one.rule for one in judged}))
        print(f"{'right' if way.right else 'wrong'}  {worst:9.3g} x limit  {way.says:45s} {rules}")
    print(f"figure: right_ways_that_fail {alarms}")
    print(f"figure: wrong_ways_that_pass {missed}")
    print(f"figure: nearest_right {max(nearest[True]):.3g}")
    print(f"figure: nearest_wrong {min(nearest[False]):.3g}")


if __name__ == "__main__":
    main()
