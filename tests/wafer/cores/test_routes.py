"""Where the tokens of a layer go."""

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.wafer.cores.routes import expert_routes, node_experts
from perfmodel.wafer.cores.routing import core_routing
from tests.wafer.cores.examples import setting


@pytest.mark.parametrize("name", ["absorbed", "split experts", "idle"])
def test_all_tokens_of_all_experts_are_worked_on_once(name: str) -> None:
    made = setting(name)
    experts = core_routing(made, "uniform")(0, 3)
    routes = expert_routes(made, experts, 256, True)
    assert routes.worked[:256].sum() == made.batch * 8
    assert routes.worked[256:].sum() == made.batch
    assert (np.bincount(experts.ravel(), minlength=256) == routes.worked[:256].sum((1, 2))).all()
    split = made.system.ffn_tensor_parallel
    rows = sum(
        int(rows.sum())
        for node in range(made.system.stage_nodes)
        for word, rows in node_experts(routes, node, 256)
        if word != "exp_shared"
    )
    assert rows == split * made.batch * 8


def test_a_token_goes_to_a_node_once() -> None:
    made = setting("absorbed")
    together = np.tile(np.arange(8), (5, 1, 1))  # all on the first node
    routes = expert_routes(made, together, 256, False)
    assert routes.sent[:, 0].sum() == 5
    assert routes.sent.sum() == 5
    assert routes.casts == ({},) * 8


def test_routing_of_another_shape_is_refused() -> None:
    made = setting("absorbed")
    with pytest.raises(StrategyError, match="'routing': 4 sequences"):
        expert_routes(made, np.zeros((4, 1, 8), int), 256, True)
    with pytest.raises(StrategyError, match="'expert_parallel': 8 ranks for 4"):
        expert_routes(made, np.tile(np.arange(2), (5, 1, 1)), 4, True)
