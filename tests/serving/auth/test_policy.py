"""Rights by name, and what URLs ask for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timonel.errors import SpecError
from timonel.serving.auth.policy import Principal, Resource, Scope, allows, grants_in
from timonel.serving.auth.url_rights import EVERYTHING_ELSE, resource_of
from timonel.serving.protocols.tfs_rest import http as routes
from timonel.serving.settings.auth import EVERYTHING, Action, parse_grant
from timonel.serving.status import StatusError

ALICE = Principal("alice", (parse_grant("predict,status:digits*"), parse_grant("metadata:cats")))


def test_grants_are_written_as_they_are_read():
    grant = parse_grant("status,predict:digits-*")
    assert str(grant) == "predict,status:digits-*"
    assert parse_grant(str(grant)) == grant
    assert str(EVERYTHING) == "predict,status,metadata,admin:*"


@pytest.mark.parametrize("text", ["", "predict", "predict:", "write:*", ":m", "predict,:m", "*:*"])
def test_what_is_no_grant(text):
    with pytest.raises(SpecError, match="expected a permission such as predict"):
        parse_grant(text)
    assert grants_in([text, "openid", "status:m"]) == (parse_grant("status:m"),)


@pytest.mark.parametrize(
    ("action", "model", "allowed"),
    [
        (Action.PREDICT, "digits", True),
        (Action.PREDICT, "digits/3", True),
        (Action.PREDICT, "Digits", False),
        (Action.PREDICT, "cats", False),
        (Action.METADATA, "cats", True),
        (Action.METADATA, "cats\n", False),
        (Action.ADMIN, "digits", False),
        (Action.PREDICT, "", False),
    ],
)
def test_rights_are_by_action_and_name(action, model, allowed):
    assert ALICE.may(action, model) is allowed
    assert allows(ALICE, Resource(Scope.MODELS, action, (model,))) is allowed


def test_every_model_that_is_named_counts():
    both = Resource(Scope.MODELS, Action.PREDICT, ("digits", "cats"))
    assert not allows(ALICE, both)
    assert allows(Principal("root", (EVERYTHING,)), both)


def test_what_names_no_model_needs_a_right_to_all():
    for resource in (
        Resource(Scope.MODELS, Action.PREDICT, ()),
        Resource(Scope.SERVER, Action.STATUS),
        EVERYTHING_ELSE,
    ):
        assert not allows(ALICE, resource)
        assert allows(Principal("root", (EVERYTHING,)), resource)
    assert not allows(Principal("x", (parse_grant("status:?*"),)), EVERYTHING_ELSE)
    assert not allows(Principal("root", (EVERYTHING,)), Resource(Scope.SERVER))


@pytest.mark.parametrize(
    ("request_line", "expected"),
    [
        ("GET /livez", Resource(Scope.OPEN)),
        ("POST /livez", Resource(Scope.OPEN)),
        ("GET /v2/health/ready", Resource(Scope.OPEN)),
        ("GET /v1/models", Resource(Scope.LISTING)),
        ("GET /v1/config", EVERYTHING_ELSE),
        ("GET /v2", Resource(Scope.KNOWN)),
        ("GET /metrics", Resource(Scope.SERVER, Action.STATUS)),
        ("POST /v2/models/m/infer", Resource(Scope.MODELS, Action.PREDICT, ("m",))),
        ("POST /v2/models/m/versions/1/infer", Resource(Scope.MODELS, Action.PREDICT, ("m",))),
        ("GET /v2/models/m", Resource(Scope.MODELS, Action.METADATA, ("m",))),
        ("GET /v2/models/m/ready", Resource(Scope.MODELS, Action.STATUS, ("m",))),
        ("POST /v2/models/a%2Fversions%2F1/infer", EVERYTHING_ELSE),
        ("POST /v2/models/m/ready", EVERYTHING_ELSE),
        ("GET /v2/models/m/versions/stable", Resource(Scope.MODELS, Action.METADATA, ("m",))),
        ("DELETE /v1/models/m", EVERYTHING_ELSE),
        ("GET /v1/../metrics", EVERYTHING_ELSE),
        ("GET //metrics", EVERYTHING_ELSE),
        ("POST /metrics", EVERYTHING_ELSE),
        ("OPTIONS /metrics", Resource(Scope.SERVER, Action.STATUS)),
        ("OPTIONS /monitoring/answers", EVERYTHING_ELSE),
        ("OPTIONS /openapi.json", Resource(Scope.VIEW)),
        ("OPTIONS /V1/models/m:predict", Resource(Scope.OPEN)),
        ("OPTIONS /v2/models/m/infer", Resource(Scope.OPEN)),
        ("POST /anything", EVERYTHING_ELSE),
    ],
)
def test_what_urls_are_about(request_line, expected):
    method, _, path = request_line.partition(" ")
    assert resource_of(method, path, "") == expected


_TEXT = st.text(st.sampled_from("am%2F3A/:?.x1Vé \n"), max_size=8)
_PARTS = st.sampled_from(
    ["/v1/models", "/V1/Models", "/v1/models/", "/versions/", "/labels/", "/metadata", ":predict",
     ":Classify", ":regress", "1", "m", "/"]
)  # fmt: skip


@settings(max_examples=60)
@given(
    st.sampled_from(["GET", "POST", "PUT", "OPTIONS"]),
    st.lists(_PARTS | _TEXT, max_size=6).map("".join).map("/v1/models".__add__),
    _TEXT,
)
def test_rights_are_asked_for_the_model_that_the_skin_takes(method, path, query):
    target = f"{path}?{query}" if query else path
    found = resource_of(method, path, query)
    try:
        route = routes.match(method, target)
    except StatusError:
        return
    if not route.spec.name:
        assert found.scope is Scope.LISTING
        return
    assert found.models == (route.spec.name,)
    verbs = {"status": Action.STATUS, "metadata": Action.METADATA}
    assert found.action is verbs.get(route.action.value, Action.PREDICT)
