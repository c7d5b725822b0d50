"""Downloads of files that data of others names."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from timonel.errors import InputError, NotFoundError
from timonel.storage import web
from timonel.storage.web import RefusedError, WebRules, download

ALL = WebRules(http=True, private=True)


class Handler(http.server.BaseHTTPRequestHandler):
    """Redirects, errors, and content of a size."""

    failures = 0

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        kind, _, value = self.path.strip("/").partition("/")
        if kind == "to":
            self.send_response(302)
            self.send_header("Location", value)
        elif kind == "status":
            self.send_response(int(value.partition("?")[0]))
        elif kind == "busy" and Handler.failures < 2:
            Handler.failures += 1
            self.send_response(503)
        elif kind == "short":
            self.send_response(200)
            self.send_header("Content-Length", "9")
            self.end_headers()
            self.wfile.write(b"x")
            return
        else:
            size = int(value or 5)
            self.send_response(200)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            self.wfile.write(b"x" * min(size, 1 << 20))
            return
        self.end_headers()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(web, "_WAITS_S", (0.0, 0.0))
    monkeypatch.setattr(web, "_away", {})
    monkeypatch.setattr(web, "_failed", {})
    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever, args=(0.02,))
    thread.start()
    yield f"127.0.0.1:{found.server_port}"
    found.shutdown()
    thread.join()
    found.server_close()


def test_only_public_servers_and_encrypted_connections(server: str) -> None:
    url = f"http://{server}/file"
    assert download(url, ALL) == b"xxxxx"
    assert download(url, WebRules(trusted=server)) == b"xxxxx"
    with pytest.raises(RefusedError, match="is not encrypted: use --allow-http"):
        download(url, WebRules(private=True))
    for name in (server, f"localhost:{server.rpartition(':')[2]}", f"0x7f.1:{server[-5:]}"):
        with pytest.raises(RefusedError, match="is a private address: use --allow-private"):
            download(f"http://{name}/file", WebRules(http=True, trusted="other:80"))


@pytest.mark.parametrize(
    "host",
    [
        "10.0.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "[::1]",
        "[fd00::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
    ],
)
def test_private_addresses_are_never_connected_to(host: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("connected"))
    with pytest.raises(RefusedError, match="is a private address"):
        download(f"https://{host}/latest/meta-data", WebRules())


def test_redirects_follow_the_same_rules(server: str) -> None:
    trusted = WebRules(trusted=server)
    assert download(f"http://{server}/to/http://{server}/file", trusted) == b"xxxxx"
    assert download(f"http://{server}/to//file", trusted) == b"xxxxx"
    for target in (f"http://localhost:{server.rpartition(':')[2]}/file", "http://10.0.0.1/"):
        with pytest.raises(RefusedError, match="is not encrypted"):
            download(f"http://{server}/to/{target}", trusted)
        with pytest.raises(RefusedError, match="private address"):
            download(f"http://{server}/to/{target}", WebRules(http=True, trusted=server))
    for target in ("file:///etc/passwd", "https://10.0.0.1/", "ftp://h/x"):
        with pytest.raises(RefusedError):
            download(f"http://{server}/to/{target}", trusted)
    loop = f"http://{server}/to/" * 8 + f"http://{server}/file"
    with pytest.raises(RefusedError, match="more than 5 redirects"):
        download(loop, ALL)


def test_sizes_and_errors(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFoundError, match="no file at 127"):
        download(f"http://{server}/status/404", ALL)
    with pytest.raises(RefusedError, match="HTTP 403"):
        download(f"http://{server}/status/403", ALL)
    Handler.failures = 0
    assert download(f"http://{server}/busy", ALL) == b"xxxxx"
    monkeypatch.setattr(web, "MAX_BYTES", 1 << 18)
    with pytest.raises(RefusedError, match="more than 0 MiB"):
        download(f"http://{server}/file/{1 << 20}", ALL)


def test_a_file_that_fails_makes_no_server_away(server: str) -> None:
    for failing in ("status/500", "status/500", "short", "status/500"):
        with pytest.raises(InputError, match=r"does not answer: (HTTP 500|.*payload)"):
            download(f"http://{server}/{failing}", ALL)
    assert download(f"http://{server}/file", ALL) == b"xxxxx"
    for each in range(3):
        with pytest.raises(InputError, match="does not answer: HTTP 500"):
            download(f"http://{server}/status/500?{each}", ALL)
    with pytest.raises(InputError, match="does not answer: HTTP 500"):
        download(f"http://{server}/file", ALL)  # not asked again for a while


def test_a_server_that_cannot_be_reached_is_away_at_once(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/file"
    with pytest.raises(InputError, match="does not answer"):
        download(url, ALL)
    monkeypatch.setattr(web, "_run", lambda *_: pytest.fail("asked again"))
    with pytest.raises(InputError, match="does not answer"):
        download(url, ALL)


@pytest.mark.parametrize(
    "url", ["https://[::1/x", "https://h:99999/x", "https://", "https://h:x/", "https:///x"]
)
def test_wrong_addresses(url: str) -> None:
    with pytest.raises(RefusedError, match="not a web address"):
        download(url, ALL)


def test_an_unknown_host_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timonel.storage.web.time.sleep", lambda _: pytest.fail("tried again"))
    with pytest.raises(RefusedError):
        download("https://no-such-host.invalid/x", WebRules())
