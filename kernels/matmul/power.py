"""What the power limit of a device adds to a kernel.

A short kernel runs at full clock, on the charge of the regulators and within the averaging
window of the limit; a long one at the rate that the limit lets it keep up.
"""

from __future__ import annotations

from perfmodel.kernels._jit import jit


@jit
def heated_time(fast, loss, heat_time):
    """Time of a kernel that would take `fast` at full clock [s].

    Parameters
    ----------
    fast : float
        Time at full clock [s].
    loss : float
        Full rate over sustained rate, less 1; >= 0.
    heat_time : float
        Busy time after which the power limit is felt [s]; 0 under a steady load.

    Returns
    -------
    float
        ``fast (1 + loss fast / (fast + heat_time))``, which grows with `fast` (derived here).
    """
    return fast * (1.0 + loss * fast / (fast + heat_time))


@jit
def power_loss(device):
    """Full rate of a device over the rate that its power limit lets it keep up, less 1; >= 0."""
    return max(0.0, device.units * device.unit_rate / device.power_rate - 1.0)


@jit
def power_limited_time(flops, device):
    """Time below which rate and power limit don't let a product finish [s].

    Parameters
    ----------
    flops : float
        Of the whole product [FLOP].
    device : GemmDevice or GroupedDevice
        Has `units`, `unit_rate`, `power_rate` and `heat_time`.
    """
    full_rate = device.units * device.unit_rate
    return heated_time(flops / full_rate, power_loss(device), device.heat_time)
