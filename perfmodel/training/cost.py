"""What a training run costs: power, energy, and the time that failures take.

Formulas only, over arrays that broadcast against each other; `perfmodel.store.cost` applies
them to the results of a sweep.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float64]

WAITING_SHARE = 0.5
"""Power of a device that waits (exposed communication, bubble, host) over its power at work [1].

Prior: collectives keep a few units and the links busy. A step that computes for three quarters of
its time then draws 76 % of a DGX H100's rating, which is what Newkirk et al. 2025
(arXiv:2506.14551) measured under computationally intensive training."""

HOST_SHARE = (8.4e3 - 8 * 700.0) / (10.2e3 - 8 * 700.0)
"""What a node draws beside its devices over what its rating leaves for that [1].

Measured: 8.4 kW at most, with eight H100 near full utilisation, on a node rated at 10.2 kW
(Latif et al. 2025, IEEE Access 13:61740, arXiv:2412.08602); the devices are limited to 700 W."""

HOST_RATIO = 0.8
"""Rating of a node beside its devices over their power limits, where no datasheet is known [1].

Prior: 1.03, 0.82, 0.79 and 0.65 for DGX A100, H100, B200 and B300 (0.46 for DGX-1)."""

PUE = 1.09
"""Power of a data centre over that of its computers [1].

Average of Google's data centres in 2024 (google.com/about/datacenters/efficiency); the average of
all that answered Uptime Institute's survey of 2024 is 1.56."""

FAILURES_PER_DEVICE_HOUR = 419 / (54 * 24 * 16384)
"""Interruptions of a run per device and hour [1/h].

419 unexpected ones in 54 days on 16,384 H100 (Llama 3, arXiv:2407.21783, section 3.3.4)."""

STORAGE_BANDWIDTH = 2e12 / 16384
"""Bandwidth per device at which checkpoints are written [B/s].

2 TB/s sustained for 16,384 H100 (Llama 3, arXiv:2407.21783, section 3.3.1)."""

RESTART_TIME = 600.0
"""From a failure until the run continues from its checkpoint [s].

Prior: finding and diagnosing a failure takes less than 10 minutes on average (MegaScale,
arXiv:2402.15627, section 6.3)."""


def device_power(busy: ArrayLike, limit: ArrayLike) -> Values:
    """Return the average power of a device over a training step.

    Parameters
    ----------
    busy : array_like
        Share of the step in which the device computes [1].
    limit : array_like
        Power while it computes [W]: products as large as those of training hold devices at
        their board limit (see `perfmodel.compute.gemm`).

    Returns
    -------
    ndarray
        Power [W], of the broadcast shape.
    """
    busy = np.asarray(busy, np.float64)
    return np.asarray(limit, np.float64) * (busy + WAITING_SHARE * (1.0 - busy))


def checkpoint_interval(checkpoint_time: ArrayLike, failure_time: ArrayLike) -> Values:
    """Return the time between checkpoints that loses the least.

    Parameters
    ----------
    checkpoint_time : array_like
        Time in which the run waits for a checkpoint, > 0 [s].
    failure_time : array_like
        Mean time between failures of the run, > 0 [s].

    Returns
    -------
    ndarray
        Time from the end of one checkpoint to the beginning of the next [s].

    Notes
    -----
    With ``x = sqrt(d / (2 M))`` for checkpoints of ``d`` and failures every ``M``:
    ``sqrt(2 d M) (1 + x / 3 + x**2 / 9) - d`` where ``d < 2 M``, else ``M`` (Daly 2006, Future
    Generation Computer Systems 22:303, eq. 37). Its first term is Young's interval (Young 1974,
    CACM 17:530).
    """
    d, m = np.asarray(checkpoint_time, np.float64), np.asarray(failure_time, np.float64)
    x = np.sqrt(d / (2.0 * m))
    return np.where(d < 2.0 * m, np.sqrt(2.0 * d * m) * (1.0 + x / 3.0 + x * x / 9.0) - d, m)


def goodput(
    interval: ArrayLike,
    checkpoint_time: ArrayLike,
    restart_time: ArrayLike,
    failure_time: ArrayLike,
) -> Values:
    """Return the share of the time in which a run gets ahead.

    Parameters
    ----------
    interval : array_like
        Time between checkpoints, > 0 [s].
    checkpoint_time : array_like
        Time in which the run waits for a checkpoint [s].
    restart_time : array_like
        From a failure until the run continues [s].
    failure_time : array_like
        Mean time between failures of the run, > 0 [s].

    Returns
    -------
    ndarray
        Share [1]; what is computed again after a failure counts as lost.

    Notes
    -----
    ``t / (M exp(R / M) (exp((t + d) / M) - 1))`` for an interval ``t``, checkpoints of ``d``,
    restarts of ``R`` and failures every ``M``: failures come at any time alike, also during
    checkpoints and restarts (the complete cost function of Daly 2006, Future Generation Computer
    Systems 22:303).
    """
    m = np.asarray(failure_time, np.float64)
    t = np.asarray(interval, np.float64)
    segment = (t + np.asarray(checkpoint_time, np.float64)) / m
    # Written without growing exponentials, which would overflow on hopeless runs.
    decay = np.exp(-segment - np.asarray(restart_time, np.float64) / m)
    return t / m * decay / -np.expm1(-segment)
