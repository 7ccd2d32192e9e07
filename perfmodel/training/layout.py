"""Which layers each chunk of a pipeline holds: as software does by itself, or as a user says."""

from __future__ import annotations

import re
from typing import NamedTuple

from perfmodel.base.errors import StrategyError
from perfmodel.model.layers import layer_parameters
from perfmodel.model.spec import ModelSpec

FORMS = (
    "'even', 'by_cost', 'best', layers of every stage or chunk such as 5,8,8,7, those of the "
    "first and last stage such as first=3,last=5, or a layout of Megatron-Core such as "
    "Et*7|(t*8|)*2t*7L"
)
LAYOUT = re.compile(r"[EmLt|()*\d, ]{1,20000}")
WHERE = "stage_layers"
MOST_PARTS = 100_000  # of a layout, written out


class Layout(NamedTuple):
    """Parts of a model over the chunks of its pipeline, first to last.

    Attributes
    ----------
    layers : tuple of int
        Layers of each chunk.
    embedding, output, modules : int
        Chunk that holds the embedding, the output, and the modules that predict further tokens.
    """

    layers: tuple[int, ...]
    embedding: int
    output: int
    modules: int


def stage_layout(model: ModelSpec, pipeline: int, virtual: int, split: str = "even") -> Layout:
    """Return which layers the chunks of a pipeline hold.

    Parameters
    ----------
    model : ModelSpec
    pipeline, virtual : int
        Stages, and chunks of each. Chunks are listed in the order in which layers run.
    split : str
        As of `FORMS`.

    Raises
    ------
    StrategyError
        The text is no layout, or its layers or chunks don't add up; it says which stage.
    """
    chunks = pipeline * virtual
    text = split.strip()
    if text == "best":  # `perfmodel.training.best_layout` finds it once parts have their prices
        text = "even"
    if text == "by_cost":
        return _with_ends(chunks_by_cost(model, chunks))
    if text == "even":
        sizes = chunk_sizes(model.num_layers, chunks, heavy_end=bool(model.mtp_layers))
        return _with_ends(sizes)
    if re.search(r"[tEL|]", text) and LAYOUT.fullmatch(text):
        return _megatron_layout(text, model, pipeline, virtual)
    if re.fullmatch(r"\d{1,9}( *, *\d{1,9})*", text):
        sizes = [int(size) for size in text.split(",")]
        if len(sizes) == pipeline and virtual > 1:
            sizes = _over_chunks(sizes, pipeline, virtual)
        _check_sum(sizes, chunks, model)
        return _with_ends(sizes)
    ends = dict(re.findall(r"(first|last)=(\d{1,9})", text))
    if ends and re.fullmatch(r"(first|last)=\d{1,9}( *, *(first|last)=\d{1,9})?", text):
        return _with_ends(_between_ends(ends, model.num_layers, pipeline, virtual))
    raise StrategyError(f"{WHERE}: '{split[:60]}' is not {FORMS}")


def _with_ends(sizes: list[int]) -> Layout:
    last = len(sizes) - 1
    return Layout(tuple(sizes), 0, last, last)


def _check_sum(sizes: list[int], chunks: int, model: ModelSpec) -> None:
    if len(sizes) != chunks:
        raise StrategyError(
            f"{WHERE}: {len(sizes)} stages are listed, and pipeline_parallel × virtual_pipeline "
            f"is {chunks}"
        )
    if sum(sizes) != model.num_layers:
        raise StrategyError(
            f"{WHERE}: the stages hold {sum(sizes)} layers, and the model has {model.num_layers}"
        )


def _over_chunks(sizes: list[int], pipeline: int, virtual: int) -> list[int]:
    """Spread the layers of every stage evenly over its chunks."""
    for stage, size in enumerate(sizes):
        if size % virtual:
            raise StrategyError(
                f"{WHERE}: {size} layers of stage {stage} don't divide over its {virtual} chunks; "
                f"list all {pipeline * virtual} chunks"
            )
    return [size // virtual for _ in range(virtual) for size in sizes]


def _between_ends(ends: dict[str, str], layers: int, pipeline: int, virtual: int) -> list[int]:
    """Return chunks where the first and the last stage have their own number of layers.

    The other stages share the rest evenly, and every stage's chunks its layers (Megatron-Core,
    transformer_block.py, ``get_num_layers_to_build``).
    """
    stated = [int(ends[name]) for name in ("first", "last") if name in ends]
    rest, others = layers - sum(stated), pipeline - len(stated)
    if others < 0 or rest < 0 or (rest and not others) or (others and rest % others):
        raise StrategyError(
            f"{WHERE}: {rest} layers are left for the {max(others, 0)} other stages, over which "
            "they should divide"
        )
    sizes = [rest // max(others, 1)] * pipeline
    if "first" in ends:
        sizes[0] = int(ends["first"])
    if "last" in ends:
        sizes[-1] = int(ends["last"])
    return _over_chunks(sizes, pipeline, virtual) if virtual > 1 else sizes


def layout_chunks(text: str) -> list[str]:
    """Return the parts of each chunk of a Megatron-Core layout, such as ``["Ett", "tt", "tL"]``.

    E is the embedding, t a layer, m a module that predicts further tokens, L output and loss;
    ``x*3`` repeats a letter or a group in brackets, commas are there for the eye
    (megatron/core/transformer/pipeline_parallel_layer_layout.py). Empty where it is no layout.
    """
    plain = text.replace(",", "").replace(" ", "")
    if not LAYOUT.fullmatch(plain):
        return []
    group = re.compile(r"\(([^()]*)\)(?:\*(\d{1,4}))?")
    while found := group.search(plain):
        plain = plain[: found.start()] + found[1] * int(found[2] or 1) + plain[found.end() :]
        if len(plain) > MOST_PARTS:
            return []
    if sum(map(int, re.findall(r"\*(\d{1,4})", plain))) > MOST_PARTS:
        return []
    plain = re.sub(r"([EmLt|])\*(\d{1,4})", lambda item: item[1] * int(item[2]), plain)
    return plain.split("|") if re.fullmatch(r"[EmLt|]*", plain) else []


def _megatron_layout(text: str, model: ModelSpec, pipeline: int, virtual: int) -> Layout:
    chunks = layout_chunks(text)
    if not chunks:
        raise StrategyError(f"{WHERE}: '{text[:60]}' is no layout; one is Et*7|(t*8|)*2t*7L")
    _check_sum([chunk.count("t") for chunk in chunks], pipeline * virtual, model)
    whole = "".join(chunks)
    wanted = {"E": 1, "m": len(model.mtp_layers), "L": 1}
    for letter, count in wanted.items():
        if whole.count(letter) != count:
            raise StrategyError(
                f"{WHERE}: the layout has {whole.count(letter)} '{letter}' and the model {count}"
            )
    if re.search(r"[tmL].*E|[mL].*t|L.*m", whole):
        raise StrategyError(
            f"{WHERE}: E, t, m and L of '{text[:60]}' are not in the order in which they run"
        )
    place = {letter: next(i for i, it in enumerate(chunks) if letter in it) for letter in "EL"}
    modules = next((i for i, it in enumerate(chunks) if "m" in it), place["L"])
    return Layout(tuple(it.count("t") for it in chunks), place["E"], place["L"], modules)


def chunk_sizes(layers: int, chunks: int, *, heavy_end: bool = False) -> list[int]:
    """Layers of each model chunk, first to last.

    Even where it divides. Otherwise embedding and output count as one layer each, as
    frameworks do that place models such as Llama 3.1 405B (126 layers in 128 places)
    or BLOOM (70 in 72), and what then is left over goes to the chunks in the middle,
    one layer each. A model whose end is heavy (multi-token prediction: a layer and a
    second head) fills its chunks from the front, and the last takes what is left, as
    Megatron-Bridge lays out DeepSeek-V3 (61 layers on 16 stages: 15 times 4, and 1).
    """
    if layers % chunks == 0:
        return [layers // chunks] * chunks
    if heavy_end:
        size = -(-layers // chunks)
        full = min(layers // size, chunks)
        sizes = [size] * full + [0] * (chunks - full)
        if full < chunks:
            sizes[full] = layers - size * full
        return sizes
    places, extra = divmod(layers + 2, chunks)
    sizes = [places] * chunks
    start = (chunks - extra) // 2
    for i in range(start, start + extra):
        sizes[i] += 1
    sizes[0] -= 1
    sizes[-1] -= 1
    # A model with fewer layers than places would leave an edge chunk negative.
    for i in (0, chunks - 1):
        if sizes[i] < 0:
            sizes[i] += 1
            sizes[sizes.index(max(sizes))] -= 1
    return sizes


def chunks_by_cost(model: ModelSpec, chunks: int) -> list[int]:
    """Layers of each model chunk where layers and output matrix are spread by their products.

    The parameters of matrices stand for the cost of a layer, vocabulary times hidden size for
    that of the output. A chunk takes layers until the cost so far exceeds its share of the whole
    (nanotron, ``build_model`` in src/nanotron/models/base.py).
    """
    costs = [float(layer_parameters(layer, model.hidden_size).total) for layer in model.layers]
    head = float(model.vocab_size * model.table_width)
    share = (sum(costs) + head) / chunks
    sizes, chunk, spent = [0] * chunks, 0, 0.0
    for cost in costs:
        sizes[chunk] += 1
        spent += cost
        if spent > share * (chunk + 1) and chunk + 1 < chunks:
            chunk += 1
    return sizes
