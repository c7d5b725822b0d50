from __future__ import annotations

from pathlib import Path

import pytest

from timonel.engines.local.folders import checked, is_folder, readable
from timonel.errors import CorruptError, NotFoundError


def test_folders_that_others_are_writing_are_not_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("b", "a", ".tmp-c", "bad", "gone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "status.json").touch()
    (tmp_path / "empty").mkdir()

    def read(path: Path) -> str:
        if path.name == "bad":
            raise CorruptError("no JSON")
        if path.name == "gone":
            raise NotFoundError("removed")
        return path.name

    assert list(readable(tmp_path, "status.json", "job", read)) == ["a", "b"]
    assert [record.getMessage() for record in caplog.records] == ["skipped job bad: no JSON"]


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/b", ".tmp-c", "file", "nosuch"])
def test_only_names_of_folders_are_accepted(tmp_path: Path, name: str) -> None:
    for folder in ("a/b", ".tmp-c"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "file").touch()
    assert not is_folder(tmp_path, name)
    assert is_folder(tmp_path, "a")


def test_unusable_content_is_an_error_of_the_document(tmp_path: Path) -> None:
    expected = rf"the job document {tmp_path} is damaged: KeyError: 'spec'"
    with pytest.raises(CorruptError, match=expected), checked(tmp_path, "job"):
        {}["spec"]
