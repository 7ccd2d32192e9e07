"""What is shown of each kind names columns that there are."""

import pytest

from perfmodel.base.strategy_fields import FIELD_BY_NAME
from perfmodel.kernels import variables
from perfmodel.kernels.serving import variables as serving_variables
from perfmodel.report import kinds
from perfmodel.report.kinds import form_of, title_of
from perfmodel.wafer import result_subject as wafer_variables

ADDED = {"communication_share", "bubble_share", "pass_time", "devices"}
KNOWN = {
    "training": {**variables.VARIABLES, **variables.COSTS, **FIELD_BY_NAME},
    "serving": {**serving_variables.VARIABLES, **serving_variables.COSTS},
    "wafer": wafer_variables.VARIABLES,
}


@pytest.mark.parametrize(
    "kind", [kinds.TRAINING, kinds.SERVING, kinds.WAFER], ids=lambda it: it.name
)
def test_every_figure_is_a_variable(kind):
    named = {kind.rank, kind.answer, *kind.figures, *kind.table, *kind.axes}
    named |= {name for pair in kind.trades for name in pair}
    named |= {name for it in kind.waterfalls for name in (it.whole, *it.parts)}
    named |= {name for ends in kind.bands.values() for name in ends if name} | set(kind.bands)
    assert not named - set(KNOWN[kind.name]) - ADDED


def test_waterfalls_have_all_components():
    time, memory = kinds.TRAINING.waterfalls
    assert time.parts == variables.TIME_COMPONENTS
    assert memory.parts == variables.MEMORY_COMPONENTS


def test_forms_follow_units():
    assert form_of("step_time", "s") == "time"
    assert form_of("model_flops_utilization", "1") == "percent"
    assert form_of("batch", "1") == "number"
    assert form_of("cost_per_token", "USD") == "per_million"
    assert form_of("training_cost", "USD") == "money"
    assert title_of("memory_buffers") == "memory buffers"
