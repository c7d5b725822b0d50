"""HTML of the pages of endpoints."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from timonel.endpoints.control.console.history import EndpointPoint
from timonel.endpoints.control.console.views import (
    EndpointView,
    RolloutView,
    endpoint_page,
    list_page,
    message_page,
)
from timonel.endpoints.folder import EndpointStatus, Revision
from timonel.endpoints.rollouts.documents import Phase, Rollout, RolloutState
from timonel.endpoints.rollouts.guards import GuardState
from timonel.endpoints.rollouts.sequential import SequentialVerdict
from timonel.endpoints.spec import EndpointSpec

NOW = 1_000_000.0
EVIL = "<img src=x onerror=alert(1)>\"'&$name"


class Text(HTMLParser):
    """Text of a page, and its tags; checks that they are balanced."""

    VOID = frozenset({"meta", "link", "rect"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def __contains__(self, words: str) -> bool:
        return words in " ".join(" ".join(self.words).split())


def revision(number: int = 1, cause: str = "deploy", **fields: Any) -> Revision:
    spec = {"name": "digits", "model": "digits", "port": 8501, "traffic": {"percent": {1: 100}}}
    return Revision(
        number=number, created_at=NOW, cause=cause, spec=EndpointSpec.model_validate(spec | fields)
    )


def view(latest: Revision | None = None, **status: Any) -> EndpointView:
    latest = latest or revision()
    status = {"routed": 1, "at": NOW, "versions": {1: {"ready": 1, "desired": 1}}} | status
    return EndpointView(latest, latest, EndpointStatus.model_validate(status))


def test_an_endpoint_is_shown() -> None:
    traffic = {
        "percent": {1: 75, 2: 25},
        "labels": {"canary": 2},
        "matches": [{"header": "x-team", "value": "vision", "version": 2}],
        "sticky": {"cookie": "digits-version"},
        "shadow": {"version": 2, "percent": 10},
    }
    routed = revision(3, traffic=traffic)
    latest = revision(
        4,
        "split 1=50 2=50",
        traffic={"percent": {1: 50, 2: 50}},
        scaling={"target": 10, "min_replicas": 0, "max_replicas": 4},
    )
    versions = {
        1: {"ready": 2, "running": 3, "desired": 4, "concurrency": 5.25, "rate": 1234.5, "held": 7,
            "reason": "concurrency 5.25 needs 4"},
        2: {"message": "exit code 3"},
    }  # fmt: skip
    seen = replace(
        view(latest, routed=3, versions=versions, message="version 2 starts"), routed=routed
    )
    found = Text(endpoint_page(seen, NOW))
    for words in (
        "75 % to version 1", "25 % to version 2", "label canary: version 2",
        "header x-team: vision: version 2", "sticky by cookie digits-version",
        "copies of 10 % to version 2", "Ready 2 of 4", "Running 3", "Requests/s 1,23",
        "In flight 5.25", "Waiting 7", "Autoscaler: concurrency 5.25 needs 4",
        "Last failure: exit code 3", "version 2 starts", "http://127.0.0.1:8501/v1/models/digits",
        "4 (split 1=50 2=50", "Routed revision 3", "0 to 4, 10 concurrency each", "No rollouts.",
        "Nothing has changed.",
    ):  # fmt: skip
        assert words in found, words
    widths = {tag["class"]: tag["width"] for name, tag in found.tags if name == "rect"}
    assert widths == {"s-version-1": "75", "s-version-2": "25"}
    assert ("svg", "version 1 75 %, version 2 25 %") in [
        (name, tag.get("aria-label")) for name, tag in found.tags
    ]


@pytest.mark.parametrize(
    ("status", "is_deleted", "kind", "words"),
    [
        ({}, False, "good", "Ready"),
        ({"versions": {1: {"desired": 1}}}, False, "warn", "Starting"),
        ({"versions": {1: {}}}, False, "none", "Idle"),
        ({}, True, "warn", "Deleting"),
        ({"at": NOW - 20}, False, "bad", "Stale"),
        ({"at": NOW - 20}, False, "bad", "The control plane has not published a status since"),
        ({"at": 0.0, "routed": 0, "versions": {}}, False, "warn", "has not published a status yet"),
        ({"rejected": "in use"}, False, "bad", "The gateway does not listen"),
    ],
)
def test_states(status: dict[str, Any], is_deleted: bool, kind: str, words: str) -> None:
    found = Text(endpoint_page(replace(view(**status), is_deleted=is_deleted), NOW))
    (pill,) = [tag for _, tag in found.tags if tag.get("id") == "health"]
    assert pill["data-state"] == kind
    assert words in found


def rollout(number: int, **state: Any) -> RolloutView:
    made = Rollout(to=2, base=1, revision=1, steps=(5, 50, 100), created_at=NOW)
    return RolloutView(number, made, RolloutState(**state))


def test_a_rollout_is_shown_with_its_step_and_guards() -> None:
    checks = (
        GuardState(
            guard="error_rate<1%",
            verdict=SequentialVerdict.OPEN,
            value="0.2%",
            limit="1%",
            requests=1200,
        ),
        GuardState(
            guard="p99<1.2x",
            verdict=SequentialVerdict.OPEN,
            value="9ms",
            limit="11ms",
            requests=1190,
        ),
    )
    now = rollout(2, step=1, message="measures", checks=checks, accepted=("p99<1.2x",))
    before = rollout(1, phase=Phase.ROLLED_BACK, ended_at=NOW)
    page = endpoint_page(replace(view(), rollouts=(before, now)), NOW)
    found = Text(page)
    for words in (
        "Rollout 2 from version 1 to 2: running measures", "1m 00s per step or longer",
        "error_rate<1% open: 0.2% of 1,200 requests, limit 1%",
        "p99<1.2x accepted: 9ms of 1,190 requests", "rollout 1: rolled back",
    ):  # fmt: skip
        assert words in found, words
    assert re.findall("<li aria-current=step>(.*?)</li>", page) == ["50 %"]
    links = [tag["href"] for name, tag in found.tags if name == "a"]
    assert links[-2:] == ["/endpoints/digits/rollouts/2", "/endpoints/digits/rollouts/1"]


def test_an_ended_rollout_has_no_current_step() -> None:
    page = endpoint_page(
        replace(view(), rollouts=(rollout(1, phase=Phase.PROMOTED, ended_at=NOW),)), NOW
    )
    assert "aria-current" not in page
    assert "from version 1 to 2: promoted at" in Text(page)


def test_the_latest_events_come_first() -> None:
    points = [EndpointPoint(at=NOW + n, events=(f"event {n}",)) for n in range(40)]
    page = endpoint_page(replace(view(), points=points), NOW)
    assert re.findall(r"event (\d+)", page) == [str(n) for n in range(39, 9, -1)]


def test_all_text_is_escaped() -> None:
    latest = revision(
        1,
        EVIL,
        model=f"models/{EVIL}",
        host=EVIL,
        traffic={
            "percent": {1: 100},
            "matches": [{"header": "x-team", "value": EVIL, "version": 1}],
        },
    )
    versions = {1: {"reason": EVIL, "message": EVIL}}
    seen = view(latest, versions=versions, message=EVIL, rejected=EVIL)
    check = GuardState(
        guard=EVIL, verdict=SequentialVerdict.OPEN, value=EVIL, limit=EVIL, requests=1
    )
    seen = replace(
        seen,
        points=[EndpointPoint(at=NOW, events=(EVIL,))],
        rollouts=[rollout(1, message=EVIL, checks=(check,))],
    )
    for page in (
        endpoint_page(seen, NOW),
        list_page([seen], {EVIL: EVIL}, NOW),
        message_page(EVIL, EVIL),
    ):
        found = Text(page)
        assert EVIL in found
        assert "img" not in {name for name, _ in found.tags}
        assert not [key for _, tag in found.tags for key in tag if key.startswith("on")]


def test_nothing_secret_is_shown() -> None:
    access = {
        "api_keys": "/home/me/secret&co/keys.txt",
        "tls": {"cert": "/home/me/secret&co/server.pem", "key": "/home/me/secret&co/server.key"},
        "jwt": {"issuer": "me", "jwks": "/home/me/secret&co/jwks.json"},
    }
    told = " ".join(
        f"cannot read {path}" for path in re.findall(r"/home/me/secret&co/[a-z.]+", str(access))
    )
    told += "; token=abcdefgh12345678"
    latest = revision(
        1, told, model="s3://me:abcdefgh12345678@bucket/digits", access=access,
        server_args=["--api-keys", "/home/me/secret&co/other"],
    )  # fmt: skip
    versions = {1: {"message": told, "reason": told}}
    seen = view(latest, versions=versions, message=told, rejected=told)
    check = GuardState(
        guard=told, verdict=SequentialVerdict.OPEN, value=told, limit=told, requests=1
    )
    seen = replace(
        seen,
        points=[EndpointPoint(at=NOW, events=(told,))],
        rollouts=[rollout(1, message=told, checks=(check,))],
    )
    for page in (endpoint_page(seen, NOW), list_page([seen], {}, NOW)):
        assert "secret" not in page
        assert "abcdefgh12345678" not in page
        assert "cannot read keys.txt" in page


def test_the_list_shows_each_endpoint_and_what_cannot_be_read() -> None:
    latest = revision(traffic={"percent": {1: 90, 2: 10}})
    versions = {
        1: {"ready": 2, "desired": 2, "rate": 10.0, "concurrency": 1.0},
        2: {"ready": 0, "desired": 1, "rate": 2.0, "concurrency": 0.5},
    }
    seen = view(latest, versions=versions, message="version 2 starts")
    found = Text(list_page([seen], {"iris": "the document x is damaged"}, NOW))
    for words in (
        "2 endpoints", "iris unreadable", "digits ready",
        "Traffic 1: 90 %, 2: 10 %", "Ready 2 of 3", "Requests/s 12",
        "In flight 1.5", "version 2 starts", "the document x is damaged",
    ):  # fmt: skip
        assert words in found, words
    assert "/endpoints/digits" in [tag.get("href") for _, tag in found.tags]
    assert "digits stale" in Text(list_page([seen], {}, NOW + 60))


def test_a_workspace_without_endpoints_says_how_to_make_one() -> None:
    assert "Make one with timonel deploy MODEL" in Text(list_page([], {}, NOW))
