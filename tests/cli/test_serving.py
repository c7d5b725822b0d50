"""Serving, asking and looking after models from the command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import Timonel
from timonel.errors import NotFoundError, ServingError, SpecError
from timonel.serving.server_records import ServerRecord
from timonel.storage import Workspace, find_workspace

VERSION = Path(__file__).parents[1] / "fixtures" / "formats" / "1" / "model-version"
FREE = ("--rest-port", "0", "--grpc-port", "-1")


@pytest.fixture
def place(here: Path) -> Workspace:
    """A workspace of the present folder."""
    return find_workspace(here / ".timonel")


@pytest.fixture
def published(place: Workspace) -> Path:
    """Version 1 of a model, as timonel has published it."""
    return shutil.copytree(VERSION, place.models / "digits" / "1")


@pytest.fixture
def fake(place: Workspace, fake_runtime: None) -> Workspace:
    """A model ``m`` for the runtime ``fake``, with which a server starts in a second."""
    add_version(place, 1)
    return place


def add_version(place: Workspace, number: int) -> None:
    folder = place.models / "m" / str(number)
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_text("2")


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (
            ["digits", "--rest-port", "99999"],
            "--rest-port must be less than or equal to 65535",
        ),
        (["digits", "--api-keys", "none.json"], "there is no file of API keys /"),
        (["digits", "--api-keys", "none.json"], "timonel keys create NAME --file FILE"),
        (["digits", "--tls-cert", "none", "--tls-key", "none"], "check that the files exist"),
        ([], "no model to serve: use 'timonel serve NAME'"),
        (["digits", "--poll-s", "-1"], "--poll-s: expected a duration such as 90s"),
        (["digits", "digits"], "each model can be served only once, got ['digits', 'digits']"),
    ],
)
def test_settings_that_cannot_be(argv: list[str], part: str, timonel: Timonel) -> None:
    outcome = timonel("serve", *argv)
    assert outcome.exit_code == 2
    assert part in outcome.error_line


def test_an_unknown_model(timonel: Timonel, place: Workspace) -> None:
    for argv in (["serve", "nope"], ["predict", "nope", "x.png"], ["models", "show", "nope"]):
        outcome = timonel(*argv)
        assert outcome.exit_code == 2
        assert "nope" in outcome.error_line


@pytest.mark.process
def test_a_port_in_use(timonel: Timonel, fake: Workspace) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcome = timonel("serve", "m", "--runtime", "fake", "--rest-port", port)
    assert outcome.exit_code == 8
    assert f"port {port} " in outcome.error_line


@pytest.mark.process
def test_a_broken_savedmodel(timonel: Timonel, place: Workspace) -> None:
    folder = place.models / "broken" / "1"
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"not a model")
    outcome = timonel("models", "show", "broken")
    assert outcome.exit_code == 7
    assert "broken" in outcome.error_line
    outcome = timonel("serve", "broken", *FREE)
    assert outcome.exit_code == 8
    assert "broken" in outcome.error_line
    assert not list(place.servers.glob("*.json"))


@pytest.fixture
def server(fake: Workspace) -> Iterator[subprocess.Popen[str]]:
    """``timonel serve`` in a terminal, beside modules that must not be taken for Python's own."""
    for name in ("queue", "random", "socket"):
        Path(f"{name}.py").write_text("raise RuntimeError('another one was meant')\n")
    with subprocess.Popen(
        [sys.executable, "-P", "-u", "-m", "timonel", "serve", "m", "--runtime", "fake", *FREE],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        yield child
        child.kill()


@pytest.mark.process
def test_serve_announces_follows_versions_and_ends_in_order(
    server: subprocess.Popen[str], fake: Workspace, timonel: Timonel
) -> None:
    lines = read_until(server, "Ctrl-C stops it")
    assert lines[0] == "serving m"
    (listed,) = json.loads(timonel("servers", "--json").out)["servers"]
    assert set(listed) == {
        "pid", "models", "rest_url", "grpc_address", "started_at", "log", "replica",
    }  # fmt: skip
    assert any(f"REST  {listed['rest_url']}/v1/models/m" in line for line in lines)
    (curl,) = [line.removeprefix("try: ") for line in lines if line.startswith("try: ")]
    if shutil.which("curl"):  # a bare machine has none
        answer = subprocess.run(curl, shell=True, capture_output=True, text=True, check=True)
        assert "predictions" in json.loads(answer.stdout)
    add_version(fake, 2)
    told = read_until(server, "Loaded version 2 of model m.")
    shutil.rmtree(fake.models / "m" / "2")
    told += read_until(server, "Unloaded version 2 of model m.")
    assert any("Unloaded version 1" in line for line in told)
    os.killpg(server.pid, signal.SIGINT)
    out, err = server.communicate(timeout=60)
    assert server.returncode == 0
    assert out.splitlines()[-1] == "stopped"
    assert err == ""
    assert json.loads(timonel("servers", "--json").out) == {"servers": []}


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order_as_soon_as_it_is_announced(
    server: subprocess.Popen[str], timonel: Timonel, number: signal.Signals
) -> None:
    read_until(server, "Ctrl-C stops it")
    server.send_signal(number)
    out, err = server.communicate(timeout=60)
    assert (server.returncode, err) == (0, "")
    assert out.splitlines()[-1] == "stopped"
    assert json.loads(timonel("servers", "--json").out) == {"servers": []}


@pytest.mark.process
def test_a_start_prints_what_it_waits_for_and_can_be_interrupted(
    fake: Workspace, here: Path
) -> None:
    growing, told = fake.models / "m" / "1" / "growing", here / "told"
    command = [sys.executable, "-P", "-m", "timonel", "serve", "m", "--runtime", "fake", *FREE]
    with (
        told.open("w") as err,
        subprocess.Popen(
            [*command, "--poll-s", "0.3"], stderr=err, start_new_session=True
        ) as child,
    ):
        try:
            deadline = time.monotonic() + 60
            while "keep changing" not in told.read_text() and time.monotonic() < deadline:
                with growing.open("a") as file:
                    file.write("x")
                time.sleep(0.05)
            child.send_signal(signal.SIGINT)
            assert child.wait(60) == 130
        finally:
            child.kill()
    waits, error = told.read_text().splitlines()
    assert waits.startswith(f"Model m: the files of version 1 in {fake.models / 'm'} keep changing")
    assert error == "error: interrupted before the server was ready"


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_server_that_is_killed_is_an_error(
    server: subprocess.Popen[str], number: signal.Signals
) -> None:
    read_until(server, "Loaded version 1 of model m.")
    (child,) = psutil.Process(server.pid).children()
    child.send_signal(number)
    out, err = server.communicate(timeout=60)
    assert server.returncode == ServingError.exit_code
    assert err.startswith(f"error: The server was killed by {number.name}")
    assert len(err.splitlines()) <= 2, err
    assert "stopped" not in out


@pytest.mark.process
def test_a_server_does_not_outlive_the_command(server: subprocess.Popen[str]) -> None:
    read_until(server, "Loaded version 1 of model m.")
    (child,) = psutil.Process(server.pid).children()
    server.kill()
    child.wait(60)


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_in_the_foreground_is_a_child_of_this_process(
    fake: Workspace, timonel: Timonel, number: signal.Signals
) -> None:
    argv = [sys.executable, "-P", "-u", "-m", "timonel", "serve", "m", "--runtime", "fake"]
    with subprocess.Popen(
        [*argv, "--foreground", *FREE], stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stderr is not None
            assert any("serving m at http" in line for line in child.stderr)
            (listed,) = json.loads(timonel("servers", "--json").out)["servers"]
            assert (listed["pid"], listed["log"]) == (child.pid, None)
            assert len(psutil.Process(child.pid).children()) == 1
            child.send_signal(number)
            assert child.wait(60) == 0
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("argv", "code", "part"),
    [
        (["nope", "--foreground"], 2, "nope"),
        (["m", "--foreground", "--detach"], 2, "either in the foreground or detached"),
    ],
)
def test_errors_of_a_server_in_the_foreground(
    fake: Workspace, timonel: Timonel, argv: list[str], code: int, part: str
) -> None:
    outcome = timonel("serve", *argv)
    assert (outcome.exit_code, part in outcome.error_line) == (code, True)


@pytest.mark.process
def test_a_closed_server_is_still_watched(fake: Workspace, here: Path) -> None:
    argv = [sys.executable, "-m", "timonel"]
    keys = str(here / "keys.json")
    subprocess.run(
        [*argv, "keys", "create", "me", "--file", keys],
        check=True,
        capture_output=True,
    )
    command = [*argv, "serve", "m", "--runtime", "fake", *FREE, "--api-keys", keys]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            read_until(child, "Loaded version 1 of model m.")
        finally:
            child.terminate()
        assert child.wait(60) == 0


def read_until(child: subprocess.Popen[str], part: str) -> list[str]:
    """Return the lines that a child prints, up to the first one that has ``part``."""
    assert child.stdout is not None
    lines: list[str] = []
    deadline = time.monotonic() + 60
    while not lines or part not in lines[-1]:
        assert time.monotonic() < deadline
        line = child.stdout.readline()
        assert line, lines
        lines.append(line.rstrip("\n"))
    return lines


@pytest.mark.process
def test_a_detached_server_is_listed_and_stopped(timonel: Timonel, fake: Workspace) -> None:
    # In a process of its own, as the server is to outlive it.
    argv = [sys.executable, "-m", "timonel", "serve", "m", "--runtime", "fake", *FREE, "--detach"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("runs in the background\n")
    assert "m" in timonel("servers").out
    assert timonel("servers", "stop", "nope").exit_code == 2
    assert "stopped server" in timonel("servers", "stop", "m").out
    assert "No servers are running." in timonel("servers").out


def test_a_server_of_several_models_is_stopped_by_all_of_them_or_its_id(
    timonel: Timonel, place: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[int] = []
    kill = os.kill  # psutil's check of a process is a signal, too

    def record(pid: int, number: int) -> None:
        if number == signal.SIGTERM:
            stopped.append(pid)
        else:
            kill(pid, number)

    monkeypatch.setattr("os.kill", record)
    # Its processes end at once.
    monkeypatch.setattr(
        "timonel.serving.server_records.running_servers",
        lambda _: [
            ServerRecord(pid, 0.0, models, "", None, 0.0)
            for pid, models in {2_000_000_001: ("a", "b"), 2_000_000_002: ("c",)}.items()
        ],
    )
    outcome = timonel("servers", "stop", "a", "c")
    assert outcome.exit_code == SpecError.exit_code
    assert outcome.error_line == (
        "error: server 2000000001 also serves b: stop it with 'timonel servers stop 2000000001'"
    )
    assert stopped == []
    assert timonel("servers", "stop", "c", "nope").exit_code == NotFoundError.exit_code
    assert stopped == []
    assert timonel("servers", "stop", "a", "b").exit_code == 0
    assert timonel("servers", "stop", "2000000001").exit_code == 0
    assert timonel("servers", "stop", "c").exit_code == 0
    assert stopped == [2_000_000_001, 2_000_000_001, 2_000_000_002]


def test_versions_are_listed_shown_and_deleted(timonel: Timonel, published: Path) -> None:
    (listed,) = json.loads(timonel("models", "--json").out)["models"]
    assert set(listed) == {
        "name", "version", "path", "created_at", "digest", "size_bytes", "labels", "run", "check",
        "aliases", "comparison",
    }  # fmt: skip
    assert (listed["name"], listed["version"]) == ("digits", 1)
    assert "digits" in timonel("models").out
    assert "serving_default" in timonel("models", "show", "digits").out
    assert "signatures" in json.loads(timonel("models", "show", "digits/1", "--json").out)
    for wrong in ("cats", "digits/x", "/1", "digits/2"):
        assert timonel("models", "delete", wrong).exit_code == 2
    refused = timonel("models", "delete", "digits/1")
    assert refused.exit_code == 2
    assert "--yes" in refused.error_line
    done = timonel("models", "delete", "digits/1", "--yes").out
    assert done.startswith("deleted model digits/1, ")
    assert not published.exists()
    assert "No models." in timonel("models").out


@pytest.mark.process
@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_deleting_asks_on_a_terminal(answer, code, published: Path, place: Workspace) -> None:
    argv = [sys.executable, "-m", "timonel", "models", "delete", "digits/1"]
    parent, terminal = os.openpty()
    os.write(parent, f"{answer}\n".encode())
    done = subprocess.run(argv, stdin=terminal, capture_output=True, text=True, check=False)
    os.close(parent)
    os.close(terminal)
    assert "Delete model digits/1, " in done.stdout + done.stderr
    assert done.returncode == code
    assert published.exists() == (answer == "n")


def test_a_server_that_cannot_be_reached(timonel: Timonel, place: Workspace) -> None:
    outcome = timonel("predict", "http://127.0.0.1:9/v1/models/m", "[1, 2]")
    assert outcome.exit_code == 8
    assert "127.0.0.1:9" in outcome.error_line


def test_exporting_without_a_run(timonel: Timonel, place: Workspace) -> None:
    outcome = timonel("export", "--name", "digits")
    assert outcome.exit_code == 2
    assert "no training run yet" in outcome.error_line
    assert "Missing option" in timonel("export").error_line
    assert timonel("export", "--name", "a/b").exit_code == 2
