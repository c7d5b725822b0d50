from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest

from timonel.containers.layers import LayerFile, files_below, write_layer
from timonel.errors import InputError
from timonel.storage.digests import digest_bytes


def unpacked(path: Path) -> tuple[bytes, dict[str, tarfile.TarInfo]]:
    with pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as stream:
        content = stream.read()
    (path.parent / "plain").write_bytes(content)
    with tarfile.open(path.parent / "plain") as archive:
        return content, {each.name: each for each in archive.getmembers()}


def test_a_layer_has_the_files_and_their_folders(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    (folder / "deep/er").mkdir(parents=True)
    (folder / "deep/er/run.sh").write_text("#!/bin/sh\n")
    (folder / "deep/er/run.sh").chmod(0o700)
    (folder / "link").symlink_to("deep")
    layer = write_layer(files_below(folder, "app/"), tmp_path / "layer")
    content, members = unpacked(tmp_path / "layer")
    assert list(members) == ["app", "app/deep", "app/deep/er", "app/deep/er/run.sh", "app/link"]
    assert members["app/deep/er/run.sh"].mode == 0o755
    assert members["app/link"].linkname == "deep"
    assert layer.diff_id == digest_bytes(content)
    assert layer.digest == digest_bytes((tmp_path / "layer").read_bytes())
    assert layer.size == (tmp_path / "layer").stat().st_size


def test_order_times_and_owners_do_not_change_the_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for letter in "ab" if name == "one" else "ba":
            (tmp_path / name / letter).write_text(letter)
        os.utime(tmp_path / name / "a", (len(name), 7 if name == "one" else 9))
    one = write_layer(files_below(tmp_path / "one"), tmp_path / "first")
    two = write_layer(files_below(tmp_path / "two"), tmp_path / "second")
    assert one.digest == two.digest


def test_a_folder_with_a_mode(tmp_path: Path) -> None:
    write_layer([LayerFile("tmp/", mode=0o1777), LayerFile("tmp/a", b"x")], tmp_path / "layer")
    _, members = unpacked(tmp_path / "layer")
    assert members["tmp"].mode == 0o1777
    assert list(members) == ["tmp", "tmp/a"]


def test_names_of_three_hundred_characters(tmp_path: Path) -> None:
    name = "/".join(["x" * 100] * 3) + "/é"
    write_layer([LayerFile(name, b"1")], tmp_path / "layer")
    assert name in unpacked(tmp_path / "layer")[1]


def test_a_missing_file_leaves_no_layer(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        write_layer([LayerFile("a", tmp_path / "nothing")], tmp_path / "layer")
    assert list(tmp_path.glob("*layer*")) == []
