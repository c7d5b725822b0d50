from __future__ import annotations

import os

from timonel.serving.manager.sources import (
    PUBLISHED_MARK,
    FolderSource,
    fingerprint,
    labels_of,
    version_folders,
)


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
