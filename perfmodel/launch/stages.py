"""Which layers the stages of a pipeline hold: as `--stage-layers` says it, and in files.

A layout that is no other than the even one is "even", so that a launch reads the same whichever
way its file puts it. Words of files are the fields of ``TransformerConfig`` and
``ModelParallelConfig`` of Megatron-Core 0.15 (``pipeline_model_parallel_layout``,
``num_layers_in_first_pipeline_stage``, …); what they mean is in ``transformer_block.py``,
``get_num_layers_to_build``, and ``pipeline_parallel_layer_layout.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.launch.describe import Launch
from perfmodel.launch.settings import Keys, Settings
from perfmodel.model.spec import ModelSpec
from perfmodel.training.best_layout import BEST
from perfmodel.training.layout import WHERE, Layout, layout_chunks, stage_layout

EVEN = "even"
LAYOUT = "pipeline_model_parallel_layout"
ENDS = {
    "first": "num_layers_in_first_pipeline_stage",
    "last": "num_layers_in_last_pipeline_stage",
}
SPLITS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
GROUP = "microbatch_group_size_per_vp_stage"
PARTS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
"""Names of layers in lists (``LayerType``) -> letters of layouts."""


def stated_split(
    settings: Settings, key: str, split: str, model: ModelSpec | None, pipeline: int, virtual: int
) -> Keys:
    """Return the fact of the framework that a stated layout is; nothing where it is the even one.

    Parameters
    ----------
    settings : Settings
    key : str
        What states it.
    split : str
        As of `perfmodel.training.layout.stage_layout`.
    model : ModelSpec or None
        Without one the layout is checked once the command line names it.
    pipeline, virtual : int

    Raises
    ------
    FormatError
        Layers or stages don't add up; names the key and its line.
    """
    if model is None:
        return {"stage_split": split}
    try:
        layout = stage_layout(model, pipeline, virtual, split)
    except StrategyError as error:
        reason = str(error).removeprefix(f"{WHERE}: ")
        raise FormatError(f"{settings.where(key)}: {settings.name(key)}: {reason}") from None
    if layout == stage_layout(model, pipeline, virtual, EVEN):
        return {}
    ends = split.startswith(("first=", "last="))
    return {"stage_split": split if ends else layout_text(layout, len(model.mtp_layers))}


def layout_of(launch: Launch) -> Layout | None:
    """Return the layout of a launch's stages; None without a pipeline, or a model to lay out.

    Raises
    ------
    StrategyError
        It is no layout, or its layers don't add up.
    """
    split = launch.framework.stage_split
    if launch["pipeline_parallel"] == 1 or launch.model is None:
        return None
    return stage_layout(
        launch.model, launch["pipeline_parallel"], launch["virtual_pipeline"], split
    )


def is_even(launch: Launch) -> bool:
    """Tell whether a launch's stages are laid out evenly."""
    layout = layout_of(launch)
    if layout is None or launch.model is None or launch.framework.stage_split == EVEN:
        return True
    if launch.framework.stage_split == BEST:
        return False
    pipeline, virtual = launch["pipeline_parallel"], launch["virtual_pipeline"]
    return layout == stage_layout(launch.model, pipeline, virtual, EVEN)


def layout_text(layout: Layout, modules: int = 0) -> str:
    """Return a layout as numbers of layers, or in letters where embedding or output lie elsewhere.

    `modules` predict further tokens.
    """
    last = len(layout.layers) - 1
    if (layout.embedding, layout.modules, layout.output) == (0, last, last):
        return ",".join(map(str, layout.layers))
    return letters(layout, modules)


def letters(layout: Layout, modules: int = 0) -> str:
    """Return a layout in the letters of Megatron-Core, such as ``Et*7|t*8|t*7mL``."""
    stages = [f"t*{size}" if size else "" for size in layout.layers]
    stages[layout.embedding] = "E" + stages[layout.embedding]
    stages[layout.modules] += "m" * modules
    stages[layout.output] += "L"
    return "|".join(stages)


def torch_group(micro_batches: int, stages: int) -> int:
    """Return the micro-batches that pass one chunk before the next (`ScheduleInterleaved1F1B`)."""
    return micro_batches // max(micro_batches // stages, 1)


def read_layout(
    settings: Settings, spelled: Callable[[str], str], pipeline: int, virtual: Callable[[], int]
) -> tuple[int, str]:
    """Return the chunks of a stage, and the layout that a file states, empty for none.

    Parameters
    ----------
    settings : Settings
    spelled : callable
        How the software spells a word of Megatron-Core.
    pipeline : int
    virtual : callable
        Reads the chunks of a stage where no layout says them.

    Raises
    ------
    FormatError
        The layout is none, or has another number of stages.
    """
    key = spelled(LAYOUT)
    stated = settings.stated(key)
    if stated is None:
        return virtual(), ""
    chunks = _chunks(stated)
    if not chunks or len(chunks) % pipeline:
        raise settings.wrong(key, f"a multiple of {pipeline} stages such as Et|tL")
    return len(chunks) // pipeline, "|".join(chunks)


def _chunks(stated: Any) -> list[str]:
    """Return the letters of each chunk of a text or lists of names; empty: they are no layout."""
    text = str(stated)
    if "[" not in text:
        return layout_chunks(text)
    if not isinstance(stated, list):  # on a command line
        stated = [re.findall(r"\w+", part) for part in re.findall(r"\[([^][]*)\]", text)]
    chunks = []
    for part in stated:
        names = part if isinstance(part, Sequence) and not isinstance(part, str) else [part]
        found = [PARTS.get(str(name).rpartition(".")[2]) for name in names]
        if None in found:
            return []
        chunks.append("".join(filter(None, found)))
    return chunks


def core_schedule(settings: Settings, pipeline: int, virtual: int) -> Keys:
    """Return the schedule of Megatron-Core, with the chunks of a stage."""
    name = "interleaved" if virtual > 1 else "1f1b"
    return {"pipeline_schedule": name, "virtual_pipeline": virtual}


def read_stages(
    settings: Settings,
    spelled: Callable[[str], str],
    layout: str,
    model: ModelSpec | None,
    pipeline: int,
    virtual: int,
) -> tuple[int, Keys]:
    """Return the group of micro-batches, 0 for the usual one, and the facts that the stages are.

    Parameters
    ----------
    settings, spelled
        As of `read_layout`.
    layout : str
        That it returns.
    model : ModelSpec or None
    pipeline, virtual : int

    Raises
    ------
    FormatError
        Layers don't add up; names the key and its line.
    """
    key = spelled(GROUP)
    group = settings.whole(key, pipeline) if key in settings else pipeline
    ends = {end: settings.whole(spelled(word), 0, 0) for end, word in ENDS.items()}
    ends = {end: size for end, size in ends.items() if size}
    counted = [settings.flag(spelled(word)) for word in SPLITS]
    facts: Keys = {}
    if pipeline > 1 and layout:
        facts = stated_split(settings, spelled(LAYOUT), layout, model, pipeline, virtual)
    elif pipeline > 1 and ends:
        text = ",".join(f"{end}={size}" for end, size in ends.items())
        facts = stated_split(
            settings, spelled(ENDS[next(iter(ends))]), text, model, pipeline, virtual
        )
    elif pipeline > 1 and model is not None and any(counted):
        places, rest = divmod(model.num_layers + sum(counted), pipeline * virtual)
        if not rest:
            sizes = [places] * (pipeline * virtual)
            sizes[0] -= counted[0]
            sizes[-1] -= counted[1]
            text = ",".join(map(str, sizes))
            word = SPLITS[0 if counted[0] else 1]
            facts = stated_split(settings, spelled(word), text, model, pipeline, virtual)
    return (group if virtual > 1 and group != pipeline else 0), facts


def stage_words(launch: Launch) -> Keys:
    """Return how a pipeline's stages are cut, as `perfmodel.training.layout` cuts them."""
    layout = layout_of(launch)
    virtual = launch["virtual_pipeline"]
    model = launch.model
    if layout is None or model is None:
        return {}
    words: Keys = {}
    if launch["micro_batch_group"]:
        words[GROUP] = launch["micro_batch_group"]
    chunks = launch["pipeline_parallel"] * virtual
    if is_even(launch) and not model.mtp_layers:
        if model.num_layers % chunks == 0:
            return words
        if (model.num_layers + 2) % chunks == 0:
            return {**words, **dict.fromkeys(SPLITS, True)}
    return {**words, LAYOUT: letters(layout, len(model.mtp_layers))}
