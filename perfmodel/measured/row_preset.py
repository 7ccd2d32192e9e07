"""The model that a row of a table of serving runs names, in whatever spelling.

Tables of serving runs state names, not architectures: with or without an organisation, with the
precision of the checkpoint ("-FP8", "-NVFP4"), or short ("Qwen3-235B", "GLM-5").
"""

from __future__ import annotations

import re
from functools import lru_cache

from perfmodel.base.errors import ModelError
from perfmodel.measured.row_model import model_from_row
from perfmodel.measured.rows import MeasuredRow, Skip
from perfmodel.model.build import ModelSpec
from perfmodel.model.presets import find_preset, list_models, load_model

WITHOUT_ARCHITECTURE = "architecture not stated"
# Endings of checkpoints' names that tell how weights are kept, and words that come after them.
_FORMAT = re.compile(
    r"[-_ ](?:(?:nv|mx)?fp(?:4|8|16)|bf16|w\d+a\d+(?:kv\d+)?|int[48]|awq|gptq|qat|quantized|kv)"
    r"(?:[-_ ](?:static|dynamic|block|kv|preview|v\d+))*$",
    re.IGNORECASE,
)
_SIZE = re.compile(r"a?\d+(?:\.\d+)?(?:x\d+)?[bmt]|\d+e", re.IGNORECASE)


def served_model(row: MeasuredRow) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return the model of a row, and notes on how its name was read.

    Raises
    ------
    Skip
        Neither is the name known nor an architecture stated.
    """
    name = row.text("model")
    if name:
        try:
            return _known(name)
        except ModelError as error:
            reason = str(error)
    else:
        reason = "column 'model' is empty"
    if row.text("layers") and row.text("hidden"):
        try:
            return model_from_row(row.cells), ("architecture from the row",)
        except ModelError as error:
            reason = str(error)
    raise Skip(WITHOUT_ARCHITECTURE, reason, scorable=False)


@lru_cache(maxsize=256)
def _known(name: str) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return the model that a name means.

    Raises
    ------
    ModelError
        It means none.
    """
    if find_preset(name) is not None or name.endswith(".json"):
        return load_model(name), ()
    plain = name.strip().rsplit("/", 1)[-1]
    while True:
        if (preset := find_preset(plain)) is not None:
            return load_model(preset), (f"'{name}' is read as {preset}",)
        shorter = _FORMAT.sub("", plain)
        if shorter == plain:
            break
        plain = shorter
    preset = _largest_of(plain)
    if preset is None:
        return load_model(name), ()
    return load_model(preset), (f"'{name}' is read as {preset}, the largest of that name",)


def _largest_of(name: str) -> str | None:
    """Return the largest preset that is called so when sizes are left out, or None.

    A family's name alone means its largest model, as in lists of results; a member's name
    ("Qwen3-235B") may leave out what follows its size.
    """
    wanted = _words(name)
    found = []
    for item in list_models():
        for known in (item.name, *item.aliases, *item.hub):
            words = _words(known.rsplit("/", 1)[-1])
            rest = words[len(wanted) :]
            if words[: len(wanted)] == wanted and all(map(_SIZE.fullmatch, rest)):
                found.append((item.parameters, item.name))
    return max(found)[1] if found else None


def _words(name: str) -> list[str]:
    return re.split(r"[-_\s]+", name.strip().lower())
