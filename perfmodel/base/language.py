"""Expressions that a user or a page writes: how they are understood and evaluated.

Names, numbers, strings, lists, comparisons, arithmetic and ``and``, ``or``, ``not``, ``in`` are
understood; nothing of Python can be called. What a `Language` adds to that is its own: a filter
(`perfmodel.base.expression`) is over columns, a formula (`perfmodel.model.formula`) over keys of
one model. Nothing heavy is imported here: models are read without NumPy.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from perfmodel.base.errors import DataError, PerfModelError
from perfmodel.base.files import shortened

Evaluate = Callable[[Any], Any]
"""What names stand for -> the value of an expression."""
Test = Callable[[Any, Any], Any]


def parsed(
    text: str, what: str, error: type[PerfModelError], shown: str | None = None
) -> ast.Expression:
    """Return the tree of an expression.

    Parameters
    ----------
    text : str
    what : str
        What kind of expression it is, for errors: "filter".
    error : type of PerfModelError
        What to raise.
    shown : str, optional
        What the user wrote, where `text` is another.

    Raises
    ------
    PerfModelError
        The text is no expression, or too deep or long to be walked.
    """
    shown = text if shown is None else shown
    try:
        with warnings.catch_warnings():
            # "3and" is an error in later Pythons, and here.
            warnings.simplefilter("error", SyntaxWarning)
            warnings.simplefilter("error", DeprecationWarning)
            return ast.parse(text, mode="eval")
    except SyntaxError as wrong:
        where = f"at character {wrong.offset}" if wrong.offset else "at its end"
        raise error(f"{what} '{shown}': {wrong.msg} {where}") from None
    except (ValueError, RecursionError, MemoryError):
        raise error(f"{what} '{shortened(shown)}': too long, or not text") from None


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
