"""The right that a request needs."""

from __future__ import annotations

import pytest

from timonel.serving.auth.control import right_for_call, right_for_url, secret_of
from timonel.serving.settings.auth import Right


@pytest.mark.parametrize(
    ("request_line", "right"),
    [
        ("GET /livez", None),
        ("POST /livez", None),
        ("GET /v2/health/ready", None),
        ("GET /", None),
        ("GET /page/page.js", None),
        ("GET /page/live", Right.USE),
        ("GET /page/models/m/1", Right.USE),
        ("GET /page/models/page.js", Right.USE),
        ("GET /%70age/page.js", Right.USE),
        ("GET /v1/models", Right.USE),
        ("POST /v1/models/m:predict", Right.USE),
        ("GET /monitoring/answers", Right.ADMIN),
        ("GET /Monitoring/Answers", Right.ADMIN),
        ("GET /monitoring/%61nswers", Right.ADMIN),
        ("OPTIONS /monitoring/answers", Right.ADMIN),
        ("GET /metrics", Right.USE),
        ("OPTIONS /metrics", Right.USE),
        ("OPTIONS /openapi.json", Right.USE),
        ("OPTIONS /V1/models/m:predict", None),
        ("OPTIONS /v2/models/m/infer", None),
        ("GET /v1/../livez", Right.USE),
        ("GET //livez", Right.USE),
        ("GET /livez\n", Right.USE),
        ("DELETE /anything", Right.USE),
    ],
)
def test_rights_by_url(request_line, right):
    method, _, path = request_line.partition(" ")
    assert right_for_url(method, path) is right


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
