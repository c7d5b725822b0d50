"""Ports that several workers listen at."""

from __future__ import annotations

import socket

import pytest

from timonel.errors import ServingError
from timonel.serving.ports import bind
from timonel.serving.workers.sharing import Places


@pytest.fixture
def rest():
    with bind("127.0.0.1", 0, "REST", shared=True) as taken:
        yield taken


def test_each_worker_has_a_socket_of_its_own_at_the_same_port(rest):
    places = Places(rest, None, 2)
    descriptors = {index: places.rest(index) for index in (0, 1)}
    assert len({rest.fileno(), *descriptors.values()}) == 3
    # It stays the same for the next worker in that place.
    assert places.rest(0) == descriptors[0]
    for descriptor in descriptors.values():
        with socket.socket(fileno=socket.dup(descriptor)) as mine:
            assert mine.getsockname() == rest.getsockname()
            mine.listen()
    with pytest.raises(ServingError, match="to be free"):
        bind("127.0.0.1", rest.getsockname()[1], "REST")
    places.close()
    assert places.rest(0) is None
    assert places.descriptors(1) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(rest.getsockname())


def test_connections_go_to_the_others_while_one_is_away(rest):
    places = Places(rest, None, 2)
    for index in (0, 1):
        with socket.socket(fileno=socket.dup(places.rest(index))) as mine:
            mine.listen()
    places.leave(0)
    with socket.socket(fileno=socket.dup(places.rest(1))) as other:
        for _ in range(20):
            with socket.create_connection(rest.getsockname()):
                other.settimeout(10)
                other.accept()[0].close()
    assert places.rest(0) is not None
    places.close()


def test_a_path_is_taken_over_from_a_server_that_was_killed(tmp_path):
    path = tmp_path / "grpc.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    places = Places(None, str(path), 2)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    places.close()
    assert not path.exists()


def test_a_path_that_cannot_be_is_told(tmp_path):
    with pytest.raises(ServingError, match=r"expected to listen on .* for gRPC, got"):
        Places(None, str(tmp_path / "missing" / "grpc.sock"), 2)
