"""What ``timonel serve`` is while its server serves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import Timonel
from tests.cli.test_serving import FREE, add_version, fake, place, read_until, server
from timonel.storage import Workspace

__all__ = ["fake", "place", "server"]

LOADED = "import json, sys, timonel.cli.waiting; print(json.dumps(sorted(sys.modules)))"
HEAVY = ("numpy", "tensorflow", "pydantic", "_ssl", "psutil", "orjson")


def test_it_imports_little_of_the_standard_library_and_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    bare = subprocess.run(
        [sys.executable, "-c", "import json, sys; print(json.dumps(sorted(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(json.loads(done.stdout)) - set(json.loads(bare.stdout))
    roots = {name.partition(".")[0] for name in loaded}
    assert roots - sys.stdlib_module_names == {"timonel"}
    assert not roots & {"ssl", "http", "email", "subprocess", "logging", "asyncio"}


def test_the_command_becomes_it(server: subprocess.Popen[str], fake: Workspace) -> None:
    read_until(server, "m: loaded version 1")
    process = psutil.Process(server.pid)
    assert process.cmdline()[-len(FREE) :] == list(FREE)
    mapped = [Path(each.path).name for each in process.memory_maps()]
    assert not [name for name in mapped for heavy in HEAVY if name.startswith((heavy, f"_{heavy}"))]
    (child,) = process.children()
    add_version(fake, 2)
    read_until(server, "m: loaded version 2")
    assert child.is_running()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_heard_while_the_program_is_replaced(
    server: subprocess.Popen[str], timonel: Timonel, number: signal.Signals
) -> None:
    # The last line of the program that is replaced, and so before the next one can hear anything.
    read_until(server, "Ctrl-C stops it")
    server.send_signal(number)
    out, err = server.communicate(timeout=60)
    assert (server.returncode, err) == (0, "")
    assert out.splitlines()[-1] == "stopped"
    assert json.loads(timonel("servers", "--json").out) == {"servers": []}


def test_a_server_that_dies_ends_it(server: subprocess.Popen[str]) -> None:
    read_until(server, "m: loaded version 1")
    (child,) = psutil.Process(server.pid).children()
    child.kill()
    out, err = server.communicate(timeout=60)
    assert (server.returncode, err) == (0, "")
    assert out.splitlines()[-1] == "stopped"


def test_a_server_does_not_outlive_it(server: subprocess.Popen[str]) -> None:
    read_until(server, "m: loaded version 1")
    (child,) = psutil.Process(server.pid).children()
    server.kill()
    child.wait(60)


def test_a_closed_server_is_still_watched(fake: Workspace, here: Path) -> None:
    argv = [sys.executable, "-m", "timonel"]
    keys = str(here / "keys.json")
    subprocess.run(
        [*argv, "keys", "create", "me", "--file", keys, "--allow", "predict:m"],
        check=True,
        capture_output=True,
    )
    command = [*argv, "serve", "m", "--runtime", "fake", *FREE, "--api-keys", keys]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            read_until(child, "m: loaded version 1")
        finally:
            child.terminate()
        assert child.wait(60) == 0
