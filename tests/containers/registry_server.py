"""A registry for tests: the push and pull parts of the OCI distribution spec, with tokens.

It stands in for a real one, which `make test-cluster` uses: none can be installed with pip.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from timonel.containers.image import MANIFEST_TYPE
from timonel.storage.digests import digest_bytes

_PATH = re.compile(r"/v2/(?P<name>.+?)/(?P<kind>blobs/uploads|blobs|manifests)/(?P<rest>.*)")


class RegistryServer(ThreadingHTTPServer):
    """State of a registry.

    Attributes:
        blobs: Content by repository and digest.
        manifests: Media type and content by repository and tag or digest.
        requests: Methods and paths of all requests.
        user: ``user:password`` that it asks for; None: nobody needs one.
        faults: Status codes to answer with, before anything else.
        can_mount: Whether repositories may take blobs of each other.
        retry_after: The header ``Retry-After`` of these answers.
        missing_bytes: Bytes that are missing at the end of each blob's download.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.blobs: dict[tuple[str, str], bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.requests: list[str] = []
        self.user: str | None = None
        self.faults: list[int] = []
        self.retry_after: str | None = None
        self.can_mount = True
        self.missing_bytes = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def count(self, start: str) -> int:
        return sum(each.startswith(start) for each in self.requests)

    def add_image(self, repository: str, tag: str) -> None:
        """Add the manifest of an image without layers."""
        config = {"digest": digest_bytes(b"{}"), "size": 2}
        content = json.dumps({"mediaType": MANIFEST_TYPE, "config": config, "layers": []})
        self.manifests[repository, tag] = (MANIFEST_TYPE, content.encode())


@contextmanager
def registry_server() -> Iterator[RegistryServer]:
    server = RegistryServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RegistryServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815 - names of the base class

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        self.server.requests.append(f"{self.command} {url.path}")
        if self.server.faults:
            wait = self.server.retry_after
            return self._send(
                self.server.faults.pop(0), headers={} if wait is None else {"Retry-After": wait}
            )
        if url.path == "/token":
            return self._token()
        if self.server.user and self.headers.get("Authorization") != "Bearer secret":
            realm = (
                f'realm="http://{self.server.host}/token",service="test",scope="repository:x:pull"'
            )
            return self._send(401, headers={"WWW-Authenticate": f"Bearer {realm}"})
        found = _PATH.fullmatch(url.path)
        assert found is not None
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        name, kind, rest = found["name"], found["kind"], found["rest"]
        if kind == "manifests":
            return self._manifest(name, rest, body)
        if kind == "blobs":
            content = self.server.blobs.get((name, rest))
            return self._send(404) if content is None else self._blob(content)
        return self._upload(name, query, body)

    def _blob(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) - self.server.missing_bytes])
        self.close_connection = self.server.missing_bytes > 0

    def _upload(self, name: str, query: dict[str, str], body: bytes) -> None:
        if self.command == "POST":
            source = self.server.blobs.get((query.get("from", ""), query.get("mount", "")))
            if source is not None and self.server.can_mount:
                self.server.blobs[name, query["mount"]] = source
                return self._send(201)
            return self._send(202, headers={"Location": f"/v2/{name}/blobs/uploads/1?state=a"})
        if digest_bytes(body) != query["digest"]:
            return self._send(400)
        self.server.blobs[name, query["digest"]] = body
        return self._send(201)

    def _manifest(self, name: str, version: str, body: bytes) -> None:
        if self.command == "PUT":
            content: Any = json.loads(body)
            needed = [
                each["digest"]
                for each in [*content.get("layers", ()), content.get("config")]
                if each
            ]
            missing = [each for each in needed if (name, each) not in self.server.blobs]
            if missing:
                return self._send(400, b'{"errors": [{"message": "blob unknown"}]}')
            kind = self.headers["Content-Type"]
            for each in (version, digest_bytes(body)):
                self.server.manifests[name, each] = (kind, body)
            return self._send(201)
        if (name, version) not in self.server.manifests:
            return self._send(404)
        kind, content = self.server.manifests[name, version]
        return self._send(200, content, {"Content-Type": kind})

    def _token(self) -> None:
        expected = "Basic " + base64.b64encode((self.server.user or "").encode()).decode()
        if self.headers.get("Authorization") != expected:
            return self._send(401)
        return self._send(200, b'{"token": "secret"}')

    def _send(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
