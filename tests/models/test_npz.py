"""Arrays of ``.npz`` files: rows, and files that cannot be read."""

import os
from pathlib import Path

import numpy as np
import pytest

from timonel.errors import InputError, SpecError
from timonel.models.npz import read_npz, rows_of


def test_rows_keep_a_batch_of_one(tmp_path: Path):
    np.savez(tmp_path / "in.npz", a=np.arange(6).reshape(3, 2), b=np.array(["x", "y", "z"]))
    rows = list(rows_of(read_npz(tmp_path / "in.npz"), 2))
    assert [row["a"].tolist() for row in rows] == [[[0, 1]], [[2, 3]]]
    assert [row["b"].tolist() for row in rows] == [["x"], ["y"]]


@pytest.mark.parametrize(
    "arrays", [{}, {"a": 1.0}, {"a": np.zeros((0, 2))}, {"a": np.zeros(2), "b": np.zeros(3)}]
)
def test_different_numbers_of_rows(tmp_path: Path, arrays):
    np.savez(tmp_path / "in.npz", **arrays)
    with pytest.raises(SpecError, match="different numbers of rows, or none"):
        read_npz(tmp_path / "in.npz")


def test_files_that_cannot_be_read(tmp_path: Path):
    file = tmp_path / "in.npz"
    np.savez_compressed(file, a=np.arange(200))
    content = file.read_bytes()
    np.save(tmp_path / "one.npy", np.arange(3))
    np.savez(tmp_path / "objects.npz", a=np.array([{}]))
    broken = [content[:60] + b"?" * 20 + content[80:], b"", content[:100], b"nonsense"]
    others = [(tmp_path / name).read_bytes() for name in ("one.npy", "objects.npz")]
    for each in (*broken, *others):
        file.write_bytes(each)
        with pytest.raises(InputError, match=r"cannot read .*in\.npz: .*numpy\.savez"):
            read_npz(file)
    for missing in (tmp_path / "none.npz", tmp_path):
        with pytest.raises(InputError, match="cannot read"):
            read_npz(missing)


def test_a_pipe_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "x.npz")
    with pytest.raises(InputError, match=f"cannot read {path}: not a regular file"):
        read_npz(path)
