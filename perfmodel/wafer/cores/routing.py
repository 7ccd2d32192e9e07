"""Experts of tokens, from a file or drawn: the same for all nodes."""

from __future__ import annotations

import os
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError
from perfmodel.compute.routing import COUNTED, assign, parse_routing
from perfmodel.wafer.cores.setting import CoreSetting
from perfmodel.wafer.routed import RoutedTokens

if TYPE_CHECKING:
    from perfmodel.wafer.cores.program import RoutingOf

LARGEST = 2**31  # B
KEY = "experts"


def read_routing(path: str | os.PathLike[str], experts: int, top_k: int = 0) -> RoutedTokens:
    """Read experts of tokens from a file of NumPy's.

    Parameters
    ----------
    path : str or path
        ``.npz`` with an array ``experts``, or with one array: layers x sequences x length x
        experts per token, or sequences x length x experts per token for all layers; where
        only the first side is `top_k`, experts per token x sequences x length, as the wafer
        workload generator holds them.
    experts : int
        Of a layer.
    top_k : int, optional
        Experts per token.

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
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or "it is no .npz file"
        raise DataError(f"routing '{path}' cannot be read: {reason}") from None
    if found.dtype.kind not in "iu":
        raise DataError(f"routing '{path}': experts should be whole numbers, not {found.dtype}")
    found = found.astype(np.int64)
    if found.ndim == 3 and found.shape[0] == top_k != found.shape[2]:
        found = found.transpose(1, 2, 0)
    return RoutedTokens(found[None] if found.ndim == 3 else found, experts)


def core_routing(setting: CoreSetting, words: str, seed: int = 0) -> RoutingOf:
    """Return the routing that words name.

    Parameters
    ----------
    setting : CoreSetting
    words : str
        A distribution as of `perfmodel.compute.routing.parse_routing` (drawn anew for each layer
        and step, within groups of experts where the model has them), or a file that ends in
        ``.npz`` (the same in every step).
    seed : int

    Raises
    ------
    DataError
        Unknown words, or a file that does not fit.
    """
    layers = [at for at, layer in enumerate(setting.model.layers) if layer.experts]
    if words.endswith(".npz"):
        if not layers:
            raise DataError(f"routing '{words}': {setting.model.name} has no experts")
        wanted = setting.model.layers[layers[0]].mlps[0].experts_per_token
        routed = read_routing(words, setting.model.layers[layers[0]].experts, wanted)
        given = routed.experts.shape
        if given[1:] != (setting.batch, setting.length, wanted) or given[0] not in (1, len(layers)):
            raise DataError(
                f"routing '{words}': layers x sequences x length x experts per token are "
                f"{' x '.join(map(str, given))}; asked for are {len(layers)} (or 1) x "
                f"{setting.batch} x {setting.length} x {wanted}"
            )
        return lambda step, layer: routed.of_layer(layers.index(layer))
    routing = parse_routing(words, seed)

    def drawn(step: int, layer: int) -> Integers:
        mlp = setting.model.layers[layer].mlps[0]
        groups = 1 if routing.distribution in COUNTED else mlp.expert_groups
        limited = (
            replace(routing, groups=groups, group_limit=mlp.expert_groups_per_token)
            if groups > 1
            else routing
        )
        draw = step * len(layers) + layers.index(layer)  # counts of experts are by such layers
        tokens = setting.batch * setting.length
        found = assign(limited, tokens, mlp.experts, mlp.experts_per_token, draw)
        return found.reshape(setting.batch, setting.length, -1)

    return drawn
