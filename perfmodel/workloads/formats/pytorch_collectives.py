"""What PyTorch's traces say of a collective: names, element types and ranks of a group; gloo's.

Host traces (`perfmodel.workloads.formats.pytorch_host`) and Kineto's traces
(`perfmodel.workloads.formats.pytorch_kineto`) share these records. Keys: pytorch/pytorch,
``torch/csrc/profiler/util.h`` (Kineto) and ``standalone/execution_trace_observer.cpp`` (host).

Two events of a Kineto trace describe one collective of gloo: the operator that asked for it
(``c10d::allreduce_``, on the caller's thread) and gloo's own (``gloo:all_reduce``, mostly on a
thread of the process group). Neither names the process group. With ``record_shapes=True`` both say
the shapes of their tensors (``Input Dims``), gloo's always their type (``Input type``), and c10d's
what else it was called with (``Concrete Inputs``). Sources: pytorch/pytorch,
``torch/csrc/distributed/c10d/Ops.cpp`` (arguments of operators), ``ProcessGroupGloo.cpp`` (titles
of gloo's events), ``torch/csrc/profiler/collection.cpp``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.base.errors import FormatError
from perfmodel.base.files import shortened
from perfmodel.workloads.formats.words import words_of
from perfmodel.workloads.trace import ABSENT

SEND, RECEIVE, WAIT = "send", "receive", "wait"
_WORDS = words_of("pytorch")
KINDS: dict[str, str] = _WORDS["kinds"]  # parts of names, the first that fits counts
ELEMENT_SIZES = {
    name: int(size) for size, names in _WORDS["element_types"].items() for name in names
}
LARGEST_SIZE = 2**62  # B
LARGEST_GROUP = 1_000_000  # ranks
LARGEST_GROUPS = 4_000_000  # ranks of all groups of a file together


@dataclass(frozen=True, slots=True)
class CollectiveRecord:
    """One collective or message as PyTorch recorded it.

    Attributes
    ----------
    kind : str
        A name of `perfmodel.base.collectives.TRACED`, or `SEND`, `RECEIVE`, `WAIT`.
    size : int
        What this rank puts in [B]; `ABSENT`: not stated.
    group : str
        Name of the process group, as recorded.
    ranks : tuple of int or None
        Ranks of the group; None: not stated.
    group_size : int
        `ABSENT`: not stated.
    sequence : int
        Number of the collective in its group; `ABSENT`: not stated.
    peer : int
        Of a message: the other rank; `ABSENT`: not stated.
    """

    kind: str
    size: int = ABSENT
    group: str = ""
    ranks: tuple[int, ...] | None = None
    group_size: int = ABSENT
    sequence: int = ABSENT
    peer: int = ABSENT


def collective_kind(name: str) -> str:
    """Return what a name of PyTorch or NCCL stands for; empty if for no collective.

    Examples
    --------
    >>> collective_kind("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgs)")
    'reduce_scatter'
    >>> collective_kind("_allgather_base")
    'all_gather'
    """
    letters = re.sub("[^a-z0-9]", "", name.lower())
    return next((kind for part, kind in KINDS.items() if part in letters), "")


def element_size(name: str, place: str) -> int:
    """Return the bytes of an element type.

    Raises
    ------
    FormatError
        No such type.
    """
    plain = name.lower().removeprefix("c10::").replace(" ", "")
    if plain not in ELEMENT_SIZES:
        raise FormatError(
            f"{place}: element type '{shortened(name)}' is not known; known: "
            f"{', '.join(ELEMENT_SIZES)}"
        )
    return ELEMENT_SIZES[plain]


def whole(value: object, least: int = ABSENT, largest: int = LARGEST_SIZE) -> int:
    """Return a value as a whole number, `ABSENT` if it is none within bounds."""
    if isinstance(value, str) and re.fullmatch("-?[0-9]{1,19}", value):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= largest:
        return value
    return ABSENT


class RankLists:
    """Ranks of the process groups of one file, each list kept once.

    A few numbers can stand for a million ranks, so that there is a bound for all of them.
    """

    def __init__(self) -> None:
        self._spaced: dict[tuple[int, int, int], tuple[int, ...] | None] = {}
        self._entries = 0

    def spaced(self, start: int, stride: int, size: int, place: str) -> tuple[int, ...] | None:
        """Return `spaced_ranks`.

        Raises
        ------
        FormatError
            The groups of this file have more ranks than `LARGEST_GROUPS` together.
        """
        key = (start, stride, size)
        if key not in self._spaced:
            self._entries += max(size, 0)
            if self._entries > LARGEST_GROUPS:
                raise FormatError(
                    f"{place}: the process groups up to here have {self._entries} ranks together; "
                    f"at most {LARGEST_GROUPS} are read"
                )
            self._spaced[key] = spaced_ranks(*key)
        return self._spaced[key]


def record_from_keys(
    keys: Mapping[str, Any], place: str, lists: RankLists | None = None
) -> CollectiveRecord | None:
    """Return the record that Kineto writes as arguments of an event; None if there is none.

    `lists` are those of the events before it in the same file.

    Raises
    ------
    FormatError
        The arguments contradict each other or are no such values.
    """
    name = keys.get("Collective name")
    kind = collective_kind(name) if isinstance(name, str) else ""
    if not kind:
        return None
    size, elements = ABSENT, whole(keys.get("In msg nelems"), least=0, largest=2**58)
    if kind == RECEIVE or (elements == 0 and kind == "broadcast"):
        elements = whole(keys.get("Out msg nelems"), least=0, largest=2**58)
    if elements != ABSENT and kind not in (WAIT, "barrier"):
        size = elements * element_size(str(keys.get("dtype")), place)
    group_size = whole(keys.get("Group size"), least=1, largest=LARGEST_GROUP)
    return CollectiveRecord(
        kind,
        size,
        str(keys.get("Process Group Name", "")).strip('"'),
        _ranks(keys, group_size, place, lists or RankLists()),
        group_size,
        whole(keys.get("Seq"), least=0),
        whole(keys.get("Dst Rank" if kind == SEND else "Src Rank"), least=0, largest=LARGEST_GROUP),
    )


def _ranks(
    keys: Mapping[str, Any], size: int, place: str, lists: RankLists
) -> tuple[int, ...] | None:
    """Return the ranks of the group in an event's arguments."""
    value = keys.get("Process Group Ranks")
    if isinstance(value, str) and value.strip('" []'):
        words = [word.strip() for word in value.strip('"[] ').split(",")]
        if "..." not in words:
            return checked_ranks(words, size, place)
        # Long lists are cut: the first ones, '...', maybe the last one.
        cut = words.index("...")
        first, last = (
            checked_ranks(part, ABSENT, place) for part in (words[:cut], words[cut + 1 :])
        )
        if size == ABSENT or len(first) < 2:
            return None
        ranks = lists.spaced(first[0], first[1] - first[0], size, place)
        if ranks is None or ranks[: len(first)] != first or ranks[size - len(last) :] != last:
            return None  # not at equal distances: those that were cut are not known
        return ranks
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return checked_ranks(value, size, place)
    start = whole(keys.get("Global rank start"), least=0, largest=LARGEST_GROUP)
    stride = whole(keys.get("Global rank stride"), least=0, largest=LARGEST_GROUP)
    return lists.spaced(start, stride, size, place)


def spaced_ranks(start: int, stride: int, size: int) -> tuple[int, ...] | None:
    """Return ranks at equal distances; None where that is not what the numbers say."""
    if start == ABSENT or size == ABSENT or (stride < 1 and size > 1):
        return None
    return tuple(range(start, start + max(stride, 1) * size, max(stride, 1)))


def checked_ranks(values: Sequence[Any], size: int, place: str) -> tuple[int, ...]:
    """Return a list of ranks.

    Raises
    ------
    FormatError
        An entry is no rank, appears twice, or their number is not the group's size.
    """
    if len(values) > LARGEST_GROUP:
        raise FormatError(f"{place}: {len(values)} ranks; a group has at most {LARGEST_GROUP}")
    ranks = tuple(whole(value, least=0, largest=LARGEST_GROUP) for value in values)
    if ABSENT in ranks:
        wrong = values[ranks.index(ABSENT)]
        raise FormatError(f"{place}: '{shortened(str(wrong))}' should be a rank, 0 or more")
    if len(set(ranks)) != len(ranks):
        raise FormatError(f"{place}: a rank appears twice in a process group")
    if size not in (ABSENT, len(ranks)):
        raise FormatError(f"{place}: {len(ranks)} ranks in a process group of {size}")
    return ranks


OPERATOR_PREFIX, EVENT_PREFIX = "c10d::", "gloo:"
MONITORED_BARRIER = "monitored_barrier"  # small messages, no barrier of gloo's


@dataclass(frozen=True, slots=True)
class _Arguments:
    """Where an operator has its arguments; `ABSENT`: it has none such.

    Attributes
    ----------
    kind : str
    tensor : int
        What this rank puts in; of scatters and lists to reduce, the part that it gets.
    whole : int
        Tensor that is as large as those of all ranks together.
    peer : int
        Other rank of a message, as the group counts.
    parts : bool
        What this rank puts in is one `tensor` for each rank.
    """

    kind: str
    tensor: int = 0
    whole: int = ABSENT
    peer: int = ABSENT
    parts: bool = False


OPERATORS = {name: _Arguments(**about) for name, about in _WORDS["operators"].items()}
# What gloo's events are called where they are not what c10d was asked for.
CARRIED_OUT_AS = {"reduce_scatter": ("reduce_scatter", "all_reduce"), MONITORED_BARRIER: ()}


@dataclass(frozen=True, slots=True)
class GlooCall:
    """A collective as one of its two events describes it.

    Attributes
    ----------
    kind : str
        As of `perfmodel.workloads.formats.pytorch_collectives.CollectiveRecord`.
    elements : int
        Of the tensors that this rank puts in, or gets a part of; `ABSENT`: not stated.
    element_size : int
        [B]; `ABSENT`: not stated, or different ones.
    size : int
        Of these tensors [B]; `ABSENT`: not stated.
    parts : bool
        This rank puts in so much for each rank of the group.
    group_size : int
        As the sizes of two tensors say; `ABSENT`: they say nothing.
    peer : int
        Of a message, the other rank as the group counts; `ABSENT`: not stated.
    blocking : bool
        The caller waits. Else it may do so later.
    """

    kind: str
    elements: int = ABSENT
    element_size: int = ABSENT
    size: int = ABSENT
    parts: bool = False
    group_size: int = ABSENT
    peer: int = ABSENT
    blocking: bool = False


def gloo_call(name: str, keys: Mapping[str, Any]) -> GlooCall | None:
    """Return what an event of either kind says; None if it is neither.

    Parameters
    ----------
    name : str
        Of the event.
    keys : mapping of str to object
        Its ``args``.
    """
    shapes, types = _listed(keys.get("Input Dims")), _listed(keys.get("Input type"))
    if name.startswith(EVENT_PREFIX):
        kind = collective_kind(name)
        tensors = [shape for place, shape in enumerate(shapes) if _type(types, place)]
        elements = _elements(tensors) if tensors else ABSENT
        known = {_type(types, place) for place in range(len(shapes))} - {""}
        element = _element_size(known.pop()) if len(known) == 1 else ABSENT
        return GlooCall(kind, elements, element, _bytes(elements, element)) if kind else None
    if not name.startswith(OPERATOR_PREFIX):
        return None
    arguments = OPERATORS.get(name.removeprefix(OPERATOR_PREFIX))
    if arguments is None:
        kind = collective_kind(name)
        return GlooCall(kind) if kind else None
    values = _listed(keys.get("Concrete Inputs"))
    elements, element = _of_argument(shapes, types, arguments.tensor)
    together, _ = _of_argument(shapes, types, arguments.whole)
    group_size = ABSENT
    if elements > 0 and together > 0 and together % elements == 0:
        group_size = together // elements
    peer = ABSENT
    if 0 <= arguments.peer < len(values):
        peer = whole(values[arguments.peer], 0, LARGEST_GROUP)
    # The only argument that is true or false says whether the call is asynchronous.
    stated = [value for value in values if value in ("True", "False")]
    return GlooCall(
        arguments.kind,
        elements,
        element,
        _bytes(elements, element),
        arguments.parts,
        group_size if group_size <= LARGEST_GROUP else ABSENT,
        peer,
        # Messages end when somebody has waited for them; a monitored barrier's says something else.
        arguments.kind in (SEND, RECEIVE, MONITORED_BARRIER) or stated[:1] == ["False"],
    )


def _of_argument(shapes: Sequence[Any], types: Sequence[Any], place: int) -> tuple[int, int]:
    """Return elements of the tensors of an argument, and bytes of an element."""
    if not 0 <= place < len(shapes):
        return ABSENT, ABSENT
    shape = shapes[place]
    kind = types[place] if place < len(types) else ""
    if isinstance(kind, list):  # one for each tensor of a list
        known = {item for item in kind if isinstance(item, str)}
        kind = known.pop() if len(known) == 1 else ""
    several = isinstance(shape, list) and any(isinstance(item, list) for item in shape)
    if several:
        return _elements(shape), _element_size(kind)
    element = _element_size(kind)
    if element == ABSENT:  # no tensor, or a list whose shapes are not stated
        return ABSENT, ABSENT
    return _elements([shape]), element


def _elements(shapes: Sequence[Any]) -> int:
    """Return the elements of several tensors together."""
    total = 0
    for shape in shapes:
        if not isinstance(shape, list):
            return ABSENT
        sides = [whole(side, 0, LARGEST_SIZE) for side in shape]
        if ABSENT in sides:
            return ABSENT
        total += math.prod(sides)
        if total > LARGEST_SIZE:
            return ABSENT
    return total


def _bytes(elements: int, element: int) -> int:
    """Return a size, if it is stated and within bounds."""
    if ABSENT in (elements, element) or elements * element > LARGEST_SIZE:
        return ABSENT
    return elements * element


def _element_size(name: Any) -> int:
    """Return the bytes of an element type; `ABSENT` if it is none."""
    plain = name.lower().removeprefix("c10::").replace(" ", "") if isinstance(name, str) else ""
    return ELEMENT_SIZES.get(plain, ABSENT)


def _type(types: Sequence[Any], place: int) -> str:
    """Return the element type of a tensor among an event's inputs; empty if it is none."""
    kind = types[place] if place < len(types) else ""
    return kind if _element_size(kind) != ABSENT else ""


def _listed(value: Any) -> list[Any]:
    """Return a list, empty if it is none."""
    return value if isinstance(value, list) else []
