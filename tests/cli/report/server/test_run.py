"""The port: this machine's own, and one line where it is taken."""

from __future__ import annotations

import contextlib
import socket

import pytest

from perfmodel.base.errors import DataError
from perfmodel.cli.report.server.run import HOST, bound


def test_it_listens_on_the_loopback_interface_alone() -> None:
    with bound(0) as found:
        host, port = found.getsockname()
        assert host == HOST == "127.0.0.1"
        with socket.create_connection((host, port), timeout=5):
            pass


def test_a_port_in_use_is_one_line() -> None:
    with contextlib.closing(bound(0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(DataError, match=f"port {port} is in use; name another one: --port"):
            bound(port)
