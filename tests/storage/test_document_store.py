from __future__ import annotations

from pathlib import Path

import pytest

from tests.contracts.documents import DocumentStoreContract
from timonel.storage.document_store import FolderDocuments


class TestFolderDocuments(DocumentStoreContract):
    @pytest.fixture
    def documents(self, tmp_path: Path) -> FolderDocuments:
        return FolderDocuments(tmp_path / "endpoints")

    def test_folders_are_private(self, documents: FolderDocuments) -> None:
        documents.create_bytes("digits/status.json", b"")
        assert (documents.root / "digits").stat().st_mode & 0o777 == 0o700

    def test_hidden_files_are_no_documents(self, documents: FolderDocuments) -> None:
        documents.create_bytes(".gateway/bootstrap.json", b"")
        documents.create_bytes("digits/.tmp-1.json", b"")
        assert documents.find() == []
