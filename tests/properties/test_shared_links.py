"""Links of a bus that several devices share: uplinks of switches, and between sockets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfmodel.compute.collectives import collective_times, link_occupancies
from perfmodel.hwprofiles import Hardware, list_hardware, load_hardware

LARGE = 1e10  # [B], where links count alone
PORT = 48e9  # of a fifth-generation x16: NCCL src/graph/topo.h
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "gather")


def server(path: str = "switch", links: dict[str, float] | None = None) -> Hardware:
    """Eight devices with ports of `PORT` on one bus, and these links alone."""
    none = dict.fromkeys(
        ("uplink_devices", "uplink_bandwidth", "socket_devices", "socket_bandwidth"), 0.0
    )
    values: dict[str, Any] = {"peer_path": path} | none | (links or {})
    changes = {f"system.network.0.{name}": value for name, value in values.items()}
    return load_hardware("rtx-pro-6000-server").with_values(changes)


def behind(what: str, devices: int, bandwidth: float) -> dict[str, float]:
    """State one shared link: of an ``uplink``, or of a ``socket``."""
    return {f"{what}_devices": devices, f"{what}_bandwidth": bandwidth}


def sent(hardware: Hardware, kind: str, members: int, stride: int = 1) -> float:
    """Bytes that a device sends over the time [B/s]."""
    passes = 2 if kind == "all_reduce" else 1
    time = float(collective_times(hardware, kind, LARGE, members, stride)[0])
    return passes * (1.0 - 1.0 / members) * LARGE / time


@pytest.mark.parametrize("what", ["uplink", "socket"])
def test_what_a_shared_link_carries_by_hand(what: str) -> None:
    # Four devices behind a link of 24 GB/s: a ring crosses it once a way; of an exchange four
    # sevenths of what its four send, one after the other of what a root gathers.
    link = 24e9
    shared = server(links=behind(what, 4, link))
    free = server()
    assert sent(shared, "all_reduce", 8) == pytest.approx(link, rel=0.02)
    assert sent(shared, "all_gather", 8) == pytest.approx(link, rel=0.02)
    assert sent(shared, "all_to_all", 8) == pytest.approx(link / 4 / (4 / 7), rel=0.02)
    gathered = collective_times(shared, "gather", LARGE, 8)[0]
    assert gathered == pytest.approx(4 / 8 * LARGE / link, rel=0.02)
    message = collective_times(shared, "point_to_point", LARGE, 2, 4)[0]
    assert message == pytest.approx(LARGE / (link / 4), rel=0.02)  # and three others beside it
    for kind in KINDS:  # two and four devices behind it have all of their ports
        for members, stride in ((2, 1), (2, 2), (4, 1)):
            same = [collective_times(it, kind, LARGE, members, stride) for it in (shared, free)]
            assert same[0] == same[1], (kind, members)


def test_two_devices_that_share_an_uplink_meet_neighbours_at_the_switch() -> None:
    pairs = server("host-bridge", behind("uplink", 2, PORT))
    assert sent(pairs, "all_reduce", 2) == pytest.approx(PORT, rel=0.02)
    assert sent(pairs, "all_reduce", 4) == pytest.approx(PORT / 1.2, rel=0.02)  # a bridge between
    assert sent(pairs, "all_to_all", 4) == pytest.approx(PORT / 1.2 / 2 / (2 / 3), rel=0.02)
    # Without peer access both send everything up: half of it each (NVIDIA/nccl issue 1309).
    blind = server("memory", behind("uplink", 2, PORT))
    assert sent(blind, "all_reduce", 2) == pytest.approx(PORT / 2, rel=0.02)


@pytest.mark.parametrize(
    ("links", "all_pairs", "opposite"),
    # github.com/voipmonitor/rtx6kpro, hardware/epyc9124-direct-attach.md: eight RTX PRO 6000,
    # what each reads while all pairs exchange, and while opposite ones do. Four behind each of
    # two switches with x16 uplinks (WRX90); four on each of two processors.
    [
        (behind("uplink", 4, PORT), 162e9 / 8, 12.6e9),
        (behind("socket", 4, 53e9), 184.6e9 / 8, 19.3e9),
    ],
)
def test_published_exchanges(links: dict[str, float], all_pairs: float, opposite: float) -> None:
    hardware = server(links=links)
    assert sent(hardware, "all_to_all", 8) == pytest.approx(all_pairs, rel=0.05)
    crossing = LARGE / collective_times(hardware, "point_to_point", LARGE, 2, 4)[0]
    # Processors join by several links, of which an exchange of all pairs gets less.
    assert crossing == pytest.approx(opposite, rel=0.06 if "uplink_devices" in links else 0.35)


def test_published_ring_through_the_memory_of_the_host() -> None:
    # NVIDIA/nccl issue 1639, 1 GiB and more: four RTX 5090 at 35 GB/s, eight at 28.
    hardware = load_hardware("rtx-5090-server")
    assert sent(hardware, "all_reduce", 4) == pytest.approx(35e9, rel=0.12)
    assert 28e9 < sent(hardware, "all_reduce", 8) < 1.4 * 28e9


@pytest.mark.parametrize("kind", KINDS)
def test_shared_links_only_slow_down(kind: str) -> None:
    algorithm = "direct" if kind in ("all_to_all", "gather") else "ring"
    group = (np.repeat(2.0 ** np.arange(10, 34, 4), 4), np.tile([2, 4, 6, 8], 6))
    servers = [server(links=behind("socket", 4, rate)) for rate in (1e9, 5e9, 25e9, 125e9)]
    times = [collective_times(it, kind, *group, algorithm=algorithm) for it in (*servers, server())]
    assert (np.diff(times, axis=0) <= 1e-15).all()
    assert (times[0] > times[-1])[group[1] > 4].all()


@pytest.mark.parametrize(
    "name",
    [name for name in list_hardware() if load_hardware(name).system.network[0].socket_devices],
)
def test_every_byte_that_must_cross_sockets_does(name: str) -> None:
    # Each half of the node needs what only the other half has, once and over one link.
    hardware = load_hardware(name)
    bus = hardware.system.network[0]
    half = bus.socket_devices
    for kind, needed in (
        ("all_gather", 0.5),
        ("reduce_scatter", 0.5),
        ("all_reduce", 1.0),
        ("all_to_all", half / 2),
        ("broadcast", 1.0),
        ("gather", 0.5),
    ):
        time = collective_times(hardware, kind, LARGE, 2 * half)[0]
        assert time >= needed * LARGE / bus.socket_bandwidth, kind
        inside = collective_times(hardware, kind, LARGE, 2)[0]
        share = (1.0 - 1.0 / (2 * half)) / (1.0 - 1.0 / 2)
        assert time >= (1.0 if kind == "broadcast" else share) * inside * 0.98, kind


def test_a_shared_link_keeps_the_bus_busy() -> None:
    shared = server(links=behind("socket", 4, 12e9))
    busy, _ = link_occupancies(shared, "all_to_all", LARGE, [4, 8], 1)
    free, _ = link_occupancies(server(), "all_to_all", LARGE, [4, 8], 1)
    assert busy[0, 0] == free[0, 0]
    assert busy[1, 0] == pytest.approx(4 * 4 / 8 * LARGE / 12e9)
