"""Parts are all components, and told apart by colour and hatch."""

from __future__ import annotations

import pytest

from perfmodel.report.plots.parts import COMPONENTS, MEMORY, TIMES


@pytest.mark.parametrize("subject", TIMES)
def test_parts_of_times_are_the_components(subject):
    assert {part.name for part in TIMES[subject].parts} == set(COMPONENTS[subject])
    for whole in (TIMES[subject], MEMORY[subject]):
        looks = [(part.colour, part.hatch) for part in whole.parts]
        assert len(looks) == len(set(looks))
