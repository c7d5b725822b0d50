"""A file that only grows, as parts in a bucket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from timonel.errors import CorruptError
from timonel.storage.growing_file import DivergedError, GrowingFile
from timonel.storage.object_store import ObjectStore

Machine = Callable[[str], GrowingFile]
FOLDER = "log/parts"


@pytest.fixture
def store(bucket: str) -> ObjectStore:
    return ObjectStore(bucket)


@pytest.fixture
def machine(store: ObjectStore, tmp_path: Path) -> Machine:
    return lambda name: GrowingFile(store, FOLDER, tmp_path / name / "log")


def append(file: GrowingFile, text: str) -> None:
    file.path.parent.mkdir(exist_ok=True)
    with file.path.open("a") as opened:
        opened.write(text)


def test_parts_are_put_together_elsewhere(store: ObjectStore, machine: Machine) -> None:
    here, there = machine("a"), machine("b")
    append(here, "one\n")
    here.push(store.find(FOLDER))
    assert not there.pull(store.find(FOLDER))
    append(here, "two\nthr")
    here.push(store.find(FOLDER))
    assert here.is_longer(store.find(FOLDER))
    assert not there.pull(store.find(FOLDER))
    assert there.path.read_text() == "one\ntwo\n", "only complete lines"
    assert sorted(store.find(FOLDER)) == [there.part_name(0), there.part_name(4)]
    here.push(store.find(FOLDER))
    assert len(store.find(FOLDER)) == 2, "nothing new"


def test_of_two_machines_one_may_append(store: ObjectStore, machine: Machine) -> None:
    here, there = machine("a"), machine("b")
    append(here, "one\n")
    here.push(store.find(FOLDER))
    there.pull(store.find(FOLDER))
    before = store.find(FOLDER)
    append(here, "here\n")
    append(there, "there\n")
    there.push(before)
    with pytest.raises(DivergedError, match="another machine continued"):
        here.push(before)
    with pytest.raises(DivergedError, match="another machine continued"):
        here.push(store.find(FOLDER))
    assert here.pull(store.find(FOLDER)), "its own line is dropped"
    assert here.path.read_text() == "one\nthere\n"


def test_a_longer_file_is_cut_to_what_the_bucket_has(store: ObjectStore, machine: Machine) -> None:
    here = machine("a")
    append(here, "one\n")
    here.push(store.find(FOLDER))
    append(here, "two\n")
    assert here.pull(store.find(FOLDER))
    assert here.path.read_text() == "one\n"


def test_a_missing_part_is_an_error(store: ObjectStore, machine: Machine) -> None:
    here = machine("a")
    for text in ("one\n", "two\n"):
        append(here, text)
        here.push(store.find(FOLDER))
    store.delete([here.part_name(0)])
    with pytest.raises(CorruptError, match="is incomplete"):
        machine("b").pull(store.find(FOLDER))
