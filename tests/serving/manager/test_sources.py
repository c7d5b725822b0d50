from __future__ import annotations

import json
import math
import os

import pytest

from timonel.models.schema import (
    VERSION_FILE,
    Export,
    ModelSummary,
    OutputKind,
    Preparation,
    VersionDocument,
)
from timonel.serving.manager.sources import (
    PUBLISHED_MARK,
    FolderSource,
    Unchanged,
    check_files,
    fingerprint,
    labels_of,
    missing_of,
    version_folders,
)
from timonel.serving.status import StatusError
from timonel.storage import write_document


def make(base, name, content="1"):
    folder = base / name
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_text(content)
    return folder


def test_versions_are_names_that_read_as_64_bit_integers(tmp_path):
    names = ["1", "00000123", "-1", " 7 ", "+9", "1.0", "v2", ".tmp-12-3", "", str(2**63), "٣"]
    for name in filter(None, names):
        (tmp_path / name).mkdir()
    assert sorted(version_folders(tmp_path)) == [-1, 1, 7, 9, 123]


def test_of_two_names_for_a_number_the_lexically_later_counts(tmp_path):
    make(tmp_path, "05")
    make(tmp_path, "5")
    assert version_folders(tmp_path)[5].name == "5"


def test_a_fingerprint_follows_additions_sizes_times_and_removals(tmp_path):
    folder = make(tmp_path, "1")
    seen = [fingerprint(folder)]
    assert fingerprint(folder) == seen[0]
    (folder / "variables").mkdir()
    (folder / "variables" / "data").write_bytes(b"x")
    seen.append(fingerprint(folder))
    (folder / "variables" / "data").write_bytes(b"xy")
    seen.append(fingerprint(folder))
    os.utime(folder / "variables" / "data", (1, 1))
    seen.append(fingerprint(folder))
    (folder / "saved_model.pb").unlink()
    seen.append(fingerprint(folder))
    assert len(set(seen)) == len(seen)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def look(source):
    numbers = sorted(source.versions(relist=True))
    return {c.number: c.complete for c in source.look(numbers, len(numbers))}


def test_a_foreign_version_must_stay_the_same_for_a_while(tmp_path):
    clock = Clock()
    source = FolderSource(tmp_path, 1.0, clock)
    folder = make(tmp_path, "1")
    assert look(source) == {1: False}
    clock.now = 0.9
    assert look(source) == {1: False}
    (folder / "variables").write_text("still being written")
    clock.now = 1.5
    assert look(source) == {1: False}
    clock.now = 2.5
    assert look(source) == {1: True}


def test_one_look_is_never_enough_however_patient(tmp_path):
    source = FolderSource(tmp_path, 0.0, Clock())
    make(tmp_path, "1")
    assert look(source) == {1: False}
    assert look(source) == {1: True}


def test_a_version_that_was_published_is_complete_at_once(tmp_path):
    folder = make(tmp_path, "1")
    (folder / PUBLISHED_MARK).parent.mkdir()
    (folder / PUBLISHED_MARK).write_text("{}")
    assert look(FolderSource(tmp_path, 1.0, Clock())) == {1: True}


def test_a_version_that_comes_back_settles_anew(tmp_path):
    clock = Clock()
    source = FolderSource(tmp_path, 1.0, clock)
    folder = make(tmp_path, "1")
    look(source)
    folder.rename(tmp_path / "aside")
    clock.now = 1.0
    look(source)
    (tmp_path / "aside").rename(folder)
    clock.now = 2.0
    assert look(source) == {1: False}


def test_labels(tmp_path):
    folder = make(tmp_path, "1")
    assert labels_of(folder) == ()
    (folder / "assets").mkdir()
    (folder / "assets" / "labels.txt").write_text("cat\nschöner hund\n")
    assert labels_of(folder) == ("cat", "schöner hund")
    (folder / "assets" / "labels.txt").write_bytes(b"\xff\xfe")
    assert labels_of(folder) == ()


def test_a_version_that_prepares_rows_takes_missing_cells(tmp_path):
    folder = make(tmp_path, "1")
    assert missing_of(folder) == {}
    columns = [
        {"kind": "normalise", "column": "age", "mean": 1.0, "std": 2.0},
        {"kind": "one-hot", "column": "sex", "vocabulary": ["f", "m"]},
    ]
    transforms = {"kind": "table", "columns": columns}
    export = Export(
        created_at=0,
        digest="",
        size_bytes=1,
        signatures={},
        preparation=Preparation(input_kind="table", transforms=transforms, source="data.load"),
        meaning=OutputKind(task="regression", output="values", because=""),
        model=ModelSummary(name="m", type="Model", parameters=1, trainable_parameters=1),
    )
    body = VersionDocument(name="m", version=1, created_at=0, digest="", export=export)
    path = folder / VERSION_FILE
    path.parent.mkdir()
    write_document(path, "model-version", body.model_dump(mode="json"))
    found = missing_of(folder)
    assert found.keys() == {"age", "sex"}
    assert math.isnan(found["age"])
    assert found["sex"] == ""
    for transforms in (None, {"kind": "table", "columns": [{"kind": "other"}]}):
        document = json.loads(path.read_text())
        document["export"]["preparation"]["transforms"] = transforms
        (folder / VERSION_FILE).write_text(json.dumps(document))
        assert missing_of(folder) == {}


@pytest.mark.parametrize("link", ["assets/labels.txt", "assets"])
def test_labels_are_no_files_out_of_the_version(tmp_path, link, caplog):
    """Clients see them in the list of models."""
    folder = make(tmp_path, "1")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "labels.txt").write_text("password\n")
    (folder / link).parent.mkdir(exist_ok=True)
    target = tmp_path / "secret" / ("labels.txt" if link.endswith(".txt") else "")
    (folder / link).symlink_to(target)
    assert labels_of(folder) == ()
    assert "leads out of the version" in caplog.text
    # As in a volume of Kubernetes, where names are links to another folder of the same volume.
    (folder / link).unlink()
    (folder / "data").mkdir()
    (folder / "data" / "labels.txt").write_text("cat\n")
    (folder / "assets").mkdir(exist_ok=True)
    (folder / "assets" / "labels.txt").symlink_to("../data/labels.txt")
    assert labels_of(folder) == ("cat",)


@pytest.mark.parametrize("place", ["saved_model.pb", "variables/x", "assets/labels.txt"])
@pytest.mark.parametrize("kind", ["pipe", "link to a device", "link to a folder with a pipe"])
def test_a_pipe_or_device_in_a_version_is_refused(tmp_path, place, kind):
    version = tmp_path / "m" / "1"
    path = version / place
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    else:
        (tmp_path / "elsewhere").mkdir()
        os.mkfifo(tmp_path / "elsewhere" / "pipe")
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StatusError, match="is a pipe, a device or a socket"):
        check_files(version)


def test_files_links_to_files_and_dangling_links_are_no_pipes(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "blob").write_text("x")
    (tmp_path / "1" / "saved_model.pb").symlink_to(tmp_path / "blob")
    (tmp_path / "1" / "gone").symlink_to(tmp_path / "nothing")
    (tmp_path / "1" / "self").symlink_to(tmp_path / "1")
    check_files(tmp_path / "1")


def test_a_version_settles_over_two_looks_that_agree():
    unchanged = Unchanged(1.0)
    assert not unchanged.is_settled(1, "a", 0.0)
    assert not unchanged.is_settled(1, "a", 0.9)
    assert unchanged.is_settled(1, "a", 1.0)
    assert not unchanged.is_settled(1, "b", 5.0)
    unchanged.keep([2])
    assert not unchanged.is_settled(1, "b", 6.0)
