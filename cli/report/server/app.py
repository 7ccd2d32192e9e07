"""The page with controls over HTTP, for this machine's own browser alone.

Any page that a browser shows can send requests to this machine. So nothing is answered that names
another host (a name of an attacker's that leads here, DNS rebinding), or that comes from another
origin; there are no CORS headers. Other users of the machine reach the port as well: what is
answered has the token of the printed link, in its address or its header `TOKEN_HEADER`.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from perfmodel.base.errors import PerfModelError, one_line
from perfmodel.cli.report.server.answer import Answer, Desk, Superseded, answer_json
from perfmodel.cli.report.server.question import (
    DEFAULTS,
    ControlError,
    Offer,
    parse_question,
    read_question,
)
from perfmodel.launch.software import MODULES
from perfmodel.report.page_text import page_html

NAMES = ("127.0.0.1", "localhost")
"""Hosts that a request may name."""
TOKEN = "token"
"""Parameter of an address that holds the token."""
TOKEN_HEADER = "x-perfmodel-token"
LARGEST_BODY = 65_536
NO_TOKEN = "a token is missing or another's; open the link that 'perfmodel ui' printed last"
DRAWN = 2
"""Best strategies, and best machines, whose pipelines are drawn once nobody moves a control."""
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class OwnBrowserOnly:
    """Refuses requests that name another host, that another page sent, or without the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self.token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["type"] == "http":
            request = Request(scope)
            refused = refusal(request.method, scope["path"], request.headers)
            given = request.headers.get(TOKEN_HEADER) or request.query_params.get(TOKEN, "")
            if not secrets.compare_digest(given.encode("utf-8", "replace"), self.token):
                refused = refused or NO_TOKEN
            if refused:
                await PlainTextResponse(f"{refused}\n", 403)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def refusal(method: str, path: str, headers: Mapping[str, str]) -> str:
    """Return why a request is refused; "" where it is not.

    Parameters
    ----------
    method, path : str
    headers : mapping
        By names in lower case.
    """
    host = headers.get("host", "")
    if host.partition(":")[0].lower() not in NAMES:
        return "this server answers this machine's browser only; open the link that it printed"
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{host}":
        return "another page's request is not answered"
    # A link to the page may stand anywhere; the page itself holds no results.
    followed = path == "/" and method == "GET" and headers.get("sec-fetch-dest") == "document"
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not followed:
        return "another page's request is not answered"
    if method not in ("GET", "HEAD") and origin is None:
        return "a request without its origin is not answered"
    return ""


def make_app(offer: Offer | None = None, *, token: str, warm: bool = True) -> Starlette:
    """Return the application.

    Parameters
    ----------
    offer : Offer, optional
        Models and hardware beside the presets.
    token : str
        What every request must know.
    warm : bool
        Whether kernels are loaded, or compiled, as soon as it starts.
    """
    offer = offer or Offer()
    desk = Desk(offer)

    async def page(request: Request) -> Response:
        return HTMLResponse(page_text(offer), headers={"content-security-policy": POLICY})

    async def results(request: Request) -> Response:
        asked = await _body(request)
        given = asked.get("question", {})
        pictures = DRAWN if asked.get("pictures") is True else 0
        name = str(asked.get("page", ""))[:64]
        question = read_question(given, offer)
        content = await desk.ask(name, question, lambda it: answer_json(it, pictures))
        return Response(content, media_type="application/json")

    async def status(request: Request) -> Response:
        return JSONResponse(desk.status())

    async def download(request: Request) -> Response:
        wanted = request.path_params["what"]
        question = parse_question(request.query_params.get("q", "{}"), offer)
        name, media, make = _file(wanted, request.query_params)
        content = await desk.ask("", question, make)
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type=media, headers=headers)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(desk.warm()) if warm else None
        yield
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, PerfModelError):
                await task

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/favicon.ico", _nothing),
            Route("/api/results", results, methods=["POST"]),
            Route("/api/status", status),
            Route("/download/{what}", download),
        ],
        lifespan=lifespan,
        exception_handlers={
            Superseded: _superseded,
            PerfModelError: _wrong,
            ClientDisconnect: _nothing,
            Exception: _failed,
        },
    )
    app.add_middleware(OwnBrowserOnly, token=token)
    app.add_middleware(_Headers)
    return app


class _Headers:
    """Adds `HEADERS` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def add(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), it.encode()) for name, it in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        await self.app(scope, receive, add)


def page_text(offer: Offer) -> str:
    """Return the page: that of a report without a document, and controls that ask for some."""
    about = {"choices": offer.choices, "defaults": DEFAULTS, "software": list(MODULES)}
    text = json.dumps(about).replace("<", "\\u003c")
    controls = _read("controls.html").replace("<!-- about -->", text)
    return page_html(
        None,
        policy=POLICY.replace("; frame-ancestors 'none'", ""),  # which only a header may say
        controls=controls,
        style=_read("controls.css"),
        script=_read("controls.js"),
    )


def _read(name: str) -> str:
    return (resources.files("perfmodel.cli.report.server") / name).read_text(encoding="utf-8")


async def _body(request: Request) -> dict[str, Any]:
    """Return the JSON object that was sent.

    Raises
    ------
    ControlError
        It is none, or longer than `LARGEST_BODY`.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise ControlError("", "a question is sent as application/json")
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > LARGEST_BODY:
            raise ControlError("", f"a question has {LARGEST_BODY:,} B at most")
    try:
        found = json.loads(content)
    except (RecursionError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise ControlError("", "the request is not a JSON object")
    return found


def _file(
    wanted: str, parameters: Mapping[str, str]
) -> tuple[str, str, Callable[[Answer], bytes | str]]:
    """Return the name, the type and the making of a file to download."""
    if wanted == "results.nc":
        return wanted, "application/x-netcdf", Answer.dataset
    if wanted == "report.html":
        return wanted, "text/html", Answer.report
    if wanted == "launch":
        row, software = parameters.get("row", "0"), parameters.get("for", "megatron")
        if not row.isdecimal() or len(row) > 12:
            raise ControlError("", f"'{row[:20]}' is no row")
        if software not in MODULES:
            raise ControlError("", f"'{software[:40]}' is not one of {', '.join(MODULES)}")
        return "launch.txt", "text/plain", lambda it: it.launch(int(row), software)
    raise ControlError("", f"there is no file '{html.escape(wanted[:40])}'")


async def _nothing(request: Request, error: Exception | None = None) -> Response:
    return Response(status_code=204)


async def _superseded(request: Request, error: Exception) -> Response:
    return JSONResponse({"control": "", "error": "superseded"}, 409)


async def _wrong(request: Request, error: Exception) -> Response:
    control = getattr(error, "control", "")
    return JSONResponse({"control": control, "error": one_line(str(error))}, 400)


async def _failed(request: Request, error: Exception) -> Response:
    said = one_line(f"{type(error).__name__}: {error}")
    return JSONResponse({"control": "", "error": f"this failed here ({said})"}, 500)
