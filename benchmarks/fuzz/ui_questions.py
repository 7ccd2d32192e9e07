"""Ask the application of ``perfmodel ui`` in this process, for `fuzz_commands.py`."""

from __future__ import annotations

import asyncio
import json
import urllib.parse
from typing import Any

HOST = "127.0.0.1:8765"
TOKEN = "known"
LONGEST = 1700
EXAMPLES = {
    "training.question": {
        "model": "llama-3.2-1b",
        "hardware": ["dgx-h100", "dgx-b200"],
        "devices": 8,
        "sequence_length": 2048,
        "global_batch_size": 16,
        "precision": ["bf16", "fp8"],
        "framework": "megatron",
        "memory": 80e9,
        "where": "tp <= 8 and pp == 1",
    },
    "serving.question": {
        "kind": "serving",
        "model": "llama-3.1-8b",
        "hardware": ["dgx-h100"],
        "devices": 8,
        "engine": "vllm",
        "served_precision": "stated",
        "input_length": 512,
        "output_length": 64,
        "concurrency": 8,
        "where": "ttft_p95 < 2",
    },
}
"""Questions by the name of the file that holds them."""


def ask(app: Any, path: str, content: bytes) -> tuple[int, bytes]:
    """Return status and body of an answer: to a question posted, or to a download of it."""
    path, _, query = path.partition("?")
    download = path.startswith("/download/")
    if download:
        text = content.decode("utf-8", "replace")
        query = "&".join(filter(None, (query, urllib.parse.urlencode({"q": text}))))
    body = b'{"page": "p", "question": ' + content + b"}"
    headers = {
        "host": HOST,
        "origin": f"http://{HOST}",
        "content-type": "application/json",
        "x-perfmodel-token": TOKEN,
    }
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET" if download else "POST",
        "path": path,
        "raw_path": path.encode("utf-8", "surrogatepass"),
        "query_string": query.encode("utf-8", "surrogatepass"),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8765),
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def run() -> None:
        await app(scope, receive, send)

    asyncio.run(run())
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


def verdict(path: str, status: int, body: bytes) -> str:
    """Return what is wrong with an answer, or ''."""
    if status in (400, 409):
        said = json.loads(body)["error"]
        sound = said.isprintable() and 0 < len(said) <= LONGEST
        return "" if sound else f"{len(said)} characters: {said[:200]!r}"
    if status in (307, 404, 405) and not path.startswith(("/api/results?", "/api/results ")):
        return ""
    if status != 200:
        return f"status {status}: {body[:300]!r}"
    if path.startswith("/api/"):
        try:
            json.loads(body, parse_constant=lambda word: [][0])
        except (ValueError, IndexError) as error:
            return f"no JSON: {error}"
    return "" if body else "an empty answer"
