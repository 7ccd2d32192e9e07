"""What results are about."""

import pytest

from perfmodel.base.table import Column, Table
from perfmodel.kernels import variables
from perfmodel.kernels.serving import variables as serving_variables
from perfmodel.kernels.variables import RATE
from perfmodel.store.subject import SERVING, TRAINING, subject_of
from perfmodel.wafer import result_subject as wafer_variables
from perfmodel.wafer.result_subject import SUBJECT as WAFER


@pytest.mark.parametrize(
    ("dim", "subject"), [("strategy", TRAINING), ("deployment", SERVING), ("mapping", WAFER)]
)
def test_a_dimension_tells_the_subject(dim, subject):
    assert subject_of(Table({}, {dim: Column(dim, [0])})) is subject


@pytest.mark.parametrize(
    ("subject", "known"),
    [
        (TRAINING, variables.VARIABLES),
        (SERVING, serving_variables.VARIABLES),
        (WAFER, wafer_variables.VARIABLES),
    ],
)
def test_names_are_those_of_variables_and_fields(subject, known):
    names = {*known, *subject.fields, *subject.costs}
    assert {subject.answer, *subject.required} <= names
    assert set(subject.aliases.values()) <= names
    assert subject.aliases.get(RATE, RATE) in names
    assert set(subject.numbered) < set(subject.dims)
