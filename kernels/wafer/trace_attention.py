"""Instructions of attention: blocks of queries against keys and values, chunk by chunk."""

from __future__ import annotations

from perfmodel.kernels._jit import jit_inline, jit_lean

READ = 0
WRITE = 1
GEMM = 2
ADD = 3

# Columns of a task.
CORE = 0
REPEATS = 1  # heads of keys and values, one after the other
QUERIES = 2  # rows of scores: queries times the heads that share keys
DEPTH = 3  # of queries and keys
KEYS = 4
VALUES = 5  # elements of a value
QUERY_BYTES = 6
KEY_BYTES = 7  # of one key
VALUE_BYTES = 8  # of one value; 0 where it is part of the key
WRITTEN_BYTES = 9
WHOLE = 10  # 1: all keys of the queries are here, and the result is divided by its sum
TASK_COLUMNS = 11


@jit_inline
def _line(lines, arguments, at, core, opcode, back, one, two, three):
    lines[at, 0] = opcode
    lines[at, 1] = core
    lines[at, 2] = 0
    lines[at, 3] = 3 if opcode == GEMM else 2
    lines[at, 4] = back
    lines[at, 5] = back
    arguments[at, 0] = one
    arguments[at, 1] = two
    arguments[at, 2] = three
    arguments[at, 3] = 0


@jit_lean
def count_attention_lines(tasks, chunk):
    """Count the instructions that `attention_lines` writes."""
    count = 0
    for task in range(tasks.shape[0]):
        chunks = (tasks[task, KEYS] + chunk - 1) // chunk
        each = 4 + (tasks[task, VALUE_BYTES] > 0)
        one = 1 + each * chunks + (chunks - 1) + tasks[task, WHOLE] + 1
        count += tasks[task, REPEATS] * one
    return count


@jit_lean
def attention_lines(tasks, chunk, lines, arguments):
    """Write the instructions of tasks: queries read once, then keys in chunks.

    Of each chunk the scores are a product; the exponents of all of them less the largest so
    far, and their sum, an addition of their size; their product with the values is the other.
    From the second chunk on the sums so far are scaled to the new largest score and added to.

    Parameters
    ----------
    tasks : int64[tasks, TASK_COLUMNS]
    chunk : int
        Keys at a time.
    lines : int64[lines, 6]
        To fill: opcode, core, tile, number of arguments, lines back to the first that it waits
        for, how many it waits for.
    arguments : int64[lines, 4]
        To fill.

    Returns
    -------
    int
        Lines written.
    """
    at = 0
    for task in range(tasks.shape[0]):
        core = tasks[task, CORE]
        queries = tasks[task, QUERIES]
        values = tasks[task, VALUES]
        for _ in range(tasks[task, REPEATS]):
            _line(lines, arguments, at, core, READ, 0, core, tasks[task, QUERY_BYTES], 0)
            at += 1
            first = 0
            while first < tasks[task, KEYS]:
                keys = min(chunk, tasks[task, KEYS] - first)
                size = keys * tasks[task, KEY_BYTES]
                _line(lines, arguments, at, core, READ, 0, core, size, 0)
                wanted = 2 if first == 0 else 1
                depth = tasks[task, DEPTH]
                _line(lines, arguments, at + 1, core, GEMM, wanted, queries, depth, keys)
                _line(lines, arguments, at + 2, core, ADD, 1, queries, keys, 0)
                at += 3
                wanted = 1
                if tasks[task, VALUE_BYTES] > 0:
                    size = keys * tasks[task, VALUE_BYTES]
                    _line(lines, arguments, at, core, READ, 0, core, size, 0)
                    at += 1
                    wanted = 2
                _line(lines, arguments, at, core, GEMM, wanted, queries, keys, values)
                at += 1
                if first > 0:
                    _line(lines, arguments, at, core, ADD, 1, queries, values, 0)
                    at += 1
                first += keys
            if tasks[task, WHOLE]:
                _line(lines, arguments, at, core, ADD, 1, queries, values, 0)
                at += 1
            _line(lines, arguments, at, core, WRITE, 1, core, tasks[task, WRITTEN_BYTES], 0)
            at += 1
    return at
