"""Contract tests for document stores, as a pytest class.

Subclass it and provide the fixture ``documents``, an empty store.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from timonel.errors import AlreadyExistsError, NotFoundError
from timonel.storage.document_store import DocumentStore

NAME = "digits/revisions/000001.json"


class DocumentStoreContract:
    """Contract tests for document stores; see the module docstring for their use."""

    def test_a_document_is_created_once(self, documents: DocumentStore) -> None:
        documents.create_bytes(NAME, b"first\n")
        with pytest.raises(AlreadyExistsError):
            documents.create_bytes(NAME, b"second\n")
        assert documents.read_bytes(NAME) == b"first\n"

    def test_of_several_at_once_one_creates_it(self, documents: DocumentStore) -> None:
        def create(number: int) -> int | None:
            try:
                documents.create_bytes(NAME, str(number).encode())
            except AlreadyExistsError:
                return None
            return number

        with ThreadPoolExecutor(8) as pool:
            (created,) = [each for each in pool.map(create, range(8)) if each is not None]
        assert documents.read_bytes(NAME) == str(created).encode()

    def test_writes_are_visible_at_once(self, documents: DocumentStore) -> None:
        for number in range(10):
            content = f"é {number}\r\n\u2028\x00".encode()
            documents.write_bytes("digits/status.json", content)
            assert documents.read_bytes("digits/status.json") == content
            documents.create_bytes(f"digits/{number}.json", b"")
            assert documents.read_bytes(f"digits/{number}.json") == b""
            assert f"digits/{number}.json" in documents.find("digits")

    def test_documents_have_a_kind(self, documents: DocumentStore) -> None:
        documents.create(NAME, "run", {"id": 1})
        documents.write("digits/status.json", "run", {"id": 2})
        assert documents.read(NAME, "run")["id"] == 1
        assert documents.read("digits/status.json", "run")["id"] == 2

    def test_documents_are_found_below_a_folder(self, documents: DocumentStore) -> None:
        assert documents.find() == documents.find("digits") == []
        names = [
            "digits-2/status.json",
            "digits/revisions/000001.json",
            "digits/revisions/000002.json",
            "digits/rollouts/0001.json",
            "digits/rollouts/0001.jsonl",
            "digits/rollouts/0001.state.json",
            "digits/status.json",
            "page.json",
        ]
        for name in reversed(names):
            documents.write_bytes(name, name.encode())
        assert documents.find() == names
        assert documents.find("digits") == names[1:7]
        assert documents.find("digits/rollouts") == names[3:6]
        assert documents.find("digits/rev") == []
        assert [documents.read_bytes(name).decode() for name in names] == names

    def test_documents_and_folders_are_removed(self, documents: DocumentStore) -> None:
        names = ["a/1.json", "a/b/2.json", "a/b/3.json", "ab/4.json"]
        for name in names:
            documents.create_bytes(name, b"")
        documents.remove("a/b/2.json")
        documents.remove("a/b/2.json")
        assert documents.find() == ["a/1.json", "a/b/3.json", "ab/4.json"]
        documents.remove("a/b")
        assert documents.find() == ["a/1.json", "ab/4.json"]
        documents.remove("a")
        documents.remove("a")
        assert documents.find() == ["ab/4.json"]
        for name in names[:3]:
            with pytest.raises(NotFoundError):
                documents.read_bytes(name)
            documents.create_bytes(name, b"again")
            assert documents.read_bytes(name) == b"again"
        assert documents.find() == names

    def test_lines_are_appended(self, documents: DocumentStore) -> None:
        for number in range(20):
            documents.append_line("digits/rollouts/0001.jsonl", f"line {number}")
        expected = "".join(f"line {number}\n" for number in range(20))
        assert documents.read_bytes("digits/rollouts/0001.jsonl") == expected.encode()
        documents.write_bytes("digits/rollouts/0001.jsonl", b"truncat")
        documents.append_line("digits/rollouts/0001.jsonl", "next")
        assert documents.read_bytes("digits/rollouts/0001.jsonl") == b"truncat\nnext\n"

    def test_messages_name_the_place_of_a_missing_document(self, documents: DocumentStore) -> None:
        with pytest.raises(NotFoundError) as found:
            documents.read_bytes(NAME)
        assert documents.place(NAME) in str(found.value)
