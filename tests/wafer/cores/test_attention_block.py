"""Attention as operations: names, sizes and groups of the generator's, and what it leaves out."""

import pytest

from perfmodel.wafer.cores.instructions import COPY, OPCODE
from perfmodel.wafer.cores.node import CoreOperation
from tests.wafer.cores.examples import operations, setting


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
