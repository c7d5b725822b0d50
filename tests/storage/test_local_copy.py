"""Folders and models between a bucket and the local copy of its workspace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.buckets import without_minio
from tests.storage.faulty import FaultyServer
from tests.storage.test_workspace_contract import machine_of, saved_model
from timonel.errors import AlreadyExistsError, CorruptError, InputError, NotFoundError
from timonel.models.repository import workspace_models
from timonel.storage import Workspace, find_workspace
from timonel.storage.bucket_errors import UnavailableError
from timonel.storage.filesystems import forget_connections
from timonel.storage.local_copy import LocalCopy
from timonel.storage.object_store import ObjectStore
from timonel.tracking import list_runs, start_run

Server = tuple[str, FaultyServer]
Machine = Callable[[str], Workspace]


@pytest.fixture
def machine(faulty: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return machine_of(faulty[0], tmp_path, monkeypatch)


def copy_of(workspace: Workspace) -> LocalCopy:
    assert workspace.local_copy is not None
    return workspace.local_copy


@without_minio  # its signatures cover the bucket's name
def test_workspaces_at_one_uri_of_two_servers_are_not_mixed(
    faulty: Server, machine: Machine, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = machine("a")
    with start_run(first, "convert", run_id="mine"):
        pass
    bucket = faulty[0].split("/")[2]
    other = FaultyServer(s3_server, renamed=(bucket, f"{bucket}-other"))
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", other.url)
        forget_connections()
        import s3fs

        s3fs.S3FileSystem().mkdir(bucket)
        second = machine("a")
        assert (second.uri, second.root == first.root) == (first.uri, False)
        assert list_runs(second) == []
        assert copy_of(second).store.find("runs") == {}
        monkeypatch.setenv("AWS_ENDPOINT_URL", faulty[1].url)
        forget_connections()
        assert machine("a").root == first.root
        # Without the network, it would be a guess.
        assert find_workspace(faulty[0], offline=True).root == first.root
        faulty[1].fault = lambda *_: "expired"
        with pytest.raises(InputError, match="the credentials have expired"):
            find_workspace(faulty[0], offline=True)
    finally:
        other.close()


@pytest.mark.slow
def test_a_workspace_that_was_created_again_does_not_get_the_old_runs(
    faulty: Server, machine: Machine
) -> None:
    old = machine("a")
    with start_run(old, "convert"):
        pass
    store = ObjectStore(faulty[0])
    store.delete(store.find())
    new = machine("a")
    assert new.root != old.root
    assert list_runs(new) == []
    assert list(store.find()) == ["FORMAT"]


@pytest.mark.slow
@pytest.mark.parametrize("id_", [None, "", "../../x", 7])
def test_a_workspace_without_a_valid_id_is_refused(
    faulty: Server, machine: Machine, tmp_path: Path, id_: object
) -> None:
    body = {"kind": "workspace", "format": 1, "id": id_}
    ObjectStore(faulty[0]).write("FORMAT", json.dumps(body).encode())
    with pytest.raises(CorruptError, match=r'FORMAT has no valid id: add "id": "[0-9a-f]{32}"'):
        machine("a")
    assert list(tmp_path.iterdir()) == []


def test_a_workspace_that_two_machines_create_is_one(faulty: Server, machine: Machine) -> None:
    def create(method: str, path: str) -> None:
        faulty[1].before = lambda *_: None
        machine("b")

    faulty[1].before = lambda method, path: create(method, path) if method == "PUT" else None
    mine, other = machine("a"), machine("b")
    assert mine.root.name == other.root.name


ODD = ("a//b", "folder/", "x" * 300, "/x", "é" * 200 + "/y", "..", "../up", "a/../../b", "./c")


@without_minio  # it refuses such names
def test_objects_that_cannot_be_files_do_not_hide_others(
    faulty: Server, machine: Machine, tmp_path: Path
) -> None:
    here = machine("a")
    with start_run(here, "train", run_id="good") as run:
        run.metrics({"loss": 1.0}, step=1)
    version = workspace_models(here).add("m", saved_model(tmp_path / "model"))
    with_odd_names = [
        *(f"{folder}/{name}" for name in ODD for folder in ("runs", "runs/good", "models")),
        *(f"{folder}/{name}" for name in ODD for folder in ("models/m", "models/m/1")),
        "runs/file",
        "models/file",
        "runs/good/events",
        "runs/good/events.jsonl",
        "runs/no-record/events/000000000000000.jsonl",
    ]
    import boto3

    bucket, _, prefix = faulty[0].removeprefix("s3://").partition("/")
    client = boto3.client("s3")
    for name in with_odd_names:
        client.put_object(Bucket=bucket, Key=f"{prefix}/{name}", Body=b"odd")
    there = machine("b")
    (found,) = list_runs(there)
    assert (found.id, found.metrics) == ("good", {"loss": 1.0})
    models = workspace_models(there)
    assert models.names() == ["m"]
    (copy,) = models.versions("m")
    names = {path.name for path in copy.path.rglob("*")}
    assert names == {path.name for path in version.path.rglob("*")}
    assert not (there.runs / "no-record").exists()
    assert not [path for path in (tmp_path / "b").rglob("*") if "odd" in path.name]


def test_a_folder_that_was_replaced_in_the_bucket_is_downloaded_again(
    faulty: Server, machine: Machine, tmp_path: Path
) -> None:
    here, there = machine("a"), machine("b")
    folder = saved_model(here.jobs / "job" / "export", b"1")
    (folder / "old").write_text("old")
    copy_of(here).push_folder(folder, folder)
    copy = there.jobs / "job" / "export"
    copy_of(there).pull_folder(copy)
    faulty[1].downloads.clear()
    copy_of(there).pull_folder(copy)
    assert not faulty[1].downloads, "it is the same"
    saved_model(folder, b"2")
    (folder / "old").unlink()
    copy_of(here).push_folder(folder, folder, replace=True)
    copy_of(there).pull_folder(copy)
    assert sorted(path.name for path in copy.rglob("*") if path.is_file()) == [
        "saved_model.pb",
        "variables.index",
    ]
    assert (copy / "saved_model.pb").read_bytes() == b"2"


def test_a_folder_that_the_bucket_lacks_is_kept(machine: Machine) -> None:
    here = machine("a")
    folder = saved_model(here.jobs / "job" / "export")
    copy_of(here).pull_folder(folder)
    assert (folder / "saved_model.pb").is_file()


def test_a_version_that_was_replaced_in_the_bucket_is_downloaded_again(
    machine: Machine, tmp_path: Path
) -> None:
    workspace_models(machine("a")).add("m", saved_model(tmp_path / "model"))
    there = machine("b")
    workspace_models(there).get("m")
    copy_of(there).store.write("models/m/1/saved_model.pb", b"by another tool")
    assert (workspace_models(there).get("m").path / "saved_model.pb").read_bytes() == (
        b"by another tool"
    )


def test_an_interrupted_replacement_is_invisible(
    faulty: Server, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ObjectStore.__init__, "__kwdefaults__", {"patience_s": 0.2})
    here, there = machine("a"), machine("b")
    folder = saved_model(here.jobs / "job" / "export", b"1")
    copy_of(here).push_folder(folder, folder)
    saved_model(folder, b"2")
    faulty[1].fault = lambda method, *_: "away" if method == "PUT" else None
    with pytest.raises(UnavailableError):
        copy_of(here).push_folder(folder, folder, replace=True)
    faulty[1].fault = lambda *_: None
    copy = there.jobs / "job" / "export"
    copy_of(there).pull_folder(copy)
    assert not copy.exists(), "half of each must not be taken for a model"
    copy_of(here).push_folder(folder, folder)
    copy_of(there).pull_folder(copy)
    assert (copy / "variables" / "variables.index").read_bytes() == b"2" * 10


def test_stale_files_are_removed_from_the_bucket(machine: Machine) -> None:
    here = machine("a")
    folder = saved_model(here.jobs / "job" / "export")
    (folder / "stale").write_text("old")
    copy_of(here).push_folder(folder, folder)
    (folder / "stale").unlink()
    with pytest.raises(AlreadyExistsError):
        copy_of(here).push_folder(folder, folder)
    copy_of(here).push_folder(folder, folder, replace=True)
    assert sorted(copy_of(here).store.find("jobs/job/export")) == [
        "jobs/job/export/saved_model.pb",
        "jobs/job/export/variables/variables.index",
    ]


def test_an_incomplete_folder_is_not_uploaded(machine: Machine) -> None:
    here = machine("a")
    (here.jobs / "job" / "export" / "variables").mkdir(parents=True)
    with pytest.raises(NotFoundError, match="holds no model"):
        copy_of(here).push_folder(*[here.jobs / "job" / "export"] * 2)


@pytest.mark.slow
def test_the_next_publication_removes_what_an_interrupted_one_left(
    faulty: Server, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ObjectStore.__init__, "__kwdefaults__", {"patience_s": 0.2})
    here, model = machine("a"), saved_model(tmp_path / "model")
    store = copy_of(here).store
    faulty[1].fault = lambda method, path, *_: (
        "away" if method == "PUT" and path.endswith("saved_model.pb") else None
    )
    with pytest.raises(UnavailableError):
        workspace_models(here).add("m", model)
    faulty[1].fault = lambda *_: None
    left = ["models/m/.numbers/1", "models/m/1/variables/variables.index"]
    assert sorted(store.find("models")) == left
    # Another machine may still be publishing the first version, as far as the second one knows.
    assert workspace_models(machine("b")).add("m", model).number == 2
    assert set(left) < store.find("models").keys()
    assert workspace_models(here).add("m", model).number == 3
    folders = {name.split("/")[2] for name in store.find("models/m")}
    assert folders == {".numbers", "2", "3"}
