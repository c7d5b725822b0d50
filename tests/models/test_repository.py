"""The repository: numbers, atomic versions, rivals, faults, names."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import CorruptError, InputError, NotFoundError, SpecError
from timonel.models import CheckResult, ModelRepository
from timonel.models.schema import VERSION_FILE
from timonel.models.versions import check_name
from timonel.storage import digest_tree, read_document


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    return ModelRepository(tmp_path / "models")


def test_a_version_is_a_saved_model_with_its_provenance(
    repository: ModelRepository, export_folder: Path
) -> None:
    check = CheckResult(status="passed", message="fine", examples=4, max_abs_diff=0.0)
    version = repository.publish("digits", export_folder, {"run_id": "train-1"}, check)

    assert (version.name, version.number, str(version)) == ("digits", 1, "digits/1")
    assert (version.path / "saved_model.pb").is_file()
    assert (version.path / "assets/labels.txt").read_text() == "no\nyes\n"
    document = read_document(version.path / VERSION_FILE, "model-version")
    assert document["provenance"] == {"run_id": "train-1"}
    assert document["check"]["message"] == "fine"
    assert document["digest"] == digest_tree(
        version.path, exclude=[VERSION_FILE, "assets.extra/reference.jsonl"]
    )
    assert version.labels == ("no", "yes")
    assert version.run_id == "train-1"
    assert version.signatures["serving_default"].inputs["image_bytes"].shape == (-1,)
    assert repository.get("digits") == version


def test_a_description_is_json(repository: ModelRepository, export_folder: Path) -> None:
    described = repository.publish("digits", export_folder).describe()
    assert json.loads(json.dumps(described))["version"] == 1
    assert described["signatures"]["tensor"]["inputs"] == {
        "input": {"dtype": "float32", "shape": [-1, 4, 4, 1]}
    }


def test_numbers_are_never_used_twice(repository: ModelRepository, export_folder: Path) -> None:
    for _ in range(3):
        repository.publish("digits", export_folder)
    repository.delete("digits", 3)
    repository.delete("digits", 2)
    assert [each.number for each in repository.versions("digits")] == [1]
    assert repository.publish("digits", export_folder).number == 4


def test_numbers_go_on_after_the_only_version_was_deleted(
    repository: ModelRepository, export_folder: Path
) -> None:
    repository.publish("digits", export_folder)
    repository.delete("digits", 1)
    assert repository.names() == []
    assert repository.publish("digits", export_folder).number == 2


def test_numbers_follow_versions_that_others_put_there(
    repository: ModelRepository, export_folder: Path
) -> None:
    shutil.copytree(export_folder / "saved_model", repository.root / "digits/00000041")
    assert repository.publish("digits", export_folder).number == 42
    repository.delete("digits", 42)
    assert repository.publish("digits", export_folder).number == 43


def test_a_server_sees_versions_and_nothing_else(
    repository: ModelRepository, export_folder: Path
) -> None:
    repository.publish("digits", export_folder)
    repository.publish("digits", export_folder)
    repository.delete("digits", 1)
    children = {path.name for path in (repository.root / "digits").iterdir()}
    assert children == {"2", ".highest", ".lock", ".alias-lock"}


def test_deleting_hides_the_version_at_once(
    repository: ModelRepository, export_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = repository.publish("digits", export_folder)
    seen: list[list[str]] = []

    def look(path: Path, **_: Any) -> None:
        seen.append([each.name for each in version.path.parent.iterdir() if each.name.isdigit()])

    monkeypatch.setattr(shutil, "rmtree", look)
    repository.delete("digits", 1)
    assert seen == [[]]


def test_versions_of_others_are_listed(repository: ModelRepository, export_folder: Path) -> None:
    shutil.copytree(export_folder / "saved_model", repository.root / "foreign/7")
    (repository.root / "foreign/notes.txt").write_text("not a version")
    (repository.root / "empty").mkdir()
    (version,) = repository.versions("foreign")
    assert (version.number, version.document, version.check, version.labels) == (
        7,
        None,
        None,
        None,
    )
    assert set(version.describe()["signatures"]) == {"serving_default", "tensor"}
    assert repository.names() == ["foreign"]


def test_a_broken_document_hides_no_version(
    repository: ModelRepository, export_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    version = repository.publish("digits", export_folder)
    (version.path / VERSION_FILE).write_text("{")
    assert repository.get("digits").document is None
    assert "ignoring the document of" in caplog.text


@pytest.mark.parametrize(
    "break_it",
    [
        lambda folder: (folder / "saved_model/saved_model.pb").write_bytes(b"\x0a"),
        lambda folder: (folder / "saved_model/variables/variables.index").unlink(),
        lambda folder: (folder / "saved_model/extra").write_text("more"),
    ],
    ids=["cut off", "lost", "added"],
)
def test_a_changed_export_is_refused(
    repository: ModelRepository, export_folder: Path, break_it: Callable[[Path], object]
) -> None:
    break_it(export_folder)
    with pytest.raises(CorruptError, match=r"the SavedModel in .* was changed or truncated"):
        repository.publish("digits", export_folder)
    assert repository.names() == []
    assert {path.name for path in (repository.root / "digits").iterdir()} == {".lock"}


def test_no_export_is_refused(repository: ModelRepository, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no export document"):
        repository.publish("digits", tmp_path)
    assert not (repository.root / "digits").exists()


def test_a_repository_that_cannot_be_written(export_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot write"):
        ModelRepository(tmp_path / "file").publish("digits", export_folder)


def test_a_file_that_does_not_fit_is_said_once_and_leaves_nothing(
    repository: ModelRepository, export_folder: Path
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, before[1]))
    try:
        with pytest.raises(InputError) as caught:
            repository.publish("digits", export_folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    place = repository.root / "digits" / "1"
    assert caught.value.message == f"cannot write {place}: File too large"
    assert [path.name for path in (repository.root / "digits").iterdir()] == [".lock"]


def test_a_broken_high_water_mark_is_an_error(
    repository: ModelRepository, export_folder: Path
) -> None:
    repository.publish("digits", export_folder)
    (repository.root / "digits/.highest").write_text("many\n")
    with pytest.raises(CorruptError, match="does not hold a version number"):
        repository.publish("digits", export_folder)


def test_unknown_names_and_versions(repository: ModelRepository, export_folder: Path) -> None:
    with pytest.raises(NotFoundError, match="publish one"):
        repository.get("digits")
    repository.publish("digits", export_folder)
    repository.publish("digits", export_folder)
    with pytest.raises(NotFoundError, match="the models are: digits"):
        repository.get("letters")
    with pytest.raises(NotFoundError, match="its versions are: 1, 2"):
        repository.get("digits", 9)
    with pytest.raises(NotFoundError):
        repository.delete("letters", 1)
    assert not (repository.root / "letters").exists()


def test_resolving(repository: ModelRepository, export_folder: Path, tmp_path: Path) -> None:
    for _ in range(2):
        repository.publish("digits", export_folder)
    folder = repository.root / "digits"
    assert repository.resolve("digits").number == 2
    assert repository.resolve("digits/1").number == 1
    assert repository.resolve(folder / "1") == repository.get("digits", 1)
    assert str(repository.resolve(folder)) == "digits/2"
    assert str(repository.resolve(export_folder / "saved_model")) == "saved_model/1"
    with pytest.raises(SpecError, match="expected digits/<number>"):
        repository.resolve("digits/latest")
    with pytest.raises(NotFoundError, match="folder of a SavedModel"):
        repository.resolve(tmp_path)
    with pytest.raises(NotFoundError, match="the models are: digits"):
        repository.resolve("letters")
    with pytest.raises(NotFoundError, match="folder of a SavedModel"):
        repository.resolve("./nowhere/else")


def test_aliases_name_versions(repository: ModelRepository, export_folder: Path) -> None:
    for _ in range(3):
        repository.publish("digits", export_folder)
    repository.alias("digits", "champion", 1)
    repository.alias("digits", "candidate", "latest")
    folder = repository.root / "digits"
    assert repository.resolve("digits@champion").number == 1
    assert repository.resolve(f"{folder}@candidate").number == 3
    assert repository.resolve(f"{folder}@latest").number == 3
    assert [each.aliases for each in repository.versions("digits")] == [
        ("champion",),
        (),
        ("candidate",),
    ]
    change = repository.alias("digits", "champion", "candidate")
    assert (change.before, change.version) == (1, 3)
    assert repository.get("digits", 3).describe()["aliases"] == ["candidate", "champion"]
    repository.alias("digits", "candidate", None)
    assert dict(repository.aliases("digits").read()) == {"champion": 3}
    with pytest.raises(NotFoundError, match="digits has no version 9"):
        repository.alias("digits", "champion", 9)
    with pytest.raises(NotFoundError, match="has no alias candidate"):
        repository.alias("digits", "candidate", None)
    with pytest.raises(NotFoundError, match="no model 'cats'"):
        repository.alias("cats", "champion", 1)
    with pytest.raises(SpecError, match="or digits@<alias>"):
        repository.resolve("digits/1@champion")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", ".hidden", "7", "a:b", "é", "a b"])
def test_names_that_cannot_be_a_models(repository: ModelRepository, name: str) -> None:
    with pytest.raises(SpecError, match="invalid model name"):
        repository.versions(name)


@given(st.text(max_size=20))
def test_a_name_stays_inside_the_repository(name: str) -> None:
    try:
        check_name(name)
    except SpecError:
        return
    assert Path("/root", name).resolve().parent == Path("/root").resolve()
    assert not name.strip().lstrip("+-").isdigit()


def _publish_some(root: str, export_folder: str, count: int) -> list[int]:
    repository = ModelRepository(Path(root))
    return [repository.publish("digits", Path(export_folder)).number for _ in range(count)]


@pytest.mark.process
def test_eight_publishers_never_collide(repository: ModelRepository, export_folder: Path) -> None:
    arguments = [(str(repository.root), str(export_folder), 3)] * 8
    with get_context("spawn").Pool(8) as pool:
        numbers = [number for part in pool.starmap(_publish_some, arguments) for number in part]
    assert sorted(numbers) == list(range(1, 25))
    digests = {version.document.digest for version in repository.versions("digits")}
    assert len(digests) == 1
    assert {digest_tree(repository.root / f"digits/{n}/variables") for n in numbers} == {
        digest_tree(export_folder / "saved_model/variables")
    }


_SLOW_PUBLISH = """
import shutil, sys, time
from pathlib import Path
from timonel.models import ModelRepository

def slowly(source, target, **_):
    Path(target, "saved_model.pb").write_bytes(b"half")
    print("copying", flush=True)
    time.sleep(60)

shutil.copytree = slowly
ModelRepository(Path(sys.argv[1])).publish("digits", Path(sys.argv[2]))
"""


@pytest.mark.process
def test_a_killed_publisher_leaves_no_version(
    repository: ModelRepository, export_folder: Path
) -> None:
    command = [sys.executable, "-c", _SLOW_PUBLISH, str(repository.root), str(export_folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "copying\n"
        process.send_signal(signal.SIGKILL)
    assert repository.versions("digits") == []
    began = time.monotonic()
    assert repository.publish("digits", export_folder).number == 1
    assert time.monotonic() - began < 10
    # What the dead one left aside is swept away by the next publisher.
    names = {path.name for path in (repository.root / "digits").iterdir()}
    assert names == {"1", ".highest", ".lock"}
