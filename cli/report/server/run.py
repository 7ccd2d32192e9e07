"""The page with controls, on a port of this machine."""

from __future__ import annotations

import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable

from perfmodel.base.errors import DataError, MachineError
from perfmodel.cli.report.server.question import Offer

HOST = "127.0.0.1"


def run_page(
    port: int, offer: Offer, *, browser: bool = True, tell: Callable[[str], None] = print
) -> None:
    """Serve the page until the process is told to end.

    Parameters
    ----------
    port : int
        0 for any that is free.
    offer : Offer
        Models and hardware beside the presets.
    browser : bool
        Whether the system's browser is opened.
    tell : callable
        Is given the link, once requests are answered.

    Raises
    ------
    DataError
        The port is taken, or the extra ``ui`` is not installed.
    """
    try:
        import uvicorn

        from perfmodel.cli.report.server.app import TOKEN, make_app
    except ImportError:
        raise DataError(
            "the page needs starlette and uvicorn: pip install 'perfmodel[ui]'"
        ) from None
    listening = bound(port)
    token = secrets.token_urlsafe(16)
    link = f"http://{HOST}:{listening.getsockname()[1]}/?{TOKEN}={token}"
    config = uvicorn.Config(
        make_app(offer, token=token),
        log_level="warning",
        access_log=False,
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    tell(link)
    if browser:
        # Some browsers keep whoever opens them waiting.
        threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()
    with listening:
        uvicorn.Server(config).run(sockets=[listening])


def bound(port: int) -> socket.socket:
    """Return a socket that listens on a port of the loopback interface.

    Raises
    ------
    DataError
        Somebody else listens there.
    MachineError
        The system gives no such socket.
    """
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((HOST, port))
        found.listen(64)
    except OSError as error:
        found.close()
        if isinstance(error, PermissionError):
            raise DataError(f"port {port} may not be used; name one from 1024 on: --port") from None
        if error.errno in (48, 98, 10048):
            raise DataError(f"port {port} is in use; name another one: --port") from None
        raise MachineError(f"cannot listen on port {port}: {error.strerror}") from None
    return found
