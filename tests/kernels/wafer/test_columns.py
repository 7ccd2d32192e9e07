"""Arguments of the closing kernel: names and codes go together."""

from perfmodel.kernels.wafer import columns


def test_codes_are_places_of_their_names():
    assert columns.PART_KINDS[columns.SUM] == "sum"
    assert columns.PHASES[columns.PREFILL] == "prefill"
    assert columns.CACHE_LAYOUTS[columns.ROW] == "row"
    assert len(set(columns.CLOSED_ROWS)) == len(columns.CLOSED_ROWS)
    assert columns.PART_ROWS[-1] == "useful_macs"
