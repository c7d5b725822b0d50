from __future__ import annotations

import pytest

from timonel.serving.rest.routes import Action, Route, match
from timonel.serving.servables import ModelSpec
from timonel.serving.status import StatusError


@pytest.mark.parametrize(
    ("method", "target", "action", "spec"),
    [
        ("POST", "/v1/models/m:predict", Action.PREDICT, ModelSpec("m")),
        ("POST", "/V1/Models/m/Versions/12:predict", Action.PREDICT, ModelSpec("m", 12)),
        ("POST", "/v1/models/m/labels/new:predict", Action.PREDICT, ModelSpec("m", None, "new")),
        ("GET", "/v1/models/m", Action.STATUS, ModelSpec("m")),
        ("GET", "/v1/models/m/versions/0007", Action.STATUS, ModelSpec("m", 7)),
        ("GET", "/v1/models/m/labels/x", Action.STATUS, ModelSpec("m", None, "x")),
        ("GET", "/v1/models/m/metadata", Action.METADATA, ModelSpec("m")),
        ("GET", "/v1/models/m/versions/7/metadata", Action.METADATA, ModelSpec("m", 7)),
        ("GET", "/v1/models/a%2Fb%3Ac+d", Action.STATUS, ModelSpec("a/b:c+d")),
        ("GET", "/v1/models/m?x=1", Action.STATUS, ModelSpec("m?x=1")),
        ("GET", "/v1/models", Action.LIST, ModelSpec("")),
    ],
)
def test_known_requests(method, target, action, spec):
    assert match(method, target) == Route(action, spec)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v1/models/m:predict"),
        ("POST", "/v1/models/m"),
        ("POST", "/v1/models/m:Predict"),
        ("POST", "/v1/models/m:predict?x=1"),
        ("POST", "/v1/models/m/version/1:predict"),
        ("POST", "/v1/models/m/versions/1/labels/x:predict"),
        ("POST", "/v1/models/m/versions/one:predict"),
        ("PUT", "/v1/models/m:predict"),
        ("GET", "/v1/"),
        ("GET", "/v1/models/"),
    ],
)
def test_anything_else_is_malformed(method, target):
    with pytest.raises(StatusError) as caught:
        match(method, target)
    assert caught.value.message == f"Malformed request: {method} {target}"


def test_a_version_beyond_64_bits_is_refused():
    with pytest.raises(StatusError, match=r"Failed to convert version: 9{20} to numeric\."):
        match("GET", f"/v1/models/m/versions/{'9' * 20}")
