from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from timonel.engines.kubernetes.links import Link, Member, parse_address

MEMBER = Member("worker-1", "job-worker-1.job", "job-worker-1-abcde")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Link, list[Mapping[str, Any]]]]:
    """A stranger's end, the coordinator's link, and the messages that it takes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    taken: list[Mapping[str, Any]] = []
    link = Link(ours, taken.append, is_trusted=False)
    yield theirs, link, taken
    theirs.close()
    link.close()


pytestmark = pytest.mark.enable_socket


def sent(theirs: socket.socket, link: Link, *lines: bytes) -> list[dict[str, Any]]:
    theirs.sendall(b"".join(lines))
    theirs.shutdown(socket.SHUT_WR)
    found = []
    while link.is_open:
        found += link.receive()
    return found


def line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def test_a_pod_with_the_token_joins(pair: Any) -> None:
    theirs, link, taken = pair
    sent(theirs, link, line(MEMBER.join("secret")))
    assert Member.of(taken[0], "secret") == MEMBER


@pytest.mark.parametrize(
    "message",
    [
        MEMBER.join("other"),
        MEMBER.join("s\u00e9cret\ud800"),
        {**MEMBER.join("secret"), "version": "0.0.0"},
        {**MEMBER.join("secret"), "token": None},
        {**MEMBER.join("secret"), "kind": "output"},
        {},
    ],
)
def test_others_do_not_join(message: dict[str, Any]) -> None:
    assert Member.of(message, "secret") is None


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xfe\n",
        line([1]),
        line("join"),
        line({"kind": "TaskExited", "task_id": "worker-0"}),
        line({"kind": "changes", "changes": []}),
        b"x" * 100_000,
        b"[" * 2000 + b"\n",
    ],
)
def test_a_stranger_is_disconnected(pair: Any, first: bytes) -> None:
    theirs, link, taken = pair
    assert sent(theirs, link, first) == []
    assert taken == []


def test_a_stranger_is_not_heard_after_its_first_message(pair: Any) -> None:
    theirs, link, taken = pair
    join = {"kind": "join"}
    assert sent(theirs, link, line(join), line({"kind": "changes"}), line({"kind": "Hello"})) == []
    assert taken == [join]


def test_no_more_is_read_of_a_stranger_than_a_first_message_has(pair: Any) -> None:
    theirs, link, _ = pair
    theirs.sendall(b"x" * 20_000)
    link.receive()
    assert not link.is_open
    assert len(link._received) <= 4096


def test_messages_between_orders_are_taken(pair: Any) -> None:
    theirs, link, taken = pair
    link.is_trusted = True
    lines = [{"kind": "TaskReady"}, {"kind": "output", "lines": []}, {"kind": "ping"}]
    assert sent(theirs, link, *map(line, lines)) == [{"kind": "TaskReady"}]
    assert taken == [{"kind": "output", "lines": []}]


def test_an_address() -> None:
    assert parse_address("job.job:2222") == ("job.job", 2222)
