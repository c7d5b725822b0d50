"""Requests whose bytes were changed at random: refused in order, or answered."""

from __future__ import annotations

import random

import grpc
import numpy as np
import pytest

from tests.serving.protocols.tfs_grpc.conftest import RESPONSES, running
from tests.serving.protocols.tfs_grpc.test_model_service import reload_request
from tests.serving.protocols.tfs_grpc.test_services import (
    SHORT,
    examples_request,
    infer_request,
    predict_request,
)
from timonel.serving.protos.messages import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    regression_pb2,
)
from timonel.serving.signature import CLASSIFY

FEW, MANY = 300, 20_000
MALFORMED = ("INTERNAL", "Exception deserializing request!")
REFUSED = {
    "FAILED_PRECONDITION",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "UNIMPLEMENTED",
    "PERMISSION_DENIED",
}


def originals():
    metadata = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    metadata.model_spec.name = "m"
    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = "m"
    x = np.arange(40, dtype=np.float32)
    return {
        "Predict": predict_request(x=x, k=x[:1]),
        "Classify": examples_request(
            classification_pb2.ClassificationRequest, "classes", SHORT, context=SHORT
        ),
        "Regress": examples_request(regression_pb2.RegressionRequest, "value", SHORT, SHORT),
        "MultiInference": infer_request(("m", "classes", CLASSIFY)),
        "GetModelMetadata": metadata,
        "GetModelStatus": status,
        "HandleReloadConfigRequest": reload_request("a"),
    }


def mutated(raw, chance):
    """Change, insert, drop, repeat or cut some bytes."""
    content = bytearray(raw)
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(content) + 1)
        end = min(len(content), start + chance.choice((1, 1, 2, 8, 64)))
        filling = chance.randbytes(chance.choice((0, 1, 1, 2, 9)))
        if chance.random() < 0.2:
            filling = bytes(content[start:end]) * 2
        content[start:end] = filling
    return bytes(content)


def hammer(cases):
    chance = random.Random(7)
    requests = {name: message.SerializeToString() for name, message in originals().items()}
    with running() as client:
        calls = {
            name: client.channel.unary_unary(f"/tensorflow.serving.{service}/{name}")
            for service, methods in RESPONSES.items()
            for name in methods
        }
        for _ in range(cases):
            name = chance.choice(list(calls))
            raw = mutated(requests[name], chance)
            try:
                calls[name](raw, timeout=20)
            except grpc.RpcError as error:
                found = (error.code().name, error.details())
                assert found == MALFORMED or found[0] in REFUSED, (name, raw, found)
        assert client.Predict(originals()["Predict"]).outputs


def test_some_mutated_requests():
    hammer(FEW)


@pytest.mark.soak
def test_many_mutated_requests():
    hammer(MANY)
