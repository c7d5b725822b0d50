"""Whoever joins a cluster waits until its leader listens, and not for ever."""

from __future__ import annotations

import socket
import threading

from timonel.training.worker.peers import await_leader


def bound() -> socket.socket:
    """Return a port as the engine holds one: nobody listens there."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    return held


def test_a_leader_that_listens_later_is_found() -> None:
    with bound() as leader:
        timer = threading.Timer(0.1, leader.listen)
        timer.start()
        assert await_leader(f"127.0.0.1:{leader.getsockname()[1]}", 20.0)
        timer.join()


def test_a_leader_that_never_comes_is_left_to_tensorflow() -> None:
    with bound() as leader:
        assert not await_leader(f"127.0.0.1:{leader.getsockname()[1]}", 0.05)
    assert not await_leader("no-such-host.invalid:1", 0.0)
