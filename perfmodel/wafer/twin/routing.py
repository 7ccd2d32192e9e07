"""Which experts the generator sends tokens to, as it draws them, and where their rows stand.

The generator calls ``torch.multinomial(p, k, replacement=False)`` after ``torch.manual_seed(42)``.
On a CPU that is an exponential number per token and expert, of two outputs of MT19937 each
(the low 53 bits of the 64 are the uniform number); the k largest p over exponential are the
experts, largest first. NumPy's legacy generator seeds MT19937 in the same way.

In buffers between nodes and experts tokens are counted sequence by sequence, as nodes own them;
places count within a buffer. The order within a buffer of an expert is the generator's: by rank
among a token's experts first.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/common/workload.py``,
``src/node_level/common/dist_info.py``, ``layers/moe.py`` (``get_batchids_by_expert``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import md5
from itertools import pairwise

import numpy as np

from perfmodel.base.columns import Flags, Floats, Integers
from perfmodel.base.errors import DataError
from perfmodel.model.layers import MlpSpec
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


MOST_CELLS = 2**28
"""Tokens times nodes of a layer that rows are written for."""


def check_routed(iteration: Iteration, experts: Integers) -> None:
    """Make sure that experts of tokens have the shape of an iteration.

    Raises
    ------
    DataError
        Names both shapes.
    """
    wanted = (iteration.batch, iteration.length, iteration.moe.experts_per_token)
    if experts.shape != wanted:
        raise DataError(
            f"routing: a layer's array has shape {experts.shape}; batch, length and experts per "
            f"token are {wanted}"
        )
    if experts.min() < 0 or experts.max() >= iteration.moe.experts:
        raise DataError(f"routing: experts should be 0 to {iteration.moe.experts - 1}")


class Routes:
    """Buffers of one layer with experts.

    Parameters
    ----------
    iteration : Iteration
    experts : array of int, shape (batch, length, top_k)

    Attributes
    ----------
    token_experts : int64[tokens, top_k]
    owner, shared : int64[tokens]
        Node that dispatches a token, and the one of its shared experts.
    reached : bool[tokens, nodes]
        Whether a token goes to a node, its own perhaps among them.
    place : int64[tokens, nodes]
        Where it stands among those of its owner that go there.
    pairs : int64[nodes, nodes]
        Tokens from one node to another: ``pairs[source, target]``.
    of_expert : list of int64[rows]
        Tokens of each expert, in its order.
    expert_place : int64[tokens, top_k]
        Where a token stands among those of its expert.
    back : int64[nodes, nodes]
        Rows from a node of experts to an owner.
    back_place : int64[tokens, top_k + 1]
        Where a row stands among those from its node to its owner; the shared expert's last.
    names : list of str
        ``<sequence>.<position>`` of every token.

    Raises
    ------
    DataError
        Experts of another shape, or too many tokens to be written out.
    """

    def __init__(self, iteration: Iteration, experts: Integers) -> None:
        check_routed(iteration, experts)
        nodes, length = iteration.system.nodes, iteration.length
        tokens = iteration.batch * length
        if tokens * nodes > MOST_CELLS:
            raise DataError(
                f"keys 'batch' and 'isl': rows of {tokens} tokens on {nodes} nodes are too many to "
                f"be written one by one; at most {MOST_CELLS} are, and the table has no such limit"
            )
        self.iteration = iteration
        self.tokens = tokens
        self.token_experts: Integers = experts.reshape(tokens, -1)
        self.owner: Integers = np.repeat(iteration.owners, length)
        self.shared: Integers = np.repeat(iteration.shared_nodes, length)
        targets = np.column_stack((iteration.expert_nodes[self.token_experts], self.shared))
        at = np.arange(tokens)
        self.reached: Flags = np.zeros((tokens, nodes), np.bool_)
        self.reached[at[:, None], targets] = True
        first = np.searchsorted(self.owner, np.arange(nodes + 1))
        running = np.zeros((tokens + 1, nodes), np.int64)
        np.cumsum(self.reached, axis=0, out=running[1:])
        self.place: Integers = running[:-1] - running[first[self.owner]]
        self.pairs: Integers = running[first[1:]] - running[first[:-1]]
        self.first: Integers = first

        ranked = self.token_experts.T.ravel()  # by rank, then by token
        order = np.argsort(ranked, kind="stable")
        starts = np.searchsorted(ranked[order], np.arange(iteration.moe.experts + 1))
        inside = np.empty(ranked.size, np.int64)
        inside[order] = np.arange(ranked.size) - starts[ranked[order]]
        self.expert_place: Integers = inside.reshape(-1, tokens).T
        self.of_expert = [order[begin:end] % tokens for begin, end in pairwise(starts)]
        both = targets * nodes + self.owner[:, None]
        flat = both.ravel()
        order = np.argsort(flat, kind="stable")
        starts = np.searchsorted(flat[order], np.arange(nodes * nodes + 1))
        inside = np.empty(flat.size, np.int64)
        inside[order] = np.arange(flat.size) - starts[flat[order]]
        self.back_place: Integers = inside.reshape(both.shape)
        self.back: Integers = np.diff(starts).reshape(nodes, nodes)
        self.back_rows: Integers = order
        self.back_starts: Integers = starts
        self.names = [f"{b}.{s}" for b in range(iteration.batch) for s in range(length)]

    def sent(self, source: int, target: int) -> list[int]:
        """Return the tokens from one node to another, in their order."""
        begin, end = self.first[source], self.first[source + 1]
        return [int(t) for t in begin + np.flatnonzero(self.reached[begin:end, target])]

    def returned(self, source: int, target: int) -> list[tuple[int, int]]:
        """Return rows from a node of experts to an owner: token, and rank of its expert.

        The rank is top_k for the shared expert.
        """
        nodes = self.iteration.system.nodes
        at = source * nodes + target
        rows = self.back_rows[self.back_starts[at] : self.back_starts[at + 1]]
        ranks = self.back_place.shape[1]
        return [divmod(int(row), ranks) for row in rows]

    def shared_tokens(self, node: int) -> list[int]:
        """Return the tokens of a node's shared experts, in their order."""
        return [int(t) for t in np.flatnonzero(self.shared == node)]

    def shared_start(self, node: int) -> int:
        """Return the first token of a node's shared experts; the others follow it."""
        return int(np.searchsorted(self.shared, node))

    def expert_starts(self) -> Integers:
        """Return where each expert's rows begin among those of its node: shape (experts,)."""
        loads = np.array([len(tokens) for tokens in self.of_expert])
        before = np.cumsum(loads) - loads
        ranks = self.iteration.expert_nodes
        starts: Integers = before - before[np.searchsorted(ranks, ranks)]
        return starts

    def own(self, node: int) -> range:
        """Return a node's own tokens."""
        return range(int(self.first[node]), int(self.first[node + 1]))


def digest(parts: list[str]) -> str:
    """Return the generator's short name of a list."""
    return md5("_".join(parts).encode(), usedforsecurity=False).hexdigest().upper()[:8]
