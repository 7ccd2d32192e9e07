"""A latent kernel that works on its tiles one after another."""

from __future__ import annotations

import pytest

from tests.kernels.attention.calls import DEVICE, forward

SERIAL = DEVICE._replace(latent_key_time=1e-7, units=108.0)


@pytest.mark.parametrize(
    ("batch", "heads", "waves"),
    # two blocks per sequence and 64 heads, two per unit; one that shares its unit takes 1.42
    [
        (1, 16, 1.0),
        (54, 64, 1.0),
        (55, 64, 1.42),
        (108, 16, 1.42),
        (162, 16, 2.42),
        (54, 128, 1.42),
    ],
)
def test_a_serial_latent_kernel_takes_whole_waves(batch, heads, waves):
    found = forward(SERIAL, batch, 1, 65536, heads, 1, 576, 512, True, 0, latent=True)[0]
    block = SERIAL.decode_latency + 65536 * SERIAL.latent_key_time
    assert found == pytest.approx(SERIAL.launch_latency + waves * block)
