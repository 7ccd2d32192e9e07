"""Which experts the generator sends tokens to, as it draws them.

The generator calls ``torch.multinomial(p, k, replacement=False)`` after ``torch.manual_seed(42)``.
On a CPU that is an exponential number per token and expert, of two outputs of MT19937 each
(the low 53 bits of the 64 are the uniform number); the k largest p over exponential are the
experts, largest first. NumPy's legacy generator seeds MT19937 in the same way.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/common/workload.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import DataError
from perfmodel.model.mlp import MlpSpec
from perfmodel.wafer.routing import RoutedTokens
from perfmodel.wafer.twin.setting import Iteration

SEED = 42
MANTISSA = np.uint64((1 << 53) - 1)
NUMBERS_AT_ONCE = 2**22
MOST_NUMBERS = 2**32
"""Random numbers of a draw: minutes, and a GiB of experts of 256 each."""


class GeneratorDraw:
    """Tokens' experts in the order in which the generator draws them.

    Parameters
    ----------
    probabilities : array of float, shape (layers, experts)
        Of every layer with experts, first to last; rows need not add up to 1.
    top_k : int
        Experts per token.
    seed : int, optional
    """

    def __init__(self, probabilities: Floats, top_k: int, seed: int = SEED) -> None:
        if probabilities.ndim != 2:
            raise DataError("routing: probabilities should be of layers x experts")
        if not (np.isfinite(probabilities).all() and (probabilities >= 0).all()):
            raise DataError("routing: probabilities should be finite and not negative")
        choices = np.count_nonzero(probabilities, axis=1).min(initial=probabilities.shape[1])
        if not 1 <= top_k <= choices:
            raise DataError(f"routing: cannot draw {top_k} experts of {choices}")
        self._probabilities = probabilities / probabilities.sum(axis=1, keepdims=True)
        self._top_k = top_k
        self._random = np.random.RandomState(seed)

    def next_step(self, tokens: int) -> Integers:
        """Draw the experts of all tokens of a step, in all layers.

        Parameters
        ----------
        tokens : int
            Sequences times their length in the step.

        Returns
        -------
        array of int, shape (layers, tokens, top_k)
        """
        layers, experts = self._probabilities.shape
        if tokens < 0 or layers * tokens * experts > MOST_NUMBERS:
            raise DataError(
                f"routing: {layers} layers x {tokens} tokens x {experts} experts; at most "
                f"{MOST_NUMBERS} numbers are drawn"
            )
        chosen = np.empty((layers, tokens, self._top_k), np.int64)
        at_once = max(1, NUMBERS_AT_ONCE // experts)
        for layer, row in enumerate(self._probabilities):
            for first in range(0, tokens, at_once):
                part = chosen[layer, first : first + at_once]
                exponential = self._exponentials(len(part) * experts).reshape(-1, experts)
                with np.errstate(divide="ignore"):
                    part[:] = _first(-row / exponential, self._top_k)
        return chosen

    def _exponentials(self, count: int) -> Floats:
        words = np.frombuffer(self._random.bytes(8 * count), dtype="<u4").astype(np.uint64)
        bits = (words[0::2] << np.uint64(32)) | words[1::2]
        uniform = (bits & MANTISSA).astype(np.float64) * 2.0**-53
        exponentials: Floats = -np.log1p(-uniform)
        return exponentials


def _first(values: Floats, count: int) -> Integers:
    """Return where the smallest values of each row stand, smallest first."""
    if count < values.shape[1]:
        places = np.argpartition(values, count - 1, axis=1)[:, :count]
    else:
        places = np.broadcast_to(np.arange(count), values.shape)
    order = np.argsort(np.take_along_axis(values, places, axis=1), axis=1, kind="stable")
    first: Integers = np.take_along_axis(places, order, axis=1)
    return first


# Routing as the generator draws it: one stream of random numbers through all iterations.

MODELS = ("identical", "uniform", "empirical")


class GeneratorRouting:
    """Experts of iterations that are asked for in the order in which they run.

    Parameters
    ----------
    iterations : mapping of int to Iteration
        By step, in the order in which the generator runs them.
    workload : {"identical", "uniform", "empirical"}
        ``identical`` spreads experts out evenly and shuffles them, though a token may then meet
        an expert twice.
    counts : array of float, shape (layers, experts), optional
        Tokens seen per expert in each layer with experts, for ``empirical``.
    seed : int, optional

    Raises
    ------
    DataError
        Another workload, counts of other experts, tokens that cannot be distributed evenly.
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
        first = next(iter(iterations.values()))
        self._spec = first.moe
        shape = (len(first.expert_layers), first.moe.experts)
        self._draw: Callable[[int], Integers]
        if workload == "identical":
            self._draw = _Balanced(first.moe, shape[0], seed).next_step
            return
        if workload == "uniform":
            counts = np.ones(shape)
        elif counts is None:
            raise DataError("routing: the empirical one needs counts per expert")
        elif counts.shape != shape:
            raise DataError(f"routing: counts of shape {counts.shape}; the model has {shape}")
        self._draw = GeneratorDraw(counts, first.moe.experts_per_token, seed).next_step

    def __call__(self, step: int) -> RoutedTokens:
        """Return the experts of a step; what runs before it is drawn and left out."""
        if step not in self._left:
            raise DataError(f"routing: step {step} was drawn before, or does not run")
        while True:
            drawn = next(iter(self._left))
            iteration = self._left.pop(drawn)
            experts = self._draw(iteration.batch * iteration.length)
            if drawn == step:
                shape = (len(experts), iteration.batch, iteration.length, experts.shape[-1])
                return RoutedTokens(experts.reshape(shape), self._spec.experts)


class _Balanced:
    """Experts distributed evenly and shuffled."""

    def __init__(self, spec: MlpSpec, layers: int, seed: int) -> None:
        self._spec = spec
        self._layers = layers
        self._random = np.random.RandomState(seed)

    def next_step(self, tokens: int) -> Integers:
        """Return experts: shape (layers, tokens, top_k)."""
        experts, top_k = self._spec.experts, self._spec.experts_per_token
        if top_k * tokens % experts:
            raise DataError(
                f"routing 'identical': {tokens} tokens x {top_k} experts do not go evenly into "
                f"{experts} experts, as the generator asserts"
            )
        spread = np.repeat(np.arange(experts), top_k * tokens // experts)
        # Each layer is shuffled in place and none copied, so that all have the last one's experts.
        for _ in range(self._layers):
            self._random.shuffle(spread)
        shape = (self._layers, tokens, top_k)
        return np.broadcast_to(spread.reshape(top_k, tokens).T, shape)
