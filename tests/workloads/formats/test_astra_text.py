"""Text workloads of ASTRA-sim 1.0: every kind of header, round trips, and what is refused.

Rows and headers are in the form of the workloads that ASTRA-sim publishes (branch
ASTRA-sim-1.0 07d5d19, ``inputs/workload``); what their words mean: ``workload/Workload.cc``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError
from perfmodel.workloads.formats.astra_text import (
    COLLECTIVES,
    CUSTOMIZED,
    POLICIES,
    RECOMMENDERS,
    RECOMPUTING,
    TRANSFORMERS,
    astra_text_from_columns,
    format_astra_text,
    parse_astra_text,
    read_astra_text,
)
from tests.amount import cases
from tests.data import table_of

# The first rows of DLRM_HybridParallel.txt.
EMBEDDING = "Embedding\t-1\t300\tALLTOALL\t98304\t300\tALLTOALL\t98304\t300\tNONE\t0\t98"
BOTTOM = "MLP_Bottom_0\t-1\t1280\tNONE\t0\t794\tNONE\t0\t896\tALLREDUCE\t13312\t13"
ROWS = f"{EMBEDDING}\n{BOTTOM}\n"
TEXT = f"HYBRID_DLRM 1\n2\n{ROWS}"
HEADERS = {
    **{policy: policy for policy in POLICIES if policy not in (*TRANSFORMERS, CUSTOMIZED)},
    "HYBRID_DLRM": "HYBRID_DLRM 1",
    "HYBRID_DLRM_ENHANCED": "HYBRID_DLRM_ENHANCED 0",
    "HYBRID_TRANSFORMER": "HYBRID_TRANSFORMER model_parallel_NPU_group: 4",
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD": "HYBRID_TRANSFORMER_FWD_IN_BCKWD "
    "model_parallel_NPU_group: 4 checkpoints: 1 0 checkpoint_initiates: 2 1 0",
}


def refusal(text, file="loads.txt"):
    """The one line with which a text is refused."""
    with pytest.raises(FormatError) as caught:
        parse_astra_text(text, file)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(file)
    return message


# --- What a file says --------------------------------------------------------------------


def test_columns_are_read():
    workload = parse_astra_text(TEXT)
    assert (workload.policy, workload.layers, workload.last_bottom_layer) == ("HYBRID_DLRM", 2, 1)
    assert workload.names == ("Embedding", "MLP_Bottom_0")
    assert workload.dependency.tolist() == [-1, -1]
    forward, input_gradient, weight_gradient = workload.phases
    assert forward.compute_time.tolist() == [300, 1280]
    assert forward.collective == ("ALLTOALL", "NONE")
    assert forward.size.tolist() == [98304, 0]
    assert input_gradient.compute_time.tolist() == [300, 794]
    assert input_gradient.collective == ("ALLTOALL", "NONE")
    assert input_gradient.size.tolist() == [98304, 0]
    assert weight_gradient.compute_time.tolist() == [300, 896]
    assert weight_gradient.collective == ("NONE", "ALLREDUCE")
    assert weight_gradient.size.tolist() == [0, 13312]
    assert workload.update_time.tolist() == [98, 13]
    with pytest.raises(ValueError, match="read-only"):
        forward.size[0] = 1


@pytest.mark.parametrize("policy", HEADERS)
def test_every_kind_of_header_round_trips(policy):
    text = f"{HEADERS[policy]}\n2\n{ROWS}"
    workload = parse_astra_text(text)
    assert workload.policy == policy
    assert format_astra_text(workload) == text


def test_there_is_a_header_for_every_kind():
    assert {*HEADERS, CUSTOMIZED} == set(POLICIES)


def test_fields_of_headers():
    transformer = parse_astra_text(f"{HEADERS[RECOMPUTING]}\n2\n{ROWS}")
    assert transformer.model_parallel_group == 4
    assert transformer.checkpoints == (0,)
    assert transformer.checkpoint_initiates == (1, 0)
    assert transformer.last_bottom_layer == -1
    assert parse_astra_text(f"DATA\n2\n{ROWS}").model_parallel_group == 0


def test_the_word_before_a_number_of_the_header_may_be_any():
    """Workload.cc skips it."""
    text = f"HYBRID_TRANSFORMER_FWD_IN_BCKWD G 4 kept 1 0 again 2 1 0\n2\n{ROWS}"
    assert parse_astra_text(text).equals(parse_astra_text(f"{HEADERS[RECOMPUTING]}\n2\n{ROWS}"))


def test_layers_of_a_customized_workload_have_kinds_of_their_own():
    text = f"HYBRID_CUSTOMIZED\n2\n{EMBEDDING}\tMODEL\n{BOTTOM}\tDATA\n"
    workload = parse_astra_text(text)
    assert workload.layer_policy == ("MODEL", "DATA")
    assert format_astra_text(workload) == text
    assert "line 3: 12 columns where a row has 13" in refusal(f"HYBRID_CUSTOMIZED\n2\n{ROWS}")
    wrong = refusal(text.replace("MODEL", "MODEL_"))
    assert "line 3: 'MODEL_' should be the kind of parallelism of a layer" in wrong
    assert "column 13" in wrong


def test_unknown_collectives_are_kept_and_read_as_none():
    """Workload.cc compares the words it knows; any other is no collective."""
    workload = parse_astra_text(TEXT.replace("13312", "8").replace("ALLREDUCE", "allreduce"))
    assert workload.weight_gradient.collective == ("NONE", "allreduce")
    assert workload.weight_gradient.effective_collectives == ("NONE", "NONE")
    assert workload.forward.effective_collectives == ("ALLTOALL", "NONE")
    assert "allreduce" in format_astra_text(workload)


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("\t", " "),
        TEXT.replace("\t", " \t\t "),
        TEXT.replace("\n", "\r\n"),
        TEXT.replace("\n", "\r"),
        TEXT.replace("\n", "\r\n", 1).replace("0\t98\n", "0\t98\r"),
        TEXT.replace("\n", "\n\n"),
        TEXT.replace("\n", "\t\t\t\n"),  # as in the published files
        TEXT.removesuffix("\n"),
        TEXT.replace("\n", " "),  # one line: a stream of words
        "\n" + TEXT + "\n\n",
    ],
)
def test_white_space_is_all_alike(text):
    assert parse_astra_text(text).equals(parse_astra_text(TEXT))


def test_published_files_round_trip(development_table):
    files = sorted(development_table("astra/text/workloads").rglob("*.txt"))
    assert len(files) >= 20
    for file in files:
        workload = read_astra_text(file)
        again = parse_astra_text(format_astra_text(workload))
        assert again.equals(workload), file.name
        words = file.read_text(encoding="utf-8").split()
        written = format_astra_text(workload).split()
        assert written == words, file.name


# --- What is refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "right", "words"),
    [
        *table_of(__file__, "errors_say_file_and_line"),
        ("\t98\n", f"\t{2**63}\n", "column 12, update time"),
    ],
)
def test_errors_say_file_and_line(wrong, right, words):
    assert wrong in TEXT
    assert words in refusal(TEXT.replace(wrong, right, 1))


def test_a_misspelt_kind_is_corrected():
    assert "did you mean" in refusal(TEXT.replace("HYBRID_DLRM", "HYBRID_DLMR"))


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_lines_are_counted_whatever_their_ends(line_end):
    text = TEXT.replace("13312", "x").replace("\n", line_end)
    assert refusal(text).startswith("loads.txt, line 4: 'x' should be")


@pytest.mark.parametrize("length", range(len(TEXT.split())))
def test_files_cut_off_anywhere_are_refused(length):
    words = TEXT.split()[:length]
    assert refusal(" ".join(words)).startswith("loads.txt, line 1")


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("checkpoints: 1 2 initiates: 0", "checkpoints names layer 2; layers are 0 to 1"),
        ("checkpoints: 0 initiates: 1 9", "checkpoint_initiates names layer 9"),
        ("checkpoints: 9223372036854775807 1", "how many checkpoints there are; the file ends"),
        ("checkpoints: -1 0", "'-1' should be how many checkpoints there are"),
        ("checkpoints: 1 nan", "'nan' should be a layer number of checkpoints"),
        ("checkpoints: 1 -1", "'-1' should be a layer number of checkpoints"),
    ],
)
def test_wrong_lists_of_layers(header, words):
    assert words in refusal(f"{RECOMPUTING} G: 4 {header}\n2\n{ROWS}")


def test_the_other_dialect_is_named():
    assert "SimAI's dialect" in refusal(f"HYBRID_TRANSFORMER G: 2 ep: 1\n2\n{ROWS}")


def test_long_cells_are_shortened():
    assert len(refusal(TEXT.replace("13312", "x" * 100_000))) < 400
    assert len(refusal("x" * 100_000)) < 400


def test_an_empty_file_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "workload.txt"
    path.write_bytes(b"")
    with pytest.raises(FormatError, match=r"workload.txt, line 1: the file ends where the kind"):
        read_astra_text(path)
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert read_astra_text(path).equals(parse_astra_text(TEXT))


# --- Writing -----------------------------------------------------------------------------


def test_a_written_file_is_read_back(tmp_path):
    path = tmp_path / "workload.txt"
    path.write_text(format_astra_text(parse_astra_text(TEXT)))
    assert path.read_bytes() == TEXT.encode()
    assert read_astra_text(path).equals(parse_astra_text(TEXT))


def test_the_writer_refuses_what_a_file_cannot_hold():
    workload = parse_astra_text(TEXT)
    short = replace(workload.forward, size=np.array([1]))
    for change, words in (
        ({"policy": "HYBRID_DLMR"}, "is no kind of parallelism"),
        ({"names": ("two words", "x")}, "13 columns where a row has 12"),
        ({"names": ("", "x")}, "11 columns where a row has 12"),
        ({"names": ("a\0b", "x")}, "printable"),
        ({"forward": short}, "columns of a text workload differ in length"),
        ({"update_time": np.array([1, -1])}, "column 12, update time"),
        ({"model_parallel_group": 4}, "fields that its kind does not have"),
        ({"checkpoints": (1,)}, "fields that its kind does not have"),
        ({"last_bottom_layer": 7}, "layers are 0 to 1"),
        ({"policy": "DATA"}, "fields that its kind does not have"),
    ):
        with pytest.raises(FormatError, match=words) as caught:
            format_astra_text(replace(workload, **change))
        assert "\n" not in str(caught.value)
    empty = astra_text_from_columns("DATA", [[]] * 12)
    with pytest.raises(FormatError, match="number of layers"):
        format_astra_text(empty)


# --- Properties --------------------------------------------------------------------------

NAMES = st.text("abcXYZ019_.:-é", min_size=1, max_size=8)
WHOLE = st.integers(0, 2**63 - 1)
KINDS = st.sampled_from((*COLLECTIVES, "NONE", "none"))


@st.composite
def workloads(draw):
    policy = draw(st.sampled_from(POLICIES))
    layers = draw(st.integers(1, 4))

    def column(values):
        return draw(st.lists(values, min_size=layers, max_size=layers))

    phases = [column(values) for _ in range(3) for values in (WHOLE, KINDS, WHOLE)]
    columns = [column(NAMES), column(st.integers(-1, 9)), *phases, column(WHOLE)]
    if policy == CUSTOMIZED:
        columns.append(column(st.sampled_from(POLICIES)))
    header = {}
    if policy in TRANSFORMERS:
        header["model_parallel_group"] = draw(st.integers(1, 2**63 - 1))
    if policy == RECOMPUTING:
        numbers = st.lists(st.integers(0, layers - 1), max_size=3).map(tuple)
        header["checkpoints"] = draw(numbers)
        header["checkpoint_initiates"] = draw(numbers)
    if policy in RECOMMENDERS:
        header["last_bottom_layer"] = draw(st.integers(0, layers - 1))
    return astra_text_from_columns(policy, columns, **header)


@settings(max_examples=cases(60))
@given(workloads(), st.sampled_from(["\n", "\r\n", "\r"]), st.sampled_from(["\t", "  "]))
def test_any_workload_round_trips(workload, line_end, blank):
    text = format_astra_text(workload)
    assert parse_astra_text(text).equals(workload)
    assert parse_astra_text(text.replace("\n", line_end).replace("\t", blank)).equals(workload)
