"""Zygotes by themselves: what a forked child inherits."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

from timonel.processes.zygote import ForkedChild, ZygoteError

ZYGOTE = textwrap.dedent(
    """
    import os, socket, sys
    from timonel.processes.zygote import Zygote

    class WaitingZygote(Zygote):
        def run_child(self, request, connection):
            connection.recv(1)
            os._exit(0)

    control = socket.socket(fileno=int(sys.argv[1]))
    zygote = WaitingZygote()
    while zygote.answer(control):
        pass
    """
)


def fork(control: socket.socket) -> tuple[ForkedChild, socket.socket]:
    """Request a child; return it and the connection that keeps it alive."""
    kept, connection = socket.socketpair()
    answers, zygote_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with connection, zygote_end:
        descriptors = [connection.fileno(), zygote_end.fileno()]
        socket.send_fds(control, [json.dumps({}).encode()], descriptors)
    child = ForkedChild(answers)
    assert child.wait_for_pid(60) is not None
    return child, kept


@pytest.mark.process
def test_children_do_not_hide_the_zygotes_end_from_each_other() -> None:
    control, zygote_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", ZYGOTE, str(zygote_end.fileno())]
    with subprocess.Popen(command, pass_fds=(zygote_end.fileno(),)) as zygote, control:
        zygote_end.close()
        children = [fork(control) for _ in range(3)]
        zygote.send_signal(signal.SIGKILL)
        zygote.wait()
        for child, _ in children:
            with pytest.raises(ZygoteError, match="the zygote ended"):
                child.wait(60)
    for child, kept in children:
        kept.close()
        child.close()
