"""From a run to a version: real exports, real raw files, a real process that checks them."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from timonel.data import convert
from timonel.errors import (
    CorruptError,
    InputError,
    ModelError,
    NotFoundError,
    SpecError,
)
from timonel.models import ModelRepository, ModelVersion, check_process, check_version, export
from timonel.models.repository import workspace_models
from timonel.models.runtime_choice import EVIDENCE_FILE, RuntimeMeasurement
from timonel.models.schema import EXPORT_FILE, REFERENCE_FILE
from timonel.storage import Workspace, digest_file, digest_tree
from timonel.tracking import Artifact, RunRecord, lineage, list_runs, read_run, start_run

from .conftest import FORMAT_1


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """The raw files that the export's held-out predictions are of."""
    return Path(shutil.copytree(FORMAT_1 / "export-raw", tmp_path / "raw"))


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the check here, where TensorFlow is imported for all tests once."""

    real = subprocess.Popen

    def start(command: list[str], **streams: Any) -> Any:
        if "timonel.models.check_process" not in command:
            return real(command, **streams)
        with redirect_stderr(StringIO()) as errors:
            code = check_process.main(command[-2:])
        streams["stdout"].write(errors.getvalue().encode())
        return SimpleNamespace(stdin=None, wait=lambda timeout: code, poll=lambda: code)

    monkeypatch.setattr(subprocess, "Popen", start)


def finished_run(workspace: Workspace, folder: Path, *inputs: Artifact) -> RunRecord:
    """Record a training run that made the export in ``folder``, as the training package does."""
    with start_run(workspace, "train", name="tiny", inputs=inputs, job_id="job-1") as run:
        digest = json.loads((folder / EXPORT_FILE).read_text())["digest"]
        run.output(Artifact("savedmodel", folder / "saved_model", digest))
    return read_run(workspace, run.run_id)


def export_run(workspace: Workspace) -> RunRecord:
    return list_runs(workspace, kind="export")[0]


def rewrite_reference(folder: Path, sources: Path) -> None:
    """Say where the raw files are, as training does."""
    path = folder / REFERENCE_FILE
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    located = [{**line, "source": str(sources / line["key"])} for line in lines]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in located))
    document = json.loads((folder / EXPORT_FILE).read_text())
    document["reference"]["digest"] = digest_file(path)
    (folder / EXPORT_FILE).write_text(json.dumps(document))


@pytest.mark.process
def test_a_version_is_published_without_a_choice_that_fails(
    workspace: Workspace,
    export_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(self: RuntimeMeasurement) -> None:
        raise ModelError("it took too long")

    monkeypatch.setattr(RuntimeMeasurement, "wait", fail)
    finished_run(workspace, export_folder)
    version = export("last", name="tiny", workspace=workspace, check=False)
    assert "no runtime was chosen: it took too long" in caplog.text
    assert not (version.path / EVIDENCE_FILE).exists()


@pytest.mark.process
def test_an_alias_moves_to_a_first_version_and_not_to_an_equal_one(
    workspace: Workspace, export_folder: Path, raw: Path, in_this_process: None
) -> None:
    rewrite_reference(export_folder, raw)
    finished_run(workspace, export_folder)
    steps: list[str] = []

    def publish(**options: Any) -> ModelVersion:
        steps.clear()
        return export(
            "last", name="tiny", workspace=workspace, optimize=False, progress=steps.append,
            **options,
        )  # fmt: skip

    first = publish(alias="champion", if_better="accuracy")
    assert (first.number, first.aliases) == (1, ("champion",))
    assert "no version was champion before" in steps[-1]
    second = publish(alias="champion", if_better="accuracy")
    assert (second.number, second.aliases) == (2, ())
    found = second.comparison
    assert found is not None
    assert (found.holder, found.value, found.examples) == (1, found.holder_value, 12)
    assert steps[-1].startswith("champion stays at tiny/1: accuracy ")
    events = [each for each in export_run(workspace).events() if each["type"] == "comparison"]
    assert [each["is_better"] for each in events] == [False]
    assert publish(alias="champion", check=False).aliases == ("champion",)
    assert [each.reason for each in workspace_models(workspace).aliases("tiny").history()] == [
        str(first.comparison),
        "export",
    ]
    for options, problem in (
        ({"alias": "champion", "if_better": "quality"}, "cannot compare models by 'quality'"),
        ({"if_better": "accuracy"}, "a comparison needs an alias"),
        ({"alias": "7"}, "invalid alias '7'"),
    ):
        with pytest.raises(SpecError, match=problem):
            publish(**options)
    assert len(workspace_models(workspace).versions("tiny")) == 3


@pytest.mark.process
def test_a_run_becomes_a_checked_version_with_its_lineage(
    workspace: Workspace,
    export_folder: Path,
    raw: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    dataset = convert(raw, tmp_path / "data", workspace=workspace)
    rewrite_reference(export_folder, raw)
    train = finished_run(workspace, export_folder, dataset.artifact())
    steps: list[str] = []

    version = export("last", name="tiny", workspace=workspace, progress=steps.append)

    found = version.check
    assert found is not None
    assert (found.status, found.examples, found.from_records) == ("passed", 12, 0)
    assert found.max_abs_diff is not None
    assert found.max_abs_diff < 1e-5
    assert (found.label_agreement, found.labels) == (1.0, ("no", "yes"))
    assert found.confusion is not None
    assert [sum(row) for row in found.confusion] == [6, 6]
    assert found.accuracy == (found.confusion[0][0] + found.confusion[1][1]) / 12
    assert (version.name, version.number, version.run_id) == ("tiny", 1, train.id)
    assert version.path == workspace.models / "tiny/1"
    assert [step.split()[0] for step in steps] == ["verifying", "checking", "publishing"]

    record = export_run(workspace)
    assert record.status == "succeeded"
    assert record.metrics["accuracy"] == found.accuracy
    assert {artifact.type for artifact in record.inputs} == {"savedmodel", "dataset"}
    assert {artifact.type: artifact.label for artifact in record.outputs} == {
        "report": "confusion matrix",
        "model": "tiny/1",
    }
    assert (record.folder / "confusion.png").stat().st_size > 5000
    model = next(artifact for artifact in record.outputs if artifact.type == "model")
    assert (model.uri, model.digest) == (version.uri, digest_tree(version.path))
    assert version.document is not None
    assert version.document.provenance["dataset"]["digest"] == dataset.artifact().digest
    assert version.document.provenance["export_run_id"] == record.id

    graph = lineage(workspace, "tiny/1")
    assert {node.record.kind for node in graph.runs} == {"export", "train", "convert"}
    assert {node.artifact.type for node in graph.artifacts} >= {"files", "dataset", "model"}

    request.getfixturevalue("in_this_process")
    # The version is checked again without the job's folder, and without the raw files.
    shutil.rmtree(export_folder)
    shutil.rmtree(raw)
    again = check_version(version)
    assert (again.status, again.examples, again.from_records) == ("passed", 12, 12)
    assert "12 of them from the dataset's records" in again.message


@pytest.mark.process
@pytest.mark.usefixtures("in_this_process")
def test_another_answer_is_not_published_without_force(
    workspace: Workspace, export_folder: Path, raw: Path
) -> None:
    # Another image under the same name: what a wrong resize or scale would look like.
    shutil.copyfile(raw / "no/0.png", raw / "yes/5.png")
    finished_run(workspace, export_folder)
    with pytest.raises(ModelError, match=r"differ from training on 1 of 12") as raised:
        export(name="tiny", workspace=workspace, data_root=raw)
    assert "yes/5.png" in str(raised.value)
    assert "--force" in str(raised.value)
    assert ModelRepository(workspace.models).names() == []
    assert export_run(workspace).status == "failed"

    forced = export(name="tiny", workspace=workspace, data_root=raw, force=True)
    assert forced.check is not None
    assert forced.check.status == "failed"


@pytest.mark.process
@pytest.mark.usefixtures("in_this_process")
def test_a_model_that_does_not_load_is_not_published(
    workspace: Workspace, export_folder: Path, raw: Path
) -> None:
    (export_folder / "saved_model/variables/variables.index").write_bytes(b"nothing")
    document = json.loads((export_folder / EXPORT_FILE).read_text())
    document["digest"] = digest_tree(export_folder / "saved_model")
    (export_folder / EXPORT_FILE).write_text(json.dumps(document))
    finished_run(workspace, export_folder)
    with pytest.raises(ModelError, match="the exported model failed") as raised:
        export(name="tiny", workspace=workspace, data_root=raw)
    assert "\n" not in str(raised.value)
    record = export_run(workspace)
    assert record.status == "failed"
    assert (record.folder / "check.log").stat().st_size > 0
    assert ModelRepository(workspace.models).names() == []


def test_a_place_of_the_raw_files_that_is_none(
    workspace: Workspace, export_folder: Path, tmp_path: Path
) -> None:
    finished_run(workspace, export_folder)
    with pytest.raises(NotFoundError, match="there is no folder of raw files"):
        export(name="tiny", workspace=workspace, data_root=tmp_path / "absent")
    assert ModelRepository(workspace.models).names() == []


@pytest.mark.process
def test_without_held_out_predictions_the_check_says_so(
    workspace: Workspace, export_folder: Path
) -> None:
    document = json.loads((export_folder / EXPORT_FILE).read_text())
    (export_folder / EXPORT_FILE).write_text(json.dumps({**document, "reference": None}))
    finished_run(workspace, export_folder)
    version = export(name="tiny", workspace=workspace)
    assert version.check is not None
    assert version.check.status == "skipped"
    assert "no held-out predictions" in version.check.message


@pytest.mark.process
def test_a_tensor_model_is_published_unchecked(workspace: Workspace, export_folder: Path) -> None:
    document = json.loads((export_folder / EXPORT_FILE).read_text())
    document["preparation"] = {"input_kind": "tensor", "source": "unknown"}
    (export_folder / EXPORT_FILE).write_text(json.dumps(document))
    finished_run(workspace, export_folder)
    found = export(name="tiny", workspace=workspace).check
    assert found is not None
    assert (found.status, found.message) == (
        "skipped",
        "not checked: the model takes tensors, so raw files cannot be fed to it",
    )


@pytest.mark.process
def test_a_run_is_chosen_by_id_and_name(
    workspace: Workspace, export_folder: Path, tmp_path: Path
) -> None:
    first = finished_run(workspace, export_folder)
    start_run(workspace, "train", name="later").finish("failed", "the script raised")
    repository = tmp_path / "elsewhere"
    by_id = export(first.id, name="a", workspace=workspace, repository=repository, check=False)
    by_name = export("tiny", name="a", workspace=workspace, repository=repository, check=False)
    assert [by_id.number, by_name.number] == [1, 2]
    assert {by_id.run_id, by_name.run_id} == {first.id}
    assert by_name.check is None
    assert by_name.path == repository / "a/2"


def test_a_run_that_failed_has_no_model(workspace: Workspace) -> None:
    start_run(workspace, "train", job_id="job-9").finish("failed", "ValueError: no")
    with pytest.raises(ModelError, match=r"\(failed\) has no model: ValueError: no") as raised:
        export(name="tiny", workspace=workspace)
    assert "timonel logs job-9" in str(raised.value)
    assert list_runs(workspace, kind="export") == []


def test_the_last_run_without_a_model_is_refused(workspace: Workspace, export_folder: Path) -> None:
    trained = finished_run(workspace, export_folder)
    failed = start_run(workspace, "train")
    failed.finish("failed", "b is broken")
    with pytest.raises(ModelError) as raised:
        export(name="tiny", workspace=workspace)
    assert str(raised.value) == (
        f"run {failed.run_id} (failed) has no model: b is broken: 'timonel export {trained.id} "
        "--name tiny' takes the newest run with a model"
    )
    assert list_runs(workspace, kind="export") == []
    with pytest.raises(ModelError, match=r"b is broken: see 'timonel logs"):
        export(failed.run_id, name="tiny", workspace=workspace)


def test_a_run_that_fitted_nothing_has_no_model(workspace: Workspace) -> None:
    start_run(workspace, "train").finish("succeeded")
    with pytest.raises(ModelError, match=r"model\.fit"):
        export(name="tiny", workspace=workspace)


def test_a_run_that_is_running_has_no_model_yet(workspace: Workspace) -> None:
    start_run(workspace, "train", job_id="job-1")
    with pytest.raises(ModelError, match="is still training: export it when it ends"):
        export(name="tiny", workspace=workspace)


def test_unknown_runs_and_names(workspace: Workspace, tmp_path: Path) -> None:
    with pytest.raises(
        NotFoundError, match="no training run yet: run 'timonel train SCRIPT' first"
    ):
        export(name="tiny", workspace=workspace)
    with pytest.raises(NotFoundError, match="matches 'nightly'"):
        export("nightly", name="tiny", workspace=workspace)
    with pytest.raises(SpecError, match="invalid model name"):
        export(name="../tiny", workspace=workspace)
    with pytest.raises(NotFoundError, match="no workspace"):
        export(name="tiny", workspace=tmp_path / "nowhere")


def test_an_export_that_changed_is_refused(workspace: Workspace, export_folder: Path) -> None:
    finished_run(workspace, export_folder)
    data = export_folder / "saved_model/variables/variables.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-10])
    with pytest.raises(CorruptError, match="changed or truncated after the export"):
        export(name="tiny", workspace=workspace)
    assert ModelRepository(workspace.models).names() == []


def test_held_out_predictions_that_changed_are_refused(
    workspace: Workspace, export_folder: Path
) -> None:
    finished_run(workspace, export_folder)
    path = export_folder / REFERENCE_FILE
    path.write_text(path.read_text().replace("0.", "1.", 1))
    with pytest.raises(CorruptError, match="has digest"):
        export(name="tiny", workspace=workspace)


def test_another_export_in_its_place_is_refused(workspace: Workspace, export_folder: Path) -> None:
    finished_run(workspace, export_folder)
    (export_folder / "saved_model/assets/labels.txt").write_text("yes\nno\n")
    document = json.loads((export_folder / EXPORT_FILE).read_text())
    document["digest"] = digest_tree(export_folder / "saved_model")
    (export_folder / EXPORT_FILE).write_text(json.dumps(document))
    with pytest.raises(ModelError, match="another export replaced"):
        export(name="tiny", workspace=workspace)


def test_a_job_folder_that_is_gone(workspace: Workspace, export_folder: Path) -> None:
    finished_run(workspace, export_folder)
    shutil.rmtree(export_folder)
    with pytest.raises(ModelError, match="train again"):
        export(name="tiny", workspace=workspace)


@pytest.mark.process
def test_a_repository_in_the_way(workspace: Workspace, export_folder: Path, tmp_path: Path) -> None:
    finished_run(workspace, export_folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        export(name="tiny", workspace=workspace, repository=tmp_path / "file", check=False)
    assert export_run(workspace).status == "failed"


def test_a_foreign_version_cannot_be_checked(export_folder: Path) -> None:
    foreign = ModelRepository(export_folder).resolve(export_folder / "saved_model")
    with pytest.raises(ModelError, match="timonel did not publish it"):
        check_version(foreign)
