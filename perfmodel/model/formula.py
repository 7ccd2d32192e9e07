"""Formulas in pages of families: ``= num_experts if i >= first_k_dense_replace else 0``.

A formula knows names, numbers, words, lists, mappings, arithmetic, comparisons, ``and``, ``or``,
``not``, ``in``, ``a if b else c``, subscripts and a few functions; nothing of Python can be
called. Names are the keys of a ``config.json`` and what the page derives from them.

``a or b`` is ``b`` where ``a`` is absent; also where it is false, unless ``b`` is a constant:
``qkv_bias or True`` is what the file states, and true where it states nothing. A stated 0 stays.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Protocol

from perfmodel.base.errors import ModelError


class Names(Protocol):
    """Where a formula finds its names."""

    def value(self, name: str) -> Any:
        """Return what a name stands for; raises `Absent` where nothing does."""

    def stated(self, name: str) -> bool:
        """Whether the file itself has a key, default or not."""

    def per_layer(self, name: str, found: Any, index: int) -> Any:
        """Return the entry of layer `index` in what a name stands for."""


class Absent(ModelError):
    """A key that is missing or null."""

    def __init__(self, name: str) -> None:
        super().__init__(f"key {name!r}: missing or null")


Evaluate = Callable[[Names], Any]

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


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
def compile_formula(text: str) -> Evaluate:
    """Return the formula as a function of its names.

    Raises
    ------
    ModelError
        The text is no formula.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        raise ModelError(f"formula {text!r}: {error}") from None
    return _compile(tree.body, text)


@cache
def names_of(text: str) -> tuple[str, ...]:
    """Return the names that a formula mentions, in their order."""
    tree = ast.parse(text.strip(), mode="eval")
    found = [dotted for node in ast.walk(tree) if (dotted := _dotted(node))]
    return tuple(dict.fromkeys(name for name in found if name not in FUNCTIONS))


@cache
def per_layer_names_of(text: str) -> tuple[str, ...]:
    """Return the names of which a formula takes the entry of a layer: ``key[i]``."""
    tree = ast.parse(text.strip(), mode="eval")
    return tuple(
        dotted
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and _is_layer(node.slice)
        and (dotted := _dotted(node.value))
    )


def _is_layer(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "i"


def _dotted(node: ast.AST) -> str:
    """Return a name or ``section.key``, "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""


def _compile(node: ast.expr, text: str) -> Evaluate:
    def inner(child: ast.expr) -> Evaluate:
        return _compile(child, text)

    match node:
        case ast.Constant(value):
            return lambda names: value
        case ast.Name() | ast.Attribute(value=ast.Name()):
            name = _dotted(node)
            return lambda names: names.value(name)
        case ast.BinOp(left, op, right) if type(op) in _BINARY:
            return _binary(_BINARY[type(op)], inner(left), inner(right), node)
        case ast.UnaryOp(ast.Not(), operand):
            negated = inner(operand)
            return lambda names: not negated(names)
        case ast.UnaryOp(ast.USub(), operand):
            value_of = inner(operand)
            return lambda names: -value_of(names)
        case ast.BoolOp(ast.Or(), values):
            default = isinstance(values[-1], ast.Constant)
            return _either([inner(value) for value in values], default)
        case ast.BoolOp(ast.And(), values):
            every = [inner(value) for value in values]
            return lambda names: all(part(names) for part in every)
        case ast.Compare(left, ops, rights):
            return _comparison(inner(left), ops, [inner(right) for right in rights])
        case ast.IfExp(test, body, orelse):
            condition, then, otherwise = inner(test), inner(body), inner(orelse)
            return lambda names: then(names) if condition(names) else otherwise(names)
        case ast.List(items) | ast.Tuple(items):
            entries = [inner(item) for item in items]
            return lambda names: [entry(names) for entry in entries]
        case ast.Subscript(ast.Dict(keys, values), index):
            return _choice(keys, [inner(value) for value in values], inner(index), index)
        case ast.Subscript(value, index):
            return _entry(inner(value), inner(index), value, index)
        case ast.Call(ast.Name("given"), [argument], []) if _dotted(argument):
            name = _dotted(argument)
            return lambda names: _is_given(names, name)
        case ast.Call(ast.Name("stated"), [argument], []) if _dotted(argument):
            name = _dotted(argument)
            return lambda names: names.stated(name)
        case ast.Call(ast.Name(function), arguments, []) if function in FUNCTIONS:
            call, values_of = FUNCTIONS[function], [inner(argument) for argument in arguments]
            return lambda names: call(*(value(names) for value in values_of))
    raise ModelError(f"formula {text!r}: {ast.unparse(node)!r} is not understood")


def _is_given(names: Names, name: str) -> bool:
    try:
        names.value(name)
    except Absent:
        return False
    return True


def _binary(
    apply: Callable[[Any, Any], Any], left: Evaluate, right: Evaluate, node: ast.BinOp
) -> Evaluate:
    """Return arithmetic; ``a // b`` of whole numbers must come out even."""
    exact = isinstance(node.op, ast.FloorDiv)
    shown = _dotted(node.left), _dotted(node.right)

    def evaluate(names: Names) -> Any:
        a, b = left(names), right(names)
        if exact and (b == 0 or a % b):
            first, second = (name or str(x) for name, x in zip(shown, (a, b), strict=True))
            raise ModelError(f"key {first!r}: {a} should be a multiple of {second!r}, which is {b}")
        return apply(a, b)

    return evaluate


def _either(parts: list[Evaluate], default: bool) -> Evaluate:
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


def _comparison(left: Evaluate, ops: list[ast.cmpop], rights: list[Evaluate]) -> Evaluate:
    compare = [_COMPARE[type(op)] for op in ops]

    def evaluate(names: Names) -> bool:
        first = left(names)
        for test, right in zip(compare, rights, strict=True):
            second = right(names)
            if not test(first, second):
                return False
            first = second
        return True

    return evaluate


def _choice(
    keys: list[ast.expr | None], values: list[Evaluate], index: Evaluate, shown: ast.expr
) -> Evaluate:
    """Return the entry of a mapping; a word that it lacks is refused with those it has."""
    table = {
        key.value: value
        for key, value in zip(keys, values, strict=True)
        if isinstance(key, ast.Constant)
    }
    name = next((found for node in _outer_first(shown) if (found := _dotted(node))), "")

    def evaluate(names: Names) -> Any:
        word = index(names)
        if not isinstance(word, str | int | bool) or word not in table:
            known = [str(key) for key in table]
            covered = ", ".join(known)
            raise ModelError(f"key {name!r}: {word!r} is not modelled; covered: {covered}")
        return table[word](names)

    return evaluate


def _outer_first(node: ast.expr) -> Iterator[ast.AST]:
    return ast.walk(node)


def _entry(value: Evaluate, index: Evaluate, node: ast.expr, where: ast.expr) -> Evaluate:
    """Return an entry of a list; ``key[i]`` needs as many entries as there are layers."""
    name = _dotted(node)
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
