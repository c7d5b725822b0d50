"""An S3 endpoint behind a proxy that can be made to fail, and a server's loader over it."""

from __future__ import annotations

import http.client
import threading
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from tests.serving.manager.test_manager import Rig as FolderRig
from tests.storage.conftest import s3_server  # noqa: F401 - a fixture
from timonel.serving.manager.buckets import listing
from timonel.serving.settings import LoadSettings


class Proxy:
    """Forwards to a server, or does what a test wants instead.

    ``fault`` is asked for every request: it returns what to do, or none to forward.
    """

    def __init__(self, target: str) -> None:
        self.target = urlsplit(target).netloc
        self.seen: list[tuple[str, str, str]] = []
        self.fault: Callable[[str, str, str], str | None] = lambda *_: None
        self.before: Callable[[str, str], None] = lambda *_: None
        self.over = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                return

            def forward(self) -> None:
                proxy.handle(self)

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

    def reads(self) -> list[tuple[str, str, str]]:
        """The requests for objects' contents: method, path, range."""
        return [each for each in self.seen if each[0] == "GET" and each[2]]

    def lists(self) -> list[tuple[str, str, str]]:
        return [each for each in self.seen if "list-type" in each[1]]

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        length = int(request.headers.get("Content-Length") or 0)
        body = request.rfile.read(length)
        asked = (request.command, request.path, request.headers.get("Range") or "")
        self.seen.append(asked)
        do = self.fault(*asked)
        if do == "hang":
            self.over.wait(30)
            request.close_connection = True
            return
        if do == "503":
            request.send_response(503)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        self.before(request.command, request.path)
        forwarded = http.client.HTTPConnection(self.target, timeout=30)
        headers = {k: v for k, v in request.headers.items() if k.lower() != "connection"}
        forwarded.request(request.command, request.path, body, headers)
        answer = forwarded.getresponse()
        content = answer.read()
        forwarded.close()
        if do == "flip" and content:
            content = bytes([content[0] ^ 1]) + content[1:]
        request.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"connection", "transfer-encoding", "content-length", "server"}:
                request.send_header(name, value)
        head = request.command == "HEAD"
        size = answer.getheader("Content-Length") if head else str(len(content))
        request.send_header("Content-Length", size or "0")
        request.end_headers()
        if do == "cut":
            content = content[: len(content) // 2]
            request.close_connection = True
        if not head:
            request.wfile.write(content)


class Place:
    """A model's base path in a bucket, to upload to past the proxy."""

    def __init__(self, uri: str, fs, proxy: Proxy | None) -> None:
        self.uri = uri
        self.proxy = proxy
        self.fs = fs
        self.root = uri.partition("://")[2]

    def put(self, version, name, content: bytes) -> None:
        self.fs.pipe_file(f"{self.root}/{version}/{name}", content)

    def version(self, number, factor=None, **more: bytes) -> None:
        for name, content in more.items():
            self.put(number, name, content)
        self.put(number, "saved_model.pb", str(number if factor is None else factor).encode())

    def drop(self, number) -> None:
        self.fs.rm(f"{self.root}/{number}", recursive=True)


@pytest.fixture
def quick(monkeypatch):
    """Take small pieces, and pause for moments between attempts."""
    monkeypatch.setattr("timonel.serving.manager.buckets.download._BACKOFF_S", (0.02, 0.02))
    monkeypatch.setattr(listing, "CHUNK_BYTES", 50_000)


@pytest.fixture
def impatient(monkeypatch):
    """Wait for buckets for seconds instead of a minute."""
    monkeypatch.setattr(listing, "LIST_TIMEOUT_S", 2.0)
    monkeypatch.setattr(listing, "READ_TIMEOUT_S", 2.0)


@pytest.fixture
def s3(request, s3_server, monkeypatch, quick):  # noqa: F811
    """A place in S3, seen through the proxy."""
    import s3fs

    proxy = Proxy(s3_server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    direct = s3fs.S3FileSystem(endpoint_url=s3_server, use_listings_cache=False)
    name = f"b{uuid.uuid4().hex}"
    direct.mkdir(name)
    yield Place(f"s3://{name}/models/m", direct, proxy)
    s3fs.S3FileSystem.clear_instance_cache()
    proxy.close()


@pytest.fixture
def memory(quick):
    """A place in memory."""
    import fsspec

    fs = fsspec.filesystem("memory", use_listings_cache=False)
    return Place(f"memory://b{uuid.uuid4().hex}/m", fs, None)


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


class Rig(FolderRig):
    """A loader over a place in a bucket, with the fake runtime."""

    def __init__(self, place, cache, **settings):
        options = {"poll_s": 0.1, "settle_s": 0.05, "max_retries": 2, "retry_s": 0.05}
        load = LoadSettings(model_cache=str(cache), **(options | settings))
        super().__init__(place.uri, settings=load)

    def until(self, condition, timeout_s=60.0):
        super().until(condition, timeout_s)

    def serves(self, number):
        self.until(lambda: self.serving() == [number])
