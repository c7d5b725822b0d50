"""What a user does with timonel, once from end to end: the slow tests that make test runs.

One project goes through the whole path, so that later steps use what earlier ones made.
"""

from __future__ import annotations

import base64
import json
import random
import signal
import socket
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pyarrow.parquet as pq
import pytest

import timonel
from tests.training.disturbed import DisturbedJob
from timonel.cli.project import write_project
from timonel.edge import convert_version
from timonel.engines import FailureCause
from timonel.models import ModelRepository

pytestmark = [pytest.mark.process, pytest.mark.capability, pytest.mark.timeout(400)]

EPOCHS = 3
IMAGE = "digits/7/0009.png"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The sample project, in the current folder, with its dataset."""
    folder = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("TIMONEL_WORKSPACE", "TIMONEL_DATA"):
            patch.delenv(name, raising=False)
        timonel.find_workspace(folder / ".timonel")
        write_project("image", folder, with_data=True)
        timonel.convert("digits", "data/digits")
        yield folder


@dataclass(frozen=True)
class Trained:
    """A finished run, and why its job restarted."""

    run: timonel.Run
    cause: str | None


@pytest.fixture(scope="module")
def trained(project: Path) -> Trained:
    """Two workers, one of which is killed within an epoch."""
    run = timonel.train(
        "train.py",
        data="data/digits",
        workers=2,
        args=["--epochs", str(EPOCHS)],
        checkpoint_steps=2,
        detach=True,
    )
    job = DisturbedJob(run, epochs=EPOCHS)
    struck = job.strike("worker-0", signal.SIGKILL, "step", random.Random(1))
    job.finish()
    return Trained(run, struck.cause)


@pytest.fixture(scope="module")
def version(trained: Trained) -> timonel.ModelVersion:
    """Version 1 of the model."""
    return trained.run.export("digits")


@pytest.fixture(scope="module")
def second(trained: Trained, version: timonel.ModelVersion) -> timonel.ModelVersion:
    """Version 2, of the same run."""
    assert version.number == 1
    return trained.run.export("digits")


def test_convert(project: Path) -> None:
    dataset = timonel.Dataset.open(project / "data" / "digits")
    assert dataset.count() == len(list((project / "digits").glob("*/*.png")))
    dataset.verify()


def test_train_with_two_workers_kill_one_and_resume(trained: Trained) -> None:
    record = trained.run.record
    assert trained.cause in {FailureCause.CRASHED, FailureCause.LOST_PEER}
    assert record.restarts == 1
    epochs = {event["epoch"] for event in record.events() if event["type"] == "metrics"}
    assert len(epochs) == EPOCHS
    assert trained.run.metrics["val_accuracy"] > 0.5


def test_tune(project: Path) -> None:
    (project / "objective.py").write_text(
        "import argparse\n"
        "from timonel.training import report\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--x', type=float)\n"
        "report({'loss': (parser.parse_args().x - 0.5) ** 2})\n"
    )
    study = timonel.tune("objective.py", ["x=float(0,1)"], "loss", goal="minimize", trials=3)
    losses = [trial.values[0] for trial in study.trials]
    assert len(losses) == 3
    assert study.best_run.metrics["loss"] == min(losses)


def test_export_and_lineage(project: Path, version: timonel.ModelVersion, trained: Trained) -> None:
    graph = timonel.lineage(timonel.find_workspace(), "digits/1")
    (exported,) = graph.sources(graph.focus)
    trainings = {
        node.key for each in graph.sources(exported.key) for node in graph.sources(each.key)
    }
    assert f"run:{trained.run.id}" in trainings
    assert str(project / "data/digits") in {uri for each in graph.artifacts for uri in each.uris}


def test_serve_over_rest_and_grpc(
    version: timonel.ModelVersion, second: timonel.ModelVersion
) -> None:
    with timonel.serve("digits", block=False, rest_port=0, grpc_port=0) as server:
        content = Path(IMAGE).read_bytes()
        assert rest_label(server.rest_url, content) == grpc_label(server.grpc_address, content)


def test_deploy_with_envoy_and_roll_back(
    version: timonel.ModelVersion, second: timonel.ModelVersion
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    endpoint = timonel.deploy("digits/1", port=port, min_replicas=1, max_replicas=1)
    try:
        (answer,) = timonel.predict("digits", [IMAGE])
        assert answer.version == 1
        timonel.deploy("digits/2")
        (answer,) = timonel.predict("digits", [IMAGE])
        assert answer.version == 2
        endpoint.rollback()
        endpoint.wait()
        (answer,) = timonel.predict("digits", [IMAGE])
        assert answer.version == 1
    finally:
        endpoint.delete()


def test_batch_prediction(version: timonel.ModelVersion) -> None:
    done = timonel.predict_batch("digits", "digits/7", "sevens.parquet")
    table = pq.read_table("sevens.parquet")
    assert done.failed == 0
    assert table.num_rows == done.rows == len(list(Path("digits/7").iterdir()))
    labels = table["label"].to_pylist()
    assert labels.count("7") > len(labels) / 2


def test_litert(project: Path, version: timonel.ModelVersion) -> None:
    found = ModelRepository(timonel.find_workspace().models).resolve("digits/1")
    made = convert_version(found, quantize="dynamic", output=project / "litert")
    assert made.report.comparison.examples > 0
    assert made.report.comparison.agreement > 0.9
    assert (project / "litert" / "model.tflite").stat().st_size == made.report.size_bytes


def rest_label(url: str, content: bytes) -> str:
    row = {"b64": base64.b64encode(content).decode()}
    request = urllib.request.Request(
        f"{url}/v1/models/digits:predict", json.dumps({"instances": [row]}).encode()
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        (prediction,) = json.load(response)["predictions"]
    return prediction["label"]


def grpc_label(address: str, content: bytes) -> str:
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    request: Any = predict_pb2.PredictRequest()
    request.model_spec.name = "digits"
    request.inputs["image_bytes"].CopyFrom(tf.make_tensor_proto([content]))
    with grpc.insecure_channel(address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        response = stub.Predict(request, timeout=60)
    return response.outputs["label"].string_val[0].decode()
