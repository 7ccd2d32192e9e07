"""Expressions that a user or a page writes, and filters such as ``tensor_parallel <= 8 and fits``.

Names, numbers, strings, lists, comparisons, arithmetic and ``and``, ``or``, ``not``, ``in`` are
understood; nothing of Python can be called. What a `Language` adds to that is its own: a filter
(`evaluate_mask`) is over columns, a formula (`perfmodel.model.formula`) over keys of one model.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError, PerfModelError, did_you_mean

Evaluate = Callable[[Any], Any]
"""What names stand for -> the value of an expression."""
Test = Callable[[Any, Any], Any]


def dotted(node: ast.AST) -> str:
    """Return a name or ``section.key``, "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""


class Language:
    """How expressions of one kind are evaluated; here as Python would."""

    arithmetic: ClassVar[Mapping[type[ast.operator], Test]] = {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
        ast.Pow: operator.pow,
    }
    comparisons: ClassVar[Mapping[type[ast.cmpop], Test]] = {
        ast.Eq: operator.eq,
        ast.NotEq: operator.ne,
        ast.Lt: operator.lt,
        ast.LtE: operator.le,
        ast.Gt: operator.gt,
        ast.GtE: operator.ge,
        ast.In: lambda a, b: a in b,
        ast.NotIn: lambda a, b: a not in b,
    }

    def compiled(self, node: ast.AST) -> Evaluate:
        """Return an expression as a function of what names stand for."""
        match node:
            case ast.Expression(body):
                return self.compiled(body)
            case ast.Constant(value):
                return lambda names: value
            case ast.Name() | ast.Attribute(value=ast.Name()):
                return self.named(dotted(node))
            case ast.BinOp(left, op, right) if type(op) in self.arithmetic:
                return self.calculated(node, self.compiled(left), self.compiled(right))
            case ast.UnaryOp(ast.Not(), operand):
                return self.negated(self.compiled(operand))
            case ast.UnaryOp(ast.USub(), operand):
                value_of = self.compiled(operand)
                return lambda names: -value_of(names)
            case ast.BoolOp(op, values):
                return self.joined(node, [self.compiled(value) for value in values])
            case ast.Compare(left, ops, rights) if all(type(op) in self.comparisons for op in ops):
                return self.compared(
                    [self.comparisons[type(op)] for op in ops],
                    [self.compiled(side) for side in (left, *rights)],
                )
            case ast.List(items) | ast.Tuple(items):
                entries = [self.compiled(item) for item in items]
                return lambda names: [entry(names) for entry in entries]
        raise self.refused(node)

    def refused(self, node: ast.AST) -> PerfModelError:
        """Return the error of what is not understood."""
        return DataError(f"{ast.unparse(node)!r} is not understood")

    def named(self, name: str) -> Evaluate:
        """Return what looks up a name."""
        return lambda names: names.value(name)

    def calculated(self, node: ast.BinOp, left: Evaluate, right: Evaluate) -> Evaluate:
        """Return arithmetic."""
        apply = self.arithmetic[type(node.op)]
        return lambda names: apply(left(names), right(names))

    def negated(self, value: Evaluate) -> Evaluate:
        """Return ``not``."""
        return lambda names: not value(names)

    def joined(self, node: ast.BoolOp, parts: Sequence[Evaluate]) -> Evaluate:
        """Return ``and`` or ``or``."""
        combine = all if isinstance(node.op, ast.And) else any
        return lambda names: combine(part(names) for part in parts)

    def compared(self, tests: Sequence[Test], sides: Sequence[Evaluate]) -> Evaluate:
        """Return a chain of comparisons of neighbouring sides."""

        def evaluate(names: Any) -> bool:
            first = sides[0](names)
            for test, side in zip(tests, sides[1:], strict=True):
                second = side(names)
                if not test(first, second):
                    return False
                first = second
            return True

        return evaluate


class _Filter(Language):
    """Filters over columns of so many rows."""

    arithmetic: ClassVar = {**Language.arithmetic, ast.Pow: np.float_power}
    comparisons: ClassVar = {
        **Language.comparisons,
        ast.In: np.isin,
        ast.NotIn: lambda a, b: ~np.isin(a, b),
    }

    def __init__(self, text: str, known: set[str], meaning: Mapping[str, str], size: int) -> None:
        self.text, self.known, self.meaning, self.size = text, known, meaning, size

    def compiled(self, node: ast.AST) -> Evaluate:
        strange = isinstance(node, ast.Constant) and not isinstance(node.value, int | float | str)
        if strange or isinstance(node, ast.Attribute):
            raise self.refused(node)
        return super().compiled(node)

    def refused(self, node: ast.AST) -> DataError:
        return DataError(
            f"filter '{self.text}': only names, numbers, strings, comparisons, arithmetic, "
            "'and', 'or', 'not' and 'in' are understood"
        )

    def named(self, name: str) -> Evaluate:
        if name in ("true", "false"):
            return lambda column: name == "true"
        found = self.meaning.get(name, name)
        if found not in self.known:
            hint = did_you_mean(found, self.known)
            raise DataError(f"filter '{self.text}': no column '{found}'{hint} (text needs quotes)")
        return lambda column: column(found)

    def calculated(self, node: ast.BinOp, left: Evaluate, right: Evaluate) -> Evaluate:
        apply = self.arithmetic[type(node.op)]
        # As arrays, so that 1/0 and 9**9**9 are infinite instead of fatal.
        return lambda column: apply(np.asarray(left(column)), np.asarray(right(column)))

    def negated(self, value: Evaluate) -> Evaluate:
        return lambda column: ~_mask(value(column), self.size)

    def joined(self, node: ast.BoolOp, parts: Sequence[Evaluate]) -> Evaluate:
        combine = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        return lambda column: combine.reduce([_mask(part(column), self.size) for part in parts])

    def compared(self, tests: Sequence[Test], sides: Sequence[Evaluate]) -> Evaluate:
        lists = (self.comparisons[ast.In], self.comparisons[ast.NotIn])

        def evaluate(column: Any) -> NDArray[np.bool_]:
            values = [side(column) for side in sides]
            result = np.ones(self.size, bool)
            for test, left, right in zip(tests, values, values[1:], strict=False):
                if test not in lists and _is_text(left) != _is_text(right):
                    raise TypeError("text against a number is never what the user means")
                result &= _mask(test(left, right), self.size)
            return result

        return evaluate


def evaluate_mask(
    text: str,
    column: Callable[[str], Any],
    names: Iterable[str],
    size: int,
    *,
    meant: Callable[[str, str], str] | None = None,
) -> NDArray[np.bool_]:
    """Evaluate a filter over columns.

    Parameters
    ----------
    text : str
        The expression.
    column : callable
        Gives the column (array of numbers or strings) of a name.
    names : iterable of str
        Names that exist.
    size : int
        Rows.
    meant : callable, optional
        Gives of a column's name and a text that it is compared with the text as the column has it.

    Returns
    -------
    ndarray of bool, shape (size,)

    Raises
    ------
    DataError
        Syntax error, unknown name, or a construct that a filter does not have.
    """
    if not text.strip():
        raise DataError("the filter is empty; it should be like 'tensor_parallel <= 8'")
    known = set(names)
    source, meaning = _without_dots(text.strip(), known)
    try:
        with warnings.catch_warnings():
            # "3and" is an error in later Pythons, and here.
            warnings.simplefilter("error", SyntaxWarning)
            warnings.simplefilter("error", DeprecationWarning)
            tree = ast.parse(source, mode="eval")
    except SyntaxError as error:
        where = f"at character {error.offset}" if error.offset else "at its end"
        raise DataError(f"filter '{text}': {error.msg} {where}") from None
    except (ValueError, RecursionError, MemoryError):
        raise DataError(f"filter '{text[:40]}': too long, or not text") from None
    try:
        _restore(tree, meaning)
        if meant is not None:
            _translate(tree, meant)
        with np.errstate(all="ignore"):
            return _mask(_Filter(text, known, meaning, size).compiled(tree)(column), size)
    except RecursionError:  # Python 3.13 parses what cannot be walked
        raise DataError(f"filter '{text[:40]}': too long, or not text") from None
    except (
        TypeError,
        ValueError,
        ArithmeticError,
        np.exceptions.DTypePromotionError,
    ):
        raise DataError(f"filter '{text}': mixes numbers and text, or the like") from None


def _restore(tree: ast.AST, meaning: Mapping[str, str]) -> None:
    """Put dotted names back into texts, such as that of a hardware row with a swept value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for stand_in, name in meaning.items():
                node.value = node.value.replace(stand_in, name)


def _translate(tree: ast.AST, meant: Callable[[str, str], str]) -> None:
    """Replace every text that a column is compared with by what is meant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            names = [side.id for side in sides if isinstance(side, ast.Name)]
            listed = [
                side.elts if isinstance(side, ast.List | ast.Tuple) else [side] for side in sides
            ]
            for item in (item for items in listed for item in items if len(names) == 1):
                if isinstance(item, ast.Constant) and isinstance(item.value, str):
                    item.value = meant(names[0], item.value)


def _without_dots(text: str, known: Iterable[str]) -> tuple[str, dict[str, str]]:
    """Replace names such as ``system.network.1.bandwidth`` by identifiers.

    Swept values of a hardware profile are columns with dotted names.
    """
    meaning: dict[str, str] = {}
    for name in sorted((name for name in known if "." in name), key=len, reverse=True):
        stand_in = f"dotted_{len(meaning)}_"
        text, count = re.subn(rf"(?<![\w.]){re.escape(name)}(?![\w.])", stand_in, text)
        if count:
            meaning[stand_in] = name
    return text, meaning


def _is_text(value: Any) -> bool:
    return np.asarray(value).dtype.kind not in "biuf"


def _mask(value: Any, size: int) -> NDArray[np.bool_]:
    if _is_text(value):
        raise TypeError("text is neither true nor false")
    return np.broadcast_to(np.asarray(value, bool), (size,)).copy()
