"""How calls are repeated."""

from __future__ import annotations

from typing import Any


class Result:
    """What a call returns; counts those that are alive."""

    alive = 0
    most = 0

    def __init__(self) -> None:
        Result.alive += 1
        Result.most = max(Result.most, Result.alive)

    def __del__(self) -> None:
        Result.alive -= 1


def test_results_rotate_as_their_tensors_do(script: Any) -> None:
    timing = script("timing")
    Result.alive = Result.most = 0
    timing._run([Result] * 3, 4)
    assert Result.most == 3
    assert Result.alive == 0
