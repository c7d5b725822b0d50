from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.serving.auth import policy
from timonel.serving.auth.url_rights import resource_of
from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.protocols.v2.app import MethodNotAllowedError, V2Action, V2Route, is_v2, match
from timonel.serving.status import Code, StatusError


@pytest.mark.parametrize(
    ("request_line", "route"),
    [
        ("GET /v2", V2Route(V2Action.SERVER)),
        ("GET /v2/", V2Route(V2Action.SERVER)),
        ("GET /v2/health/live", V2Route(V2Action.LIVE)),
        ("HEAD /v2/health/ready", V2Route(V2Action.READY)),
        ("GET /v2/models/m", V2Route(V2Action.MODEL, ModelSpec("m"))),
        ("GET /v2/models/m/ready", V2Route(V2Action.MODEL_READY, ModelSpec("m"))),
        ("POST /v2/models/m/infer", V2Route(V2Action.INFER, ModelSpec("m"))),
        ("POST /v2/models/m/versions/007/infer", V2Route(V2Action.INFER, ModelSpec("m", 7))),
        (
            "GET /v2/models/m/versions/stable",
            V2Route(V2Action.MODEL, ModelSpec("m", label="stable")),
        ),
        ("GET /v2/models/a%20b%2Fc:d", V2Route(V2Action.MODEL, ModelSpec("a b/c:d"))),
        ("GET /v2/models/%C3%A9", V2Route(V2Action.MODEL, ModelSpec("é"))),
    ],
)
def test_what_urls_ask_for(request_line, route):
    assert match(*request_line.split(" ")) == route


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models",
        "/v2/models/",
        "/v2/models//infer",
        "/v2/models/m/",
        "/v2/models/m/infer/",
        "/v2/models/m/versions",
        "/v2/models/m/versions/",
        "/v2/models/m/versions//infer",
        "/v2/models/m/explain",
        "/v2/models/m/versions/99999999999999999999",
        "/v2/health",
        "/v2/what",
        "/v2/repository/index",
        "/v2//",
    ],
)
def test_what_is_not_there(path):
    with pytest.raises(StatusError) as caught:
        match("GET", path)
    assert caught.value.code is Code.NOT_FOUND


@pytest.mark.parametrize(
    ("request_line", "allowed"),
    [
        ("GET /v2/models/m/infer", {"POST"}),
        ("POST /v2", {"GET"}),
        ("HEAD /v2/models/m", {"GET"}),
        ("POST /v2/health/live", {"GET", "HEAD"}),
    ],
)
def test_other_methods_are_told_which_there_are(request_line, allowed):
    with pytest.raises(MethodNotAllowedError) as caught:
        match(*request_line.split(" "))
    assert caught.value.allowed == allowed


def test_only_paths_below_v2_are_of_the_protocol():
    assert [path for path in ("/v2", "/v2/x", "/v2x", "/v1/v2", "/V2") if is_v2(path)] == [
        "/v2",
        "/v2/x",
    ]


_RIGHTS = {
    V2Action.LIVE: policy.Resource(policy.Scope.OPEN),
    V2Action.READY: policy.Resource(policy.Scope.OPEN),
    V2Action.SERVER: policy.Resource(policy.Scope.KNOWN),
}
_VERBS = {
    V2Action.MODEL: policy.Action.METADATA,
    V2Action.MODEL_READY: policy.Action.STATUS,
    V2Action.INFER: policy.Action.PREDICT,
}
_TEXT = st.text(st.sampled_from("am%2F3A/:?.x1Vé \n"), max_size=6)
_PARTS = st.sampled_from(
    ["/models/", "/versions/", "/ready", "/infer", "/index", "/health/live", "m", "1", "/", ""]
)


@given(
    st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS"]),
    st.lists(_PARTS | _TEXT, max_size=6).map("".join),
    st.sampled_from(["/v2", "/v2/models/m", "/v2/models/"]),
)
def test_rights_are_asked_for_what_the_skin_answers(method, rest, start):
    path = start + rest
    if not is_v2(path):
        return
    try:
        route = match(method, path)
    except (StatusError, MethodNotAllowedError):
        return
    found = resource_of(method, path, "")
    if route.spec is None:
        assert found == _RIGHTS[route.action]
    elif "/" in route.spec.name or "/" in (route.spec.label or ""):
        assert found.scope is policy.Scope.SERVER  # nobody but who may do everything
    else:
        assert found == policy.Resource(
            policy.Scope.MODELS, _VERBS[route.action], (route.spec.name,)
        )
