"""Memory comes back: many swaps of a real model under load, in the process that computes."""

from __future__ import annotations

import http.client
import json
import shutil
import statistics
import threading
import time
import urllib.request
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import pytest

from tests.serving.asking import server_process
from tests.serving.conftest import publish
from timonel.serving import serve

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

SWAPS = 120
CLIENTS = 4
MIB = 1 << 20


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A MobileNetV2 with its preprocessing: 1,500 operations and 2 MiB of weights."""
    import keras
    import tensorflow as tf

    model = keras.applications.MobileNetV2((64, 64, 3), alpha=0.35, weights=None, classes=10)
    module = tf.Module()
    module.kept = [variable.value for variable in model.variables]
    # What a leak of one version would show: a tenth of it is more than the noise of the rest.
    module.table = tf.Variable(tf.random.normal([4 * MIB]))

    def run(x):
        return {"scores": model(x / 255, training=False) + module.table[0] * 0}

    module.run = tf.function(run, input_signature=[tf.TensorSpec([None, 64, 64, 3], tf.float32)])
    folder = tmp_path_factory.mktemp("network") / "export"
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.run})
    return folder


class Load:
    """Clients that ask without a pause, each on its own connection; every failure is kept."""

    def __init__(self, url: str) -> None:
        self.failures: list[object] = []
        self.answered = 0
        self._address = urlsplit(url).netloc
        self._body = json.dumps({"instances": [[[[1.0] * 3] * 64] * 64]})
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=60)
        while not self._stop.is_set():
            try:
                connection.request("POST", "/v1/models/m:predict", self._body)
                response = connection.getresponse()
                content = response.read()
                if response.status != 200:
                    self.failures.append((response.status, content))
            except OSError as error:
                self.failures.append(error)
            self.answered += 1
        connection.close()


def held(pid):
    """The memory of a process in MiB, where pages that it shares with a zygote count in part.

    Pages of files count in full: processes that have nothing to do with the server may map
    TensorFlow's libraries as well.
    """
    shares = _kib(pid, "smaps_rollup")
    own = shares["Pss_Anon"] + shares["Pss_Shmem"]
    return (own + _kib(pid, "status")["RssFile"]) * 1024 / MIB


def _kib(pid, name):
    lines = Path(f"/proc/{pid}/{name}").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}


def settled(pid):
    """What is held once versions that were unloaded have ended: the least of some looks."""
    looks = []
    for _ in range(8):
        looks.append(held(pid))
        time.sleep(0.5)
    return min(looks)


def states(url):
    with urllib.request.urlopen(f"{url}/v1/models/m", timeout=30) as response:
        told = json.loads(response.read())["model_version_status"]
    return {int(each["version"]): each["state"] for each in told}


def until_alone(url, number):
    deadline = time.monotonic() + 120
    while True:
        alive = {n: state for n, state in states(url).items() if state != "END"}
        if alive == {number: "AVAILABLE"}:
            return
        assert time.monotonic() < deadline, states(url)
        time.sleep(0.05)


@pytest.mark.parametrize("allocator", ["pool", "system"])
def test_memory_comes_back_after_many_swaps_under_load(
    allocator, network, workspace, tmp_path, monkeypatch
):
    if allocator == "system":
        monkeypatch.setenv("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "1")
    base = tmp_path / "m"
    base.mkdir()
    publish(network, base, 1)
    with serve(
        base,
        workspace=workspace,
        rest_port=0,
        grpc_port=0,
        block=False,
        poll_s=0.1,
    ) as server:
        with Load(server.rest_url) as load:
            time.sleep(5)
            start = settled(server_process(server).pid)
            seen = {}
            for number in range(2, SWAPS + 2):
                publish(network, base, number)
                until_alone(server.rest_url, number)
                shutil.rmtree(base / str(number - 1))
                if number % 10 == 1:
                    seen[number - 1] = round(settled(server_process(server).pid))
        readings = list(seen.values())
        told = ", ".join(f"{value} after {swaps}" for swaps, value in seen.items())
        print(f"\n{allocator}: {start:.0f} MiB at the start, {told}; {load.answered} requests")
        assert load.failures == []
        assert load.answered > SWAPS
        # The first swaps take room for two versions at once; nothing may be added by later ones.
        # Single readings differ by 30 MiB: glibc keeps freed pages, and trims later.
        early, late = statistics.fmean(readings[:5]), statistics.fmean(readings[-5:])
        assert late < 1.05 * early
        assert late < 1.15 * start
