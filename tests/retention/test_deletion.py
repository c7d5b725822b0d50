"""Deletions in a workspace: what goes, what stays, and why."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path

import pytest

from timonel import delete, prune
from timonel.endpoints.folder import EndpointFolder
from timonel.endpoints.spec import EndpointSpec
from timonel.engines import JobState, JobStatus
from timonel.engines.local.folder import JobFolder, JobRecord
from timonel.errors import NotFoundError, SpecError
from timonel.models.repository import workspace_models
from timonel.models.schema import VERSION_FILE
from timonel.processes.tree import own_identity
from timonel.retention import Removed
from timonel.storage import Workspace, exclusive, find_workspace, write_document
from timonel.storage.document_store import FolderDocuments
from timonel.tracking import Artifact, list_runs, start_run
from timonel.tuning import list_studies

DAY_S = 86_400.0
FORMAT_1 = Path(__file__).parents[1] / "fixtures" / "formats" / "1"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return find_workspace(tmp_path / ".timonel")


def converted(workspace: Workspace, place: Path, run_id: str = "convert-1") -> Artifact:
    """Record the conversion of a dataset."""
    place.mkdir(parents=True)
    (place / "manifest.json").write_text("{}")
    made = Artifact("dataset", place, f"sha256:{uuid.uuid4().hex}", place.name)
    with start_run(workspace, "convert", run_id=run_id) as run:
        run.output(made)
    return made


def trained(
    workspace: Workspace, run_id: str, *inputs: Artifact, parent: str | None = None
) -> None:
    """Record a training run and the folder of its job."""
    with start_run(
        workspace, "train", run_id=run_id, job_id=run_id, inputs=inputs, parent=parent
    ) as run:
        run.output(Artifact("savedmodel", workspace.jobs / run_id / "export", run_id))
    job = JobFolder(workspace.jobs / run_id)
    (job.root / "logs").mkdir(parents=True)
    (job.root / "logs" / "chief-0.log").write_text("x" * 100)
    job.write(JobRecord(JobStatus(job_id=run_id, state=JobState.SUCCEEDED)))


def published(workspace: Workspace, name: str, number: int, run_id: str) -> Path:
    """Publish a version of a run, with the run that exports it."""
    with start_run(
        workspace, "export", run_id=f"export-{number}",
        inputs=[Artifact("savedmodel", workspace.jobs / run_id / "export", run_id)],
    ):  # fmt: skip
        path = workspace.models / name / str(number)
        (path / "assets.extra").mkdir(parents=True)
        (path / "saved_model.pb").write_bytes(b"")
        body = json.loads((FORMAT_1 / "export/export.json").read_text())
        provenance = {"run_id": run_id, "export_run_id": f"export-{number}", "job_id": run_id}
        write_document(
            path / VERSION_FILE, "model-version",
            {"name": name, "version": number, "created_at": time.time(), "digest": run_id,
             "export": body, "provenance": provenance},
        )  # fmt: skip
    return path


def left(workspace: Workspace) -> set[str]:
    return {run.id for run in list_runs(workspace)}


def names(removed: Removed) -> list[str]:
    return [f"{each.noun} {each.name}" for each in removed.deleted]


def reasons(removed: Removed) -> dict[str, str]:
    return {" ".join(key): reason for key, reason in removed.kept.items()}


def test_a_run_goes_with_its_job(workspace: Workspace) -> None:
    trained(workspace, "train-1")
    trained(workspace, "train-2")
    removed = delete("run", "train-1", workspace=workspace)
    assert names(removed) == ["run train-1", "job train-1"]
    assert removed.done
    assert removed.size_bytes > 100
    assert left(workspace) == {"train-2"}
    assert not (workspace.jobs / "train-1").exists()
    with pytest.raises(NotFoundError):
        delete("run", "train-1", workspace=workspace)


def test_what_is_being_removed_is_not_listed(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(workspace, "train-1")
    study(workspace, "search")
    seen: list[tuple[set[str], list[str]]] = []

    def look(path: Path) -> None:
        del path
        studies = [each.name for each in list_studies(workspace)]
        seen.append((left(workspace), studies))

    monkeypatch.setattr("timonel.storage.deletion._remove", look)
    delete("run", "train-1", workspace=workspace)
    delete("study", "search", workspace=workspace)
    assert seen[0] == ({"search-1", "search-2"}, [])
    assert seen[-1] == (set(), [])


def test_the_job_goes_and_the_run_stays(workspace: Workspace) -> None:
    trained(workspace, "train-1")
    assert names(delete("job", "train-1", workspace=workspace)) == ["job train-1"]
    assert left(workspace) == {"train-1"}


def test_what_a_version_with_an_alias_was_made_from_is_kept(
    workspace: Workspace, tmp_path: Path
) -> None:
    data = converted(workspace, tmp_path / "digits")
    trained(workspace, "train-1", data)
    trained(workspace, "train-2", data)
    published(workspace, "cats", 1, "train-1")
    workspace_models(workspace).alias("cats", "champion", 1)
    for noun, name, reason in (
        ("model", "cats", "model cats/1 has the alias champion"),
        ("job", "train-1", "job train-1: model cats/1 was made from it"),
        ("run", "export-1", "run export-1: model cats/1 was made from it"),
        ("dataset", "digits", "was made from it"),
    ):
        with pytest.raises(SpecError, match=reason):
            delete(noun, name, workspace=workspace)
    removed = delete("run", ["train-1", "train-2"], workspace=workspace)
    assert names(removed) == ["run train-2", "job train-2"]
    assert list(reasons(removed)) == ["run train-1"]
    forced = delete("model", "cats@champion", workspace=workspace, force=True)
    assert names(forced) == ["model cats/1"]
    assert not (workspace.models / "cats/1").exists()
    change = workspace_models(workspace).aliases("cats").history()[-1]
    assert (change.version, change.reason) == (None, "version 1 is deleted")
    removed = delete("run", ["train-1", "export-1"], workspace=workspace)
    assert left(workspace) == {"convert-1"}


def test_a_kept_run_keeps_what_it_was_made_from(workspace: Workspace, tmp_path: Path) -> None:
    data = converted(workspace, workspace.root / "digits")
    trained(workspace, "train-1", data)
    published(workspace, "cats", 1, "train-1")
    for name, needed in (("train-1", "model cats/1"), ("convert-1", "run train-1")):
        with pytest.raises(SpecError, match=f"{needed} was made from it"):
            delete("run", name, workspace=workspace)
    with pytest.raises(SpecError, match="was made from it"):
        delete("dataset", "digits", workspace=workspace)
    assert (workspace.root / "digits/manifest.json").is_file()


def test_data_outside_of_the_workspace_stays(workspace: Workspace, tmp_path: Path) -> None:
    converted(workspace, tmp_path / "digits")
    converted(workspace, workspace.root / "own", "convert-2")
    seen: list[Removed] = []

    def consent(removed: Removed) -> bool:
        seen.append(removed)
        return True

    delete("dataset", ["digits", str(workspace.root / "own")], workspace=workspace, consent=consent)
    entries = {each.name: each for each in seen[0].deleted if each.noun == "dataset"}
    outside = entries[str(tmp_path / "digits")]
    assert (outside.places, outside.stays) == ((), str(tmp_path / "digits"))
    assert entries[str(workspace.root / "own")].places == (str(workspace.root / "own"),)
    assert (tmp_path / "digits/manifest.json").is_file()
    assert not (workspace.root / "own").exists()
    assert left(workspace) == set()


def test_a_linked_dataset_loses_the_link_only(workspace: Workspace, tmp_path: Path) -> None:
    converted(workspace, tmp_path / "elsewhere")
    link = workspace.root / "linked"
    link.symlink_to(tmp_path / "elsewhere")
    with start_run(workspace, "convert", run_id="convert-2") as run:
        run.output(Artifact("dataset", link, "sha256:1", "linked"))
    delete("dataset", "linked", workspace=workspace)
    assert not link.is_symlink()
    assert (tmp_path / "elsewhere/manifest.json").is_file()


def test_what_runs_is_never_deleted(workspace: Workspace) -> None:
    trained(workspace, "train-1")
    running = JobStatus(job_id="train-1", state=JobState.RUNNING)
    job = JobFolder(workspace.jobs / "train-1")
    job.write(JobRecord(running, supervisor=own_identity()))
    with pytest.raises(SpecError, match="it is running: stop it first"):
        delete("job", "train-1", workspace=workspace, force=True)
    start_run(workspace, "convert", run_id="convert-1")
    with pytest.raises(SpecError, match="run convert-1: it is running"):
        delete("run", "convert-1", workspace=workspace, force=True)
    start_run(workspace, "train", run_id="train-2", job_id="train-2")
    with pytest.raises(SpecError, match="its job, which has not ended, is not on this machine"):
        delete("run", "train-2", workspace=workspace)
    assert delete("run", "train-2", workspace=workspace, force=True).done


def study(workspace: Workspace, name: str) -> Path:
    folder = workspace.studies / name
    folder.mkdir(parents=True)
    write_document(folder / "study.json", "study", {"name": name, "created_at": time.time()})
    for number in (1, 2):
        trained(workspace, f"{name}-{number}", parent=name)
    return folder


def test_a_study_goes_with_its_trials_but_for_those_that_were_exported(
    workspace: Workspace,
) -> None:
    folder = study(workspace, "search")
    published(workspace, "cats", 1, "search-2")
    with pytest.raises(SpecError, match="run search-1: study search was made from it"):
        delete("run", "search-1", workspace=workspace)
    with exclusive(folder / "controller.lock"), pytest.raises(SpecError, match="it is running"):
        delete("study", "search", workspace=workspace, force=True)
    removed = delete("study", "search", workspace=workspace)
    assert names(removed) == ["study search", "run search-1", "job search-1"]
    assert reasons(removed) == {"run search-2": "model cats/1 was made from it"}
    assert not folder.exists()
    assert left(workspace) == {"search-2", "export-1"}


def test_versions_of_endpoints_are_kept_with_the_reason(workspace: Workspace) -> None:
    for number in (1, 2):
        (workspace.models / f"cats/{number}").mkdir(parents=True)
    spec = EndpointSpec(name="web", model="cats", port=8501, traffic={"percent": {1: 100}})
    EndpointFolder(FolderDocuments(workspace.endpoints), "web").add(spec, "deploy", after=0)
    removed = delete("model", "cats", workspace=workspace)
    assert names(removed) == ["model cats/2"]
    assert reasons(removed) == {"model cats/1": "it answers 100 % of the endpoint web"}
    assert workspace_models(workspace).get("cats").number == 1


def test_numbers_of_deleted_versions_are_not_used_again(workspace: Workspace) -> None:
    for number in (1, 2, 3):
        (workspace.models / f"cats/{number}").mkdir(parents=True)
    delete("model", ["cats/3", "cats/2"], workspace=workspace)
    assert (workspace.models / "cats/.highest").read_text() == "3\n"
    delete("model", "cats", workspace=workspace)
    assert workspace_models(workspace).names() == []


def test_nothing_is_deleted_without_consent(workspace: Workspace) -> None:
    trained(workspace, "train-1")
    assert not delete("run", "train-1", workspace=workspace, consent=lambda _: False).done
    assert not delete("run", "train-1", workspace=workspace, dry_run=True).done
    assert left(workspace) == {"train-1"}
    with pytest.raises(SpecError, match="unknown noun 'cat'"):
        delete("cat", "x", workspace=workspace)


@pytest.fixture
def months(workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and versions of the last months."""
    data = converted(workspace, tmp_path / "digits")
    for number in range(1, 6):
        trained(workspace, f"train-{number}", data)
    published(workspace, "cats", 1, "train-2")
    published(workspace, "cats", 2, "train-3")
    workspace_models(workspace).alias("cats", "champion", 1)
    # As the records and documents are of today, today is later.
    now = time.time() + 100 * DAY_S
    monkeypatch.setattr("timonel.retention.deletion.time.time", lambda: now)


@pytest.mark.usefixtures("months")
def test_pruning_keeps_the_newest_and_what_they_need(workspace: Workspace) -> None:
    shown = prune(older_than="30d", keep_last=1, workspace=workspace, dry_run=True)
    assert not shown.done
    assert len(left(workspace)) == 8
    removed = prune(older_than="30d", keep_last=1, workspace=workspace)
    assert names(removed) == names(shown)
    assert {"run train-1", "run train-4"} <= set(names(removed))
    assert {run for run in left(workspace) if run.startswith("train")} == {
        "train-2",
        "train-3",
        "train-5",
    }
    assert reasons(removed)["model cats/1"] == "it has the alias champion"
    assert [each.number for each in workspace_models(workspace).versions("cats")] == [1, 2]
    assert not prune(older_than="200d", workspace=workspace).deleted


@pytest.mark.usefixtures("months")
def test_pruning_by_force_keeps_the_newest_only(workspace: Workspace) -> None:
    prune(older_than="30d", keep_last=1, workspace=workspace, force=True)
    assert [each.number for each in workspace_models(workspace).versions("cats")] == [2]
    assert left(workspace) == {"train-5", "convert-1", "export-2"}


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))
    return f"memory://{uuid.uuid4().hex}"


def test_a_run_that_was_deleted_in_a_bucket_goes_from_other_machines(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = find_workspace(bucket)
    for name in ("a", "b"):
        with start_run(here, "convert", run_id=name):
            pass
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "two"))
    there = find_workspace(bucket)
    assert left(there) == {"a", "b"}
    delete("run", "a", workspace=here)
    assert left(here) == {"b"}
    assert left(there) == {"b"}
    assert here.local_copy is not None
    objects = set(here.local_copy.store.find("runs"))
    assert {name for name in objects if name.startswith("runs/a/")} == {"runs/a/deleted"}
