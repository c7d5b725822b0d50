"""Commands with a workspace in a bucket, killed at each of their writes to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.storage.faulty import FaultyServer
from timonel.data import Dataset
from timonel.storage.object_store import ObjectStore

pytestmark = pytest.mark.process

Server = tuple[str, FaultyServer]
Call = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def call(faulty: Server, tmp_path: Path) -> Call:
    """Start a command line on a machine with a cache folder of its own."""

    def start(machine: str, *words: object) -> subprocess.Popen[str]:
        command = ["-c", "from timonel.cli.entry import main; main()", "-w", faulty[0]]
        return subprocess.Popen(
            [sys.executable, *command, *map(str, words)],
            cwd=tmp_path,
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / machine)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def printed(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def as_json(process: subprocess.Popen[str]) -> Any:
    return json.loads(printed(process))


def kill_at_write(server: FaultyServer, call: Call, number: int, *words: object) -> bool:
    """Run a command, and kill it at its write of a number; return whether it came to that."""
    started = call("a", *words)
    writes = iter(range(100))

    def fault(method: str, *_: str) -> str | None:
        if method == "PUT" and next(writes) >= number:
            os.kill(started.pid, signal.SIGKILL)
            return "away"
        return None

    server.fault = fault
    started.communicate(timeout=60)
    server.fault = lambda *_: None
    return started.returncode == -signal.SIGKILL


def test_a_killed_convert_loses_nothing_and_can_be_repeated(
    faulty: Server,
    call: Call,
    tmp_path: Path,
) -> None:
    for label in ("cat", "dog"):
        (tmp_path / "raw" / label).mkdir(parents=True)
        for number in range(6):
            pixels = np.full((4, 4, 3), number + 10 * (label == "dog"), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "raw" / label / f"{number}.png")
    convert = ("convert", tmp_path / "raw", tmp_path / "data", "--overwrite")
    ObjectStore(faulty[0]).write(
        "FORMAT", b'{"kind": "workspace", "format": 1, "id": "0123456789abcdef0123456789abcdef"}'
    )
    kills = 0
    while kill_at_write(faulty[1], call, kills, *convert):
        kills += 1
        for machine in ("a", "b"):
            states = [run["status"] for run in as_json(call(machine, "runs", "--json"))["runs"]]
            assert states.count("succeeded") <= kills
            assert set(states) <= {"succeeded", "lost"}, "both are on this host"
    assert kills == 2, "the record, the reference; then the published run goes on"
    Dataset.open(tmp_path / "data").verify()
    for machine in ("a", "b"):
        runs = as_json(call(machine, "runs", "--json"))["runs"]
        assert [run["status"] for run in runs] == ["succeeded"]
    assert len(ObjectStore(faulty[0]).find("datasets")) == 1


def test_a_killed_publication_is_invisible_and_can_be_repeated(
    faulty: Server,
    call: Call,
    tmp_path: Path,
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.py").write_text("class PythonModel:\n    pass\n")
    (model / "weights").write_bytes(b"w" * 100)
    add = ("models", "add", "m", model)
    ObjectStore(faulty[0]).write(
        "FORMAT", b'{"kind": "workspace", "format": 1, "id": "0123456789abcdef0123456789abcdef"}'
    )
    kills = 0
    while kill_at_write(faulty[1], call, 2 * kills, *add):
        kills += 1
        for machine in ("a", "b"):
            assert as_json(call(machine, "models", "--json"))["models"] == []
    assert kills >= 2
    for machine in ("a", "b"):
        (model,) = as_json(call(machine, "models", "--json"))["models"]
        assert model["name"] == "m"


def test_expired_credentials_are_one_line(
    faulty: Server,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faulty[1].fault = lambda *_: "expired"
    process = call("a", "runs")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    problem = f"cannot read {faulty[0]}/FORMAT: the credentials have expired"
    assert err.splitlines() == [f"error: {problem}: renew them, and repeat the command"]


def test_what_needs_a_folder_is_refused(faulty: Server, call: Call, tmp_path: Path) -> None:
    ObjectStore(faulty[0]).write(
        "FORMAT", b'{"kind": "workspace", "format": 1, "id": "0123456789abcdef0123456789abcdef"}'
    )
    (tmp_path / "s.py").write_text("")
    (tmp_path / "cluster.json").write_text('{"cluster": {"chief": ["127.0.0.1:1"]}}')
    options = ("--cluster", tmp_path / "cluster.json", "--task-type", "chief", "--task-index", "0")
    _, err = (process := call("a", "train", tmp_path / "s.py", *options)).communicate(timeout=60)
    assert process.returncode == 2, err
    assert "--cluster does not work with a workspace in a bucket" in err
    assert len(err.splitlines()) == 1
