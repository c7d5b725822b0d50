from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contracts.documents import DocumentStoreContract
from tests.contracts.engines.harness import eventually
from tests.engines.kubernetes.fake_cluster import FakeCluster
from timonel.engines.kubernetes.api import Api, Event, Object, ObjectList
from timonel.engines.kubernetes.api_errors import ClusterUnavailableError, ConflictError
from timonel.engines.kubernetes.services.documents import MAX_BYTES, ClusterDocuments
from timonel.errors import CorruptError, EngineError, InputError, NotFoundError, SpecError

pytestmark = pytest.mark.enable_socket


class WatchedApi(Api):
    """A client whose lists and watches read the objects of a fake cluster.

    Attributes:
        is_late: Whether watches report nothing for now.
        requests: Verbs of the requests that were sent.
        error: What requests raise instead of an answer.
    """

    def __init__(self, api: Api, cluster: FakeCluster) -> None:
        super().__init__(api.namespace, api._client, sleep=lambda _: None)
        self._cluster = cluster
        self._closed = threading.Event()
        self.is_late = False
        self.requests: list[str] = []
        self.error: EngineError | None = None

    def close(self) -> None:
        self._closed.set()

    def list_at(self, kind: str, labels: Any, fields: Any = None) -> tuple[ObjectList, str]:
        found = self._current(labels)
        versions = (int(each["metadata"]["resourceVersion"]) for each in found.values())
        return list(found.values()), str(max(versions, default=0))

    def watch(self, kind: str, labels: Any, version: str, fields: Any = None) -> Iterator[Event]:
        known = self._current(labels)
        changed = int(version)
        while not self._closed.wait(0.005):
            if self.is_late:
                continue
            found = self._current(labels)
            for name in known.keys() - found.keys():
                changed = next(self._cluster._versions)
                meta = {**known[name]["metadata"], "resourceVersion": str(changed)}
                yield "DELETED", {**known[name], "metadata": meta}
            for name, each in found.items():
                if known.get(name) != each:
                    changed = max(changed, int(each["metadata"]["resourceVersion"]))
                    yield "MODIFIED" if name in known else "ADDED", each
            known = found

    def _current(self, labels: dict[str, str]) -> dict[str, Object]:
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        with self._cluster._lock:
            found = self._cluster._select("configmaps", selector)
            return {
                each["metadata"]["name"]: {**each, "metadata": {**each["metadata"]}}
                for each in found
            }

    def _exchange(self, call: Any, *args: Any) -> tuple[int, bytes]:
        self.requests.append(call.verb)
        if self.error is not None:
            raise self.error
        return super()._exchange(call, *args)


@pytest.fixture
def watched_api(api: Api, cluster: FakeCluster) -> Iterator[WatchedApi]:
    found = WatchedApi(api, cluster)
    yield found
    found.close()


@pytest.fixture
def stored(api: Api) -> ClusterDocuments:
    """A store as in a user's command."""
    return ClusterDocuments(api, "endpoints")


@pytest.fixture
def confidential(api: Api) -> ClusterDocuments:
    """A store of confidential documents."""
    return ClusterDocuments(api, "endpoints", kind="Secret")


@pytest.fixture
def watched(watched_api: WatchedApi) -> ClusterDocuments:
    """A store as in the control plane."""
    return ClusterDocuments(watched_api, "endpoints", is_watching=True)


class TestRequests(DocumentStoreContract):
    @pytest.fixture
    def documents(self, stored: ClusterDocuments) -> ClusterDocuments:
        return stored


class TestWatched(DocumentStoreContract):
    @pytest.fixture
    def documents(self, watched: ClusterDocuments) -> ClusterDocuments:
        return watched


class TestSecrets(DocumentStoreContract):
    @pytest.fixture
    def documents(self, confidential: ClusterDocuments) -> ClusterDocuments:
        return confidential


@pytest.mark.parametrize(
    ("name", "object_name"),
    [
        ("digits/revisions/000003.json", "endpoints.digits.revisions.000003.json"),
        ("a--b/rollouts/0001.state.json", "endpoints.a--b.rollouts.0001--state.json"),
        ("page.json", "endpoints.page.json"),
    ],
)
def test_a_document_is_a_labelled_configmap(
    api: Api, stored: ClusterDocuments, name: str, object_name: str
) -> None:
    stored.create_bytes(name, b"content")
    found = api.get("ConfigMap", object_name)
    assert found["data"] == {"content": "content"}
    assert found["metadata"]["annotations"] == {"timonel.dev/document": name}
    labels = {
        "timonel.dev/documents": "endpoints",
        "timonel.dev/document-folder": name.partition("/")[0],
    }
    assert found["metadata"]["labels"].items() >= labels.items()
    assert stored.place(name) == f"ConfigMap '{object_name}' in namespace 'team'"


def test_a_confidential_document_is_a_secret(
    api: Api, stored: ClusterDocuments, confidential: ClusterDocuments
) -> None:
    confidential.create_bytes("digits/1.json", b"content")
    found = api.get("Secret", "endpoints.digits.1.json")
    assert found["data"] == {"content": base64.b64encode(b"content").decode()}
    assert found["metadata"]["labels"]["timonel.dev/document-folder"] == "digits"
    assert stored.find() == []
    where = "Secret 'endpoints.digits.1.json' in namespace 'team'"
    assert confidential.place("digits/1.json") == where
    api.patch("Secret", "endpoints.digits.1.json", {"data": {"content": "no base64!"}})
    with pytest.raises(CorruptError, match=where):
        confidential.read_bytes("digits/1.json")
    with pytest.raises(InputError, match="a Secret holds 1,048,576"):
        confidential.write_bytes("digits/1.json", b"x" * (MAX_BYTES + 1))


@pytest.mark.parametrize(
    "name",
    [
        "digits/deleted",
        "digits/A.json",
        "digits/a--b.json",
        "digits/a-.json",
        "di.gits/a.json",
        "-digits/a.json",
        "digits//a.json",
        "/a.json",
        "../a.json",
        "digits/.a.json",
        "digits/a_b.json",
        "digits/é.json",
        "digits/a.json\n",
        "",
        f"{'d' * 64}/a.json",
        f"digits/{'a' * 240}.json",
    ],
)
def test_names_that_a_configmap_cannot_have_are_refused(
    stored: ClusterDocuments, name: str
) -> None:
    with pytest.raises(SpecError, match="the cluster cannot keep a document named"):
        stored.write_bytes(name, b"")


def test_stores_are_apart(api: Api, stored: ClusterDocuments) -> None:
    other = ClusterDocuments(api, "studies")
    other.create_bytes("digits/1.json", b"")
    stored.create_bytes("digits/1.json", b"1")
    stored.remove("digits")
    assert (stored.find(), other.find()) == ([], ["digits/1.json"])


def test_content_beyond_the_limit_is_refused(stored: ClusterDocuments) -> None:
    largest = b"x" * MAX_BYTES
    stored.write_bytes("digits/1.json", largest)
    for write in (stored.write_bytes, stored.create_bytes):
        with pytest.raises(InputError, match=r"1\.jsonl would have 1,048,577 bytes"):
            write("digits/1.jsonl", largest + b"x")
    stored.write_bytes("digits/1.jsonl", largest[:-5] + b"\n")
    stored.append_line("digits/1.jsonl", "abc")
    with pytest.raises(InputError, match="would have 1,048,577 bytes"):
        stored.append_line("digits/1.jsonl", "")
    assert stored.read_bytes("digits/1.jsonl") == largest[:-5] + b"\nabc\n"
    with pytest.raises(InputError, match="is not text"):
        stored.write_bytes("digits/1.json", b"\xff")


def test_a_configmap_without_content_is_damaged(api: Api, stored: ClusterDocuments) -> None:
    stored.write_bytes("digits/1.json", b"")
    api.patch("ConfigMap", "endpoints.digits.1.json", {"data": None})
    with pytest.raises(CorruptError, match=r"endpoints\.digits\.1\.json' in namespace 'team' has"):
        stored.read_bytes("digits/1.json")


def test_the_marker_of_a_deletion_is_removed_last(
    cluster: FakeCluster, stored: ClusterDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["digits/status.json", "digits/revisions/000001.json", "digits/deleted.json"]
    for number, name in enumerate(names):
        stored.write_bytes(name, b"")
        object_name = stored._object_name(name)
        metadata = cluster.objects["configmaps", object_name]["metadata"]
        metadata["creationTimestamp"] = f"2030-01-01T00:00:0{number}Z"
    stored.write_bytes("digits/status.json", b"later")
    delete = stored._api.delete
    deleted: list[str] = []

    def fail_at_last(kind: str, name: str, *, uid: str) -> None:
        deleted.append(name)
        if len(deleted) == 3:
            raise ClusterUnavailableError("the cluster does not answer")
        delete(kind, name, uid=uid)

    with monkeypatch.context() as patched:
        patched.setattr(stored._api, "delete", fail_at_last)
        with pytest.raises(ClusterUnavailableError):
            stored.remove("digits")
    assert deleted == [stored._object_name(name) for name in names]
    assert stored.find("digits") == ["digits/deleted.json"]
    stored.remove("digits")
    assert stored.find("digits") == []


def test_documents_that_are_created_during_a_removal_stay(
    api: Api, stored: ClusterDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.write_bytes("digits/1.json", b"old")
    before = api.list("ConfigMap", {})
    stored.remove("digits")
    stored.write_bytes("digits/1.json", b"new")
    with monkeypatch.context() as patched:
        patched.setattr(api, "list", lambda *_: before)
        stored.remove("digits")
    assert stored.read_bytes("digits/1.json") == b"new"


def test_a_write_meets_one_that_was_faster(
    api: Api, stored: ClusterDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = api.create

    def create_second(manifest: Any) -> Any:
        create(manifest)
        return create(manifest)

    monkeypatch.setattr(api, "create", create_second)
    stored.write_bytes("digits/1.json", b"this")
    assert stored.read_bytes("digits/1.json") == b"this"


def test_reads_of_the_control_plane_are_no_requests(
    stored: ClusterDocuments, watched: ClusterDocuments, watched_api: WatchedApi
) -> None:
    stored.write_bytes("digits/1.json", b"1")
    assert watched.read_bytes("digits/1.json") == b"1"
    for _ in range(10):
        assert watched.find("digits") == ["digits/1.json"]
        assert watched.read_bytes("digits/1.json") == b"1"
        with pytest.raises(NotFoundError):
            watched.read_bytes("digits/2.json")
    assert watched_api.requests == []
    stored.write_bytes("digits/2.json", b"2")
    eventually(lambda: watched.find("digits") == ["digits/1.json", "digits/2.json"])
    stored.remove("digits")
    eventually(lambda: watched.find() == [])
    assert watched_api.requests == []


def test_reads_go_on_while_the_cluster_is_away(
    watched: ClusterDocuments, watched_api: WatchedApi
) -> None:
    watched.write_bytes("digits/1.json", b"1")
    assert watched.find() == ["digits/1.json"]
    watched_api.error = ClusterUnavailableError("the cluster does not answer")
    assert watched.find() == ["digits/1.json"]
    assert watched.read_bytes("digits/1.json") == b"1"
    for write in (watched.write_bytes, watched.create_bytes):
        with pytest.raises(ClusterUnavailableError):
            write("digits/1.json", b"2")
    with pytest.raises(ClusterUnavailableError):
        watched.append_line("digits/1.json", "2")
    with pytest.raises(ClusterUnavailableError):
        watched.remove("digits")
    assert watched.read_bytes("digits/1.json") == b"1"


def test_own_writes_are_visible_before_the_watch_reports_them(
    watched: ClusterDocuments, watched_api: WatchedApi
) -> None:
    assert watched.find() == []
    watched_api.is_late = True
    watched.create_bytes("digits/1.json", b"1")
    watched.append_line("digits/1.json", "2")
    watched.write_bytes("digits/2.json", b"")
    watched.append_line("digits/3.jsonl", "3")
    assert watched.find() == ["digits/1.json", "digits/2.json", "digits/3.jsonl"]
    assert watched.read_bytes("digits/1.json") == b"1\n2\n"
    watched.remove("digits/2.json")
    assert watched.find() == ["digits/1.json", "digits/3.jsonl"]
    watched.remove("digits")
    assert watched.find() == []


@pytest.mark.parametrize("removed", ["digits", "digits/1.json"])
def test_a_document_that_was_created_again_stays_visible(
    stored: ClusterDocuments,
    watched: ClusterDocuments,
    watched_api: WatchedApi,
    monkeypatch: pytest.MonkeyPatch,
    removed: str,
) -> None:
    stored.create_bytes("digits/1.json", b"old")
    assert watched.read_bytes("digits/1.json") == b"old"
    delete = watched_api.delete

    def is_new() -> bool:
        try:
            return watched.read_bytes("digits/1.json") == b"new"
        except NotFoundError:  # the watch has seen its end, and not yet the next one
            return False

    def slow(*args: Any, **options: Any) -> None:
        delete(*args, **options)
        stored.create_bytes("digits/1.json", b"new")
        eventually(is_new)

    monkeypatch.setattr(watched_api, "delete", slow)
    watched.remove(removed)
    assert watched.read_bytes("digits/1.json") == b"new"


def test_lines_of_another_writer_are_kept(
    stored: ClusterDocuments, watched: ClusterDocuments, watched_api: WatchedApi
) -> None:
    watched.append_line("digits/1.jsonl", "first")
    assert watched.find() == ["digits/1.jsonl"]
    watched_api.is_late = True
    stored.append_line("digits/1.jsonl", "second")
    watched.append_line("digits/1.jsonl", "third")
    assert watched.read_bytes("digits/1.jsonl") == b"first\nsecond\nthird\n"
    stored.remove("digits")
    watched.append_line("digits/1.jsonl", "fourth")
    assert watched.read_bytes("digits/1.jsonl") == b"fourth\n"
    watched.remove("digits")
    stored.append_line("digits/1.jsonl", "fifth")
    watched.append_line("digits/1.jsonl", "sixth")
    assert stored.read_bytes("digits/1.jsonl") == b"fifth\nsixth\n"


def test_an_append_that_always_meets_another_write_is_an_error(
    api: Api, stored: ClusterDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.append_line("digits/1.jsonl", "first")

    def conflict(*_: Any) -> Any:
        raise ConflictError("the object has been modified")

    monkeypatch.setattr(api, "patch", conflict)
    with pytest.raises(ConflictError):
        stored.append_line("digits/1.jsonl", "second")
