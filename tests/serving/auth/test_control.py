"""The right that a call needs, and the secret of a request."""

from __future__ import annotations

import time

import pytest

from timonel.serving.auth.control import AccessControl, right_for_call, secret_of
from timonel.serving.auth.keys import change_entries, new_key
from timonel.serving.settings.auth import AccessSettings, Right
from timonel.serving.status import Code, StatusError


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


def test_the_key_of_the_starting_process_may_use_models_but_not_replace_them(tmp_path):
    key, entry = new_key("operator", right=Right.ADMIN, now=time.time())
    change_entries(tmp_path / "keys.json", lambda _: [entry])
    settings = AccessSettings(api_keys=str(tmp_path / "keys.json"), owner_key="own")
    control = AccessControl(settings)
    for secret in ("own", key):
        control.admit(Right.USE, secret)
    control.admit(Right.ADMIN, key)
    with pytest.raises(StatusError) as caught:
        control.admit(Right.ADMIN, "own")
    assert caught.value.code is Code.PERMISSION_DENIED
