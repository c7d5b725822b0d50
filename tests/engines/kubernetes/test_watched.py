"""Watched objects: lists, changes and failures of a scripted API server."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.contracts.engines import eventually
from tests.engines.kubernetes.memory_api import MemoryApi
from timonel.engines.kubernetes import watched as module
from timonel.engines.kubernetes.api import Event, Object, ObjectList
from timonel.engines.kubernetes.api_errors import ClusterUnavailableError, GoneError
from timonel.engines.kubernetes.watched import Watched
from timonel.errors import EngineError

_LABELS = {"app": "web"}


def _pod(name: str, version: int, **fields: Any) -> Object:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, **fields}


class _Server(MemoryApi):
    """An API server whose lists and changes come from queues.

    Attributes:
        lists: Next lists with their versions, or errors; the last one stays.
        changes: Next changes, errors, or None for the end of a watch.
        watched: Versions at which watches began.
    """

    def __init__(self, *lists: tuple[ObjectList, int] | Exception) -> None:
        super().__init__()
        self.lists = list(lists)
        self.changes: queue.SimpleQueue[Event | Exception | None] = queue.SimpleQueue()
        self.watched: list[str] = []
        self.listed = 0

    def list_at(
        self, kind: str, labels: Mapping[str, str], fields: Mapping[str, str] | None = None
    ) -> tuple[ObjectList, str]:
        assert (kind, labels, fields) == ("Pod", _LABELS, {})
        self.listed += 1
        found = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(found, Exception):
            raise found
        return found[0], str(found[1])

    def watch(
        self,
        kind: str,
        labels: Mapping[str, str],
        version: str,
        fields: Mapping[str, str] | None = None,
    ) -> Iterator[Event]:
        self.watched.append(version)
        while True:
            change = self.changes.get()
            if change is None:
                return
            if isinstance(change, Exception):
                raise change
            yield change


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start to watch the pods of a server."""
    monkeypatch.setattr(module, "_BACKOFF_S", 0.001)
    servers: list[tuple[_Server, Watched]] = []

    def start(server: _Server) -> Watched:
        servers.append((server, Watched(server, "Pod", _LABELS)))
        return servers[-1][1]

    yield start
    for server, watched in servers:
        watched.close()
        server.changes.put(None)
    eventually(lambda: not any(_is_running(watched) for _, watched in servers))


def _is_running(watched: Watched) -> bool:
    return watched._thread is not None and watched._thread.is_alive()


def _versions(watched: Watched) -> dict[str, str]:
    return {n: each["metadata"]["resourceVersion"] for n, each in watched.objects().items()}


def test_changes_arrive_without_another_list(watch: Any) -> None:
    server = _Server(([_pod("a", 1), _pod("b", 2)], 5))
    watched = watch(server)
    assert _versions(watched) == {"a": "1", "b": "2"}
    server.changes.put(("MODIFIED", _pod("a", 6)))
    server.changes.put(("BOOKMARK", {"metadata": {"resourceVersion": "8"}}))
    server.changes.put(("ADDED", _pod("c", 9)))
    server.changes.put(("DELETED", _pod("b", 10)))
    eventually(lambda: _versions(watched) == {"a": "6", "c": "9"})
    server.changes.put(None)
    server.changes.put(("DELETED", _pod("a", 11)))
    eventually(lambda: _versions(watched) == {"c": "9"})
    assert (server.listed, server.watched) == (1, ["5", "10"])


def test_a_server_that_is_away_leaves_the_last_objects(watch: Any) -> None:
    server = _Server(([_pod("a", 1)], 5))
    watched = watch(server)
    assert _versions(watched) == {"a": "1"}
    for _ in range(3):
        server.changes.put(ClusterUnavailableError("away"))
    eventually(lambda: len(server.watched) == 4)
    assert _versions(watched) == {"a": "1"}
    server.changes.put(("MODIFIED", _pod("a", 7)))
    eventually(lambda: _versions(watched) == {"a": "7"})
    assert (server.listed, server.watched) == (1, ["5"] * 4)


@pytest.mark.parametrize("error", [GoneError("too old"), EngineError("forbidden"), KeyError("?")])
def test_a_watch_that_cannot_go_on_starts_with_another_list(watch: Any, error: Exception) -> None:
    server = _Server(([_pod("a", 1), _pod("b", 1)], 5), ([_pod("a", 8)], 20))
    watched = watch(server)
    assert _versions(watched) == {"a": "1", "b": "1"}
    server.changes.put(error)
    eventually(lambda: _versions(watched) == {"a": "8"})
    eventually(lambda: server.watched == ["5", "20"])


def test_a_failed_first_list_is_an_error_until_one_succeeds(watch: Any) -> None:
    server = _Server(EngineError("not allowed"))
    watched = watch(server)
    with pytest.raises(EngineError, match="not allowed"):
        watched.objects()
    server.lists.append(([], 5))
    eventually(lambda: bool(server.watched))
    assert watched.objects() == {}


def test_recorded_objects_are_not_undone_by_older_changes(watch: Any) -> None:
    server = _Server(([_pod("a", 1)], 5), ([_pod("a", 11)], 14))
    watched = watch(server)
    watched.objects()
    watched.record(_pod("a", 12))
    watched.record(_pod("a", 10))
    watched.record(_pod("b", 15))
    server.changes.put(("MODIFIED", _pod("a", 11)))
    server.changes.put(("ADDED", _pod("c", 13)))
    eventually(lambda: "c" in watched.objects())
    assert _versions(watched) == {"a": "12", "b": "15", "c": "13"}
    server.changes.put(GoneError("too old"))
    eventually(lambda: _versions(watched) == {"a": "11", "b": "15"})
    watched.forget("b")
    assert _versions(watched) == {"a": "11"}


def test_an_answer_from_before_a_deletion_does_not_restore_the_object(watch: Any) -> None:
    server = _Server(([_pod("a", 1), _pod("b", 2)], 5))
    watched = watch(server)
    watched.objects()
    server.changes.put(("DELETED", _pod("a", 7)))
    eventually(lambda: "a" not in watched.objects())
    watched.record(_pod("a", 6))
    watched.record(_pod("c", 8))
    assert _versions(watched) == {"b": "2", "c": "8"}
    server.changes.put(("ADDED", _pod("a", 9)))
    eventually(lambda: "a" in watched.objects())


def test_a_watch_that_nobody_reads_ends(watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = _Server(([_pod("a", 1)], 5), ([_pod("b", 8)], 9))
    watched = watch(server)
    assert _versions(watched) == {"a": "1"}
    eventually(lambda: bool(server.watched))
    monkeypatch.setattr(module, "_IDLE_S", 0.0)
    server.changes.put(None)
    eventually(lambda: not _is_running(watched))
    monkeypatch.setattr(module, "_IDLE_S", 60.0)
    assert _versions(watched) == {"b": "8"}
