"""All operations of small systems: sound, without deadlock, and as much work as there is."""

import numpy as np
import pytest

from perfmodel.base.errors import ModelError, StrategyError
from perfmodel.wafer.cores.instructions import COPY, MULTICAST, OPCODE, core_totals
from perfmodel.wafer.cores.products import CoreOperation
from perfmodel.wafer.routing import core_routing
from perfmodel.wafer.setting import check_layers
from perfmodel.wafer.system import bucket_sizes
from tests.wafer.cores.examples import (
    SETTINGS,
    assert_sound,
    operations,
    run_barriers,
    setting,
)


@pytest.mark.parametrize("name", SETTINGS)
def test_operations_are_sound_and_none_waits_for_ever(name: str) -> None:
    made = operations(name)
    for node in made.values():
        for operation in node:
            assert_sound(operation.instructions)
    assert run_barriers(made) > 10


@pytest.mark.parametrize("name", SETTINGS)
def test_products_are_as_large_as_asked_for(name: str) -> None:
    for node in operations(name).values():
        for operation in node:
            done = core_totals(operation.instructions).macs
            if operation.kind.startswith("MLANaive") or "prefill" in operation.name:
                # Blocks of 8 queries see the keys of their last one.
                assert operation.macs <= done <= 1.3 * operation.macs
            else:
                assert done == operation.macs


def moved_to_other_nodes(name: str, word: str) -> int:
    """Return bytes that operations of a name bring to other nodes [B]."""
    made = setting(name)
    total = 0
    for node in operations(name).values():
        for operation in node:
            if word in operation.name:
                lines, arguments, _ = operation.instructions
                copies = arguments[lines[:, OPCODE] == COPY]
                nodes = copies[:, :2] // made.system.cores
                assert (nodes[:, 0] != nodes[:, 1]).all()
                casts = arguments[lines[:, OPCODE] == MULTICAST]
                total += int(copies[:, 2].sum() + (casts[:, 1] * casts[:, 3]).sum())
    return total


@pytest.mark.parametrize("name", ["absorbed", "idle"])
def test_rows_cross_once_per_node_and_come_back_once_per_expert(name: str) -> None:
    made = setting(name)
    experts = core_routing(made, "two_level")(1, 3)
    rank = experts // (256 // made.system.expert_parallel)
    copies = np.repeat(
        np.arange(made.system.shared_copies), bucket_sizes(made.batch, made.system.shared_copies)
    ) * (made.system.stage_nodes // made.system.shared_copies)
    there = back = 0
    for sequence, owner in enumerate(made.owners.tolist()):
        nodes = [*rank[sequence, 0].tolist(), int(copies[sequence])]
        there += len(set(nodes) - {owner})
        back += sum(node != owner for node in nodes)
    size = made.model.hidden_size * 2
    assert moved_to_other_nodes(name, "_disp") == there * size
    assert moved_to_other_nodes(name, "combine") == back * size


def test_experts_of_several_nodes_give_their_rows_back_once() -> None:
    made = setting("split experts")
    experts = core_routing(made, "two_level")(1, 3)
    team = experts // 128 * 2
    replica = made.owners // 4 * 4
    there = back = 0.0
    for sequence, owner in enumerate(made.owners.tolist()):
        goes = (team[sequence, 0] + replica[sequence]).tolist()
        # The shared expert is on node 0.
        there += len({*goes, *(one + 1 for one in goes), 0} - {owner})
        back += sum(1 - 0.5 * (one <= owner < one + 2) for one in goes) + (owner != 0)
    size = made.model.hidden_size * 2
    assert moved_to_other_nodes("split experts", "_disp") == there * size
    # Shares of a team are whole rows.
    assert moved_to_other_nodes("split experts", "combine") == pytest.approx(back * size, rel=0.2)


def test_stages_hand_tokens_on_and_the_last_has_the_head() -> None:
    made = operations("stages")
    for node, several in made.items():
        names = [operation.name for operation in several]
        assert ("decode15_next_stage" in names) == (node < 4)
        assert ("lm_head_head" in names) == (node >= 4)
        assert any(name.startswith("decode0_") for name in names) == (node < 4)
    handed = next(one for one in made[1] if one.name.endswith("next_stage"))
    lines, arguments, _ = handed.instructions
    copies = arguments[lines[:, OPCODE] == COPY]
    assert set((copies[:, 1] // 6).tolist()) == {5}
    assert copies[:, 2].sum() == 3 * 4096 * 2


def test_sums_of_experts_reach_the_whole_cluster() -> None:
    made = operations("absorbed")
    for several in made.values():
        cast = next(one for one in several if one.name.endswith("multicast_dp"))
        lines, arguments, destinations = cast.instructions
        counts = arguments[lines[:, OPCODE] == MULTICAST, 3]
        assert (counts == 3).all()
        assert destinations.size == 3 * counts.size


def test_wrong_layers_are_named() -> None:
    with pytest.raises(StrategyError, match="has no 'decode99'"):
        check_layers(setting("dense"), ["decode99"])
    assert "lm_head" in check_layers(setting("dense"), None)


def test_idle_nodes_have_experts_only() -> None:
    names = {operation.name for operation in operations("idle")[3]}
    assert not any("attn" in name for name in names)
    assert any("exp_" in name for name in names)
    assert np.all([len(one.instructions.lines) for one in operations("idle")[3]])


def test_models_without_a_rule_are_refused() -> None:
    from perfmodel import load_model
    from perfmodel.wafer.setting import CoreSetting

    with pytest.raises(ModelError, match="core level"):
        CoreSetting(load_model("mamba-2.8b"), setting("dense").system, "decode", 1, 8)


def of(name: str, node: int, word: str) -> CoreOperation:
    return next(one for one in operations(name)[node] if one.name.endswith(word))


def test_absorbed_attention_has_the_names_and_products_of_the_generator() -> None:
    made = setting("absorbed")
    names = [one.name for one in operations("absorbed")[0] if "attn" in one.name]
    words = ("wkva", "wqa", "wqb", "wkvb1", "absorbattn", "ar_sp", "wkvb2", "wo", "ar_tp")
    assert names == [f"decode3_attn_absorb_{word}" for word in words]
    tokens, heads = int(made.local_batch[0]), 64
    wanted = {
        "wkva": tokens * 7168 * 576,
        "wqb": tokens * 1536 * heads * 192,
        "wkvb1": heads * tokens * 128 * 512,
        # Step 1 after 70 tokens, the new one included, on two nodes.
        "absorbattn": tokens * 36 * heads * (2 * 512 + 64),
        "wkvb2": heads * tokens * 512 * 128,
        "wo": tokens * heads * 128 * 7168,
    }
    for word, macs in wanted.items():
        assert of("absorbed", 0, f"_{word}").macs == macs


@pytest.mark.parametrize(
    ("name", "word", "heads", "values", "tokens"),
    [("absorbed", "absorb_ar_sp", 64, 512, 3), ("stages", "decode0_attn_ar_sp", 16, 128, 3)],
)
def test_sums_over_a_shared_context_carry_statistics(
    name: str, word: str, heads: int, values: int, tokens: int
) -> None:
    made = of(name, 0, word).instructions
    sent = made.arguments[made.lines[:, OPCODE] == COPY, 2].sum()
    # A ring of two sends as much as the vector has.
    assert sent == tokens * heads * (values + 2) * 2


def test_one_node_of_a_context_stores_the_new_keys() -> None:
    stored = {
        node: sum(
            int(made.arguments[made.lines[:, OPCODE] == 1, 1].sum())
            for made in [of("absorbed", node, "absorbattn").instructions]
        )
        for node in (0, 2)
    }
    # Key 71 lies on the second of two nodes with 36 keys each.
    assert stored[2] - stored[0] == 3 * 576 * 2


def test_prompts_of_nodes_that_share_a_context_are_brought_into_one_layout() -> None:
    for name in ("naive", "grouped prompt"):
        names = [one.name for one in operations(name)[0]]
        at = next(place for place, one in enumerate(names) if one.endswith("attn_copy"))
        assert names[at + 1].endswith("ar_sp")
