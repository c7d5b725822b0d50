"""The right that a call needs, and the secret of a request."""

from __future__ import annotations

import pytest

from timonel.serving.auth.control import right_for_call, secret_of
from timonel.serving.settings.auth import Right


@pytest.mark.parametrize(
    ("method", "right"),
    [
        ("/grpc.health.v1.Health/Check", None),
        ("/inference.GRPCInferenceService/ServerLive", None),
        ("/tensorflow.serving.ModelService/HandleReloadConfigRequest", Right.ADMIN),
        ("/tensorflow.serving.PredictionService/Predict", Right.USE),
        ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Right.USE),
        ("/unknown/Method", Right.USE),
    ],
)
def test_rights_by_call(method, right):
    assert right_for_call(method) is right


@pytest.mark.parametrize(
    ("headers", "secret"),
    [
        ([], None),
        ([("host", "h"), ("x-api-key", "k")], "k"),
        ([(b"authorization", b"bearer  k ")], "k"),
        ([(b"authorization", b"Basic k")], ""),
        ([("authorization", "Bearer k"), ("x-api-key", "k")], ""),
        ([(b"x-api-key", b"k"), (b"x-api-key", b"k")], ""),
    ],
)
def test_a_request_has_one_secret(headers, secret):
    assert secret_of(headers) == secret
