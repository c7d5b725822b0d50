"""A whole server whose versions are kept apart: what clients see of a death, and the end."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request

import psutil
import pytest

from tests.serving.asking import predicted
from tests.serving.isolation.faults import REFERENCE
from tests.waiting import until
from timonel.errors import SpecError
from timonel.serving import serve
from timonel.serving.handle import launch
from timonel.serving.settings import LoadSettings, ModelSettings, RuntimeSettings, ServerSettings


@pytest.fixture
def folders(workspace):
    """Two models, the first with two versions."""
    made = {}
    for name, number in (("m", 1), ("m", 2), ("other", 1)):
        folder = workspace.models / name / str(number)
        (folder / "assets.extra").mkdir(parents=True)
        (folder / "assets.extra" / "timonel.json").write_text("{}")
        (folder / "saved_model.pb").write_text("fine")
        made[name, number] = folder
    return made


@pytest.fixture
def faulty(folders, tmp_path, monkeypatch):
    """Let servers find the runtime by its name."""
    package = tmp_path / "plugins" / "faulty_runtime-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-runtime\nVersion: 1\n")
    (package / "entry_points.txt").write_text(f"[timonel.runtimes]\nfaulty = {REFERENCE}\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package.parent), os.getcwd()]))  # noqa: PTH109 - the tests' root


@pytest.fixture
def server(faulty, workspace):
    settings = ServerSettings(
        models=tuple(
            ModelSettings(name=name, base_path=str(workspace.models / name))
            for name in ("m", "other")
        ),
        rest_port=0,
        grpc_port=None,
        load=LoadSettings(poll_s=0.1, settle_s=0.1),
        runtime=RuntimeSettings(name="faulty"),
        isolation="process",
        compute_threads=4,
    )
    with launch(settings, workspace) as started:
        yield started


def get(server, path):
    with urllib.request.urlopen(server.rest_url + path, timeout=30) as response:
        return json.loads(response.read())


def ask(server, do, x=1.0, model="m"):
    return predicted(server, model, {"do": do, "x": x})


def states(server):
    told = get(server, "/v1/models/m")["model_version_status"]
    return {status["version"]: (status["state"], status["status"]["error_code"]) for status in told}


@pytest.mark.process
def test_deaths_end_neither_the_listener_nor_other_models(server, folders):
    listener = server.pid
    assert ask(server, "double") == (200, 2.0)
    others, stop = [], threading.Event()

    def keep_asking():
        while not stop.is_set():
            others.append(ask(server, "double", model="other"))

    asking = threading.Thread(target=keep_asking)
    asking.start()
    status, message = ask(server, "segfault")
    assert status == 503
    assert message == "The process of this model was killed by SIGSEGV."
    until(lambda: ask(server, "double") == (200, 2.0))
    assert states(server) == {"2": ("AVAILABLE", "OK")}
    for _ in range(2):
        assert ask(server, "abort")[0] == 503
        until(lambda: ask(server, "double") == (200, 2.0), 30)
    assert states(server) == {"2": ("AVAILABLE", "OK")}
    stop.set()
    asking.join()
    assert others
    assert set(others) == {(200, 2.0)}
    assert psutil.pid_exists(listener)


@pytest.mark.process
def test_a_stop_answers_first_and_leaves_no_process(server):
    pids = [each.pid for each in psutil.Process(server.pid).children(recursive=True)]
    assert len(pids) == 3, "a zygote and two models"
    answers = []
    asking = threading.Thread(target=lambda: answers.append(ask(server, "sleep", 0.5)))
    asking.start()
    time.sleep(0.3)
    # As a service manager does it, to every process of the server.
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    assert server.stop() == 0
    asking.join()
    assert answers == [(200, 0.5)]
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert "Traceback" not in server.logs()


@pytest.mark.process
def test_a_process_that_hangs_is_replaced_where_that_is_asked_for(faulty, workspace):
    with serve(
        "m",
        workspace=workspace,
        runtime="faulty",
        hang_timeout_s=0.5,
        rest_port=0,
        grpc_port=None,
        block=False,
    ) as server:
        code, told = ask(server, "hang")
        assert (code, "it did not respond for 0.5 s" in str(told)) == (503, True)
        until(lambda: ask(server, "double") == (200, 2.0))


@pytest.mark.parametrize(("wrong", "told"), [(0, "hang_timeout_s"), (-1, "a duration")])
def test_a_hang_timeout_that_is_none_is_refused(faulty, workspace, wrong, told):
    with pytest.raises(SpecError, match=told):
        serve("m", workspace=workspace, hang_timeout_s=wrong, block=False)


@pytest.mark.soak
def test_a_killed_server_leaves_no_process(faulty, workspace):
    with serve(
        "m",
        workspace=workspace,
        runtime="faulty",
        isolation="process",
        rest_port=0,
        grpc_port=None,
        block=False,
    ) as server:
        assert ask(server, "double") == (200, 2.0)
        pids = [each.pid for each in psutil.Process(server.pid).children(recursive=True)]
        assert len(pids) == 2
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
