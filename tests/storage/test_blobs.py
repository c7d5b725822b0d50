"""Objects as the stores list them: names, revisions and checksums."""

from __future__ import annotations

import base64
import hashlib

import google_crc32c
import pytest

from timonel.storage import blobs
from timonel.storage.blobs import Blob, blobs_from, fingerprint, is_copy

S3 = {"size": 3, "ETag": '"900150983cd24fb0d6963f7d28e17f72"', "LastModified": "today"}
GCS = {
    "size": 3,
    "generation": "17",
    "etag": "CJ=",
    "md5Hash": base64.b64encode(bytes.fromhex("900150983cd24fb0d6963f7d28e17f72")).decode(),
    "crc32c": base64.b64encode(google_crc32c.value(b"abc").to_bytes(4, "big")).decode(),
}


def test_objects_of_the_stores():
    found = {"b/m/1/x": S3, "b/m/1/y/z": GCS, "b/m/1/": {"size": 0}, "b/m/10/x": S3}
    assert blobs_from(found, "b/m/1") == (
        Blob("x", 3, S3["ETag"], "900150983cd24fb0d6963f7d28e17f72"),
        Blob("y/z", 3, "17", "900150983cd24fb0d6963f7d28e17f72", google_crc32c.value(b"abc")),
    )


@pytest.mark.parametrize("tag", ['"900150983cd24fb0d6963f7d28e17f72-2"', "", None, '"x"'])
def test_a_tag_of_another_kind_is_no_digest(tag):
    (blob,) = blobs_from({"b/1/x": {"size": 1, "ETag": tag, "mtime": 5}}, "b/1")
    assert blob.md5 is None
    assert blob.revision


@pytest.mark.parametrize("text", ["%%", "", "AA==", 7, None])
def test_checksums_that_are_none_are_passed_over(text):
    (blob,) = blobs_from({"b/1/x": {"size": 1, "md5Hash": text, "crc32c": text}}, "b/1")
    assert (blob.md5, blob.crc32c) == (None, None)


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "a//b", "/x", "./x", "a\0b", "x" * 256, "é" * 128 + "/y", "d"]
)
def test_names_that_no_file_can_have_are_skipped_and_logged_once(name, caplog):
    blobs._log_skipped.cache_clear()
    for _ in range(2):
        (found, _) = blobs_from({f"b/1/{name}": S3, "b/1/d/x": S3, "b/1/y": S3}, "b/1")
        assert found.name == "d/x"
    assert caplog.text.count("its name cannot be that of a file") == 1


@pytest.mark.parametrize("change", [{"size": 4}, {"ETag": '"other"'}])
def test_the_fingerprint_follows_the_objects(change):
    before = fingerprint(blobs_from({"b/1/x": S3}, "b/1"))
    assert fingerprint(blobs_from({"b/1/x": S3}, "b/1")) == before
    assert fingerprint(blobs_from({"b/1/x": S3 | change}, "b/1")) != before
    assert fingerprint(blobs_from({"b/1/x": S3, "b/1/y": S3}, "b/1")) != before


def test_a_file_is_compared_with_an_object(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    (known,) = blobs_from({"b/1/x": S3}, "b/1")
    assert is_copy(path, known) is True
    path.write_bytes(b"abd")
    assert is_copy(path, known) is False
    assert is_copy(path, Blob("x", 4, "1")) is False
    assert is_copy(path, Blob("x", 3, "1")) is None
    monkeypatch.setattr(blobs, "_PART_BYTES", 2)
    parts = [hashlib.md5(part).digest() for part in (b"ab", b"d")]
    etag = f'"{hashlib.md5(b"".join(parts)).hexdigest()}-2"'
    assert is_copy(path, Blob("x", 3, etag)) is True
