"""How torchtitan cuts a model in stages, and the modules that state other cuts."""

from __future__ import annotations

import pytest

from perfmodel.launch.software import format_launch, keys_of, parse_launch
from perfmodel.launch.torchtitan_stages import usual_layers
from tests.launch.launches import TITAN, one_launch, split_of


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        # 32 layers and two more on four stages: torchtitan puts the rest on the first ones.
        ("", (1, "8,9,8,7")),
        (
            "pipeline_parallel_first_stage_less_layers = 0\n"
            "pipeline_parallel_last_stage_less_layers = 0\n",
            (1, "even"),
        ),
        ("pipeline_parallel_split_points = ['layers.6', 'layers.14', 'layers.24']\n",
         (1, "6,8,10,8")),
        ("pipeline_parallel_schedule = 'zbvzerobubble'\n", (2, "4,5,4,4,4,4,4,3")),
        ("pipeline_parallel_schedule = 'LoopedBFS'\npipeline_parallel_layers_per_stage = 3\n",
         (3, "2,3,3,3,3,3,3,3,3,3,2,1")),
    ],
)  # fmt: skip
def test_how_torchtitan_cuts(keys: str, expected: tuple[int, str]) -> None:
    assert split_of(TITAN + keys, "torchtitan") == expected


def test_modules_of_torchtitan() -> None:
    launch = one_launch(
        "llama-3.1-8b",
        "torchtitan",
        devices=16,
        split="Et*2|t*10|t*10|t*10L",
        zero_stage=2,
        pipeline_parallel=4,
        global_batch_size=256,
        sequence_length=4096,
    )
    parts = keys_of("torchtitan", launch)["parallelism.module_fqns_per_model_part"]
    assert parts[0] == ["tok_embeddings", "layers.0", "layers.1"]
    assert parts[3][-2:] == ["norm", "output"]
    _, read = parse_launch(format_launch("torchtitan", launch), "x.toml")
    assert read.framework.stage_split == "2,10,10,10"


@pytest.mark.parametrize(("layers", "stages"), [(32, 4), (126, 16), (61, 16), (28, 3), (5, 2)])
def test_torchtitans_rule_keeps_all_layers(layers: int, stages: int) -> None:
    sizes = usual_layers(layers, stages, 1, 1)
    assert sizes is not None
    assert sum(sizes) == layers
    places = [sizes[0] + 1, *sizes[1:-1], sizes[-1] + 1]
    assert places == sorted(places, reverse=True)
    assert places[0] - places[-1] <= 1
    assert usual_layers(layers, layers + 3, 1, 1) is None
