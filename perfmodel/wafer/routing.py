"""Experts of tokens, from a file or drawn: the same for all nodes."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import DataError
from perfmodel.base.files import atomic_path
from perfmodel.base.memory import check_memory
from perfmodel.base.routing import COUNTED, parse_routing
from perfmodel.compute.expected_loads import draw_tokens, draw_weights
from perfmodel.compute.routing import assign
from perfmodel.wafer.setting import CoreSetting

# Which experts the tokens of every layer go to, read from a file or drawn.


@dataclass(frozen=True)
class RoutedTokens:
    """Experts of every token in the layers that have experts.

    Attributes
    ----------
    experts : array of int, shape (layers, sequences, length, top_k)
        Layers with experts, first to last; one layer stands for all where only one is given.
    num_experts : int
    """

    experts: Integers
    num_experts: int

    def __post_init__(self) -> None:
        if self.experts.ndim != 4:
            raise DataError(
                "routing: an array of layers x sequences x length x experts per token should "
                f"have 4 dimensions, not {self.experts.ndim}"
            )
        if self.experts.size and (self.experts.min() < 0 or self.experts.max() >= self.num_experts):
            raise DataError(f"routing: experts should be 0 to {self.num_experts - 1}")
        ordered = self.experts.copy()
        ordered.sort(axis=3)
        if (ordered[..., 1:] == ordered[..., :-1]).any():
            raise DataError("routing: a token names the same expert twice")

    def of_layer(self, layer: int) -> Integers:
        """Return the experts of a layer with experts, shape (sequences, length, top_k)."""
        return self.experts[layer if len(self.experts) > 1 else 0]


# Experts of tokens, from a file or drawn: the same for all nodes.

RoutingOf = Callable[[int, int], Integers]
"""Step and layer -> experts of tokens, shape (sequences, drawn, experts per token): of every token,
or of some of each sequence that stand for all of it."""

LARGEST = 2**31  # B
KEY, STEPS = "experts", "steps"


@dataclass(frozen=True)
class SavedRouting:
    """Experts of tokens in some steps.

    Attributes
    ----------
    path : str
        Where they come from.
    by_step : dict of int or None to RoutedTokens
        None: the same in all steps.
    """

    path: str
    by_step: dict[int | None, RoutedTokens]

    def __call__(self, step: int) -> RoutedTokens:
        """Return a step's, or raise `DataError` where the file does not have it."""
        found = self.by_step.get(None) or self.by_step.get(step)
        if found is None:
            known = ", ".join(map(str, self.by_step))
            raise DataError(f"routing '{self.path}': has steps {known}, not {step}")
        return found


def read_routing(path: str | os.PathLike[str], experts: int, top_k: int = 0) -> SavedRouting:
    """Read experts of tokens from a file of NumPy's.

    Parameters
    ----------
    path : str or path
        ``.npz`` with an array ``experts``, or with one array: layers x sequences x length x
        experts per token, or sequences x length x experts per token for all layers; where
        only the first side is `top_k`, experts per token x sequences x length, as the wafer
        workload generator holds them. With an array ``steps`` beside it, one more side in front.
    experts : int
        Of a layer.
    top_k : int, optional
        Experts per token.

    Returns
    -------
    SavedRouting

    Raises
    ------
    DataError
        The file cannot be read, has several arrays, or its array is no routing.
    """
    try:
        with zipfile.ZipFile(path) as packed:
            if sum(member.file_size for member in packed.infolist()) > LARGEST:
                raise DataError(f"routing '{path}': its arrays exceed {LARGEST} bytes")
        with np.load(path, allow_pickle=False) as file:
            names = list(file)
            name = KEY if KEY in names else names[0] if len(names) == 1 else ""
            if not name:
                raise DataError(f"routing '{path}': has no array '{KEY}'")
            found = np.asarray(file[name])
            steps = np.asarray(file[STEPS]) if STEPS in names else None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or "it is no .npz file"
        raise DataError(f"routing '{path}' cannot be read: {reason}") from None
    for array, what in ((found, "experts"), (steps, "steps")):
        if array is not None and array.dtype.kind not in "iu":
            raise DataError(f"routing '{path}': {what} should be whole numbers, not {array.dtype}")
    found = found.astype(np.int64)
    if steps is None:
        if found.ndim == 3 and found.shape[0] == top_k != found.shape[2]:
            found = found.transpose(1, 2, 0)
        return SavedRouting(
            str(path), {None: RoutedTokens(found[None] if found.ndim == 3 else found, experts)}
        )
    if found.ndim != 5 or steps.shape != found.shape[:1]:
        raise DataError(
            f"routing '{path}': with steps {steps.shape}, experts should be steps x layers x "
            f"sequences x length x experts per token, not {found.shape}"
        )
    by_step: dict[int | None, RoutedTokens] = {
        step: RoutedTokens(one, experts) for step, one in zip(steps.tolist(), found, strict=True)
    }
    return SavedRouting(str(path), by_step)


def write_routing(
    path: str | os.PathLike[str], setting: CoreSetting, routing: RoutingOf, steps: Sequence[int]
) -> None:
    """Write the experts of all tokens in some steps, for `read_routing`.

    Parameters
    ----------
    path : str or path
        Ends in ``.npz``.
    setting : CoreSetting
    routing : RoutingOf
        Of all tokens.
    steps : sequence of int

    Raises
    ------
    DataError
        Another ending, a model without experts, or no such folder.
    """
    layers = [at for at, layer in enumerate(setting.model.layers) if layer.experts]
    if not layers:
        raise DataError(f"routing '{path}': {setting.model.name} has no experts")
    if not str(path).endswith(".npz"):
        raise DataError(f"routing '{path}': should end in .npz")
    mlp = setting.model.layers[layers[0]].mlps[0]
    cells = setting.batch * setting.length * mlp.experts_per_token * len(layers) * len(steps)
    check_memory(
        f"experts of {setting.batch * setting.length:,} tokens in {len(steps)} steps",
        2.0 * cells,
        "choose fewer steps",
        DataError,
    )
    drawn = [[routing(step, layer).astype(np.uint16) for layer in layers] for step in steps]
    with atomic_path(Path(path)) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, experts=np.array(drawn), steps=np.array(steps))


def core_routing(
    setting: CoreSetting, words: str, seed: int = 0, most_tokens: int | None = None
) -> RoutingOf:
    """Return the routing that words name.

    Parameters
    ----------
    setting : CoreSetting
    words : str
        A distribution as of `perfmodel.base.routing.parse_routing` (how popular experts are is
        drawn for each layer, tokens anew for each layer and step, within groups of experts where
        the model has them), or a file that ends in ``.npz`` (`read_routing`; the same in every
        step unless it holds steps).
    seed : int
    most_tokens : int, optional
        Tokens of a layer that are drawn at most, but one of each sequence: those of a sequence
        then stand for all of it. All are drawn without it.

    Raises
    ------
    DataError
        Unknown words, or a file that does not fit.
    """
    layers = [at for at, layer in enumerate(setting.model.layers) if layer.experts]
    if words.endswith(".npz"):
        if not layers:
            raise DataError(f"routing '{words}': {setting.model.name} has no experts")
        return _of_file(setting, words, layers)
    routing = parse_routing(words, seed)
    length = setting.length
    if most_tokens is not None:
        length = min(length, max(most_tokens // setting.batch, 1))
    popularity: dict[int, Floats] = {}

    def drawn(step: int, layer: int) -> Integers:
        mlp = setting.model.layers[layer].mlps[0]
        number = layers.index(layer)  # counts of experts are by such layers
        draw = step * len(layers) + number
        tokens = setting.batch * length
        if routing.distribution in COUNTED:
            found = assign(routing, tokens, mlp.experts, mlp.experts_per_token, draw)
        else:
            groups = max(mlp.expert_groups, 1)
            limit = mlp.expert_groups_per_token if groups > 1 else 1
            if layer not in popularity:
                popularity[layer] = draw_weights(
                    routing, mlp.experts, mlp.experts_per_token, number, groups, limit,
                    trials=2 if routing.distribution == "empirical" else 0,
                )  # fmt: skip
            found = draw_tokens(
                popularity[layer], tokens, mlp.experts_per_token, seed=seed, draw=draw,
                groups=groups, group_limit=limit,
            )  # fmt: skip
        return found.reshape(setting.batch, length, -1)

    return drawn


def _of_file(setting: CoreSetting, path: str, layers: list[int]) -> RoutingOf:
    mlp = setting.model.layers[layers[0]].mlps[0]
    routed = read_routing(path, mlp.experts, mlp.experts_per_token)
    for one in routed.by_step.values():
        given = one.experts.shape
        if given[1:] != (setting.batch, setting.length, mlp.experts_per_token) or given[0] not in (
            1,
            len(layers),
        ):
            raise DataError(
                f"routing '{path}': layers x sequences x length x experts per token are "
                f"{' x '.join(map(str, given))}; asked for are {len(layers)} (or 1) x "
                f"{setting.batch} x {setting.length} x {mlp.experts_per_token}"
            )
    return lambda step, layer: routed(step).of_layer(layers.index(layer))
