from __future__ import annotations

import pytest

from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.protocols.tfs_rest.http import (
    RestAction,
    Route,
    VersionTooLargeError,
    is_rest,
    match,
)
from timonel.serving.status import StatusError


@pytest.mark.parametrize(
    ("method", "target", "action", "spec"),
    [
        ("POST", "/v1/models/m:predict", RestAction.PREDICT, ModelSpec("m")),
        ("POST", "/V1/Models/m/Versions/12:predict", RestAction.PREDICT, ModelSpec("m", 12)),
        (
            "POST",
            "/v1/models/m/labels/new:predict",
            RestAction.PREDICT,
            ModelSpec("m", None, "new"),
        ),
        ("POST", "/v1/models/m:classify", RestAction.CLASSIFY, ModelSpec("m")),
        ("POST", "/v1/models/m/versions/3:regress", RestAction.REGRESS, ModelSpec("m", 3)),
        ("POST", "/v1/models/a%3Ab:predict", RestAction.PREDICT, ModelSpec("a:b")),
        (
            "POST",
            "/v1/models/m/labels/a%2Fb:predict",
            RestAction.PREDICT,
            ModelSpec("m", None, "a/b"),
        ),
        ("GET", "/v1/models/metadata", RestAction.STATUS, ModelSpec("metadata")),
        ("GET", "/v1/models/m/labels/x/metadata", RestAction.METADATA, ModelSpec("m", None, "x")),
        ("GET", "/v1/models/m%FF", RestAction.STATUS, ModelSpec("m\ufffd")),
        ("GET", "/v1/models/m%zz", RestAction.STATUS, ModelSpec("m%zz")),
        ("GET", "/v1/models/m", RestAction.STATUS, ModelSpec("m")),
        ("GET", "/v1/models/m/versions/0007", RestAction.STATUS, ModelSpec("m", 7)),
        ("GET", "/v1/models/m/labels/x", RestAction.STATUS, ModelSpec("m", None, "x")),
        ("GET", "/v1/models/m/metadata", RestAction.METADATA, ModelSpec("m")),
        ("GET", "/v1/models/m/versions/7/metadata", RestAction.METADATA, ModelSpec("m", 7)),
        ("GET", "/v1/models/a%2Fb%3Ac+d", RestAction.STATUS, ModelSpec("a/b:c+d")),
        ("GET", "/v1/models/m?x=1", RestAction.STATUS, ModelSpec("m?x=1")),
        ("GET", "/v1/models", RestAction.LIST, ModelSpec("")),
        ("GET", "/V1/Config", RestAction.CONFIG, ModelSpec("")),
        ("GET", "/v1/config?format=json", RestAction.CONFIG, ModelSpec("")),
    ],
)
def test_known_requests(method, target, action, spec):
    assert match(method, target) == Route(action, spec)


def test_the_configuration_is_a_text_if_asked():
    assert match("GET", "/v1/config?format=text") == Route(RestAction.CONFIG, ModelSpec(""), True)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/v1/config"),
        ("GET", "/v1/config/"),
        ("GET", "/v1/config?format=yaml"),
        ("GET", "/v1/models/m:predict"),
        ("POST", "/v1/models/m"),
        ("POST", "/v1/models/m:Predict"),
        ("POST", "/v1/models/m:predict?x=1"),
        ("POST", "/v1/models/m/version/1:predict"),
        ("POST", "/v1/models/m/versions/1/labels/x:predict"),
        ("POST", "/v1/models/m/versions/one:predict"),
        ("POST", "/v1/models/m/versions/\u0661:predict"),
        ("PO\u017fT", "/v1/models/m:predict"),
        ("POST", "/v1/model\u017f/m:predict"),
        ("PUT", "/v1/models/m:predict"),
        ("HEAD", "/v1/models/m"),
        ("OPTIONS", "/v1/models/m"),
        ("GET", "/v1/"),
        ("GET", "/v1/models/"),
    ],
)
def test_anything_else_is_malformed(method, target):
    with pytest.raises(StatusError) as caught:
        match(method, target)
    assert caught.value.message == f"Malformed request: {method} {target}"


@pytest.mark.parametrize("target", ["/v1/models/versions/3", "/v1/models/labels/x/metadata"])
def test_a_model_must_be_named(target):
    with pytest.raises(StatusError, match="Missing model name in request"):
        match("GET", target)


@pytest.mark.parametrize("digits", ["9" * 20, str(2**63), "1" * 5000])
def test_a_version_beyond_64_bits_is_refused(digits):
    with pytest.raises(VersionTooLargeError, match=rf"^Failed to convert version: {digits} to"):
        match("GET", f"/v1/models/m/versions/{digits}")
    largest = match("GET", f"/v1/models/m/versions/000{2**63 - 1}")
    assert largest.spec.version == 2**63 - 1


@pytest.mark.parametrize(
    ("target", "answer"),
    [("/v1/", True), ("/V1/x", True), ("/v1", False), ("/", False), ("/%76%31/models", False)],
)
def test_what_belongs_to_the_api(target, answer):
    assert is_rest(target) is answer


def test_a_long_target_is_read_as_a_short_one_is():
    name = "m" * 1000
    assert match("POST", f"/v1/models/{name}:predict") == Route(RestAction.PREDICT, ModelSpec(name))
    with pytest.raises(StatusError, match="Malformed"):
        match("GET", f"/v1/models/{name}:predict")


def test_what_is_no_request_is_not_remembered_as_one():
    for _ in range(2):
        with pytest.raises(StatusError, match="Malformed"):
            match("GET", "/v1/models/again:predict")
        assert match("POST", "/v1/models/again:predict").spec == ModelSpec("again")
