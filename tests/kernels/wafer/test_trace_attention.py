"""Instructions of attention tasks."""

import numpy as np

from perfmodel.kernels.wafer import trace_attention as kernel
from perfmodel.wafer.cores.instructions import ADD, BACK, GEMM, OPCODE, OPCODES, READ, WRITE


def lines_of(task: list[int], chunk: int) -> tuple[np.ndarray, np.ndarray]:
    tasks = np.array([task])
    count = kernel.count_attention_lines(tasks, chunk)
    lines, arguments = np.zeros((count, 6), np.int64), np.zeros((count, 4), np.int64)
    assert kernel.attention_lines(tasks, chunk, lines, arguments) == count
    return lines, arguments


def test_latent_attention_rescales_from_the_second_chunk_on() -> None:
    lines, arguments = lines_of([3, 1, 32, 576, 1100, 512, 999, 1152, 0, 777, 1], 512)
    names = [OPCODES[code] for code in lines[:, OPCODE]]
    chunk = ["READ", "GEMM", "ADD", "GEMM"]
    assert names == ["READ", *chunk, *chunk, "ADD", *chunk, "ADD", "ADD", "WRITE"]
    products = arguments[lines[:, OPCODE] == GEMM, :3]
    assert products[::2].tolist() == [[32, 576, 512], [32, 576, 512], [32, 576, 76]]
    assert products[1::2].tolist() == [[32, 512, 512], [32, 512, 512], [32, 76, 512]]
    assert arguments[lines[:, OPCODE] == READ, 1].tolist() == [
        999,
        *(1152 * np.array([512, 512, 76])),
    ]
    # The first product waits for queries and keys, the others for keys.
    assert lines[lines[:, OPCODE] == GEMM, BACK].tolist() == [2, 1, 1, 1, 1, 1]


def test_values_of_their_own_are_read_for_every_head() -> None:
    lines, arguments = lines_of([0, 2, 4, 128, 100, 128, 1024, 256, 256, 1040, 0], 512)
    code = lines[:, OPCODE]
    assert (code == READ).sum() == 2 * 3
    assert (code == WRITE).sum() == 2
    assert (code == ADD).sum() == 2  # no division by the sum: keys lie elsewhere, too
    read = arguments[code == READ, 1].reshape(2, 3)
    assert (read == [1024, 25600, 25600]).all()
