"""Replicas that listen on Unix sockets."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from tests.engines.local.services.harness import LocalHarness
from tests.waiting import until
from timonel.engines import ServiceSpec

pytestmark = pytest.mark.process

CODE = """
import os, socket
folder = os.environ["HOST"].removeprefix("unix:")
os.mkdir(folder, 0o700)
with socket.socket(socket.AF_UNIX) as listening:
    listening.bind(f"{folder}/http.sock")
    listening.listen()
    while True:
        listening.accept()[0].close()
"""


def test_sockets_are_in_a_folder_per_replica_that_goes_with_it(tmp_path: Path) -> None:
    made = LocalHarness(tmp_path / "services")
    command = (sys.executable, "-c", CODE)
    with tempfile.TemporaryDirectory() as sockets:  # paths of sockets must be short
        made.engine.apply(ServiceSpec(name="web", command=command, sockets=sockets, replicas=1))
        until(lambda: made.engine.service("web").is_settled)
        (replica,) = made.engine.service("web").ready
        assert replica.addresses == {"http": f"unix:{sockets}/{replica.name}/http.sock"}
        assert [each.name for each in Path(sockets).iterdir()] == [replica.name]
        os.kill(made.pid(replica.name), signal.SIGKILL)  # its folder is made again
        until(lambda: made.engine.service("web").replicas[0].restarts == 1)
        until(lambda: made.engine.service("web").is_settled)
        made.engine.delete("web")
        until(lambda: not made.engine.services())
        assert not list(Path(sockets).iterdir())
