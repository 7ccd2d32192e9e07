"""Formulas in pages of families: ``= num_experts if i >= first_k_dense_replace else 0``.

A formula knows names, numbers, words, lists, mappings, arithmetic, comparisons, ``and``, ``or``,
``not``, ``in``, ``a if b else c``, subscripts and a few functions; nothing of Python can be
called. Names are the keys of a ``config.json`` and what the page derives from them.

``a or b`` is ``b`` where ``a`` is absent; also where it is false, unless ``b`` is a constant:
``qkv_bias or True`` is what the file states, and true where it states nothing. A stated 0 stays.

Pages come from anybody, so formulas have a budget: of characters and depth, of digits and entries
of every value, and of operations in one reading of a model, which end in about a second.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

from perfmodel.base.errors import ModelError
from perfmodel.base.files import shortened
from perfmodel.base.language import Evaluate, Language, dotted, parsed

MOST_CHARACTERS = 2_000  # the longest formula in families/ has 190
MOST_DEPTH = 50  # 9
MOST_BITS = 256  # of a whole number
MOST_ENTRIES = 100_000  # of a list, with those of lists inside, or characters of a text
MOST_OPERATIONS = 4_000_000  # 10,000 layers of the largest page take 750,000


class Names(Protocol):
    """Where a formula finds its names."""

    def value(self, name: str) -> Any:
        """Return what a name stands for; raises `Absent` where nothing does."""

    def stated(self, name: str) -> bool:
        """Whether the file itself has a key, default or not."""

    def per_layer(self, name: str, found: Any, index: int) -> Any:
        """Return the entry of layer `index` in what a name stands for."""

    def spend(self, operations: int) -> None:
        """Count operations; raises `ModelError` where they are too many."""


class Absent(ModelError):
    """A key that is missing or null."""

    def __init__(self, name: str) -> None:
        super().__init__(f"key {name!r}: missing or null")


def _up_to_multiple(value: float, multiple: int) -> int:
    """Round up to a multiple."""
    return -(-int(value) // multiple) * multiple


def _sum_of_primes(start: int, skipped: int, count: int) -> int:
    """Sum `count` primes from `start` on, after leaving out the first `skipped` of them.

    Tables of hashed n-grams have prime sizes (Qwen4-Exp).
    """

    def is_prime(value: int) -> bool:
        return value > 1 and all(value % i for i in range(2, math.isqrt(value) + 1))

    primes = filter(is_prime, itertools.count(start))
    return sum(itertools.islice(primes, skipped, skipped + count))


def _numbers(value: Any) -> list[int]:
    """Return a list of numbers that a file may write as a text, "3,4,5"."""
    return [int(item) for item in (value.split(",") if isinstance(value, str) else value)]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "len": len,
    "index": list.index,
    "min": min,
    "max": max,
    "sum": sum,
    "int": int,
    "ceil": lambda value: -int(-value // 1),
    "up_to_multiple": _up_to_multiple,
    "sum_of_primes": _sum_of_primes,
    "numbers": _numbers,
}


@cache
def _tree(text: str) -> ast.Expression:
    """Return the tree of a formula that is short and shallow enough to be walked."""
    if len(text) > MOST_CHARACTERS:
        raise ModelError(f"formula {shortened(text)!r}: more than {MOST_CHARACTERS:,} characters")
    tree = parsed(text.strip(), "formula", ModelError)
    level: list[ast.AST] = [tree]
    for _ in range(MOST_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise ModelError(f"formula {shortened(text)!r}: nested more than {MOST_DEPTH} deep")
    return tree


@cache
def compile_formula(text: str) -> Evaluate:
    """Return the formula as a function of its names.

    Raises
    ------
    ModelError
        The text is no formula.
    """
    tree = _tree(text)
    value, operations = _Formula(text).compiled(tree), sum(1 for _ in ast.walk(tree))

    def evaluate(names: Names) -> Any:
        names.spend(operations)
        return value(names)

    return evaluate


@cache
def names_of(text: str) -> tuple[str, ...]:
    """Return the names that a formula mentions, in their order."""
    found = [name for node in ast.walk(_tree(text)) if (name := dotted(node))]
    return tuple(dict.fromkeys(name for name in found if name not in FUNCTIONS))


@cache
def per_layer_names_of(text: str) -> tuple[str, ...]:
    """Return the names of which a formula takes the entry of a layer: ``key[i]``."""
    return tuple(
        name
        for node in ast.walk(_tree(text))
        if isinstance(node, ast.Subscript)
        and _is_layer(node.slice)
        and (name := dotted(node.value))
    )


def _is_layer(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "i"


class _Formula(Language):
    """Formulas over the keys of one file."""

    def __init__(self, text: str) -> None:
        self.text = text

    def compiled(self, node: ast.AST) -> Evaluate:
        inner = super().compiled
        match node:
            case ast.IfExp(test, body, orelse):
                condition, then, otherwise = map(self.compiled, (test, body, orelse))
                return lambda names: then(names) if condition(names) else otherwise(names)
            case ast.Subscript(ast.Dict(keys, values), index):
                entries = [self.compiled(value) for value in values]
                return _choice(keys, entries, self.compiled(index), index)
            case ast.Subscript(value, index):
                return _entry(self.compiled(value), self.compiled(index), value, index)
            case ast.Call(ast.Name("given"), [argument], []) if dotted(argument):
                name = dotted(argument)
                return lambda names: _is_given(names, name)
            case ast.Call(ast.Name("stated"), [argument], []) if dotted(argument):
                name = dotted(argument)
                return lambda names: names.stated(name)
            case ast.Call(ast.Name(function), arguments, []) if function in FUNCTIONS:
                return _called(function, [self.compiled(it) for it in arguments])
            case ast.Constant(value):
                _bounded(value)
            case ast.List() | ast.Tuple():
                listed = inner(node)
                return lambda names: _bounded(listed(names))
        return inner(node)

    def refused(self, node: ast.AST) -> ModelError:
        return ModelError(
            f"formula {shortened(self.text)!r}: {ast.unparse(node)!r} is not understood"
        )

    def calculated(self, node: ast.BinOp, left: Evaluate, right: Evaluate) -> Evaluate:
        """Return arithmetic; ``a // b`` of whole numbers must come out even."""
        apply, exact = self.arithmetic[type(node.op)], isinstance(node.op, ast.FloorDiv)
        shown = dotted(node.left), dotted(node.right)

        def evaluate(names: Names) -> Any:
            a, b = left(names), right(names)
            if exact and (b == 0 or a % b):
                first, second = (name or str(x) for name, x in zip(shown, (a, b), strict=True))
                text = f"key {first!r}: {a} should be a multiple of {second!r}, which is {b}"
                raise ModelError(text)
            _check_size(node.op, a, b)
            return _bounded(apply(a, b))

        return evaluate

    def joined(self, node: ast.BoolOp, parts: Sequence[Evaluate]) -> Evaluate:
        if isinstance(node.op, ast.And):
            return lambda names: all(part(names) for part in parts)
        default = isinstance(node.values[-1], ast.Constant)

        def evaluate(names: Names) -> Any:
            for part in parts[:-1]:
                try:
                    found = part(names)
                except Absent:
                    continue
                if default or found is not False:
                    return found
            return parts[-1](names)

        return evaluate


def _called(function: str, parts: Sequence[Evaluate]) -> Evaluate:
    """Return a call; what it goes through is spent before."""
    call = FUNCTIONS[function]

    def evaluate(names: Names) -> Any:
        arguments = [value(names) for value in parts]
        names.spend(sum(map(_entries, arguments)))
        if function == "sum_of_primes" and len(arguments) == 3:
            start, skipped, count = arguments
            names.spend((abs(skipped) + abs(count)) * math.isqrt(abs(start)))
        return _bounded(call(*arguments))

    return evaluate


def _entries(value: Any) -> int:
    """Return how many values a value holds, those of lists inside included."""
    if isinstance(value, list):
        return 1 + sum(map(_entries, value))
    return len(value) if isinstance(value, str) else 1


def _check_size(operation: ast.operator, a: Any, b: Any) -> None:
    """Refuse arithmetic whose result would be too large to be made at all."""
    match operation:
        case ast.Pow() if isinstance(a, int) and isinstance(b, int):
            size, most = b * abs(a).bit_length() * (abs(a) > 1), MOST_BITS
        case ast.Mult() if isinstance(a, list | str) or isinstance(b, list | str):
            size, most = 1, MOST_ENTRIES
            for side in (a, b):
                size *= side if isinstance(side, int) else _entries(side)
        case ast.Mod() if isinstance(a, str):
            raise TypeError("a text has no remainder")
        case _:
            return
    if size > 2 * most:
        raise OverflowError("a value is too large")


def _bounded(value: Any) -> Any:
    """Return a value that is small enough to go on with."""
    match value:
        case int():
            large = value.bit_length() > MOST_BITS
        case float():
            large = not math.isfinite(value)
        case str() | list():
            large = _entries(value) > MOST_ENTRIES
        case None:
            large = False
        case _:
            raise TypeError(f"{type(value).__name__} is no value of a formula")
    if large:
        raise OverflowError("a value is too large")
    return value


def _is_given(names: Names, name: str) -> bool:
    try:
        names.value(name)
    except Absent:
        return False
    return True


def _choice(
    keys: list[ast.expr | None], values: list[Evaluate], index: Evaluate, shown: ast.expr
) -> Evaluate:
    """Return the entry of a mapping; a word that it lacks is refused with those it has."""
    table = {
        key.value: value
        for key, value in zip(keys, values, strict=True)
        if isinstance(key, ast.Constant)
    }
    name = next((found for node in ast.walk(shown) if (found := dotted(node))), "")

    def evaluate(names: Names) -> Any:
        word = index(names)
        if not isinstance(word, str | int | bool) or word not in table:
            known = [str(key) for key in table]
            covered = ", ".join(known)
            raise ModelError(f"key {name!r}: {word!r} is not modelled; covered: {covered}")
        return table[word](names)

    return evaluate


def _entry(value: Evaluate, index: Evaluate, node: ast.expr, where: ast.expr) -> Evaluate:
    """Return an entry of a list; ``key[i]`` needs as many entries as there are layers."""
    name = dotted(node)
    per_layer = bool(name) and _is_layer(where)

    def evaluate(names: Names) -> Any:
        found, position = value(names), index(names)
        if per_layer:
            return names.per_layer(name, found, position)
        try:
            return found[position]
        except (IndexError, KeyError, TypeError):
            raise ModelError(f"key {name or ast.unparse(node)!r}: no entry {position!r}") from None

    return evaluate
