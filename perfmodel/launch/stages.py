"""Which layers the stages of a launch's pipeline hold: read as `--stage-layers` says it, and back.

A layout that is no other than the even one is "even", so that a launch reads the same whichever
way its file puts it.
"""

from __future__ import annotations

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.launch.describe import Launch
from perfmodel.launch.settings import Keys, Limit, Settings
from perfmodel.model.build import ModelSpec
from perfmodel.training.best_layout import BEST
from perfmodel.training.layout import WHERE, Layout, stage_layout

EVEN = "even"


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


NAMED = Limit(
    ("stage_split",),
    lambda launch: launch["pipeline_parallel"] > 1 and launch.framework.stage_split == BEST,
    "a file states the layers of each stage: --stage-layers with their numbers",
)
"""No file asks for the best layout, whatever it is."""

ONLY_EVEN = Limit(
    ("stage_split",), lambda launch: not is_even(launch), "its stages hold equally many layers"
)
