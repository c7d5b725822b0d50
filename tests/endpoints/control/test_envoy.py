"""Envoy beside a control plane, as its admin socket shows it."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from timonel.endpoints.control.envoy import EnvoySidecar
from timonel.endpoints.gateway.process import Admin, admin_socket

PORT = 8590


class FakeAdmin(socketserver.ThreadingUnixStreamServer):
    """Stands for Envoy's admin interface, as its restarts are to be controlled."""

    daemon_threads = True
    uptime = 5
    live = 1

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: FakeAdmin

    def do_POST(self) -> None:
        self.server.live = {"/healthcheck/fail": 0, "/healthcheck/ok": 1}[self.path]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        stats = {"server.uptime": self.server.uptime, "server.live": self.server.live}
        body = json.dumps({"stats": [{"name": n, "value": v} for n, v in stats.items()]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "admin"

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[FakeAdmin]:
    server = FakeAdmin(admin_socket(tmp_path, str(PORT)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_without_envoy_nothing_is_ready(tmp_path: Path) -> None:
    sidecar = EnvoySidecar(tmp_path, PORT)
    sidecar.observe([])
    assert sidecar.ready == ()


def test_a_restart_is_another_start(tmp_path: Path, admin: FakeAdmin) -> None:
    sidecar = EnvoySidecar(tmp_path, PORT)
    sidecar.observe([])
    (first,) = sidecar.ready
    admin.uptime = 6
    sidecar.observe([])
    assert sidecar.ready == (first,)
    admin.uptime = 0
    sidecar.observe([])
    (second,) = sidecar.ready
    assert (first.restarts, second.restarts) == (0, 1)
    assert second.since > first.since


def test_an_envoy_that_starts_is_not_ready(tmp_path: Path, admin: FakeAdmin) -> None:
    admin.live = 0
    sidecar = EnvoySidecar(tmp_path, PORT)
    sidecar.observe([])
    assert sidecar.ready == ()


def test_its_bootstrap_is_written_once(tmp_path: Path) -> None:
    sidecar = EnvoySidecar(tmp_path, PORT)
    assert not sidecar.is_running
    sidecar.start(tmp_path / "bootstrap")
    assert sidecar.is_running


def test_a_new_control_plane_ends_the_draining_of_the_one_before(
    tmp_path: Path, admin: FakeAdmin
) -> None:
    Admin.at(admin_socket(tmp_path, str(PORT))).drain()
    sidecar = EnvoySidecar(tmp_path, PORT)
    sidecar.observe([])
    assert sidecar.ready == ()
    sidecar.start(tmp_path / "bootstrap")
    sidecar.observe([])
    assert sidecar.ready
