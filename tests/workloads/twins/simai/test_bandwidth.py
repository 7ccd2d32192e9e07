"""Bandwidths of SimAI-Analytical: layout of groups, bus bandwidths, tables of ratios."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from perfmodel.workloads.twins.simai import bandwidth as tables
from perfmodel.workloads.twins.simai.bandwidth import (
    DATA,
    EXPERT,
    EXPERT_DATA,
    TENSOR,
    Degrees,
    Layout,
    SimaiSystem,
    bandwidth_ratio,
    bus_bandwidth,
    group_layout,
)

A100 = SimaiSystem(8, 8, "A100", "cx6")
MIB = 2**20
GIB = 2**30


@pytest.mark.parametrize(
    ("group", "members", "degrees", "layout"),
    [
        (TENSOR, 4, Degrees(4, 1, 8), Layout(1, 4, 8)),
        (TENSOR, 16, Degrees(16, 1, 8), Layout(2, 8, 8)),
        (DATA, 64, Degrees(2, 1, 64), Layout(64, 4, 4)),
        (DATA, 64, Degrees(16, 1, 64), Layout(64, 1, 1)),
        (DATA, 1, Degrees(2, 1, 1), None),
        (EXPERT, 4, Degrees(2, 4, 64), Layout(1, 4, 8)),
        (EXPERT, 8, Degrees(2, 8, 64), Layout(2, 4, 4)),
        (EXPERT, 8, Degrees(16, 8, 64), Layout(16, 1, 1)),
        (EXPERT, 1, Degrees(2, 1, 64), None),
        (EXPERT_DATA, 8, Degrees(2, 2, 16), Layout(8, 2, 2)),
        (EXPERT_DATA, 8, Degrees(2, 8, 64), Layout(8, 1, 1)),
    ],
)
def test_layout_of_groups(group, members, degrees, layout):
    assert group_layout(group, members, degrees, A100) == layout  # aicb.md section 4, "layout"


H100 = SimaiSystem(8, 8, "H100", "cx7")
FAST_NICS = SimaiSystem(8, 8, "H100", nic_bandwidth=60e9)


@pytest.mark.parametrize(
    ("system", "all_to_all", "layout", "bandwidth", "nvlink_bound"),
    [
        (A100, False, Layout(1, 8, 8), 240.0, False),  # 20 × 12
        (H100, False, Layout(1, 8, 8), 370.8, False),  # 20.6 × 18
        (SimaiSystem(8, 8, "H800"), True, Layout(1, 2, 8), 164.8, False),  # 20.6 × 8
        (A100, False, Layout(2, 8, 8), 188.0, False),  # 23.5 × 8 < 240
        (H100, False, Layout(2, 8, 8), 388.0, False),  # 48.5 × 8 < 370.8 × 8 / 7
        (FAST_NICS, False, Layout(2, 8, 8), 370.8 * 8 / 7, True),  # 60 × 8 above that
        (A100, False, Layout(64, 1, 1), 23.5, False),
        (A100, True, Layout(2, 8, 8), 23.5 * 15 / 8, False),
        (A100, True, Layout(2, 4, 4), 23.5 * 7 / 4, False),
        (A100, False, Layout(1, 1, 8), 0.0, False),
        (A100, False, Layout(2, 8, 0), -1.0, False),
    ],
)  # fmt: skip
def test_bus_bandwidth(system, all_to_all, layout, bandwidth, nvlink_bound):
    found, bound = bus_bandwidth(all_to_all, layout, system)
    assert (float(found), bound) == (pytest.approx(bandwidth, rel=1e-6), nvlink_bound)


@pytest.mark.parametrize(
    ("kind", "group", "tensor", "members", "nvlink_bound", "size", "ratio"),
    [
        ("ALLGATHER", TENSOR, 8, 8, False, MIB, 0.45 / 0.81),
        ("ALLGATHER", TENSOR, 8, 8, False, 16 * MIB, 0.45 / 0.81),
        ("REDUCESCATTER", TENSOR, 8, 8, False, 24 * MIB, 0.50 / 0.81),  # halfway 0.45 to 0.55
        ("ALLGATHER", TENSOR, 16, 16, False, 16 * MIB, 0.32 / 0.96),
        ("ALLGATHER", TENSOR, 16, 16, True, 16 * MIB, 0.55 / 0.88),
        ("ALLGATHER", TENSOR, 24, 24, False, 16 * MIB, 0.05 / 0.96),  # 3 nodes count as 16
        ("ALLGATHER", TENSOR, 16, 16, False, 16 * GIB, 1.0),
        ("ALLREDUCE", TENSOR, 8, 8, False, MIB, 1.0),
        ("ALLTOALL", EXPERT, 2, 4, False, 64 * MIB, 0.60 / 0.78),
        ("ALLTOALL", EXPERT, 2, 8, False, 64 * MIB, 0.72 / 0.80),
        ("ALLTOALL", EXPERT, 8, 4, False, 64 * MIB, 0.94 / 0.96),  # "Multi 16"
        ("ALLTOALL", EXPERT, 4, 64, False, 64 * MIB, 1.0),  # 32 nodes: blank cells
        ("ALLGATHER", DATA, 2, 64, False, MIB, 1.0),
    ],
)
def test_bandwidth_ratio(kind, group, tensor, members, nvlink_bound, size, ratio):
    # inputs/ratio/{nic,nvlink,ata}_ratio.csv of SimAI cef83f9d.
    found = bandwidth_ratio(kind, group, np.array([size]), members, tensor, 8, nvlink_bound)
    assert found[0] == pytest.approx(ratio, rel=1e-6)


def test_ratio_tables_are_those_of_simai(development_table):
    ours = {"nic": tables.NIC_RATIO, "nvlink": tables.NVLINK_RATIO, "ata": tables.ALL_TO_ALL_RATIO}
    columns = [f"{n}Node" for n in (1, 2, 4, 8, 16, 32, 64, 128)] + ["Multi16"]
    seen = 0
    with development_table("aicb/measured/busbw_ratio_tables.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name = row["column"].replace(" ", "").split("-")[0].split("(")[0]
            if name in columns:
                i = tables.RATIO_SIZES.tolist().index(int(row["msg_bytes"]))
                wanted = float(row["ratio_of_peak_busbw"])
                assert ours[row["table"]][i, columns.index(name)] == wanted, row
                seen += 1
    assert seen == 11 * (9 + 6 + 6)
