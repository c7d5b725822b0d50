"""A gRPC server over models without TensorFlow, in a thread of the test's own process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from timonel.serving.batching.scheduled_model import ScheduledModel
from timonel.serving.batching.scheduling import scheduled
from timonel.serving.inference.flow import Flow
from timonel.serving.manager.catalogue import Catalogue, Servable
from timonel.serving.manager.plan import VersionState, VersionStatus
from timonel.serving.protocols.tfs_grpc.server import GrpcServer
from timonel.serving.protocols.tfs_grpc.services import ModelService
from timonel.serving.protos.messages import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    predict_pb2,
    regression_pb2,
)
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.settings.server import GrpcSettings
from timonel.serving.signature import CLASSIFY, NUMPY_TYPES, REGRESS, Signature, TensorSpec
from timonel.serving.status import Code, StatusError, invalid_argument
from timonel.serving.telemetry.monitor import Monitor

RESPONSES = {
    "PredictionService": {
        "Predict": predict_pb2.PredictResponse,
        "Classify": classification_pb2.ClassificationResponse,
        "Regress": regression_pb2.RegressionResponse,
        "MultiInference": inference_pb2.MultiInferenceResponse,
        "GetModelMetadata": get_model_metadata_pb2.GetModelMetadataResponse,
    },
    "ModelService": {
        "GetModelStatus": get_model_status_pb2.GetModelStatusResponse,
        "HandleReloadConfigRequest": model_management_pb2.ReloadConfigResponse,
    },
}


def signature(name, method, inputs, outputs, **defaults):
    specs = [
        {
            key: TensorSpec(f"{key}:0", dtype, None if key in defaults else (-1,))
            for key, dtype in side.items()
        }
        for side in (inputs, outputs)
    ]
    return Signature(name, *specs, method_name=method, defaults=defaults)


EXAMPLES = {"inputs": "DT_STRING"}
SIGNATURES = (
    signature(
        "serving_default",
        "tensorflow/serving/predict",
        {"x": "DT_FLOAT", "k": "DT_FLOAT"},
        {"y": "DT_FLOAT", "text": "DT_STRING"},
        k=np.array(2, np.float32),
    ),
    signature("strict", "", {"x": "DT_FLOAT", "k": "DT_FLOAT"}, {"y": "DT_FLOAT"}),
    signature("classes", CLASSIFY, EXAMPLES, {"classes": "DT_STRING", "scores": "DT_FLOAT"}),
    signature("value", REGRESS, EXAMPLES, {"outputs": "DT_FLOAT"}),
)


class Lengths(LoadedModel):
    """Multiplies numbers, and classifies examples by how long they are."""

    def __init__(self):
        self.signatures = {one.name: one for one in SIGNATURES}
        self.release = threading.Event()

    def run(self, signature, inputs, outputs=None):
        for name, array in inputs.items():
            wanted = NUMPY_TYPES[self.signatures[signature].inputs[name].dtype]
            if array.dtype != wanted:
                raise invalid_argument(f"expected {wanted}, got {array.dtype}")
        x = inputs.get("x")
        if x is not None and np.array_equal(x, [-1]):
            self.release.wait(20)
        if x is not None and np.array_equal(x, [-2]):
            raise StatusError(Code.DATA_LOSS, "\N{EURO SIGN}" * 500)
        try:
            values = self._values(inputs)
        except ValueError as error:
            raise invalid_argument(str(error)) from error
        return {name: values[name] for name in outputs or values}

    def _values(self, inputs):
        if "x" in inputs:
            y = inputs["x"] * inputs["k"]
            return {"y": y, "text": np.array([b"\xff\0"], dtype=object)}
        lengths = [len(example) for example in inputs["inputs"]]
        return {
            "classes": np.array([[b"short", b"long"]] * len(lengths), dtype=object),
            "scores": np.array([[1, length] for length in lengths], np.float32),
            "outputs": np.array(lengths, np.float32),
        }

    def close(self):
        pass


def catalogue_of(model):
    catalogue = Catalogue({"m": {"stable": 3, "gone": 9}})
    if not isinstance(model, ScheduledModel):
        model = scheduled(model)
    servables = {version: Servable("m", version, model) for version in (3, 4)}
    statuses = tuple(VersionStatus(version, VersionState.AVAILABLE) for version in (3, 4))
    catalogue.publish("m", servables, statuses)
    return catalogue


class Asked:
    """A server's methods, to be called with its messages."""

    def __init__(self, channel, port=None):
        self.channel = channel
        self.port = port
        for service, methods in RESPONSES.items():
            for name, response in methods.items():
                path = f"/tensorflow.serving.{service}/{name}"
                method = channel.unary_unary(
                    path,
                    request_serializer=lambda request: request.SerializeToString(),
                    response_deserializer=response.FromString,
                )
                setattr(self, name, method)


@contextlib.contextmanager
def running(model=None, *, configurator=None, address="127.0.0.1:0", settings=None, **others):
    """Run a server; give a client of it."""
    settings = settings or GrpcSettings()
    catalogue = catalogue_of(model or Lengths())
    ready, ended, made = threading.Event(), [], []

    async def serve():
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        ended.append(lambda: loop.call_soon_threadsafe(stop.set))
        with ThreadPoolExecutor(4) as pool:
            monitor = others.pop("monitor", None)
            flow = Flow(catalogue, pool, monitor or Monitor())
            models = ModelService(flow, configurator, monitor)
            server = GrpcServer(flow, settings, address, models=models, **others)
            made.append(server)
            await server.start()
            ready.set()
            await stop.wait()
            await server.stop(1)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(20)
    target = f"127.0.0.1:{made[0].port}" if made[0].port else f"unix:{settings.socket_path}"
    try:
        with grpc.insecure_channel(target, [("grpc.max_receive_message_length", -1)]) as channel:
            yield Asked(channel, made[0].port)
    finally:
        ended[0]()
        thread.join(20)
    assert not thread.is_alive()


@pytest.fixture(scope="package")
def served():
    """A client of a server with everything as it is by default."""
    with running() as client:
        yield client


def refusal(call, *args, **kwargs):
    """The code and the text that a call is refused with."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*args, **kwargs)
    return caught.value.code().name, caught.value.details()
