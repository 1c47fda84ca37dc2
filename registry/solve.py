"""Find a call that satisfies several constraints at once, or know that there is none.

Every rule speaks of one thing (a dtype, a number of dimensions, a size, a value), and sizes are tied together only by
being equal. So each thing can be decided for itself, exactly; what is enumerated is which tensors are given at all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from day0.devices.profile_parts import DTYPES
from day0.implementation import Constraints, DtypeName, Limit, Plain, TensorLimit
from day0.kernels.limits import MAX_RANK
from day0.records import ListValue, ScalarValue, Signature, TensorValue, Value
from day0.registry.schemas import Parameter, parameters_of
from day0.registry.solve_values import choose_value, record_of, whole_within

__all__ = ["UndecidableError", "combinations", "satisfy"]

MAX_TRIES = 4096
"""Combinations that are tried, of alternatives and of which tensors are given."""

MAX_ELEMENTS = (1 << 63) - 1
_FAVOURITES = ("float32", "bfloat16", "float16", "int64", "int32")


class UndecidableError(Exception):
    """There are too many combinations to try, or only calls that no memory holds."""


def combinations(limits: Constraints) -> tuple[tuple[Constraints, ...], ...]:
    """Return the alternatives of constraints, each as rules that hold together. Raises UndecidableError for too many."""
    found: list[tuple[Constraints, ...]] = [(limits,)]
    for one in (limits.any_of,) if limits.any_of else ():
        below = [alternative for each in one for alternative in combinations(each)]
        found = [(*rules, *alternative) for rules in found for alternative in below]
    if len(found) > MAX_TRIES:
        raise UndecidableError(f"there are {len(found)} combinations of constraints")
    return tuple(found)


def satisfy(rules: Sequence[Constraints], op: str) -> Signature | None:
    """Return a small call of one overload that satisfies all rules, or None if there is none.

    `any_of` of the rules is not looked at: see `combinations`. Raises UndecidableError where it cannot be known.
    """
    problem = _Problem(rules, parameters_of(op))
    values = problem.values()
    if values is None:
        return None
    for given in problem.presences():
        tensors = problem.tensors(given)
        if tensors is not None:
            return problem.signature(op, values, given, tensors)
    return None


@dataclass(slots=True)
class _Wanted:
    """Everything that the rules say of one tensor."""

    dtypes: frozenset[str] = frozenset(DTYPES)
    low: int = 0
    high: int = MAX_RANK
    layouts: set[bool] = field(default_factory=set)
    sizes: list[tuple[int, Limit]] = field(default_factory=list)
    ties: list[int] = field(default_factory=list)
    """Dimensions that are equal to others."""
    divided: bool = False
    """Whether the last dimension, if there is one, is divisible by something."""

    def take(self, limit: TensorLimit | Constraints) -> None:
        if limit.dtypes:
            self.dtypes &= limit.dtypes
        self.low = max(self.low, limit.min_rank)
        self.high = self.high if limit.max_rank is None else min(self.high, limit.max_rank)
        if limit.contiguous is not None:
            self.layouts.add(limit.contiguous)
        if isinstance(limit, TensorLimit):
            self.sizes.extend(limit.sizes.items())

    def ranks(self) -> tuple[int, ...]:
        """Return the numbers of dimensions to try, best first.

        Where rules from the front and from the end cannot fall on one dimension, nothing is gained by fewer dimensions.
        Below that each number brings other rules together.
        """
        dims = [*(dim for dim, _ in self.sizes), *self.ties]
        front = max((dim + 1 for dim in dims if dim >= 0), default=0)
        back = max((-dim for dim in dims if dim < 0), default=0)
        if len(self.layouts) > 1:
            return ()
        apart = max(self.low, front + max(back, self.divided) + (False in self.layouts), 1)
        if apart <= self.high:
            return (apart,)
        return tuple(range(self.high, max(self.low, front, back) - 1, -1))


Place = tuple[str, int]
"""One tensor: the argument's name, and which of its list."""


class _Problem:
    def __init__(self, rules: Sequence[Constraints], parameters: Sequence[Parameter]) -> None:
        self.rules = rules
        self.parameters = parameters
        self.by_name: dict[str, list[Limit | TensorLimit]] = {}
        for key, limit in (item for one in rules for item in one.arguments.items()):
            name = key if isinstance(key, str) else parameters[key].name if key < len(parameters) else str(key)
            self.by_name.setdefault(name, []).append(limit)

    def values(self) -> dict[str, Plain] | None:
        """Choose a value for every argument that is no tensor; None where one has none that is left."""
        found: dict[str, Plain] = {}
        for one in self.parameters:
            if one.is_tensor:
                continue
            limits = [limit for limit in self.by_name.get(one.name, ()) if isinstance(limit, Limit)]
            if any(isinstance(limit, TensorLimit) and limit.required for limit in self.by_name.get(one.name, ())):
                return None
            if "ScalarType" in one.type:
                limits += [
                    Limit(one_of=(None, *map(DtypeName, sorted(rule.dtypes)))) for rule in self.rules if rule.dtypes
                ]
            chosen = choose_value(one, limits)
            if chosen is None:
                return None
            found[one.name] = chosen[0]
        names = {one.name for one in self.parameters}
        absent = (limit for name, many in self.by_name.items() if name not in names for limit in many)
        return None if any(isinstance(limit, TensorLimit) and limit.required for limit in absent) else found

    def presences(self) -> Iterator[dict[str, int | None]]:
        """Yield how many tensors each tensor argument holds; None: it is not given."""
        by_position = any(one.multiple_of or one.first_dtype for one in self.rules)
        reach = max((position for one in self.rules for position in one.multiple_of), default=0) + 2
        options = {one.name: self._counts(one, reach, by_position) for one in self.parameters if one.is_tensor}
        if math.prod(map(len, options.values())) > MAX_TRIES:
            raise UndecidableError("there are too many ways in which tensors are given or not")
        for counts in itertools.product(*options.values()):
            yield dict(zip(options, counts, strict=True))

    def _counts(self, one: Parameter, reach: int, by_position: bool) -> tuple[int | None, ...]:
        limits = self.by_name.get(one.name, [])
        required = any(isinstance(limit, TensorLimit) and limit.required for limit in limits)
        if any(isinstance(limit, Limit) for limit in limits):  # only (None,) can stand on a tensor
            return (None,) if one.is_optional and not required else ()
        if one.is_list:
            # Longer lists move what comes after them to other positions.
            counts = tuple(range(1, reach + 1)) if by_position else (1,)
            return counts if required else (*counts, 0)
        if not one.is_optional or required:
            return (1,)
        return (None, 1) if by_position else (None,)

    def tensors(self, given: dict[str, int | None]) -> dict[Place, TensorValue] | None:
        """Choose dtype, shape and strides of every tensor that is given; None where that is impossible."""
        places = [(name, number) for name, count in given.items() for number in range(count or 0)]
        wanted = {place: self._wanted(place, position) for position, place in enumerate(places)}
        if not places and any(one.first_dtype for one in self.rules):
            return None
        ties = [[(place, dim) for name, dim in pair for place in places if place[0] == name] for pair in self._equal()]
        for place, dim in itertools.chain.from_iterable(ties):
            wanted[place].ties.append(dim)
        if not all(one.dtypes for one in wanted.values()):
            return None
        options = [one.ranks() for one in wanted.values()]
        if math.prod(map(len, options)) > MAX_TRIES:
            raise UndecidableError("there are too many numbers of dimensions to try")
        for ranks in itertools.product(*options):
            shapes = _shapes(wanted, dict(zip(places, ranks, strict=True)), ties, self._last(places))
            if shapes is not None:
                return {place: _tensor(wanted[place], shapes[place]) for place in places}
        return None

    def _wanted(self, place: Place, position: int) -> _Wanted:
        wanted = _Wanted()
        for rule in self.rules:
            wanted.take(rule)
            if position == 0 and rule.first_dtype:
                wanted.dtypes &= rule.first_dtype
        for limit in self.by_name.get(place[0], ()):
            if isinstance(limit, TensorLimit):
                wanted.take(limit)
        wanted.divided = any(position in rule.multiple_of for rule in self.rules)
        return wanted

    def _equal(self) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
        for rule in self.rules:
            yield from rule.equal

    def _last(self, places: list[Place]) -> dict[Place, list[Limit]]:
        """Return what the last dimension of each tensor is divisible by."""
        found: dict[Place, list[Limit]] = {}
        for position, divisor in (item for rule in self.rules for item in rule.multiple_of.items()):
            if position < len(places):
                found.setdefault(places[position], []).append(Limit(multiple_of=divisor))
        return found

    def signature(
        self,
        op: str,
        values: dict[str, Plain],
        given: dict[str, int | None],
        tensors: dict[Place, TensorValue],
    ) -> Signature:
        """Write the call down, with every argument."""
        args: list[Value] = []
        kwargs: dict[str, Value] = {}
        for one in self.parameters:
            tensor = one.is_tensor
            value = _tensor_argument(one, given[one.name], tensors) if tensor else record_of(values[one.name])
            if one.kwarg_only:
                kwargs[one.name] = value
            else:
                args.append(value)
        return Signature(op=op, args=tuple(args), kwargs=dict(sorted(kwargs.items())))


def _tensor_argument(one: Parameter, count: int | None, tensors: dict[Place, TensorValue]) -> Value:
    if count is None:
        return ScalarValue(type="none", value="None")
    many = tuple(tensors[(one.name, number)] for number in range(count))
    return ListValue(items=many) if one.is_list else many[0]


def _shapes(
    wanted: dict[Place, _Wanted],
    ranks: dict[Place, int],
    ties: list[list[tuple[Place, int]]],
    last: dict[Place, list[Limit]],
) -> dict[Place, tuple[int, ...]] | None:
    classes = _Classes()
    limits: dict[tuple[Place, int], list[Limit]] = {}
    for place, one in wanted.items():
        rank = ranks[place]
        for dim, limit in (*one.sizes, *((-1, limit) for limit in last.get(place, ()) if rank)):
            limits.setdefault((place, dim % rank), []).append(limit)
    for tied in ties:
        same = [(place, dim % ranks[place]) for place, dim in tied]
        for other in same[1:]:
            classes.join(same[0], other)
    together: dict[tuple[Place, int], list[Limit]] = {}
    for node, many in limits.items():
        together.setdefault(classes.of(node), []).extend(many)
    sizes = _Sizes(classes, together)
    nodes = {place: [(place, dim) for dim in range(rank)] for place, rank in ranks.items()}
    for place, one in wanted.items():
        if not all(sizes.settle(node) for node in nodes[place]):
            return None
        if False in one.layouts and not sizes.spread(nodes[place]):
            return None
    shapes = {place: tuple(sizes.of(node) for node in nodes[place]) for place in wanted}
    if any(math.prod(shape) > MAX_ELEMENTS for shape in shapes.values()):
        raise UndecidableError("only tensors that no memory holds satisfy both")
    return shapes


class _Classes:
    """Which dimensions have one size."""

    def __init__(self) -> None:
        self._parent: dict[tuple[Place, int], tuple[Place, int]] = {}

    def of(self, node: tuple[Place, int]) -> tuple[Place, int]:
        while node in self._parent:
            node = self._parent[node]
        return node

    def join(self, one: tuple[Place, int], other: tuple[Place, int]) -> None:
        one, other = self.of(one), self.of(other)
        if one != other:
            self._parent[other] = one


class _Sizes:
    """The smallest size of each class of dimensions that its limits allow."""

    def __init__(self, classes: _Classes, limits: dict[tuple[Place, int], list[Limit]]) -> None:
        self._classes, self._limits = classes, limits
        self._sizes: dict[tuple[Place, int], int] = {}

    def settle(self, node: tuple[Place, int]) -> bool:
        """Give a dimension its size, 0 only where it must be."""
        one = self._classes.of(node)
        if one not in self._sizes:
            size = whole_within(self._limits.get(one, ()), 1)
            size = whole_within(self._limits.get(one, ()), 0) if size is None else size
            if size is None:
                return False
            self._sizes[one] = size
        return True

    def spread(self, nodes: list[tuple[Place, int]]) -> bool:
        """Make a tensor large enough to have a layout: some dimension of more than one, and none of 0."""
        sizes = [self.of(node) for node in nodes]
        if 0 in sizes:
            return False
        if max(sizes, default=1) > 1:
            return True
        for one in (self._classes.of(node) for node in nodes):
            size = whole_within(self._limits.get(one, ()), 2)
            if size is not None:
                self._sizes[one] = size
                return True
        return False

    def of(self, node: tuple[Place, int]) -> int:
        return self._sizes[self._classes.of(node)]


def _tensor(wanted: _Wanted, shape: tuple[int, ...]) -> TensorValue:
    dtype = next((name for name in _FAVOURITES if name in wanted.dtypes), min(wanted.dtypes))
    step, stride = 2 if False in wanted.layouts else 1, []
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return TensorValue(shape=shape, dtype=dtype, stride=tuple(reversed(stride)))
