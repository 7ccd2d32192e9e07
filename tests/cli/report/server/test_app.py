"""The server: what it answers, and whom."""

from __future__ import annotations

import html
import json
from typing import Any

import pytest

from tests.cli.report.server.loops import finished

httpx = pytest.importorskip("httpx", reason="the extra 'test' is not installed")
module = pytest.importorskip(
    "perfmodel.cli.report.server.app", reason="the extra 'ui' is not installed"
)

LINK = "http://127.0.0.1:8765"
SMALL = {
    "model": "llama-3.1-8b",
    "devices": 8,
    "sequence_length": 2048,
    "global_batch_size": 16,
}


class Client:
    """Requests to the application, without a port."""

    def __init__(self) -> None:
        app = module.make_app(token="known", warm=False)
        self.transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)

    def request(self, method: str, path: str, **more: Any) -> Any:
        async def send() -> Any:
            known = {"x-perfmodel-token": "known"}
            more["headers"] = {**known, **more.get("headers", {})}
            async with httpx.AsyncClient(transport=self.transport, base_url=LINK) as client:
                return await client.request(method, path, **more)

        return finished(send())

    def get(self, path: str, **more: Any) -> Any:
        return self.request("GET", path, **more)

    def post(self, path: str, **more: Any) -> Any:
        return self.request("POST", path, **more)


@pytest.fixture(scope="module")
def client() -> Client:
    return Client()


def ask(client: Client, question: Any = SMALL, **headers: str) -> Any:
    body = {"page": "p", "question": question}
    return client.post("/api/results", json=body, headers={"origin": LINK, **headers})


def test_the_page_is_the_reports_with_controls_and_no_results(client) -> None:
    reply = client.get("/")
    assert reply.status_code == 200
    assert 'id="ask-grid"' in reply.text
    assert '<script type="application/json" id="document"></script>' in reply.text
    about = reply.text.partition('id="ask-about">')[2].partition("</script>")[0]
    assert "llama-3.1-70b" in json.loads(about)["choices"]["model"]
    for policy in (reply.headers["content-security-policy"], html.unescape(reply.text)):
        assert "default-src 'none'" in policy
        assert "connect-src 'self'" in policy
    assert "http://" not in reply.text.replace("http://www.w3.org/", "")


def test_a_question_is_answered(client) -> None:
    reply = ask(client)
    assert reply.status_code == 200
    found = reply.json()
    assert found["document"]["populations"][0]["rows"] == found["count"] > 10


@pytest.mark.parametrize(
    ("question", "control"),
    [
        ({**SMALL, "devices": 0}, "devices"),
        ({**SMALL, "where": "tp <"}, "where"),
        ({**SMALL, "model": "x\nTraceback"}, "model"),
        ({**SMALL, "what": 1}, ""),
        (17, ""),
    ],
)
def test_bad_input_is_one_line_beside_its_control(client, question, control) -> None:
    reply = ask(client, question)
    assert reply.status_code == 400
    assert reply.json()["control"] == control
    assert len(reply.json()["error"].splitlines()) == 1
    assert set(reply.json()) == {"control", "error"}


def test_bodies_that_are_none_are_refused(client) -> None:
    headers = {"origin": LINK, "content-type": "application/json"}
    long = b"[" * (module.LARGEST_BODY + 1)
    for content, told in ((b"{", "JSON object"), (b"[]", "JSON object"), (long, "at most")):
        reply = client.post("/api/results", content=content, headers=headers)
        assert reply.status_code == 400
        assert told in reply.json()["error"]
    reply = client.post("/api/results", content=b"{}", headers={"origin": LINK})
    assert "application/json" in reply.json()["error"]
    assert client.get("/api/results").status_code == 405
    assert client.get("/nothing").status_code == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "192.168.0.7:8765"]
)
def test_other_hosts_names_are_refused(client, host) -> None:
    for path in ("/", "/api/status", "/download/results.nc"):
        reply = client.get(path, headers={"host": host})
        assert reply.status_code == 403
        assert len(reply.text.splitlines()) == 1


def test_both_names_of_this_machine_are_answered(client) -> None:
    assert client.get("/", headers={"host": "localhost:8765"}).status_code == 200
    assert client.get("/", headers={"host": "127.0.0.1"}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "http://127.0.0.1:9999", "https://127.0.0.1:8765", "null"]
)
def test_other_pages_are_refused(client, origin) -> None:
    reply = ask(client, origin=origin)
    assert reply.status_code == 403
    assert "access-control-allow-origin" not in reply.headers


def test_requests_that_other_pages_start_are_refused_but_links_to_the_page_are_not(client) -> None:
    body = {"page": "p", "question": SMALL}
    assert client.post("/api/results", json=body).status_code == 403  # no origin
    other = {"sec-fetch-site": "cross-site"}
    assert client.get("/download/results.nc", headers=other).status_code == 403
    assert client.get("/api/status", headers=other).status_code == 403
    assert client.get("/", headers={**other, "sec-fetch-dest": "iframe"}).status_code == 403
    assert client.get("/", headers={**other, "sec-fetch-dest": "document"}).status_code == 200
    assert (
        client.request("OPTIONS", "/api/results", headers={"origin": "http://a.b"}).status_code
        == 403
    )


def test_files_can_be_saved(client) -> None:
    query = {"q": json.dumps(SMALL)}
    dataset = client.get("/download/results.nc", params=query)
    assert dataset.content.startswith(b"\x89HDF")
    assert 'filename="results.nc"' in dataset.headers["content-disposition"]
    report = client.get("/download/report.html", params=query)
    assert report.text.startswith("<!doctype html>")
    launch = client.get("/download/launch", params={**query, "row": "0", "for": "megatron"})
    assert "torchrun" in launch.text


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("launch", {"row": "-1"}),
        ("launch", {"row": "999999999"}),
        ("launch", {"row": "0", "for": "vi"}),
        ("passwd", {}),
        ("results.nc", {"q": "{"}),
    ],
)
def test_files_that_there_are_none_of_are_one_line(client, path, more) -> None:
    reply = client.get(f"/download/{path}", params={"q": json.dumps(SMALL), **more})
    assert reply.status_code == 400
    assert len(reply.json()["error"].splitlines()) == 1


def test_a_failure_is_one_line_and_no_traceback(client, monkeypatch) -> None:
    def broken(*args: Any, **more: Any) -> bytes:
        raise RuntimeError("so\nit is")

    monkeypatch.setattr(module, "answer_json", broken)
    reply = ask(client)
    assert reply.status_code == 500
    assert reply.json()["error"] == "this failed here (RuntimeError: so it is)"


def test_status_and_icon(client) -> None:
    assert client.get("/api/status").json() == {"doing": "", "seconds": 0.0}
    assert client.get("/favicon.ico").status_code == 204


@pytest.mark.parametrize("path", ["/", "/api/status", "/download/results.nc", "/favicon.ico"])
def test_nothing_is_answered_without_the_token(client, path: str) -> None:
    for wrong in ("", "other", "knowné"):
        reply = client.get(path, headers={"x-perfmodel-token": wrong.encode()})
        assert reply.status_code == 403
        assert "open the link that 'perfmodel ui' printed" in reply.text
    without = {"x-perfmodel-token": ""}
    assert client.get("/?token=known", headers=without).status_code == 200
    assert client.get("/?token=other", headers=without).status_code == 403


def test_a_client_that_leaves_in_the_middle_leaves_no_traceback() -> None:
    app, sent = module.make_app(token="known", warm=False), []
    headers = {"host": "127.0.0.1", "origin": "http://127.0.0.1", "x-perfmodel-token": "known"}
    headers["content-type"] = "application/json"
    scope = {
        "type": "http", "method": "POST", "path": "/api/results", "query_string": b"",
        "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
    }  # fmt: skip
    parts = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Any:
        return parts.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    finished(app(scope, receive, send))
    assert sent[0]["status"] == 204
