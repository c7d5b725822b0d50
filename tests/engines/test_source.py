"""Archives of a program's files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from timonel.engines import source
from timonel.errors import CorruptError, NotFoundError, SpecError


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names(packed: bytes, folder: Path) -> set[str]:
    archive = folder / "a.tar.gz"
    archive.write_bytes(packed)
    source.unpack(str(archive), folder / "unpacked")
    return {
        str(path.relative_to(folder / "unpacked"))
        for path in (folder / "unpacked").rglob("*")
        if path.is_file()
    }


def test_a_folder_comes_back_as_it_was(tmp_path: Path) -> None:
    write(tmp_path / "a", train_dot_py="print(1)", lib__util_dot_py="x = 2", _dot_venv__x_dot_py="")
    (tmp_path / "a" / "train.py").chmod(0o755)
    assert names(source.pack(tmp_path / "a"), tmp_path) == {"train.py", "lib/util.py"}
    made = tmp_path / "unpacked" / "train.py"
    assert made.read_text() == "print(1)"
    assert os.access(made, os.X_OK)


def test_the_same_files_make_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, train_dot_py="1", lib__util_dot_py="2")
    os.utime(tmp_path / "a" / "train.py", (1.0, 1.0))
    assert source.pack(tmp_path / "a") == source.pack(tmp_path / "b")
    (tmp_path / "b" / "train.py").write_text("3")
    assert source.pack(tmp_path / "a") != source.pack(tmp_path / "b")


def test_what_git_ignores_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    write(folder, _dot_gitignore="data/\n", data__big_dot_bin="1", train_dot_py="2", new_dot_py="3")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), "add", "train.py"], check=True)
    assert names(source.pack(folder), tmp_path) == {".gitignore", "train.py", "new.py"}


def test_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_LARGEST_BYTES", 1 << 20)
    write(tmp_path / "a", train_dot_py="1", model_dot_bin="2" * (2 << 20))
    with pytest.raises(SpecError, match=r"2 MiB, more than .* \(1 MiB\); the largest is model.bin"):
        source.pack(tmp_path / "a")


@pytest.mark.parametrize("damage", ["truncated", "other", "missing"])
def test_a_damaged_archive_is_refused(tmp_path: Path, damage: str) -> None:
    write(tmp_path / "a", train_dot_py="1" * 10_000)
    archive = tmp_path / "a.tar.gz"
    packed = source.pack(tmp_path / "a")
    if damage != "missing":
        archive.write_bytes(packed[: len(packed) // 2] if damage == "truncated" else b"no archive")
    with pytest.raises(NotFoundError if damage == "missing" else CorruptError, match=r"a\.tar\.gz"):
        source.unpack(str(archive), tmp_path / "unpacked")
