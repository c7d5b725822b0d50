"""The client of the API server, against a server that gives prepared answers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.api_errors import ClusterUnavailableError, ConflictError, GoneError
from timonel.engines.kubernetes.kubeconfig import find_namespace
from timonel.engines.kubernetes.rights import ClusterRight
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.errors import (
    AlreadyExistsError,
    EngineError,
    InputError,
    NotFoundError,
    SpecError,
    TimonelError,
)

pytest.importorskip("kubernetes")

_JOB = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}}


class _Server(ThreadingHTTPServer):
    """Gives one answer after the other, and the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = [(200, {})]
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.headers: list[dict[str, str]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                return

            def answer(self) -> None:
                url = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                body = json.loads(content) if content else None
                server.requests.append((self.command, url.path, query, body))
                server.headers.append({name.lower(): value for name, value in self.headers.items()})
                status, body = server.answers[0]
                if len(server.answers) > 1:
                    server.answers.pop(0)
                content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                if status == 0:  # hangs up
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as started:
        thread = threading.Thread(target=started.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield started
        started.shutdown()
        thread.join()


def _config(path: Path, url: str, context: str = "lab", namespace: str | None = "team") -> Path:
    own = {"cluster": context, "user": context, **({"namespace": namespace} if namespace else {})}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "clusters": [{"name": context, "cluster": {"server": url}}],
        "users": [{"name": context, "user": {"token": "t0ken"}}],
        "contexts": [{"name": context, "context": own}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def pauses() -> list[float]:
    """Waits between attempts, which take no time."""
    return []


@pytest.fixture
def api(server: _Server, tmp_path: Path, pauses: list[float]) -> Api:
    return _impatient(_connect(_config(tmp_path / "config", server.url)), pauses)


def _impatient(api: Api, pauses: list[float]) -> Api:
    return Api(api.namespace, api._client, sleep=pauses.append)


def _connect(*paths: Path, **settings: Any) -> Api:
    environ = {"KUBECONFIG": ":".join(map(str, paths))}
    return Api.connect(ClusterSettings(**settings), environ)


def _status(reason: str, message: str, **details: Any) -> dict[str, Any]:
    return {"kind": "Status", "reason": reason, "message": message, "details": details}


def test_objects_are_created(api: Api, server: _Server) -> None:
    server.answers = [(201, {**_JOB, "status": {}})]
    assert api.create(_JOB) == {**_JOB, "status": {}}
    api.create(_JOB, dry_run=True)
    method, path, query, body = server.requests[0]
    assert (method, path, body) == ("POST", "/apis/batch/v1/namespaces/team/jobs", _JOB)
    assert query == {"fieldValidation": "Strict", "fieldManager": "timonel"}
    assert server.requests[1][2]["dryRun"] == "All"
    assert server.headers[0]["authorization"] == "Bearer t0ken"
    assert server.headers[0]["user-agent"].startswith("timonel/")


def test_objects_are_read(api: Api, server: _Server) -> None:
    server.answers = [(200, {"kind": "Pod"}), (200, {"items": [{"kind": "Pod"}]})]
    assert api.get("Pod", "train-0") == {"kind": "Pod"}
    assert api.list("Pod", {"b": "2", "a": "1"}) == [{"kind": "Pod"}]
    assert server.requests == [
        ("GET", "/api/v1/namespaces/team/pods/train-0", {}, None),
        ("GET", "/api/v1/namespaces/team/pods", {"labelSelector": "a=1,b=2"}, None),
    ]


def test_objects_are_changed_and_deleted(api: Api, server: _Server) -> None:
    patch = {"metadata": {"annotations": {"timonel.dev/stop": None}}}
    api.patch("Job", "train", patch)
    api.delete("Pod", "train-0", grace_s=0)
    api.delete("Job", "train", uid="7")
    (_, path, _, body), (_, _, _, forced), (method, _, _, options) = server.requests
    assert (path, body) == ("/apis/batch/v1/namespaces/team/jobs/train", patch)
    assert server.headers[0]["content-type"] == "application/merge-patch+json"
    # Options beside a body would be ignored.
    given = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    assert forced == {**given, "gracePeriodSeconds": 0}
    assert (method, options) == ("DELETE", {**given, "preconditions": {"uid": "7"}})


def test_the_version_and_rights(api: Api, server: _Server) -> None:
    server.answers = [
        (200, {"gitVersion": "v1.37.0"}),
        (201, {"status": {"allowed": True}}),
        (201, {"status": {"allowed": False}}),
    ]
    assert api.version() == "v1.37.0"
    assert api.allows(ClusterRight("batch", "jobs", "create"))
    assert not api.allows(ClusterRight("", "pods/status", "patch"))
    paths = [path for _, path, _, _ in server.requests]
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert paths == ["/version", reviews, reviews]
    assert server.requests[2][3]["spec"]["resourceAttributes"] == {
        "namespace": "team",
        "group": "",
        "resource": "pods",
        "subresource": "status",
        "verb": "patch",
    }


_DENIED = (
    'jobs.batch is forbidden: User "ann" cannot create resource "jobs" in API group "batch" in '
    'the namespace "team"'
)
_QUOTA = (
    'jobs.batch "train" is forbidden: exceeded quota: compute, requested: count/jobs.batch=1, '
    "used: count/jobs.batch=5, limited: count/jobs.batch=5"
)
_ESCALATION = (
    'roles.rbac.authorization.k8s.io "train" is forbidden: user "ann" is attempting to grant RBAC '
    'permissions not currently held:\n{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}'
)
_WEBHOOK = 'admission webhook "policy.example" denied the request: no team label'
_REFUSALS: dict[str, tuple[int, Any, type[TimonelError], str]] = {
    "expired": (
        401,
        _status("Unauthorized", "Unauthorized"),
        EngineError,
        "does not accept the credentials, which may be missing or expired: Unauthorized: log in",
    ),
    "denied": (
        403,
        _status("Forbidden", _DENIED),
        EngineError,
        (
            "you are not allowed to create jobs in namespace 'team': ask the cluster's "
            "administrator, and check with 'kubectl auth can-i create jobs -n team'"
        ),
    ),
    "quota": (
        403,
        _status("Forbidden", _QUOTA),
        EngineError,
        "a quota does not allow Job 'train' in namespace 'team': compute, requested: count",
    ),
    "escalation": (
        403,
        _status("Forbidden", _ESCALATION),
        EngineError,
        "you can only give a job's coordinator rights that you have yourself",
    ),
    "webhook": (
        403,
        _status("Forbidden", _WEBHOOK),
        EngineError,
        f"the cluster refused to create Job 'train' in namespace 'team': {_WEBHOOK}",
    ),
    "no namespace": (
        404,
        _status("NotFound", 'namespaces "team" not found', name="team", kind="namespaces"),
        NotFoundError,
        "the cluster has no namespace 'team': create it with 'kubectl create namespace team'",
    ),
    "another server": (
        404,
        "<html>nothing here</html>",
        EngineError,
        "cannot create jobs: <html>nothing here</html>: check that it is a Kubernetes cluster",
    ),
    "taken": (
        409,
        _status("AlreadyExists", 'jobs.batch "train" already exists'),
        AlreadyExistsError,
        "Job 'train' in namespace 'team' already exists: choose another name",
    ),
    "changed": (
        409,
        _status("Conflict", "the object has been modified"),
        ConflictError,
        "the object has been modified",
    ),
    "invalid": (
        422,
        _status("Invalid", 'Job.batch "train" is invalid: spec.completions:\n Required value'),
        SpecError,
        "cannot create Job 'train' in namespace 'team': Job.batch \"train\" is invalid: spec.comp",
    ),
    "unknown field": (
        400,
        _status("BadRequest", 'strict decoding error: unknown field "spec.x"'),
        SpecError,
        'strict decoding error: unknown field "spec.x"',
    ),
    "server error": (
        500,
        _status("InternalError", "etcdserver: request timed out"),
        ClusterUnavailableError,
        "cannot answer now: etcdserver: request timed out: repeat the command later",
    ),
    "proxy": (
        503,
        "",
        ClusterUnavailableError,
        "cannot answer now: HTTP status 503",
    ),
    "unexpected": (302, "", EngineError, "refused to create Job 'train'"),
}


@pytest.mark.parametrize("case", _REFUSALS)
def test_each_refusal_is_one_clear_line(api: Api, server: _Server, case: str) -> None:
    status, body, kind, text = _REFUSALS[case]
    server.answers = [(status, body)]
    with pytest.raises(kind) as caught:
        api.create(_JOB)
    assert type(caught.value) is kind
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(server.requests) == 1


def test_objects_that_do_not_exist(api: Api, server: _Server) -> None:
    server.answers = [(404, _status("NotFound", 'jobs.batch "train" not found'))]
    with pytest.raises(NotFoundError, match=r"^no Job 'train' in namespace 'team'$"):
        api.get("Job", "train")
    with pytest.raises(NotFoundError):
        api.delete("Job", "train")


def test_the_log_of_pods_needs_a_right_of_its_own(api: Api, server: _Server) -> None:
    text = 'User "ann" cannot get resource "pods/log" in API group "" in the namespace "team"'
    server.answers = [(403, _status("Forbidden", text))]
    with pytest.raises(EngineError, match="can-i get pods --subresource=log -n team"):
        list(api.log_lines("train-0", "main"))


def test_changes_are_watched(api: Api, server: _Server) -> None:
    server.answers = [(200, {"items": [{"kind": "Pod"}], "metadata": {"resourceVersion": "7"}})]
    assert api.list_at("Pod", {"a": "1"}, {"reason": "Killing"}) == ([{"kind": "Pod"}], "7")
    assert server.requests[-1][2] == {"labelSelector": "a=1", "fieldSelector": "reason=Killing"}
    gone = _status("Expired", "too old resource version", code=410) | {"code": 410}
    events = [
        {"type": "ADDED", "object": {"kind": "Pod"}},
        {"type": "BOOKMARK", "object": {"metadata": {}}},
        {"type": "ERROR", "object": gone},
    ]
    server.answers = [(200, "".join(f"{json.dumps(event)}\n" for event in events))]
    changes = api.watch("Pod", {"a": "1"}, "7")
    assert [next(changes), next(changes)] == [
        ("ADDED", {"kind": "Pod"}),
        ("BOOKMARK", {"metadata": {}}),
    ]
    with pytest.raises(GoneError, match="too old"):
        next(changes)
    _, path, query, _ = server.requests[-1]
    assert path == "/api/v1/namespaces/team/pods"
    assert (query["watch"], query["resourceVersion"], query["timeoutSeconds"]) == (
        "true",
        "7",
        "30",
    )
    server.answers = [(410, gone)]
    with pytest.raises(GoneError):
        next(api.watch("Pod", {}, "7"))
    server.answers = [(0, "")]
    with pytest.raises(ClusterUnavailableError):
        next(api.watch("Pod", {}, "7"))


def test_lines_of_a_container(api: Api, server: _Server) -> None:
    server.answers = [(200, "2026-01-01T00:00:00Z a\n2026-01-01T00:00:01Z b")]
    lines = api.log_lines("web-1", "replica", since="2026-01-01T00:00:00Z", follow=True)
    assert list(lines) == ["2026-01-01T00:00:00Z a", "2026-01-01T00:00:01Z b"]
    _, path, query, _ = server.requests[-1]
    assert path == "/api/v1/namespaces/team/pods/web-1/log"
    assert query == {
        "container": "replica",
        "timestamps": "true",
        "sinceTime": "2026-01-01T00:00:00Z",
        "follow": "true",
    }
    server.answers = [(400, _status("BadRequest", "container is waiting to start"))]
    with pytest.raises(SpecError, match="waiting to start"):
        next(api.log_lines("web-1", "replica"))


def test_objects_are_replaced_and_their_subresources_patched(api: Api, server: _Server) -> None:
    server.answers = [(200, _JOB)]
    assert api.replace(_JOB) == _JOB
    method, path, query, body = server.requests[0]
    assert (method, path, body) == ("PUT", "/apis/batch/v1/namespaces/team/jobs/train", _JOB)
    assert query["fieldValidation"] == "Strict"
    api.patch("Deployment", "web", {"spec": {"replicas": 2}}, subresource="scale")
    assert server.requests[1][1] == "/apis/apps/v1/namespaces/team/deployments/web/scale"


@pytest.mark.parametrize("status", [0, 429, 500, 503])
def test_reads_are_repeated(api: Api, server: _Server, status: int, pauses: list[float]) -> None:
    server.answers = [(status, ""), (status, ""), (200, {"kind": "Job"})]
    assert api.get("Job", "train") == {"kind": "Job"}
    assert pauses == [0.5, 1.0]
    server.answers = [(status, "")]
    server.requests.clear()
    with pytest.raises(ClusterUnavailableError):
        api.list("Job", {})
    assert len(server.requests) == 4


def test_writes_are_repeated_only_when_the_server_asks_for_it(api: Api, server: _Server) -> None:
    server.answers = [(429, ""), (201, _JOB)]
    assert api.create(_JOB) == _JOB
    for status in (0, 503):
        server.answers = [(status, "")]
        server.requests.clear()
        with pytest.raises(ClusterUnavailableError):
            api.patch("Job", "train", {"spec": {}})
        assert len(server.requests) == 1


def test_a_server_that_is_away(tmp_path: Path, pauses: list[float]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    api = _connect(_config(tmp_path / "config", f"http://127.0.0.1:{port}"))
    api = _impatient(api, pauses)
    with pytest.raises(
        ClusterUnavailableError, match=rf"127.0.0.1:{port} does not answer.*refused"
    ) as e:
        api.get("Job", "train")
    assert "\n" not in str(e.value)
    assert len(pauses) == 3


def test_a_server_that_is_not_the_clusters(server: _Server, tmp_path: Path) -> None:
    api = _connect(_config(tmp_path / "config", server.url.replace("http:", "https:")))
    with pytest.raises(ClusterUnavailableError, match="does not answer"):
        api.create(_JOB)


def test_the_context_and_its_namespace(server: _Server, tmp_path: Path) -> None:
    lab = _config(tmp_path / "lab", server.url)
    other = _config(tmp_path / "other", server.url, "other", namespace=None)
    # As in kubectl, the first file decides; the client's own choice is the last one.
    assert _connect(lab, other).namespace == "team"
    assert _connect(other, lab).namespace == "default"
    assert _connect(lab, other, context="other").namespace == "default"
    assert _connect(lab, tmp_path / "missing", namespace="mine").namespace == "mine"


def test_the_namespace_is_found_without_credentials(tmp_path: Path) -> None:
    lab = _config(tmp_path / "lab", "http://127.0.0.1:1")
    login = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(tmp_path / "none")}
    content = yaml.safe_load(lab.read_text())
    content["users"][0]["user"] = {"exec": {**login, "interactiveMode": "Never"}}
    lab.write_text(yaml.safe_dump(content))
    environ = {"KUBECONFIG": str(lab)}
    assert find_namespace(None, environ) == "team"
    with pytest.raises(NotFoundError, match="no context 'prod'"):
        find_namespace("prod", environ)
    assert find_namespace(None, {"KUBECONFIG": str(tmp_path / "missing")}) is None


def test_no_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no kubeconfig at .*missing.*set KUBECONFIG"):
        _connect(tmp_path / "missing")


def test_an_unknown_context(tmp_path: Path) -> None:
    path = _config(tmp_path / "config", "http://127.0.0.1:1")
    with pytest.raises(NotFoundError, match=r"no context 'labs': did you mean 'lab'\?"):
        _connect(path, context="labs")
    with pytest.raises(NotFoundError, match=r"no context 'prod': use one of lab"):
        _connect(path, context="prod")


def test_no_current_context(tmp_path: Path) -> None:
    path = _config(tmp_path / "config", "http://127.0.0.1:1")
    path.write_text(path.read_text().replace("current-context: lab", "current-context: ''"))
    with pytest.raises(NotFoundError, match="no current context: choose one"):
        _connect(path)
    assert _connect(path, context="lab").namespace == "team"


@pytest.mark.parametrize(
    "content", ["", "a: [", "contexts: 3", "current-context: a\ncontexts: [b]"]
)
def test_a_kubeconfig_that_cannot_be_used(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(InputError, match="kubeconfig") as caught:
        _connect(path)
    assert "\n" not in str(caught.value)


def test_inside_of_a_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: _Server) -> None:
    from kubernetes.config import incluster_config

    for name in ("token", "ca.crt", "namespace"):
        (tmp_path / name).write_text(f"pods-{name}\n")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(
        "timonel.engines.kubernetes.kubeconfig._POD_NAMESPACE", tmp_path / "namespace"
    )
    for name, value in (("HOST", "127.0.0.1"), ("PORT", "1")):
        monkeypatch.setenv(f"KUBERNETES_SERVICE_{name}", value)
    environ = {"KUBECONFIG": str(tmp_path / "none"), "KUBERNETES_SERVICE_HOST": "127.0.0.1"}
    assert Api.connect(ClusterSettings(), environ).namespace == "pods-namespace"
    assert find_namespace(None, environ) == "pods-namespace"
    # A kubeconfig comes first.
    environ["KUBECONFIG"] = str(_config(tmp_path / "config", server.url))
    assert Api.connect(ClusterSettings(), environ).namespace == "team"
