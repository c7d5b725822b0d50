"""A whole server with Python models: what is refused, who is held up, what clients see."""

from __future__ import annotations

import json
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.serving.asking import predicted, server_process
from tests.serving.runtimes.python.conftest import DOUBLER, write_version
from tests.waiting import until
from timonel.errors import ServingError, SpecError
from timonel.serving import serve
from timonel.storage import find_workspace

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fake_runtime")]

FAULTY = """
    import os, threading

    class PythonModel:
        inputs = {"text": ("string", [None])}
        outputs = {"y": ("float32", [None]), "pid": ("int64", [None])}
        threads = 8

        def predict(self, inputs):
            text = inputs["text"][0].decode()
            if text == "hang":
                threading.Event().wait()
            if text == "exit":
                os._exit(3)
            if text == "raise":
                raise KeyError("no such column")
            numbers = [float(each) for each in inputs["text"]]
            return {"y": numbers, "pid": [os.getpid()] * len(numbers)}
"""


def write_plain(folder):
    (folder / "assets.extra").mkdir(parents=True)
    (folder / "assets.extra" / "timonel.json").write_text("{}")
    (folder / "saved_model.pb").write_text("2")


def start(workspace, names, **options):
    options = {"rest_port": 0, "grpc_port": None, "block": False, "poll_s": 0.1, **options}
    return serve(names, workspace=workspace, runtime=["fake"], drain_s=0.5, **options)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return find_workspace(tmp_path_factory.mktemp("python") / "workspace")


@pytest.fixture(scope="module")
def server(fake_runtime, place):
    write_plain(place.models / "plain" / "1")
    write_version(place.models / "faulty" / "1", FAULTY)
    write_version(place.models / "python" / "1", DOUBLER, {"factor.txt": "2"})
    with start(
        place,
        ["plain", "faulty", "python"],
        allow_python=["faulty", "python"],
        python_timeout_s=5.0,
    ) as started:
        yield started


def test_all_models_answer_behind_one_api(server):
    assert predicted(server, "plain", [1.0]) == (200, [2.0])
    assert predicted(server, "python", [[1, 2]]) == (200, {"doubled": [[2, 4]], "text": ["2.0"]})
    status, answer = predicted(server, "faulty", ["1", "0.5"])
    assert (status, answer["y"]) == (200, [1.0, 0.5])
    assert psutil.Process(answer["pid"][0]).ppid() == server_process(server).pid


@pytest.mark.parametrize(("model", "platform"), [("plain", "custom"), ("python", "python")])
def test_what_computes_is_told_as_the_open_inference_protocol_does(server, model, platform):
    with urllib.request.urlopen(f"{server.rest_url}/v2/models/{model}") as response:
        assert json.loads(response.read())["platform"] == platform


def test_who_is_at_fault_is_told_in_a_line(server):
    assert predicted(server, "faulty", ["x"]) == (400, "could not convert string to float: b'x'")
    assert predicted(server, "faulty", ["raise"]) == (500, "KeyError: 'no such column'")
    status, message = predicted(server, "python", [[1]])
    assert (status, message) == (
        400,
        "Input x has the wrong shape: expected shape [-1, 2], got [1, 1]",
    )
    assert "Traceback" in server.logs()


def ask_others(server, stop):
    """Ask the other models, one after the other; return the statuses."""
    found = []
    while not stop.is_set():
        found.append(predicted(server, "plain", [1.0])[0])
        found.append(predicted(server, "python", [[1, 2]])[0])
    return found


@pytest.mark.parametrize(
    ("do", "count", "end"),
    [
        ("hang", 8, "was killed because a request took longer than 5 s"),
        ("exit", 1, "ended with exit code 3"),
    ],
)
def test_hangs_and_crashes_of_a_python_model_leave_others_alone(server, do, count, end):
    process, stop = server_process(server), threading.Event()
    until(lambda: predicted(server, "faulty", ["1"])[0] == 200)
    with ThreadPoolExecutor(count + 1) as pool:
        others = pool.submit(ask_others, server, stop)
        asked = [pool.submit(predicted, server, "faulty", [do]) for _ in range(count)]
        answers = {each.result(60) for each in asked}
        assert {text for _, text in answers} == {f"The process of this model {end}."}
        # Those in progress beside the one that takes too long may be sent elsewhere.
        assert {status for status, _ in answers} <= ({503, 504} if do == "hang" else {503})
        until(lambda: predicted(server, "faulty", ["1"])[0] == 200)
        stop.set()
        assert set(others.result(60)) == {200}
    assert server_process(server) == process


def test_python_that_was_not_allowed_is_refused_with_the_option_that_allows_it(workspace):
    write_version(workspace.models / "sk" / "1", "open('ran', 'w')")
    with pytest.raises(ServingError) as caught:
        start(workspace, ["sk"])
    assert "contains model.py, Python code that would run" in caught.value.message
    assert "--allow-python sk" in caught.value.message
    assert str(caught.value).count("if you trust its author") == 1
    assert "remove" not in str(caught.value)


def test_a_python_version_is_refused_too_and_the_one_before_serves(workspace):
    write_plain(workspace.models / "m" / "1")
    write_version(workspace.models / "m" / "2", DOUBLER)
    with start(workspace, ["m"]) as server:
        assert predicted(server, "m", [1.0]) == (200, [2.0])
        with urllib.request.urlopen(f"{server.rest_url}/v1/models/m") as response:
            states = json.loads(response.read())["model_version_status"]
        (second,) = [state for state in states if state["version"] == "2"]
        assert second["state"] == "END"
        assert "model.py" in second["status"]["error_message"]


def test_a_permission_for_no_model_is_refused_before_the_start(workspace):
    write_plain(workspace.models / "m" / "1")
    with pytest.raises(SpecError, match="--allow-python names other, which is not served"):
        start(workspace, ["m"], allow_python=["other"])


def test_a_stop_is_no_crash_of_python_models(workspace):
    write_version(workspace.models / "m" / "1", DOUBLER, {"factor.txt": "2"})
    with start(workspace, ["m"], allow_python=["m"]) as server:
        (child,) = server_process(server).children()
    assert not child.is_running()
    assert "Restarting" not in server.logs()
