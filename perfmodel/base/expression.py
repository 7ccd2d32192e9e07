"""Filters that a user writes, such as ``tensor_parallel <= 8 and recompute == "none"``.

Only names, numbers, strings, comparisons, arithmetic and ``and``, ``or``, ``not``,
``in`` are understood; nothing of Python can be called.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError, did_you_mean

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: np.float_power,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


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
    source, dotted = _without_dots(text.strip(), known)

    def _known(name: str) -> str:
        if name in known:
            return name
        hint = did_you_mean(name, known)
        raise DataError(f"filter '{text}': no column '{name}'{hint} (text needs quotes)")

    def visit(node: ast.AST) -> Any:
        match node:
            case ast.Expression(body):
                return visit(body)
            case ast.Constant(value) if isinstance(value, int | float | str | bool):
                return value
            case ast.Name(name):
                if name in ("true", "false"):
                    return name == "true"
                return column(_known(dotted.get(name, name)))
            case ast.UnaryOp(ast.Not(), operand):
                return ~_mask(visit(operand), size)
            case ast.UnaryOp(ast.USub(), operand):
                return -visit(operand)
            case ast.BinOp(left, op, right) if type(op) in _BINARY:
                # As arrays, so that 1/0 and 9**9**9 are infinite instead of fatal.
                return _BINARY[type(op)](np.asarray(visit(left)), np.asarray(visit(right)))
            case ast.BoolOp(op, values):
                masks = [_mask(visit(value), size) for value in values]
                combine = np.logical_and if isinstance(op, ast.And) else np.logical_or
                return combine.reduce(masks)
            case ast.Compare(left, ops, comparators) if not any(
                isinstance(op, ast.Is | ast.IsNot) for op in ops
            ):
                return _compare(visit(left), ops, [visit(item) for item in comparators], size)
            case ast.List(items) | ast.Tuple(items):
                return [visit(item) for item in items]
        raise DataError(
            f"filter '{text}': only names, numbers, strings, comparisons, arithmetic, "
            "'and', 'or', 'not' and 'in' are understood"
        )

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
        _restore(tree, dotted)
        if meant is not None:
            _translate(tree, meant)
        with np.errstate(all="ignore"):
            return _mask(visit(tree), size)
    except RecursionError:  # Python 3.13 parses what cannot be walked
        raise DataError(f"filter '{text[:40]}': too long, or not text") from None
    except (
        TypeError,
        ValueError,
        ArithmeticError,
        np.exceptions.DTypePromotionError,
    ):
        raise DataError(f"filter '{text}': mixes numbers and text, or the like") from None


def _restore(tree: ast.AST, dotted: Mapping[str, str]) -> None:
    """Put dotted names back into texts, such as that of a hardware row with a swept value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for stand_in, name in dotted.items():
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


def _compare(left: Any, ops: list[ast.cmpop], rights: list[Any], size: int) -> NDArray[np.bool_]:
    result = np.ones(size, bool)
    for op, right in zip(ops, rights, strict=True):
        if isinstance(op, ast.In | ast.NotIn):
            found = np.isin(left, right)
            result &= ~found if isinstance(op, ast.NotIn) else found
        else:
            if _is_text(left) != _is_text(right):
                raise TypeError("text against a number is never what the user means")
            result &= _mask(_COMPARE[type(op)](left, right), size)
        left = right
    return result


def _is_text(value: Any) -> bool:
    return np.asarray(value).dtype.kind not in "biuf"


def _mask(value: Any, size: int) -> NDArray[np.bool_]:
    if _is_text(value):
        raise TypeError("text is neither true nor false")
    return np.broadcast_to(np.asarray(value, bool), (size,)).copy()
