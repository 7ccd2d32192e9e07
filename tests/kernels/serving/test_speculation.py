"""Speculation: what a pass yields, and until when drafts pay."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.serving.passes import pass_times
from perfmodel.kernels.serving.speculation import (
    last_paying_batch,
    pass_variation,
    tokens_per_pass,
)
from tests.kernels.serving.cases import pass_tables


def test_tokens_of_a_pass_are_those_of_draws() -> None:
    taken = np.random.default_rng(0).random((200_000, 3)) < 0.7
    tokens = 1 + np.cumprod(taken, axis=1).sum(axis=1)
    assert tokens_per_pass(3.0, 0.7) == pytest.approx(tokens.mean(), rel=0.01)
    assert pass_variation(3.0, 0.7) == pytest.approx(tokens.var(), rel=0.02)
    assert tokens_per_pass(3.0, 1.0) == 4.0
    assert tokens_per_pass(0.0, 0.7) == 1.0


def test_drafts_pay_until_their_tokens_cost_time() -> None:
    tables = pass_tables(graph_step=1.0)
    batch = last_paying_batch(tables, 0, 0, 3.0, 0.6, 512.0, 512.0)
    assert 32.0 < batch < 512.0
    for at, pays in ((batch, True), (batch + 1.0, False)):
        plain, drafted = (
            pass_times(tables, 0, 0.0, 0.0, 0.0, at, 512.0, verified, 0.0)[0]
            for verified in (1.0, 4.0)
        )
        assert (drafted / tokens_per_pass(3.0, 0.6) < plain) == pays


@pytest.mark.parametrize(("acceptance", "wanted"), [(0.0, 0.0), (1.0, 64.0)])
def test_drafts_that_never_or_always_pay(acceptance: float, wanted: float) -> None:
    tables = pass_tables(token_time=2e-5 if acceptance else 1e-3)
    assert last_paying_batch(tables, 0, 0, 3.0, acceptance, 512.0, 64.0) == wanted
