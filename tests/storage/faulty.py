"""An S3 server behind a proxy that fails on request."""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_ANSWERS = {
    "503": (503, b""),
    "busy": (503, b"<Error><Code>SlowDown</Code></Error>"),
    "denied": (
        401,
        b'{"error": {"code": 401, "message": "Anonymous caller does not have access."}}',
    ),
    "expired": (
        400,
        b"<Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>",
    ),
}


class FaultyServer:
    """Forwards requests to a server, or does what a test wants instead.

    ``fault`` is called with method, path and range of every request. It returns None to forward, or
    a fault: "away" closes the connection, "hang" never answers, "503", "busy", "denied" and
    "expired" answer with an error, "slow" waits; "lost" drops the answer, "cut" halves it, "flip"
    changes a bit, "flip-unchecked" without the checksum that the server sent.

    Args:
        target: The server's address.
        renamed: A bucket, and its name on the server: two of these look like two servers.
    """

    def __init__(self, target: str, renamed: tuple[str, str] | None = None) -> None:
        self.renamed = renamed
        self.target = urlsplit(target).netloc
        self.seen: list[tuple[str, str, str]] = []
        self.downloads: Counter[str] = Counter()
        self.fault: Callable[[str, str, str], str | None] = lambda *_: None
        self.before: Callable[[str, str], None] = lambda *_: None
        self.over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                return

            def forward(self) -> None:
                outer.handle(self)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = forward  # noqa: N815

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.block_on_close = False
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def away_for(self, seconds: float) -> None:
        """Refuse all requests for some seconds from now."""
        until = time.monotonic() + seconds
        self.fault = lambda *_: "away" if time.monotonic() < until else None

    def reads(self) -> list[tuple[str, str, str]]:
        """The requests for parts of objects: method, path, range."""
        return [each for each in self.seen if each[0] == "GET" and each[2]]

    def lists(self) -> list[tuple[str, str, str]]:
        return [each for each in self.seen if "list-type" in each[1]]

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        asked = (request.command, request.path, request.headers.get("Range") or "")
        self.seen.append(asked)
        do = self.fault(*asked)
        if do in {"away", "hang"}:
            if do == "hang":
                self.over.wait(30)
            request.close_connection = True
        elif do in _ANSWERS:
            _send(request, *_ANSWERS[do])
        else:
            if do == "slow":
                time.sleep(0.2)
            self.before(request.command, request.path)
            self._forward(request, body, do)

    def _forward(self, request: BaseHTTPRequestHandler, body: bytes, do: str | None) -> None:
        forwarded = http.client.HTTPConnection(self.target, timeout=30)
        headers = {k: v for k, v in request.headers.items() if k.lower() != "connection"}
        path = request.path.replace(*self.renamed, 1) if self.renamed else request.path
        forwarded.request(request.command, path, body, headers)
        answer = forwarded.getresponse()
        content = answer.read()
        forwarded.close()
        if do == "lost":
            request.close_connection = True
            return
        if do in {"flip", "flip-unchecked"} and content:
            content = bytes([content[0] ^ 1]) + content[1:]
        if request.command == "GET" and "list-type" not in request.path and answer.status < 300:
            self.downloads[request.path.partition("?")[0]] += 1
        kept = {"connection", "transfer-encoding", "content-length", "server"}
        others = {k: v for k, v in answer.getheaders() if k.lower() not in kept}
        if do == "flip-unchecked":
            others = {k: v for k, v in others.items() if "checksum" not in k.lower()}
        is_head = request.command == "HEAD"
        size = answer.getheader("Content-Length") if is_head else str(len(content))
        if do == "cut":
            content = content[: len(content) // 2]
            request.close_connection = True
        _send(request, answer.status, content, {**others, "Content-Length": size or "0"})


def _send(
    request: BaseHTTPRequestHandler,
    status: int,
    content: bytes,
    headers: dict[str, str] | None = None,
) -> None:
    request.send_response(status)
    for name, value in (headers or {"Content-Length": str(len(content))}).items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(content)
