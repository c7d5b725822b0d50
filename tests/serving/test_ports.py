from __future__ import annotations

import socket

import pytest

from timonel.errors import ServingError
from timonel.serving.ports import authority, bind, bind_unix, socket_path


def test_a_port_is_taken_but_refuses_until_somebody_listens():
    with bind("127.0.0.1", 0, "REST") as taken:
        address = taken.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=5)
        taken.listen()
        socket.create_connection(address, timeout=5).close()


def test_a_port_in_use_is_told_with_one_that_is_free():
    with bind("127.0.0.1", 0, "REST") as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServingError) as caught:
            bind("127.0.0.1", port, "gRPC")
        assert f"port {port} for gRPC is already in use" in caught.value.message
        free = int(str(caught.value.hint).rpartition(" ")[2])
        bind("127.0.0.1", free, "gRPC").close()


def test_a_port_can_be_taken_again_right_after_a_connection():
    with bind("127.0.0.1", 0, "REST") as first:
        first.listen()
        address = first.getsockname()
        client = socket.create_connection(address, timeout=5)
        accepted, _ = first.accept()
        accepted.close()
        client.close()
    bind("127.0.0.1", address[1], "REST").close()


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(ServingError, match=r"cannot listen on 192\.0\.2\.1:8501 for REST"):
        bind("192.0.2.1", 8501, "REST")


def test_addresses():
    assert authority("127.0.0.1", 1) == "127.0.0.1:1"
    assert authority("::1", 1) == "[::1]:1"


def test_a_unix_socket_is_in_a_private_folder(tmp_path):
    path = socket_path(f"unix:{tmp_path}/own", "http")
    assert path == tmp_path / "own" / "http.sock"
    with bind_unix(path) as taken:
        assert path.parent.stat().st_mode & 0o777 == 0o700
        taken.listen()
        with pytest.raises(ServingError, match="another server listens there"):
            bind_unix(path)
    bind_unix(path).close()  # the former server has ended, and its socket is left
    path.parent.chmod(0o750)
    with pytest.raises(ServingError, match="others may enter"):
        bind_unix(path)


def test_a_unix_socket_that_cannot_be(tmp_path):
    for folder in (tmp_path / "none" / "none", tmp_path / ("x" * 120)):
        with pytest.raises(ServingError, match="cannot listen on"):
            bind_unix(folder / "http.sock")
    assert socket_path("127.0.0.1", "http") is None
