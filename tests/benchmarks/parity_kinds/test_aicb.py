"""The script that compares AICB's files with ours: what it counts."""

from __future__ import annotations

import csv
import shlex

import pytest

from perfmodel.workloads.twins.aicb.arguments import parse_arguments
from perfmodel.workloads.twins.aicb.training import file_name, training_text
from tests.workloads.twins.aicb.examples import AIOB, COMPUTATION


@pytest.fixture
def comparison(script):
    return script.load("parity_kinds.aicb")


COMMAND = (
    "python -m workload_generator.SimAI_training_workload_generator --num_layers=2 "
    "--aiob_enable --comp_filepath=workload/aiob_inputs/Example.txt"
)


def test_parity_counts_files_failures_and_what_is_not_covered(comparison, tmp_path):
    (tmp_path / "workloads").mkdir()
    (tmp_path / "aiob_inputs").mkdir()
    (tmp_path / "aiob_inputs/Example.txt").write_text(AIOB, encoding="utf-8")
    arguments = parse_arguments(shlex.split(COMMAND))
    good = training_text(arguments, COMPUTATION)
    (tmp_path / "workloads/good.txt").write_text(good, encoding="utf-8")
    bad = good.replace("ga: 4", "ga: 5")
    assert bad != good
    (tmp_path / "workloads/bad.txt").write_text(bad, encoding="utf-8")
    failing = COMMAND + " --ffn_hidden_size=7 --tensor_model_parallel_size=2 --world_size=2"
    lines = [
        ("good", COMMAND, "0", ""),
        ("bad", COMMAND, "0", ""),
        ("gone", COMMAND, "0", ""),
        ("failed", failing, "1", "AssertionError"),
        ("refused", COMMAND + " --nonsense", "2", "no such option"),
        ("unknown", COMMAND + " --nonsense", "0", ""),
        ("wrongly", failing, "0", ""),
    ]
    with (tmp_path / "manifest.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "id", "original_name", "command", "rc", "error"])
        writer.writerows(
            [f"workloads/{name}.txt", name, f"results/{file_name(arguments)}", command, rc, error]
            for name, command, rc, error in lines
        )
    document = comparison.compare(tmp_path)
    assert (document["count"], document["exact"]) == (4, 3)
    assert document["worst_relative_error"] == pytest.approx(1 / (good.count("\n") + 1))
    assert document["median_relative_error"] == 0.0
    assert sum(document["uncovered"].values()) == 3
    assert document["differing"]["workloads/bad.txt"].startswith("line 1: 'HYBRID")
    assert document["names"] == {"count": 2, "exact": 2}
    table = "\n".join(comparison.table(document))
    assert "training" in table
    assert "names: 2 of 2" in table


def test_parity_of_aicbs_own_files(comparison, development_table):
    document = comparison.compare(development_table("aicb/manifest.csv").parent)
    training = document["generators"]["training"]
    assert training["count"] == training["exact"] >= 32
    assert document["count"] == document["exact"]
    assert document["names"]["count"] == document["names"]["exact"]
