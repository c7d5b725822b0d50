"""A whole server with Python models and hooks: what is refused, who is held up, what clients see.

Versions without Python compute in the server here, so that all three ways are there at once.
"""

from __future__ import annotations

import json
import textwrap
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.serving.asking import predicted
from tests.serving.runtimes.python.conftest import DOUBLER, write_version
from tests.waiting import until
from timonel.errors import NotFoundError, ServingError, SpecError
from timonel.serving import serve
from timonel.storage import find_workspace

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fake_runtime")]

HOOKS = """
    import os, time
    import numpy as np

    inputs = {"text": ("string", [None])}
    outputs = {"y": ("float32", [None]), "pid": ("int64", [None])}

    def preprocess(inputs):
        text = inputs["text"][0].decode()
        if text == "sleep":
            time.sleep(3600)
        if text == "exit":
            os._exit(3)
        if text == "raise":
            raise KeyError("no such column")
        return {"x": np.array([float(each) for each in inputs["text"]])}

    def postprocess(outputs):
        return {"y": outputs["y"] + 1, "pid": [os.getpid()] * len(outputs["y"])}
"""


def write_plain(folder, factor="2", hooks=None):
    (folder / "assets.extra").mkdir(parents=True)
    (folder / "assets.extra" / "timonel.json").write_text("{}")
    (folder / "saved_model.pb").write_text(factor)
    if hooks is not None:
        (folder / "assets.extra" / "hooks.py").write_text(textwrap.dedent(hooks))
    return folder


def start(workspace, names, **options):
    options = {"rest_port": 0, "grpc_port": None, "block": False, "poll_s": 0.1, **options}
    return serve(names, workspace=workspace, runtime=["fake"], drain_s=0.5, **options)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return find_workspace(tmp_path_factory.mktemp("python") / "workspace")


@pytest.fixture(scope="module")
def server(fake_runtime, place, tmp_path_factory):
    hooks = tmp_path_factory.mktemp("hooks") / "mine.py"
    hooks.write_text("def postprocess(outputs): return {'y': -outputs['y']}")
    write_plain(place.models / "plain" / "1")
    write_plain(place.models / "given" / "1")
    write_plain(place.models / "hooked" / "1", hooks=HOOKS)
    write_version(place.models / "python" / "1", DOUBLER, {"factor.txt": "2"})
    with start(
        place,
        ["plain", "given", "hooked", "python"],
        isolation="none",
        compute_threads=2,
        allow_python=["hooked", "python"],
        hooks=[f"given={hooks}"],
    ) as started:
        yield started


def test_all_three_ways_answer_behind_one_api(server):
    assert predicted(server, "plain", [1.0]) == (200, [2.0])
    assert predicted(server, "given", [1.0]) == (200, [-2.0])
    assert predicted(server, "python", [[1, 2]]) == (200, {"doubled": [[2, 4]], "text": ["2.0"]})
    status, answer = predicted(server, "hooked", ["1", "0.5"])
    assert (status, answer["y"]) == (200, [3.0, 2.0])
    assert answer["pid"][0] != server.pid, "hooks run nowhere but in a process of their own"


def test_clients_see_the_signature_of_the_hooks(server):
    with urllib.request.urlopen(f"{server.rest_url}/v1/models/hooked/metadata") as response:
        signatures = json.loads(response.read())["metadata"]["signature_def"]["signature_def"]
    assert list(signatures["serving_default"]["inputs"]) == ["text"]
    assert list(signatures["serving_default"]["outputs"]) == ["y", "pid"]


@pytest.mark.parametrize(("model", "platform"), [("plain", "custom"), ("python", "python")])
def test_what_computes_is_told_as_the_open_inference_protocol_does(server, model, platform):
    with urllib.request.urlopen(f"{server.rest_url}/v2/models/{model}") as response:
        assert json.loads(response.read())["platform"] == platform


def test_who_is_at_fault_is_told_in_a_line(server):
    assert predicted(server, "hooked", ["x"]) == (400, "could not convert string to float: b'x'")
    assert predicted(server, "hooked", ["raise"]) == (500, "KeyError: 'no such column'")
    status, message = predicted(server, "python", [[1]])
    assert (status, message) == (
        400,
        "Input x has the wrong shape: expected shape [-1, 2], got [1, 1]",
    )
    assert "Traceback" in server.logs()


def test_hooks_that_never_return_hold_up_no_other_model(server):
    def seconds(model, inputs):
        began = time.monotonic()
        assert predicted(server, model, inputs)[0] == 200
        return time.monotonic() - began

    usual = max(seconds("plain", [1.0]) for _ in range(10))
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(predicted, server, "hooked", ["sleep"]) for _ in range(8)]
        time.sleep(0.3)
        slowest = max(
            *(seconds("plain", [1.0]) for _ in range(10)),
            *(seconds("python", [[1, 2]]) for _ in range(10)),
        )
        assert slowest < 5 * usual + 0.2
        (hung,) = [
            process
            for process in psutil.Process(server.pid).children(recursive=True)
            if "hooked" in process.name()
        ]
        # What a person would do, or the time limit on hangs.
        hung.kill()
        assert {future.result(20)[0] for future in asked} == {503}
    until(lambda: predicted(server, "hooked", ["1"])[0] == 200)


def test_the_death_of_a_hooks_process_costs_its_version_a_moment(server):
    others, stop = [], threading.Event()

    def keep_asking():
        while not stop.is_set():
            others.append(predicted(server, "python", [[1, 2]])[0])

    asking = threading.Thread(target=keep_asking)
    asking.start()
    status, message = predicted(server, "hooked", ["exit"])
    assert (status, message) == (503, "The process of this model ended with exit code 3.")
    until(lambda: predicted(server, "hooked", ["1"])[0] == 200)
    stop.set()
    asking.join()
    assert set(others) == {200}


def test_python_that_was_not_allowed_is_refused_with_the_option_that_allows_it(workspace):
    write_version(workspace.models / "sk" / "1", "open('ran', 'w')")
    with pytest.raises(ServingError) as caught:
        start(workspace, ["sk"])
    assert "contains model.py, Python code that would run" in caught.value.message
    assert "--allow-python sk" in caught.value.message
    assert "if you trust its author, or remove" in str(caught.value)


def test_a_version_with_hooks_of_its_own_is_refused_too_and_the_one_before_serves(workspace):
    write_plain(workspace.models / "m" / "1")
    write_plain(workspace.models / "m" / "2", hooks="def preprocess(inputs): return inputs")
    with start(workspace, ["m"], isolation="none") as server:
        assert predicted(server, "m", [1.0]) == (200, [2.0])
        with urllib.request.urlopen(f"{server.rest_url}/v1/models/m") as response:
            states = json.loads(response.read())["model_version_status"]
        (second,) = [state for state in states if state["version"] == "2"]
        assert second["state"] == "END"
        assert "assets.extra/hooks.py" in second["status"]["error_message"]


def test_hooks_and_processes_of_their_own_share_one_parent(workspace, tmp_path):
    file = tmp_path / "hooks.py"
    file.write_text("def preprocess(inputs): return {'x': inputs['x'] * 10}")
    write_plain(workspace.models / "m" / "1")
    with start(workspace, ["m"], hooks=[file]) as server:
        assert predicted(server, "m", [1.0]) == (200, [20.0])
        assert len(psutil.Process(server.pid).children(recursive=True)) == 2


def test_options_that_mean_nothing_are_told_before_anything_is_started(workspace, tmp_path):
    write_plain(workspace.models / "m" / "1")
    file = tmp_path / "hooks.py"
    with pytest.raises(NotFoundError, match="there is no file with hooks"):
        start(workspace, ["m"], hooks=[file])
    file.touch()
    with pytest.raises(SpecError, match="no model 'other' in this server"):
        start(workspace, ["m"], hooks=[f"other={file}"])
    with pytest.raises(SpecError, match="no model 'other' in this server"):
        start(workspace, ["m"], allow_python=["other"])
    with pytest.raises(SpecError, match="m has several files with hooks"):
        start(workspace, ["m"], hooks=[f"m={file}", f"m={file}"])
