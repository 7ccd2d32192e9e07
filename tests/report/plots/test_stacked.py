"""Which strategies have a bar, and what it is called."""

from __future__ import annotations

import perfmodel


def test_names_say_what_differs(training):
    plot = perfmodel.plot(training, "breakdown", top=6, where="hardware == 'dgx-h100'")
    names = [text for _, text in plot.panels[0].y.ticks]
    assert len(set(names)) == 6
    assert not any("dgx-h100" in name for name in names)
    assert any("dgx-h100" in note for note in plot.notes)


def test_the_best_for_each_value_is_called_by_it_in_order(training):
    plot = perfmodel.plot(training, "breakdown", each="tp,pp", where="hardware == 'dgx-b200'")
    names = [text for _, text in plot.panels[0].y.ticks]
    assert names == [f"TP{tensor}, PP{stages}" for tensor in (1, 2, 4) for stages in (1, 2)]
