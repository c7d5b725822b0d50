"""Addresses of the pages of endpoints, asked without a socket; the sampler."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from timonel.endpoints.control.console.app import Console
from timonel.endpoints.control.scrape import ReplicaLoad
from timonel.endpoints.folder import EndpointFolder, EndpointStatus
from timonel.endpoints.rollouts.counts import Counts
from timonel.endpoints.rollouts.documents import Point, Rollout, RolloutFolder, RolloutState
from timonel.endpoints.spec import EndpointSpec
from timonel.storage.document_store import FolderDocuments

NOW = 1_000_000.0


def root_of(folder: EndpointFolder) -> Path:
    return Path(folder.documents.place(folder.name))


class Rig:
    """Pages of a folder with endpoints."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = NOW
        self.console = Console(
            FolderDocuments(root),
            lambda name: root / name / "history.jsonl",
            dict,
            clock=lambda: self.now,
        )

    def add(self, name: str) -> EndpointFolder:
        folder = EndpointFolder(FolderDocuments(self.root), name)
        spec = {"name": name, "model": "digits", "port": 8501, "traffic": {"percent": {1: 100}}}
        folder.add(EndpointSpec.model_validate(spec), "deploy", after=0)
        self.publish(folder, routed=1)
        return folder

    def publish(self, folder: EndpointFolder, **fields: Any) -> None:
        folder.write_status(EndpointStatus.model_validate({"at": self.now, **fields}))

    def take(self, loads: Mapping[str, Mapping[int, ReplicaLoad | None]]) -> None:
        self.console.take(self.now, loads)
        self.now += 5

    def ask(
        self, target: str, method: str = "GET", host: str = "127.0.0.1:80", **headers: str
    ) -> tuple[int, dict[str, str], str]:
        path, _, query = target.partition("?")
        sent: list[Any] = []
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [
                (name.replace("_", "-").encode(), value.encode())
                for name, value in {"host": host, **headers}.items()
            ],
        }

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            raise NotImplementedError

        asyncio.run(self.console(scope, receive, send))
        start, end = sent
        found = {name.decode(): value.decode() for name, value in start["headers"]}
        return start["status"], found, end["body"].decode()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_pages_and_their_files(rig: Rig) -> None:
    rig.add("digits")
    for path, words in (("/", "digits"), ("/endpoints/digits", "Latest revision")):
        status, headers, body = rig.ask(path)
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert headers["cache-control"] == "no-store"
        assert words in body
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; ")
        assert "unsafe" not in policy
        assert not re.search(r"<script(?![^>]*src=)|\sstyle=|\son\w+=|(?:src|href)=\"//", body)
        files = set(re.findall(r'(?:href|src)="(/page/[^"]+)"', body))
        assert files == {
            "/page/page.css", "/page/endpoints.css", "/page/endpoints.js", "/page/icon.svg"
        }  # fmt: skip
    asked = {*files, "/page/charts.js", "/page/dom.js"}
    for path in asked:
        status, headers, body = rig.ask(path)
        assert status == 200
        assert set(re.findall(r'from "\./(\w+\.js)"', body)) <= {Path(p).name for p in asked}
        assert rig.ask(path, if_none_match=headers["etag"])[0] == 304


def test_head_has_the_headers_only(rig: Rig) -> None:
    status, headers, body = rig.ask("/", "HEAD")
    assert (status, body) == (200, "")
    assert headers["content-length"] == str(len(rig.ask("/")[2].encode()))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example"])
@pytest.mark.parametrize("path", ["/", "/endpoints/digits", "/endpoints/digits/history", "/livez"])
def test_other_host_names_are_refused(rig: Rig, host: str, path: str) -> None:
    rig.add("digits")
    status, _, body = rig.ask(path, host=host)
    assert status == 403
    assert "Use localhost" in body
    assert "digits" not in body


@pytest.mark.parametrize("host", ["localhost:80", "127.0.0.1", "[::1]:80", "a.localhost"])
def test_loopback_names_are_accepted(rig: Rig, host: str) -> None:
    assert rig.ask("/", host=host)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(rig: Rig, method: str) -> None:
    status, headers, _ = rig.ask("/", method)
    assert (status, headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path",
    ["/x", "/endpoints/", "/endpoints/other", "/endpoints/..", "/endpoints/../digits",
     "/endpoints/digits/rollouts/1", "/endpoints/digits/revisions", "/endpoints/digits\n",
     "/endpoints/digits/rollouts/../1", "/page/shell.html"],
)  # fmt: skip
def test_unknown_pages(rig: Rig, path: str) -> None:
    rig.add("digits")
    status, _, body = rig.ask(path)
    assert status == 404
    assert "Not found" in body


def test_an_unreadable_endpoint_is_named_and_others_are_shown(rig: Rig) -> None:
    rig.add("digits")
    (root_of(rig.add("broken")) / "revisions" / "000001.json").write_text("{")
    status, _, body = rig.ask("/")
    assert status == 200
    assert '<a href="/endpoints/digits">' in body
    assert "broken" in body
    assert "000001.json" in body
    status, _, body = rig.ask("/endpoints/broken")
    assert status == 500
    assert "Not readable" in body


def test_history_is_sent_whole_or_not_at_all(rig: Rig) -> None:
    rig.add("digits")
    assert json.loads(rig.ask("/endpoints/digits/history")[2])["at"] == []
    rig.publish(
        EndpointFolder(FolderDocuments(rig.root), "digits"),
        versions={1: {"ready": 1, "desired": 2, "held": 3}},
    )
    rig.take({"digits": {1: ReplicaLoad(2.0, 7.0)}})
    rig.take({"digits": {1: None}})
    found = json.loads(rig.ask("/endpoints/digits/history?after=0")[2])
    assert found == {
        "at": [NOW, NOW + 5], "rates": {"1": [7.0, None]},
        "concurrency": [2.0, None], "held": [3, 3], "ready": [1, 1], "desired": [2, 2],
    }  # fmt: skip
    again = json.loads(rig.ask(f"/endpoints/digits/history?after={NOW + 5}")[2])
    assert again["at"] == []
    rig.take({"digits": {1: ReplicaLoad()}})
    assert len(json.loads(rig.ask(f"/endpoints/digits/history?after={NOW + 5}")[2])["at"]) == 3


def test_history_and_events_outlive_the_control_plane(rig: Rig) -> None:
    folder = rig.add("digits")
    rig.take({})
    rig.publish(
        folder,
        routed=1,
        versions={1: {"desired": 1}},
        message="cannot read; password=verysecretword",
    )
    rig.take({})
    again = Rig(rig.root)
    again.now = rig.now
    again.take({})
    body = again.ask("/endpoints/digits")[2]
    assert "version 1: 0 to 1 replicas" in body
    assert "verysecretword" not in body
    assert "verysecretword" not in (root_of(folder) / "history.jsonl").read_text()
    assert len(json.loads(again.ask("/endpoints/digits/history")[2])["at"]) == 3


def test_a_full_disk_or_a_broken_endpoint_stops_no_other_history(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.add("digits")
    broken, full = rig.add("broken"), rig.add("full")
    (root_of(broken) / "revisions" / "000001.json").write_text("{")
    (root_of(full) / "history.jsonl").mkdir()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            rig.take({})
    assert len(caplog.records) == 2
    assert len(json.loads(rig.ask("/endpoints/digits/history")[2])["at"]) == 3
    assert len(json.loads(rig.ask("/endpoints/full/history")[2])["at"]) == 3
    shutil.rmtree(root_of(broken))
    rig.take({})
    assert len(json.loads(rig.ask("/endpoints/digits/history")[2])["at"]) == 4


def test_a_deleted_endpoint_is_forgotten(rig: Rig) -> None:
    folder = rig.add("digits")
    rig.take({})
    shutil.rmtree(root_of(folder))
    rig.take({})
    assert rig.ask("/endpoints/digits/history")[0] == 404
    rig.add("digits")
    assert json.loads(rig.ask("/endpoints/digits/history")[2])["at"] == []


def test_the_sampler_goes_on_after_an_unexpected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def loads() -> dict[str, dict[int, ReplicaLoad | None]]:
        calls.append(1)
        if len(calls) > 2:
            raise asyncio.CancelledError
        raise RuntimeError("unexpected")

    monkeypatch.setattr("timonel.endpoints.control.console.app.PERIOD_S", 0)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(Console(FolderDocuments(tmp_path), tmp_path.joinpath, loads).sample())
    assert [record.message for record in caplog.records] == [
        "cannot record the history of endpoints"
    ] * 2


@pytest.mark.slow
def test_a_report_of_a_rollout_is_a_page_without_scripts(rig: Rig) -> None:
    documents = RolloutFolder(rig.add("digits").documents, "digits", 1)
    documents.create(Rollout(to=2, base=1, revision=1, created_at=NOW))
    documents.write_state(RolloutState(message="measures"))
    counts = {1: Counts(requests=90, latencies={3: 90}), 2: Counts(requests=10, latencies={3: 10})}
    documents.add_point(Point(at=NOW + 10, percent=10, counts=counts))
    status, headers, body = rig.ask("/endpoints/digits/rollouts/1")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "script-src" not in headers["content-security-policy"]
    assert "data:image/svg+xml;base64," in body
    assert 'href="/endpoints/digits/rollouts/1"' in rig.ask("/endpoints/digits")[2]
