from __future__ import annotations

import json
from pathlib import Path

import pytest

from timonel.endpoints.access_documents import AccessDocuments
from timonel.endpoints.folder import EndpointFolder
from timonel.endpoints.gateway.parts import Secrets
from timonel.endpoints.spec import Access, EndpointSpec, Tls, Traffic
from timonel.errors import CorruptError, EngineError, NotFoundError, SpecError
from timonel.storage.document_store import FolderDocuments

OLD, NEW = "0123456789abcdef", "fedcba9876543210"
SECRETS = Secrets(api_keys={"shop": OLD}, certificate=("chain", "private"), jwks="{}")


@pytest.fixture
def stored(tmp_path: Path) -> AccessDocuments:
    return AccessDocuments(FolderDocuments(tmp_path / "confidential"), "digits")


@pytest.fixture
def endpoint(tmp_path: Path) -> EndpointFolder:
    return EndpointFolder(FolderDocuments(tmp_path / "endpoints"), "digits")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    made = tmp_path / "keys"
    made.write_text(f"shop={NEW}\n")
    return made


def spec(contents: str | None) -> EndpointSpec:
    return EndpointSpec(
        name="digits",
        model="digits",
        traffic=Traffic(percent={1: 100}),
        port=1,
        access=Access(api_keys="/keys", contents=contents),
    )


def add(stored: AccessDocuments, endpoint: EndpointFolder, contents: Secrets = SECRETS) -> str:
    numbers = endpoint.numbers()
    after = numbers[-1] if numbers else 0
    with stored.adding(contents, endpoint, after) as added:
        endpoint.add(spec(added), "deploy", after=after)
    return added


def test_contents_of_each_revision_are_kept(
    stored: AccessDocuments, endpoint: EndpointFolder
) -> None:
    other = Secrets(api_keys={"shop": NEW})
    first, second = add(stored, endpoint), add(stored, endpoint, other)
    assert (stored.read(first), stored.read(second)) == (SECRETS, other)
    stored.remove()
    assert stored.documents.find() == []


def test_contents_of_a_revision_that_fails_are_removed(
    stored: AccessDocuments, endpoint: EndpointFolder
) -> None:
    kept = add(stored, endpoint)
    with (
        pytest.raises(EngineError, match="changed by another command"),
        stored.adding(SECRETS, endpoint, 0) as added,
    ):
        endpoint.add(spec(added), "deploy", after=0)
    assert stored.documents.find() == [f"digits/{kept}.json"]


def test_contents_of_a_recorded_revision_stay_after_an_error(
    stored: AccessDocuments, endpoint: EndpointFolder
) -> None:

    def record() -> None:
        with stored.adding(SECRETS, endpoint, 0) as added:
            endpoint.add(spec(added), "deploy", after=0)
            raise EngineError("nothing carries it out")

    with pytest.raises(EngineError, match="carries it out"):
        record()
    contents = endpoint.revision().spec.access.contents
    assert stored.documents.find() == [f"digits/{contents}.json"]


def test_a_new_endpoint_removes_what_a_killed_deployment_has_left(
    stored: AccessDocuments, endpoint: EndpointFolder
) -> None:
    stored.documents.create_bytes("digits/0.json", b"")
    stored.documents.create_bytes("digits-2/0.json", b"")
    added = add(stored, endpoint)
    assert stored.documents.find() == ["digits-2/0.json", f"digits/{added}.json"]


def test_given_files_replace_stored_contents(
    stored: AccessDocuments, endpoint: EndpointFolder, keys: Path
) -> None:
    tls = Tls(cert="/of/another/machine", key="/of/another/machine")
    access = Access(api_keys=str(keys), tls=tls, contents=add(stored, endpoint))
    # Tokens are no longer required.
    new = Secrets(api_keys={"shop": NEW}, certificate=("chain", "private"))
    assert stored.changed(access, ["api_keys"]) == new
    assert stored.changed(access, []) == Secrets({"shop": OLD}, ("chain", "private"))


def test_the_same_contents_change_nothing(
    stored: AccessDocuments, endpoint: EndpointFolder, keys: Path
) -> None:
    added = add(stored, endpoint, Secrets(api_keys={"shop": NEW}))
    access = Access(api_keys=str(keys), contents=added)
    assert stored.changed(access, ["api_keys"]) is None
    assert stored.changed(access, []) is None


def test_all_files_replace_what_is_missing_or_damaged(
    stored: AccessDocuments, endpoint: EndpointFolder, keys: Path
) -> None:
    added = add(stored, endpoint)
    access = Access(api_keys=str(keys), contents=added)
    new = Secrets(api_keys={"shop": NEW})
    name = f"digits/{added}.json"
    stored.documents.write_bytes(name, b"{")
    with pytest.raises(CorruptError):
        stored.changed(access, [])
    assert stored.changed(access, ["api_keys"]) == new
    stored.documents.remove(name)
    with pytest.raises(NotFoundError, match="keys or the certificate of digits are missing") as no:
        stored.changed(access, [])
    assert "--api-keys" in (no.value.hint or "")
    assert stored.changed(access, ["api_keys"]) == new


def test_errors_show_no_keys(stored: AccessDocuments, keys: Path) -> None:
    contents = "0" * 32
    body = {"contents": {"api_keys": {"shop": [OLD]}}}
    stored.documents.create(f"digits/{contents}.json", "endpoint-access", body)
    with pytest.raises(CorruptError) as damaged:
        stored.read(contents)
    assert damaged.value.__cause__ is None
    assert OLD not in str(damaged.value)
    keys.write_text(f"shop={OLD}\nother={OLD}\n")
    with pytest.raises(SpecError) as refused:
        stored.changed(Access(api_keys=str(keys)), ["api_keys"])
    assert OLD not in str(refused.value)
    assert OLD not in repr(SECRETS)


def test_documents_say_what_they_are(stored: AccessDocuments, endpoint: EndpointFolder) -> None:
    found = json.loads(stored.documents.read_bytes(f"digits/{add(stored, endpoint)}.json"))
    assert found["kind"] == "endpoint-access"
