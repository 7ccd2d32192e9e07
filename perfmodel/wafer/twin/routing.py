"""Routing as the generator draws it: one stream of random numbers through all iterations.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/common/workload.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import DataError
from perfmodel.wafer.routed import RoutedTokens
from perfmodel.wafer.twin.draw import SEED, GeneratorDraw
from perfmodel.wafer.twin.facts import GeneratorModel
from perfmodel.wafer.twin.setting import Iteration

MODELS = ("identical", "uniform", "empirical")


class GeneratorRouting:
    """Experts of iterations that are asked for in the order in which they run.

    Parameters
    ----------
    iterations : mapping of int to Iteration
        By step, in the order in which the generator runs them.
    workload : {"identical", "uniform", "empirical"}
        ``identical`` deals experts out evenly and shuffles them, though a token may then meet
        an expert twice.
    counts : array of float, shape (layers, experts), optional
        Tokens seen per expert in each layer with experts, for ``empirical``.
    seed : int, optional

    Raises
    ------
    DataError
        Another workload, counts of other experts, tokens that cannot be dealt out evenly.
    """

    def __init__(
        self,
        iterations: Mapping[int, Iteration],
        workload: str,
        counts: Floats | None = None,
        seed: int = SEED,
    ) -> None:
        if workload not in MODELS:
            raise DataError(
                f"routing: the generator has no '{workload}'; known: {', '.join(MODELS)}"
            )
        self._left = dict(iterations)
        facts = next(iter(iterations.values())).model
        layers = facts.layers - facts.dense_layers
        shape = (layers, facts.experts)
        self._facts = facts
        self._draw: Callable[[int], Integers]
        if workload == "identical":
            self._draw = _Dealt(facts, layers, seed).next_step
            return
        if workload == "uniform":
            counts = np.ones(shape)
        elif counts is None:
            raise DataError("routing: the empirical one needs counts per expert")
        elif counts.shape != shape:
            raise DataError(f"routing: counts of shape {counts.shape}; the model has {shape}")
        self._draw = GeneratorDraw(counts, facts.top_k, seed).next_step

    def __call__(self, step: int) -> RoutedTokens:
        """Return the experts of a step; what runs before it is drawn and left out."""
        if step not in self._left:
            raise DataError(f"routing: step {step} was drawn before, or does not run")
        while True:
            drawn = next(iter(self._left))
            iteration = self._left.pop(drawn)
            experts = self._draw(iteration.batch * iteration.length)
            if drawn == step:
                shape = (len(experts), iteration.batch, iteration.length, self._facts.top_k)
                return RoutedTokens(experts.reshape(shape), self._facts.experts)


class _Dealt:
    """Experts dealt out evenly and shuffled."""

    def __init__(self, facts: GeneratorModel, layers: int, seed: int) -> None:
        self._facts = facts
        self._layers = layers
        self._random = np.random.RandomState(seed)

    def next_step(self, tokens: int) -> Integers:
        """Return experts: shape (layers, tokens, top_k)."""
        experts, top_k = self._facts.experts, self._facts.top_k
        if top_k * tokens % experts:
            raise DataError(
                f"routing 'identical': {tokens} tokens x {top_k} experts do not go evenly into "
                f"{experts} experts, as the generator asserts"
            )
        dealt = np.repeat(np.arange(experts), top_k * tokens // experts)
        # Each layer is shuffled in place and none copied, so that all have the last one's experts.
        for _ in range(self._layers):
            self._random.shuffle(dealt)
        shape = (self._layers, tokens, top_k)
        return np.broadcast_to(dealt.reshape(top_k, tokens).T, shape)
