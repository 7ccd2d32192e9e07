"""A node's operations end at barriers of their own."""

from perfmodel.wafer.cores.instructions import BARRIER, CORE, OPCODE
from tests.wafer.cores.examples import operations


def test_operations_end_where_all_cores_of_a_node_meet() -> None:
    ends = set()
    for node, several in operations("dense").items():
        for operation in several:
            lines, arguments, _ = operation.instructions
            assert (lines[-6:, OPCODE] == BARRIER).all()
            assert sorted(lines[-6:, CORE].tolist()) == [node * 6 + core for core in range(6)]
            assert len({tuple(row) for row in arguments[-6:, :2].tolist()}) == 1
            if operation.kind != "AllReduce":
                assert tuple(arguments[-1, :2].tolist()) not in ends
                ends.add(tuple(arguments[-1, :2].tolist()))
