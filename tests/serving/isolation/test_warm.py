from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.waiting import until
from timonel.processes.ports import PortReservation
from timonel.serving.isolation.runtime import ProcessRuntime
from timonel.serving.isolation.warm_client import WARM_ZYGOTE, connect_warm
from timonel.serving.isolation.zygote_client import ZygoteClient
from timonel.serving.settings import RuntimeSettings

FAKE = "timonel.testing.runtimes:FakeRuntime"


@pytest.fixture
def warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A warm zygote of the fake runtime, which this process's clients find."""
    path = tmp_path / "warm.sock"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    with PortReservation(1) as ports:
        port = next(iter(ports)).rpartition(":")[2]
        command = [sys.executable, "-m", "timonel.serving.isolation.warm", str(path), FAKE, port]
        with subprocess.Popen(command, cwd=tmp_path) as process:
            until(path.exists)
            monkeypatch.setenv(WARM_ZYGOTE, str(path))
            yield process
            process.kill()


@pytest.fixture
def paths(warm: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The import path of the warm zygote, as servers of the same installation have it."""
    shown = "import sys, json; print(json.dumps([p for p in sys.path if p]))"
    command = [sys.executable, "-P", "-c", shown]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    monkeypatch.setattr(sys, "path", json.loads(done.stdout))
    monkeypatch.chdir(tmp_path)


def write_version(folder: Path, factor: str = "2") -> Path:
    version = folder / "digits" / "1"
    version.mkdir(parents=True)
    (version / "saved_model.pb").write_text(factor)
    return version


@pytest.mark.process
def test_versions_run_in_processes_of_the_warm_zygote(
    warm: subprocess.Popen[bytes], paths: None, tmp_path: Path
) -> None:
    runtime = ProcessRuntime(FAKE)
    try:
        runtime.prepare()
        model = runtime.load(write_version(tmp_path), RuntimeSettings())
        outputs = model.run("serving_default", {"x": np.ones(2, np.float32)})
        assert outputs["y"].tolist() == [2.0, 2.0]
        (zygote,) = psutil.Process(warm.pid).children()
        (compute,) = zygote.children()
        # Its death interrupts nothing.
        warm.kill()
        warm.wait()
        outputs = model.run("serving_default", {"x": np.ones(1, np.float32)})
        assert outputs["y"].tolist() == [2.0]
        model.close()
    finally:
        runtime.close()
    until(lambda: not zygote.is_running() and not compute.is_running())


@pytest.mark.process
def test_a_killed_server_leaves_no_process(
    warm: subprocess.Popen[bytes], paths: None, tmp_path: Path
) -> None:
    program = (
        "import sys, time\n"
        f"sys.path[:] = {sys.path!r}\n"
        "from pathlib import Path\n"
        "from timonel.serving.isolation.runtime import ProcessRuntime\n"
        "from timonel.serving.settings import RuntimeSettings\n"
        f"runtime = ProcessRuntime({FAKE!r})\n"
        f"model = runtime.load(Path({str(write_version(tmp_path))!r}), RuntimeSettings())\n"
        "print('loaded', flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"loaded\n"
        family = psutil.Process(warm.pid).children(recursive=True)
        assert len(family) == 2
        server.send_signal(signal.SIGKILL)
    until(lambda: not any(process.is_running() for process in family))


@pytest.mark.process
@pytest.mark.parametrize("difference", ["runtime", "path", "variable"])
def test_another_server_imports_by_itself(
    warm: subprocess.Popen[bytes],
    paths: None,
    monkeypatch: pytest.MonkeyPatch,
    difference: str,
) -> None:
    reference = FAKE
    if difference == "runtime":
        reference = "timonel.serving.runtimes.litert:LiteRtRuntime"
    elif difference == "path":
        monkeypatch.setattr(sys, "path", [*sys.path, "/elsewhere"])
    else:
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    client = ZygoteClient(reference)
    try:
        client.wait_until_ready()
        assert not client.is_warm
    finally:
        client.close()
    until(lambda: not psutil.Process(warm.pid).children())


def test_without_a_warm_zygote_there_is_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connect_warm({}) is None
    path = tmp_path / "warm.sock"
    monkeypatch.setenv(WARM_ZYGOTE, str(path))
    assert connect_warm({}) is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
    assert connect_warm({}) is None
