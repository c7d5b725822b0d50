from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from timonel.endpoints.folder import (
    STALE_S,
    EndpointFolder,
    EndpointStatus,
    ObservedVersion,
    Revision,
    list_endpoints,
    open_endpoint,
)
from timonel.endpoints.spec import EndpointSpec, Traffic
from timonel.errors import CorruptError, EngineError, NotFoundError
from timonel.storage.document_store import FolderDocuments


def spec(version: int = 1, **fields: object) -> EndpointSpec:
    return EndpointSpec.model_validate(
        {
            "name": "digits",
            "model": "digits",
            "traffic": Traffic(percent={version: 100}),
            "port": 8501,
            **fields,
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> EndpointFolder:
    return EndpointFolder(FolderDocuments(tmp_path), "digits")


def test_revisions_are_numbered(folder: EndpointFolder) -> None:
    first = folder.add(spec(1), "deploy", after=0)
    second = folder.add(spec(2), "deploy", after=1)
    assert [first.number, second.number] == [1, 2] == folder.numbers()
    assert folder.revision() == second
    assert folder.revision(1) == first
    assert folder.revisions() == [first, second]


def test_the_same_contents_make_no_revision(folder: EndpointFolder) -> None:
    first = folder.add(spec(1), "deploy", after=0)
    assert folder.add(spec(1), "again", after=1) == first
    assert folder.numbers() == [1]


def test_a_change_of_an_older_revision_is_refused(folder: EndpointFolder) -> None:
    folder.add(spec(1), "deploy", after=0)
    folder.add(spec(2), "deploy", after=1)
    for after in (0, 1):
        with pytest.raises(EngineError, match="changed by another command"):
            folder.add(spec(3), "late", after=after)
    assert folder.revision().spec == spec(2)


def test_one_of_several_changes_at_once_wins(folder: EndpointFolder) -> None:
    folder.add(spec(1), "deploy", after=0)

    def change(version: int) -> Revision | None:
        try:
            return folder.add(spec(version), f"v{version}", after=1)
        except EngineError:
            return None

    with ThreadPoolExecutor(8) as pool:
        made = [each for each in pool.map(change, range(2, 10)) if each is not None]
    assert made == [folder.revision()]
    assert folder.numbers() == [1, 2]


def test_a_deleted_endpoint_takes_no_change(folder: EndpointFolder) -> None:
    folder.add(spec(1), "deploy", after=0)
    folder.delete()
    with pytest.raises(EngineError, match="being deleted"):
        folder.add(spec(2), "deploy", after=1)
    folder.remove()
    assert list_endpoints(folder.documents) == []


def test_an_endpoint_can_be_created_after_an_interrupted_removal(folder: EndpointFolder) -> None:
    folder.add(spec(1), "deploy", after=0)
    folder.delete()
    folder.write_status(EndpointStatus(routed=1))
    folder.documents.remove("digits/revisions")
    folder.add(spec(2), "deploy", after=0)
    assert (folder.is_deleted, folder.status()) == (False, EndpointStatus())
    assert folder.revision().spec == spec(2)


def test_unknown_names_list_the_known_ones(folder: EndpointFolder) -> None:
    with pytest.raises(NotFoundError, match="no such endpoint: digits"):
        open_endpoint(folder.documents, "digits")
    folder.add(spec(1), "deploy", after=0)
    assert open_endpoint(folder.documents, "digits") == folder
    with pytest.raises(NotFoundError) as error:
        open_endpoint(folder.documents, "digit")
    assert error.value.hint == "the endpoints are: digits"
    with pytest.raises(NotFoundError, match="no revision 7"):
        folder.revision(7)


def test_a_damaged_revision_is_named(folder: EndpointFolder) -> None:
    folder.add(spec(1), "deploy", after=0)
    path = Path(folder.documents.place("digits/revisions/000001.json"))
    path.write_text(path.read_text().replace('"port": 8501', '"port": "no"'))
    with pytest.raises(CorruptError, match=r"000001\.json is damaged: .*port"):
        folder.revision()


def test_an_unreadable_status_is_empty(folder: EndpointFolder) -> None:
    folder.add(spec(1), "deploy", after=0)
    status = EndpointStatus(routed=1, proved={1: "digest"}, at=5.0)
    folder.write_status(status)
    assert folder.status() == status
    path = Path(folder.documents.place("digits/status.json"))
    newer = path.read_text().replace('"format": 1', '"format": 99')
    for text in ("{", newer, '{"kind": "endpoint-status", "format": 1, "at": "no"}'):
        path.write_text(text)
        assert folder.status() == EndpointStatus()


def test_a_status_gets_stale() -> None:
    status = EndpointStatus(routed=1, versions={1: ObservedVersion(ready=1)}, at=1000.0)
    assert status.state(1000.0 + STALE_S - 1) == "ready"
    assert status.state(1000.0 + STALE_S) == "stale"
    assert EndpointStatus().state(1000.0) == "starting", "nothing has been published yet"
