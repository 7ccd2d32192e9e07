"""Sums over rows and rectangles of cores: closed forms against the mesh cycle by cycle.

    python benchmarks/accuracy/mesh_sums.py

Rows of 2 to 64 cores, rectangles up to 16 x 16, vectors of 1 to 256 wavelets, three machines.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.kernels.wafer import reduce
from perfmodel.wafer.collectives import reduction, simulated_cycles

ROWS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 19, 23, 25, 29, 31, 32, 37, 48, 53, 64)
RECTANGLES = ((2, 2), (3, 5), (4, 4), (5, 9), (8, 8), (12, 12), (16, 16))
WAVELETS = (1, 2, 5, 16, 33, 64, 256)
MACHINES = ((1, 2, 0), (1, 2, 20), (2, 1, 3))  # hop, ramp and stage [cycles]
PER_WAVELET = 2


def errors(name: str, to_all: bool, rectangles: bool) -> Iterator[float]:
    """Yield the form's relative error for every size and machine."""
    algorithm = reduce.ALGORITHMS.index(name)
    for rows, columns in RECTANGLES if rectangles else ((1, cores) for cores in ROWS):
        for wavelets in WAVELETS[: 6 if rectangles else 7]:
            elements = PER_WAVELET * wavelets
            flows = reduction(name, rows, columns, elements, PER_WAVELET, to_all)
            for hop, ramp, stage in MACHINES:
                found = simulated_cycles(flows, rows, columns, hop, ramp, stage).max()
                along = (elements, PER_WAVELET, hop, stage, ramp)
                sizes = [float(one) for one in along]
                if rectangles:
                    form = reduce.grid_all_reduce_cycles(
                        algorithm, float(rows), float(columns), *sizes
                    )
                elif to_all:
                    form = reduce.all_reduce_cycles(algorithm, float(columns), *sizes)
                else:
                    form = reduce.reduce_cycles(algorithm, float(columns), *sizes)
                yield form / found - 1.0


def main() -> None:
    """Print errors by algorithm; takes a quarter of a minute."""
    print(f"{'':32} {'sums':>6} {'exact':>6} {'mean %':>7} {'worst %':>8}")
    for title, to_all, rectangles in (
        ("reduce, row", False, False),
        ("all-reduce, row", True, False),
        ("all-reduce, rectangle", True, True),
    ):
        for name in reduce.ALGORITHMS:
            if name == "ring" and (rectangles or not to_all):
                continue
            found = [abs(one) for one in errors(name, to_all, rectangles)]
            mean, worst = 100.0 * sum(found) / len(found), 100.0 * max(found)
            exact = sum(one == 0.0 for one in found)
            print(f"{title:22} {name:9} {len(found):6} {exact:6} {mean:7.4f} {worst:8.3f}")


if __name__ == "__main__":
    main()
