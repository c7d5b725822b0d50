"""The client against a server that does what a real one does rarely."""

from __future__ import annotations

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest

from timonel.errors import NotFoundError, ServingError, SpecError
from timonel.serving.client.connection import ClientSignature, HttpError
from timonel.serving.client.instances import Instance
from timonel.serving.client.predict import _prediction, predict
from timonel.serving.server_records import ServerRecord, write_record
from timonel.storage import find_workspace

SHAPE = {"unknown_rank": False, "dim": [{"size": "-1", "name": ""}]}


class Scripted:
    """Answers each path from a list, the last answer for ever."""

    def __init__(self):
        self.answers = {}
        self.asked = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                script.asked.append(self.path)
                answers = script.answers.get(self.path, [(404, {"error": "not here"})])
                status, content = answers.pop(0) if len(answers) > 1 else answers[0]
                body = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815 - the base class's names

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def scripted():
    script = Scripted()
    thread = threading.Thread(target=script.server.serve_forever, args=(0.02,))
    thread.start()
    yield script
    script.server.shutdown()
    thread.join()
    script.server.server_close()


def metadata(version):
    return 200, {
        "model_spec": {"name": "m", "version": str(version)},
        "metadata": {
            "signature_def": {
                "signature_def": {
                    "serving_default": {
                        "inputs": {"x": {"dtype": "DT_FLOAT", "tensor_shape": SHAPE}},
                        "outputs": {"scores": {}},
                    }
                }
            }
        },
    }


GONE = (404, {"error": "Servable not found for request: Specific(m, 1)"})


def test_a_swap_between_two_requests_is_not_seen(scripted):
    scripted.answers = {
        "/v1/models/m/metadata": [metadata(1), metadata(2)],
        "/v1/models/m/versions/1:predict": [GONE],
        "/v1/models/m/versions/2:predict": [(200, {"predictions": [[0.25, 0.75]]})],
    }
    # Like TensorFlow Serving, this server does not list its models, and so no class names.
    (prediction,) = predict(f"{scripted.url}/v1/models/m", {"x": 1})
    assert (prediction.version, prediction.label) == (2, "1")
    assert list(prediction.scores.items()) == [("1", 0.75), ("0", 0.25)]


def test_only_rows_that_are_independent_share_a_request(scripted):
    path = "/v1/models/m/versions/1:predict"
    scripted.answers = {
        "/v1/models/m/metadata": [metadata(1)],
        path: [(200, {"predictions": [[1.0]]})],
    }
    assert len(predict(f"{scripted.url}/v1/models/m", [{"x": 1}, {"x": 2}])) == 2
    assert scripted.asked.count(path) == 2
    version = {"version": "1", "independent_rows": ["serving_default"]}
    scripted.answers |= {
        "/v1/models": [(200, {"models": [{"name": "m", "versions": [version]}]})],
        path: [(200, {"predictions": [[1.0], [2.0]]})],
    }
    assert len(predict(f"{scripted.url}/v1/models/m", [{"x": 1}, {"x": 2}])) == 2
    assert scripted.asked.count(path) == 3


def test_a_server_that_swaps_for_ever_is_given_up(scripted):
    scripted.answers = {
        "/v1/models/m/metadata": [metadata(1)],
        "/v1/models/m/versions/1:predict": [GONE],
    }
    with pytest.raises(HttpError, match="Servable not found"):
        predict(f"{scripted.url}/v1/models/m", {"x": 1})
    assert scripted.asked.count("/v1/models/m/versions/1:predict") == 20


def test_answers_that_do_not_fit_the_inputs_are_not_handed_out(scripted):
    scripted.answers = {
        "/v1/models/m/metadata": [metadata(1)],
        "/v1/models/m/versions/1:predict": [(200, {"predictions": [[1.0], [2.0]]})],
    }
    with pytest.raises(ServingError, match="expected one prediction for each of 1 inputs, got 2"):
        predict(f"{scripted.url}/v1/models/m", {"x": 1})


def test_what_is_no_model_server_is_told(scripted):
    scripted.answers = {"/v1/models/m/metadata": [(200, b"<html>")]}
    with pytest.raises(ServingError, match=r"did not answer with JSON: HTTP 200 with b'<html>'"):
        predict(f"{scripted.url}/v1/models/m", {"x": 1})
    with pytest.raises(NotFoundError, match="it does not list its models"):
        predict(scripted.url, {"x": 1})
    with pytest.raises(NotFoundError, match="is not the address of a model"):
        predict(f"{scripted.url}/elsewhere", {"x": 1})
    with pytest.raises(SpecError, match="expected an address such as"):
        predict("http:///v1/models/m", {"x": 1})


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (401, "authentication failed: give a valid key or token with --api-key-file"),
        (403, "permission denied: HTTP 403: Client refused: give a key .*--api-key-file"),
    ],
)
def test_an_answer_in_plain_text_tells_that_a_key_is_needed(scripted, status, problem):
    scripted.answers["/v1/models/m/metadata"] = [(status, b"Client refused.")]
    with pytest.raises(HttpError, match=f"^{problem}") as caught:
        predict(f"{scripted.url}/v1/models/m", [[1.0]])
    assert caught.value.status == status


def test_what_a_loaded_model_may_do_is_passed_on(tmp_path, monkeypatch):
    (tmp_path / "m" / "1").mkdir(parents=True)
    started = []

    def launch(settings, _):
        started.append(settings)
        raise ServingError("enough")

    monkeypatch.setattr("timonel.serving.client.predict.launch", launch)
    with pytest.raises(ServingError, match="enough"):
        predict(
            tmp_path / "m",
            [[1.0]],
            workspace=tmp_path / ".timonel",
            allow_ops=["ReadFile"],
            op_libraries=["tensorflow_text"],
        )
    (settings,) = started
    own = settings.runtime.of("m")
    assert own.allow_ops == {"*": ("ReadFile",)}
    assert own.op_libraries == ("tensorflow_text",)


def test_what_a_server_of_the_workspace_serves_is_said(scripted, tmp_path, monkeypatch):
    workspace = find_workspace(tmp_path / ".timonel")
    started = psutil.Process().create_time()
    record = ServerRecord(os.getpid(), started, ("iris",), scripted.url, None, started)
    write_record(workspace.servers, record)
    states = [{"version": "2", "state": "AVAILABLE"}, {"version": "1", "state": "END"}]
    scripted.answers = {"/v1/models/iris": [(200, {"model_version_status": states})]}
    for model in ("iris/1", f"{scripted.url}/v1/models/iris/versions/1"):
        with pytest.raises(NotFoundError) as caught:
            predict(model, [[1.0]], workspace=workspace)
        assert str(caught.value) == (
            f"{scripted.url} does not serve version 1 of iris: it serves iris/2"
        )

    def launch(*_):
        raise ServingError("enough")

    monkeypatch.setattr("timonel.serving.client.predict.launch", launch)
    told = []
    for folder in ("iris", "roses"):
        (tmp_path / folder / "1").mkdir(parents=True)
        with pytest.raises(ServingError, match="enough"):
            predict(tmp_path / folder, [[1.0]], workspace=workspace, notify=told.append)
    by_name = f"'timonel predict iris' asks the server {scripted.url}"
    assert told == [
        f"loading {tmp_path}/iris for this call; {by_name}",
        "no server of this workspace serves roses: loading it for this call",
    ]


@pytest.mark.parametrize("trust", [{"allow_ops": ["ReadFile"]}, {"op_libraries": ["x"]}])
def test_a_server_decides_itself_what_its_models_may_do(scripted, trust):
    scripted.answers = {"/v1/models/m/metadata": [metadata(1)]}
    with pytest.raises(SpecError, match="start that server with --allow-op or --op-library"):
        predict(f"{scripted.url}/v1/models/m", [[1.0]], **trust)
    assert scripted.asked == []


@pytest.mark.parametrize(
    ("outputs", "row", "expected"),
    [
        (("dense_1",), [12.5], (None, {}, 12.5)),
        (("dense_1",), 3, (None, {}, 3)),
        (("dense_1",), [[2**53 + 1]], (None, {}, 2**53 + 1)),
        (("dense_1",), [1.0, 2.0], (None, {}, None)),
        (("price", "size"), {"price": [1.0], "size": [2.0]}, (None, {}, None)),
        (
            ("dense", "label", "scores", "class_id"),
            {"dense": [0.3], "label": "no", "scores": [0.7, 0.3], "class_id": 0},
            ("no", {"no": 0.7, "yes": 0.3}, None),
        ),
        (
            ("scores", "predicted_scores"),  # several labels; the model's own scores are logits
            {"scores": [-1.0, 2.0], "predicted_scores": [0.3, 0.9]},
            ("yes", {"yes": 0.9, "no": 0.3}, None),
        ),
    ],
)
def test_labels_scores_and_a_number_are_found_among_the_outputs(outputs, row, expected):
    signature = ClientSignature("m", 1, (), outputs)
    found = _prediction(Instance("row 1", None), row, signature, ["no", "yes"])
    assert (found.label, found.scores, found.value) == expected
    assert found.outputs == (row if len(outputs) > 1 else {outputs[0]: row})
