"""Arguments of the STAGE workload generator, by its spellings and by ours, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from perfmodel.base.errors import StrategyError, did_you_mean

# Spelling on the generator's command line: our name.
SPELLINGS = {
    "dp": "data_parallel",
    "tp": "tensor_parallel",
    "sp": "sequence_parallel",
    "pp": "pipeline_parallel",
    "weight_sharded": "weight_sharded",
    "activation_recompute": "activation_recompute",
    "din": "input_size",
    "dout": "output_size",
    "dmodel": "hidden_size",
    "dff": "feed_forward_size",
    "head": "heads",
    "seq": "sequence_length",
    "batch": "batch",
    "num_stacks": "layers",
}
FLAGS = ("weight_sharded", "activation_recompute")
# Degree or count: what it divides. Vocabulary and heads need not be divisible one by one: the
# generator splits 50257 words and 96 heads by 64, where whole tensors come out.
DIVISIONS = (
    ("data_parallel", "batch"),
    ("sequence_parallel", "sequence_length"),
    ("tensor_parallel", "hidden_size"),
    ("tensor_parallel", "feed_forward_size"),
    ("heads", "hidden_size"),
)
LARGEST = 2**31 - 1
MOST_LAYERS = 10_000
MOST_DEVICES = 65_536
MOST_NODES = 20_000_000  # of all ranks; ranks of a pipeline do not share their columns
NODES_OF_A_LAYER = 120  # upper bound, of any layer


@dataclass(frozen=True, slots=True)
class StageArguments:
    """What STAGE's generator is asked for. Sizes are counted in elements (one byte each).

    Attributes
    ----------
    data_parallel, tensor_parallel, sequence_parallel, pipeline_parallel : int
        Degrees; their product is the number of devices.
    weight_sharded : bool
        Weights are stored in shards over data- and sequence-parallel ranks and gathered
        before every use (fully sharded data parallelism).
    activation_recompute : bool
        q, k, v, their scores and the first feed-forward product are computed again before
        the backward pass.
    input_size, output_size : int
        Widths before the first and after the last embedding: the vocabulary.
    hidden_size, feed_forward_size, heads : int
    sequence_length, batch : int
        Tokens of a sequence, sequences of a step.
    layers : int
        At least two: the generator does not join a single layer to the output embedding.
    """

    data_parallel: int = 1
    tensor_parallel: int = 1
    sequence_parallel: int = 1
    pipeline_parallel: int = 1
    weight_sharded: bool = False
    activation_recompute: bool = False
    # The defaults of the generator, main.py.
    input_size: int = 51200
    output_size: int = 25600
    hidden_size: int = 25600
    feed_forward_size: int = 102400
    heads: int = 1024
    sequence_length: int = 1024
    batch: int = 1024
    layers: int = 32

    def __post_init__(self) -> None:
        for item in fields(self):
            check = _check_flag if item.name in FLAGS else _check_size
            check(item.name, getattr(self, item.name))
        if not 2 <= self.layers <= MOST_LAYERS:
            raise StrategyError(
                f"layers (num_stacks) is {self.layers}; it should be from 2 to {MOST_LAYERS}"
            )
        if self.pipeline_parallel > self.layers + 2:
            raise StrategyError(
                f"pipeline_parallel (pp) is {self.pipeline_parallel}; {self.layers} layers "
                f"and two embeddings fill at most {self.layers + 2} stages"
            )
        self._check_scale()
        for part, whole in DIVISIONS:
            self._check_division(part, whole)
        self._check_whole_tensors()

    @property
    def ranks_per_stage(self) -> int:
        """Devices of one pipeline stage."""
        return self.data_parallel * self.tensor_parallel * self.sequence_parallel

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.ranks_per_stage * self.pipeline_parallel

    @property
    def degrees(self) -> dict[str, int]:
        """Degrees that split tensors, by the generator's symbols, in its order."""
        return {
            "dp": self.data_parallel,
            "tp": self.tensor_parallel,
            "sp": self.sequence_parallel,
        }

    @property
    def symbols(self) -> dict[str, int]:
        """Values of the symbols in which the generator writes tensor shapes."""
        return {
            **self.degrees,
            "Batch": self.batch,
            "Seq": self.sequence_length,
            "Dmodel": self.hidden_size,
            "Dff": self.feed_forward_size,
            "Din": self.input_size,
            "Dout": self.output_size,
            "Head": self.heads,
        }

    def command_line(self) -> list[str]:
        """Return the words that ask STAGE's own generator for the same."""
        words = []
        for spelling, name in SPELLINGS.items():
            value = getattr(self, name)
            words += [f"--{spelling}", str(value).lower()]
        return words

    def _check_scale(self) -> None:
        """Refuse what could not be held: devices, nodes and 64-bit counts."""
        if self.devices > MOST_DEVICES:
            raise StrategyError(
                f"dp × tp × sp × pp = {self.devices} devices; at most {MOST_DEVICES} are covered"
            )
        nodes = self.ranks_per_stage * self.layers * NODES_OF_A_LAYER
        if self.pipeline_parallel > 1 and nodes > MOST_NODES:
            raise StrategyError(
                f"{self.layers} layers in a pipeline on {self.devices} devices are about {nodes} "
                f"nodes; at most {MOST_NODES} are covered"
            )
        widest = max(self.input_size, self.output_size, self.feed_forward_size, self.hidden_size)
        tokens = self.batch * self.sequence_length
        operations = tokens * self.hidden_size * max(widest, self.sequence_length)
        scores = tokens * self.sequence_length * self.heads
        if max(operations, 4 * scores, widest * self.hidden_size * 4) >= 2**62:
            raise StrategyError(
                f"one operation of {tokens} tokens and widths up to {widest} counts beyond 2**62; "
                "batch, seq or the widths should be smaller"
            )

    def _check_whole_tensors(self) -> None:
        """Refuse degrees that leave a rank a fraction of an element."""
        tokens = self.batch // self.data_parallel * (self.sequence_length // self.sequence_parallel)
        shards = self.data_parallel * self.sequence_parallel if self.weight_sharded else 1
        ways = self.tensor_parallel
        tensors = [
            ("the attention scores", tokens * self.sequence_length * self.heads, ways),
            ("the tokens before the input embedding", tokens * self.input_size, ways),
            ("the tokens behind the output embedding", tokens * self.output_size, ways),
        ]
        for name in ("input_size", "output_size", "hidden_size", "feed_forward_size"):
            weight = f"a weight of hidden_size × {name}"
            tensors.append((weight, self.hidden_size * getattr(self, name), ways * shards))
        for name, elements, parts in tensors:
            if elements % parts:
                words = f"tensor_parallel (tp) = {ways}"
                if parts != ways:
                    words += f" × data_parallel × sequence_parallel = {shards} (weight_sharded)"
                raise StrategyError(f"{name}, {elements} elements, should be divisible by {words}")

    def _check_division(self, part: str, whole: str) -> None:
        """Refuse a degree that does not divide what it splits."""
        size, degree = getattr(self, whole), getattr(self, part)
        if size % degree:
            raise StrategyError(
                f"{whole} ({_spelling(whole)}) is {size}; it should be divisible by "
                f"{part} ({_spelling(part)}) = {degree}"
            )


def stage_arguments(values: Mapping[str, Any]) -> StageArguments:
    """Return arguments from names, in the generator's spelling or in ours.

    Parameters
    ----------
    values : mapping of str to object
        Whole numbers and flags, or the words for them (flags: true, t, 1, yes, y are true).

    Raises
    ------
    StrategyError
        An unknown or repeated name, or a value that is not fine.

    Examples
    --------
    >>> stage_arguments({"dp": 2, "tensor_parallel": "4"}).devices
    8
    """
    known = {item.name for item in fields(StageArguments)}
    chosen: dict[str, Any] = {}
    for key, value in values.items():
        name = SPELLINGS.get(key, key)
        if name not in known:
            raise StrategyError(
                f"unknown argument '{key}'{did_you_mean(key, [*SPELLINGS, *known])}"
            )
        if name in chosen:
            raise StrategyError(f"'{key}' is given twice ({name}); it should be given once")
        chosen[name] = _value_of_word(name, value) if isinstance(value, str) else value
    return StageArguments(**chosen)


def _spelling(name: str) -> str:
    """Return the generator's word for one of our names."""
    return next(word for word, ours in SPELLINGS.items() if ours == name)


def _value_of_word(name: str, word: str) -> Any:
    """Return the number or flag that a word stands for, or raise."""
    if name in FLAGS:
        if word.lower() in ("true", "t", "1", "yes", "y"):
            return True
        if word.lower() in ("false", "f", "0", "no", "n"):
            return False
        raise StrategyError(f"{name} is '{word[:40]}'; it should be true or false")
    digits = word.strip()
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 12:
        raise StrategyError(
            f"{name} ({_spelling(name)}) is '{word[:40]}'; it should be a whole number from 1 "
            f"to {LARGEST}"
        )
    return int(digits)


def _check_flag(name: str, value: Any) -> None:
    """Refuse what is neither true nor false."""
    if not isinstance(value, bool):
        raise StrategyError(f"{name} is {str(value)[:40]!r}; it should be true or false")


def _check_size(name: str, value: Any) -> None:
    """Refuse what is not a whole number from 1 on."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
        raise StrategyError(
            f"{name} ({_spelling(name)}) is {str(value)[:40]}; it should be a whole number from 1 "
            f"to {LARGEST}"
        )
