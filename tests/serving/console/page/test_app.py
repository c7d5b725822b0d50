"""The page's addresses, asked without a socket."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from timonel.serving.asgi import Router, at
from timonel.serving.batching.scheduling import scheduled
from timonel.serving.console.page.app import Page, page_files
from timonel.serving.manager.catalogue import Catalogue, Servable
from timonel.serving.manager.plan import VersionState, VersionStatus
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.settings.auth import Right
from timonel.serving.signature import Signature, TensorSpec
from timonel.serving.status import Code, StatusError
from timonel.serving.telemetry.monitor import Monitor


class Model(LoadedModel):
    def __init__(self, inputs, shape=(-1, 2)):
        self.away = None
        out = {"scores": TensorSpec("y:0", "DT_FLOAT", shape)}
        self.signatures = {
            "serving_default": Signature("serving_default", inputs, out),
            "init": Signature("init", {}, {}),
        }

    outage = property(lambda self: self.away)
    restarts = property(lambda self: 2 if self.away else 0)

    def run(self, signature, inputs, outputs=None):
        raise NotImplementedError

    def close(self):
        pass


IMAGE = {"image_bytes": TensorSpec("x:0", "DT_STRING", (-1,))}
LARGE = {"x": TensorSpec("x:0", "DT_FLOAT", (-1, 100, 100))}
HUGE = {"x": TensorSpec("x:0", "DT_FLOAT", (-1, 4096, 4096))}


class Rig:
    """Two models behind the page."""

    def __init__(self):
        catalogue = Catalogue({"cats": {"best": 3}, "a/b": {}, "none": {}})
        self.model = Model(IMAGE)
        bad = VersionStatus(4, VersionState.END, Code.DATA_LOSS, "damaged <b>")
        catalogue.publish(
            "cats",
            {3: Servable("cats", 3, scheduled(self.model), ("cat", "dog"))},
            (VersionStatus(3, VersionState.AVAILABLE), bad),
        )
        catalogue.publish(
            "a/b",
            {
                1: Servable("a/b", 1, scheduled(Model(LARGE))),
                2: Servable("a/b", 2, scheduled(Model(HUGE))),
            },
            (VersionStatus(1, VersionState.AVAILABLE), VersionStatus(2, VersionState.AVAILABLE)),
        )
        self.monitor = Monitor()
        self.now = 0.0
        page = Page(catalogue, self.monitor, clock=lambda: self.now)
        self.app = Router(page.routes())

    def ask(self, target, method="GET", headers=()):
        return asyncio.run(self.asked(target, method, headers))

    async def asked(self, target, method="GET", headers=()):
        path, _, query = target.partition("?")
        sent = []

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": list(headers),
        }
        await self.app(scope, None, send)
        return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]

    def json(self, target, **how):
        status, headers, body = self.ask(target, **how)
        assert headers[b"content-type"] == b"application/json"
        assert headers[b"x-content-type-options"] == b"nosniff"
        return status, json.loads(body)


@pytest.fixture
def rig():
    return Rig


def test_the_page_loads_nothing_from_elsewhere_and_runs_no_inline_code(rig):
    status, headers, body = rig().ask("/")
    assert (status, headers[b"content-type"]) == (200, b"text/html; charset=utf-8")
    policy = headers[b"content-security-policy"].decode()
    assert policy.startswith("default-src 'none'; script-src 'self'; ")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    files = page_files()
    for path, file in files.items():
        text = file.content.decode()
        assert not re.search(
            r"(?:src|href)=\"(?:https?:)?//|@import|url\((?!icon\.svg\))|\beval\b|innerHTML", text
        ), path
    html = body.decode()
    assert not re.search(r"<script(?![^>]*src=)|\sstyle=|\son\w+=", html)
    asked = set(re.findall(r'(?:href|src)="(page/[^"]+)"', html))
    scripts = [file.content.decode() for path, file in files.items() if path.endswith(".js")]
    asked |= {
        f"page/{name}" for text in scripts for name in re.findall(r'from "\./(\w+\.js)"', text)
    }
    assert {f"/{path}" for path in asked} == files.keys() - {"/"}


def test_files_are_not_sent_twice(rig):
    _, headers, _ = rig().ask("/page/page.js")
    assert headers[b"content-type"] == b"text/javascript; charset=utf-8"
    again = rig().ask("/page/page.js", headers=[(b"if-none-match", headers[b"etag"])])
    assert (again[0], again[2]) == (304, b"")
    status, headers, body = rig().ask("/", method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers[b"content-length"]) > 1000


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/"),
        ("GET", "/page"),
        ("GET", "/page/"),
        ("GET", "/page/../page.js"),
        ("GET", "/page/models/cats"),
        ("GET", "/page/models/cats/x"),
        ("GET", "/page/models/cats/3/4"),
        ("GET", "/v1/models"),
        ("DELETE", "/page/live"),
    ],
)
def test_everything_else_is_somebody_elses(rig, method, target):
    assert rig().ask(target, method=method)[0] == 404


def test_live_tells_states_errors_and_what_is_away(rig):
    asked = rig()
    status, live = asked.json("/page/live")
    assert status == 200
    assert live["server"]["unready"] == ["none"]
    assert [model["name"] for model in live["models"]] == ["cats", "a/b", "none"]
    cats = live["models"][0]
    assert cats["now"] == {"rate": 0.0, "errors": 0.0, "p99": None}
    assert cats["versions"] == [
        {
            "version": 3,
            "state": "AVAILABLE",
            "labels": ["best"],
            "restarts": 0,
            "away": False,
            "message": "",
        },
        {
            "version": 4,
            "state": "END",
            "labels": [],
            "restarts": 0,
            "away": False,
            "message": "damaged <b>",
        },
    ]
    asked.model.away = StatusError(Code.UNAVAILABLE, "The process of this model was killed.")
    (version, _) = asked.json("/page/live")[1]["models"][0]["versions"]
    assert (version["away"], version["restarts"]) == (True, 2)
    assert version["message"] == "The process of this model was killed."


def test_points_are_taken_while_somebody_looks(rig):
    asked = rig()
    assert asked.json("/page/live")[1]["history"] == {"at": []}
    observation = asked.monitor.begin("REST", "predict", "cats")
    observation.version = 3
    asked.monitor.end(observation)
    asked.now += 1
    history = asked.json("/page/live?model=cats")[1]["history"]
    assert (len(history["at"]), history["rate"]) == (1, [1.0])
    asked.now += 0.1
    assert asked.json("/page/live?model=cats")[1]["history"] == history


def test_the_form_has_an_example_for_each_signature(rig):
    asked = rig()
    status, form = asked.json("/page/models/cats/3")
    assert (status, form["classes"]) == (200, ["cat", "dog"])
    (signature,) = form["signatures"]
    assert (signature["name"], signature["image"]) == ("serving_default", "image_bytes")
    assert "b64" in signature["verbs"]["predict"]["rows"]["instances"][0]
    _, form = asked.json("/page/models/a%2Fb/2")
    fill = {"$fill": 0.5, "$shape": [4096, 4096]}
    assert form["signatures"][0]["verbs"]["predict"]["rows"] == {"instances": [fill]}
    assert asked.json("/page/models/nope/1")[0] == 404


def test_a_version_of_thousands_of_digits_is_no_page(rig):
    assert rig().ask(f"/page/models/m/{'7' * 5001}")[0] == 404


def test_the_files_need_no_right_and_the_data_does():
    routes = Page(Catalogue(), Monitor()).routes()
    rights = {route.pattern.pattern: route.right for route in routes}
    for path in page_files():
        assert rights[at(re.escape(path)).pattern] is None
    assert list(rights.values()).count(Right.USE) == len(rights) - len(page_files()) == 2
