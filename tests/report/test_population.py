"""Rows of several files side by side, choices that differ and those that do not."""

import numpy as np

from perfmodel.report.kinds import TRAINING
from perfmodel.report.population import Choices, Figures, Population, coded, joined


def population(hardware, degrees, times, **more):
    choices = {
        "hardware": coded(np.array(hardware)),
        "tensor_parallel": coded(np.array(degrees)),
        "fits": Choices(["no", "yes"], np.array([1, 0, 1][: len(times)])),
        **more,
    }
    figures = {"step_time": Figures(np.array(times), "s")}
    return Population(TRAINING, choices, figures, total=len(times))


def test_numbers_are_choices_in_their_order():
    found = coded(np.array([16, 2, 1024, 2]))
    assert found.labels == ["2", "16", "1,024"]
    assert found.numbers == [2.0, 16.0, 1024.0]
    assert found.codes.tolist() == [1, 0, 2, 0]
    assert coded(np.array([True, False])).labels == ["no", "yes"]
    assert coded(np.array([0.5, np.nan])).labels == ["0.5", "–"]


def test_what_all_rows_have_is_common():
    varying, common = population(["a", "a"], [1, 2], [1.0, 2.0]).dedicated()
    assert common["hardware"][0] == "a"
    assert varying["tensor_parallel"].labels == ["1", "2"]


def test_labels_that_no_row_has_are_left_out():
    part = population(["a", "b", "c"], [1, 2, 4], [1.0, 2.0, 3.0]).take(np.array([0, 2]))
    varying, _ = part.dedicated()
    assert varying["hardware"].labels == ["a", "c"]
    assert varying["tensor_parallel"].numbers == [1.0, 4.0]
    assert varying["tensor_parallel"].codes.tolist() == [0, 1]


def test_files_are_joined_by_name_and_what_one_lacks_is_said():
    first = population(["a", "b"], [1, 2], [1.0, 2.0])
    second = population(["b"], [16], [3.0], precision=Choices(["fp8"], np.array([0])))
    second.figures["memory_total"] = Figures(np.array([5.0]), "B")
    found = joined([first, second], ["one.nc", "two.nc"])
    assert found.total == found.count == 3
    assert [found.choices["file"].labels[i] for i in found.choices["file"].codes] == [
        *("one.nc", "one.nc"),
        "two.nc",
    ]
    degrees = found.choices["tensor_parallel"]
    assert [degrees.labels[i] for i in degrees.codes] == ["1", "2", "16"]
    assert degrees.numbers == [1.0, 2.0, 16.0]
    precision = found.choices["precision"]
    assert [precision.labels[i] for i in precision.codes] == ["–", "–", "fp8"]
    np.testing.assert_array_equal(found.figures["memory_total"].values, [np.nan, np.nan, 5.0])


def test_rows_rank_from_the_best_and_only_fitting_ones_are_offered():
    found = population(["a", "b", "c"], [1, 2, 4], [3.0, 1.0, 2.0])
    assert found.best_first(np.arange(3), "step_time").tolist() == [1, 2, 0]
    assert found.fitting().tolist() == [0, 2]
