"""Filters that a user writes, such as ``tensor_parallel <= 8 and recompute == "none"``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.base.files import shortened
from perfmodel.base.language import Evaluate, Language, Test, parsed


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
    tree = parsed(source, "filter", DataError, text)
    try:
        _restore(tree, meaning)
        if meant is not None:
            _translate(tree, meant)
        with np.errstate(all="ignore"):
            return _mask(_Filter(text, known, meaning, size).compiled(tree)(column), size)
    except RecursionError:  # Python 3.13 parses what cannot be walked
        raise DataError(f"filter '{shortened(text)}': too long, or not text") from None
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
