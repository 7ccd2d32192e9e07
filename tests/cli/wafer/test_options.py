"""Options of wafer workloads that commands share."""

from typing import Any

import click
import pytest

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.cli.wafer.options import (
    WORDS,
    chosen_nodes,
    chosen_steps,
    given_system,
    read_grid,
)
from perfmodel.wafer.system import WaferSystem
from tests.wafer.systems import system_text


def options(**given: Any) -> dict[str, Any]:
    return {"system_file": None} | dict.fromkeys(WORDS) | given


def test_degrees_make_a_system() -> None:
    found = given_system(
        options(node_grid="2x4", core_grid="6X6", tp=4, dp_attention=2, tp_ffn=1, ep=8), "decode"
    )
    assert (found.nodes, found.cores, found.tensor_parallel, found.expert_parallel) == (8, 36, 4, 8)
    assert given_system(options(), "decode") == WaferSystem(core_grid=(6, 6))
    with pytest.raises(StrategyError, match="node_grid"):
        given_system(options(node_grid="2x2", tp=3), "decode")
    with pytest.raises(StrategyError, match="unknown 'alltoal'"):
        given_system(options(expert_exchange="alltoal"), "decode")


def test_a_file_says_all(tmp_path: Any) -> None:
    path = tmp_path / "system.json"
    path.write_text(system_text({"decode": WaferSystem(core_grid=(2, 2))}))
    assert given_system(options(system_file=str(path)), "decode").cores == 4
    with pytest.raises(FormatError, match="no block 'prefill'"):
        given_system(options(system_file=str(path)), "prefill")
    with pytest.raises(click.UsageError, match="--tp stands beside"):
        given_system(options(system_file=str(path), tp=2), "decode")


@pytest.mark.parametrize("text", ["6", "6x", "x6", "-1x2", "axb", "²x2"])
def test_grids_that_are_none(text: str) -> None:
    with pytest.raises(click.UsageError, match="--core-grid"):
        read_grid("core_grid", text)


def test_nodes_and_steps() -> None:
    assert chosen_nodes("all", 3) == [0, 1, 2]
    assert chosen_nodes("2,0-1,1", 3) == [2, 0, 1]
    assert chosen_steps("all", 3) == [0, 1, 2]
    assert chosen_steps("ends", 3) == [0, 2]
    assert chosen_steps("ends", 1) == [0]
    assert chosen_steps("decode2,0", 3) == [2, 0]
    for text in ("3", "0-3", "2-1"):
        with pytest.raises(StrategyError, match="'nodes'"):
            chosen_nodes(text, 3)
    with pytest.raises(StrategyError, match="'steps'"):
        chosen_steps("3", 3)
    for text in ("", "a", "1-", "-1"):
        with pytest.raises(click.UsageError):
            chosen_nodes(text, 3)
        with pytest.raises(click.UsageError):
            chosen_steps(text, 3)
