from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from timonel.errors import CorruptError, FormatError
from timonel.training.worker.state import checkpoint_format
from timonel.training.worker.state.checkpoint_format import FitState, Progress
from timonel.training.worker.state.copies import Copies


def test_a_checkpoint_of_an_earlier_release_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "epoch-0001"
    checkpoint_format.write(folder, FitState(Progress((0,)), [np.arange(3)]))
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, "format": 3}))
    with pytest.raises(FormatError, match="an earlier timonel wrote it"):
        checkpoint_format.read(folder)


def test_all_types_of_arrays_come_back(tmp_path: Path) -> None:
    arrays = [
        np.array(3.5),
        np.zeros((0, 4), np.float16),
        np.arange(5, dtype=ml_dtypes.bfloat16),
        np.array([[True], [False]]),
        np.asfortranarray(np.arange(6, dtype=np.int8).reshape(2, 3)),
        np.array(["a", "bcd"]),
        np.array([b"a", b"bcd"]),
        np.array(["2020-01-01"], "datetime64[s]"),
        np.arange(3, dtype=">f4"),
    ]
    checkpoint_format.write(tmp_path / "epoch-0001", FitState(Progress((0,)), arrays))
    found = checkpoint_format.read(tmp_path / "epoch-0001").state.variables
    for ours, theirs in zip(found, arrays, strict=True):
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)
        ours[...] = ours.copy()  # it is a copy that may be changed


@pytest.mark.parametrize("cut", [1, 64])
def test_arrays_that_were_cut_off_are_noticed(tmp_path: Path, cut: int) -> None:
    folder = tmp_path / "epoch-0001"
    checkpoint_format.write(folder, FitState(Progress((0,)), [np.arange(100)]))
    content = (folder / "arrays.bin").read_bytes()
    (folder / "arrays.bin").write_bytes(content[:-cut])
    with pytest.raises(CorruptError, match="is damaged"):
        checkpoint_format.read(folder)
    (folder / "arrays.bin").write_bytes(content + b"1")
    with pytest.raises(CorruptError, match="extra bytes"):
        checkpoint_format.read(folder)


def test_copies_are_fetched_where_there_is_nothing(tmp_path: Path) -> None:
    copies = Copies((tmp_path / "bucket").as_uri())
    local = tmp_path / "checkpoints" / "fit-000"
    for epoch in range(2):
        target = local / f"epoch-{epoch + 1:04d}"
        checkpoint_format.write(target, FitState(Progress((epoch,)), [np.array(epoch)]))
        copies.add([target])
        copies.wait()
    assert not (tmp_path / "bucket" / "fit-000" / "epoch-0001" / "state.json").exists()
    # A copy that broke off has no manifest, and is none.
    (tmp_path / "bucket" / "fit-000" / "epoch-0003").mkdir()
    (tmp_path / "bucket" / "fit-000" / "epoch-0003" / "arrays.bin").write_bytes(b"1")
    copies.fetch(tmp_path / "other")
    assert [path.name for path in (tmp_path / "other" / "fit-000").iterdir()] == ["epoch-0002"]
    found = checkpoint_format.read(tmp_path / "other" / "fit-000" / "epoch-0002")
    assert found.state.variables[0] == 1
    Copies(None).fetch(tmp_path / "none")
    assert not (tmp_path / "none").exists()
