"""Publish a run's model: verify, check, publish, record. Without TensorFlow."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from timonel.errors import ModelError, NotFoundError
from timonel.models.checking import check_saved_model
from timonel.models.evaluation import write_confusion_png
from timonel.models.exports import export_folder_of, reference_of, saved_model_of, verify_export
from timonel.models.optimization import RuntimeChoice
from timonel.models.repository import ModelRepository
from timonel.models.schema import REFERENCE_FILE, CheckResult, Export
from timonel.models.versions import ModelVersion, check_name
from timonel.storage import Workspace, digest_tree, find_workspace, is_local, local_path
from timonel.storage.atomic import sweep
from timonel.tracking import Artifact, RunRecord, RunWriter, read_run, start_run
from timonel.tracking.mirrors.sidecar import mirror_in_background

CONFUSION_FILE = "confusion.png"
CHECK_LOG = "check.log"

Progress = Callable[[str], None]
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Found:
    """A training run and its export."""

    record: RunRecord
    folder: Path
    export: Export

    @property
    def datasets(self) -> list[Artifact]:
        """Datasets used for training."""
        return [artifact for artifact in self.record.inputs if artifact.type == "dataset"]


def export(  # noqa: PLR0913 - the options of the command line, all keywords
    run: str = "last",
    *,
    name: str,
    workspace: Workspace | str | os.PathLike[str] | None = None,
    repository: ModelRepository | str | os.PathLike[str] | None = None,
    check: bool = True,
    data_root: str | os.PathLike[str] | None = None,
    force: bool = False,
    optimize: bool = True,
    progress: Progress | None = None,
) -> ModelVersion:
    """Publish a training run's model as the next version of ``name``.

    First, a separate process feeds held-out raw files to the exported model and compares its
    answers with the predictions of the training pipeline. A run of kind ``export`` records the
    work, so that the version's lineage leads to the training run, its data and their source.

    Args:
        run: A training run: its ID or a prefix of it, its name, or ``last``.
        name: The model's name in the repository.
        workspace: The workspace of the run; by default found in the same way as by the commands.
        repository: The repository for the version; the workspace's ``models`` by default.
        check: Whether to check the model.
        data_root: The current folder of the raw files, if they were moved since the conversion.
        force: Publish even if the check fails.
        optimize: Whether to measure which runtime computes the model best, and to store held-out
            inputs as warm-up requests for servers.
        progress: Called with a line at the start of each step.

    Returns:
        The new version; its ``check`` holds the result of the check.

    Raises:
        SpecError: The name is not a valid model name.
        NotFoundError: The run or ``data_root`` does not exist.
        ModelError: The run has no model, the model does not work, or the check failed.
        CorruptError: The export was changed or truncated.
        InputError: The repository cannot be written.
    """
    check_name(name)
    root = _root(data_root)
    place = _workspace(workspace)
    models = _repository(repository, place)
    record = read_run(place, run, kind="train")
    say = progress or (lambda _: None)
    artifact = _savedmodel(record)
    inputs = [artifact, *(each for each in record.inputs if each.type == "dataset")]
    params = {"model": name, "run": record.id, "check": check, "force": force}
    sweep(place.runs)  # remove leftovers of killed checks
    with start_run(place, "export", params=params, inputs=inputs) as writer:
        say(f"verifying the export of {record.id}")
        folder = export_folder_of(local_path(artifact.uri))
        found = _Found(record, folder, _verified(folder, artifact))
        with _runtime_choice(found, root) if optimize else contextlib.nullcontext() as choice:
            result = _check(found, writer, root, say) if check else None
            _refuse_failed(result, force=force)
            add = _addition(choice, result)
            say(f"publishing {name}")
            provenance = _provenance(found, writer)
            version = models.publish(name, found.folder, provenance, result, add)
        _record(version, writer)
    mirror_in_background(place)
    return version


def check_version(
    version: ModelVersion, *, data_root: str | os.PathLike[str] | None = None
) -> CheckResult:
    """Check a published version again, using the held-out predictions stored in it.

    Raises:
        ModelError: timonel did not publish the version, or the model does not work.
        CorruptError: The held-out predictions were changed or truncated.
    """
    if version.document is None:
        raise ModelError(
            f"expected a version that timonel published, got {version}",
            hint="only those hold what training predicted",
        )
    extra = version.path / "assets.extra"
    dataset = version.document.provenance.get("dataset") or {}
    return check_saved_model(
        version.path,
        version.document.export,
        extra / REFERENCE_FILE,
        reference_of(extra, version.document.export),
        data_root=_root(data_root),
        dataset=_local(dataset.get("uri")),
    )


def _workspace(workspace: Workspace | str | os.PathLike[str] | None) -> Workspace:
    if isinstance(workspace, Workspace):
        return workspace
    return find_workspace(workspace, create=False)


def _root(data_root: str | os.PathLike[str] | None) -> Path | None:
    if data_root is None:
        return None
    root = local_path(data_root)
    if not root.is_dir():
        raise NotFoundError(
            f"expected the folder of the raw files at {root}, found none",
            hint="give the folder that took the place of the one that was converted",
        )
    return root


def _repository(
    repository: ModelRepository | str | os.PathLike[str] | None, workspace: Workspace
) -> ModelRepository:
    if isinstance(repository, ModelRepository):
        return repository
    return ModelRepository(workspace.models if repository is None else local_path(repository))


def _savedmodel(record: RunRecord) -> Artifact:
    made = [artifact for artifact in record.outputs if artifact.type == "savedmodel"]
    if made:
        return made[-1]
    if record.status == "running":
        raise ModelError(f"run {record.id} is still training", hint="export it when it ends")
    reason = f": {record.message}" if record.message else ""
    hint = "train with model.fit to its end, or call timonel.training.context().export(model)"
    if record.status == "failed":
        hint = f"see 'timonel logs {record.job_id or record.id}', mend the script, train again"
    raise ModelError(
        f"expected run {record.id} to have made a model, "
        f"but it ended ({record.status}) without one{reason}",
        hint=hint,
    )


def _verified(folder: Path, artifact: Artifact) -> Export:
    try:
        export = verify_export(folder)
    except NotFoundError as error:
        raise ModelError(
            f"expected the run's model in {folder}, found none",
            hint="the job's folder was removed or emptied: train again",
        ) from error
    if artifact.digest not in {None, export.digest}:
        raise ModelError(
            f"expected the model of digest {artifact.digest} in {folder}, found {export.digest}",
            hint="another export took its place: export the later run, or train again",
        )
    return export


def _check(found: _Found, writer: RunWriter, data_root: Path | None, say: Progress) -> CheckResult:
    examples = reference_of(found.folder, found.export)
    if examples:
        say(f"checking on {len(examples)} held-out raw inputs")
    result = check_saved_model(
        saved_model_of(found.folder),
        found.export,
        found.folder / REFERENCE_FILE,
        examples,
        log=writer.folder / CHECK_LOG,
        data_root=data_root,
        dataset=_local(found.datasets[0].uri) if found.datasets else None,
    )
    measured = ("max_abs_diff", "label_agreement", "accuracy", "mae", "rmse", "seconds")
    values = {name: getattr(result, name) for name in measured}
    writer.metrics({name: value for name, value in values.items() if value is not None})
    writer.event("check", status=result.status, message=result.message)
    if result.confusion and result.labels:
        path = writer.folder / CONFUSION_FILE
        write_confusion_png(path, result.confusion, result.labels)
        writer.output(Artifact("report", path, name="confusion matrix"))
    return result


def _runtime_choice(found: _Found, data_root: Path | None) -> RuntimeChoice:
    """Start to measure the runtimes, in parallel with the check."""
    return RuntimeChoice(
        saved_model_of(found.folder),
        export=found.export,
        examples=reference_of(found.folder, found.export),
        data_root=data_root,
    )


def _addition(
    choice: RuntimeChoice | None, result: CheckResult | None
) -> Callable[[Path], Any] | None:
    """Return a function that stores the runtime choice in a version.

    Held-out inputs become warm-up requests if the check passed.
    """
    if choice is None:
        return None
    try:
        choice.wait()
    except ModelError as error:
        # A missing choice of a runtime must not prevent publishing.
        _logger.warning("the choice of a runtime is left out: %s", error)
        return None
    return partial(choice.store, warm_up=result is not None and result.status == "passed")


def _refuse_failed(result: CheckResult | None, *, force: bool) -> None:
    if result is not None and result.status == "failed" and not force:
        raise ModelError(
            f"expected the check to pass, but {result.message}; nothing was published",
            hint="see that serving prepares inputs as training does, or publish with --force",
        )


def _provenance(found: _Found, writer: RunWriter) -> dict[str, Any]:
    record = found.record
    dataset = found.datasets[0] if found.datasets else None
    return {
        "run_id": record.id,
        "run_name": record.name,
        "job_id": record.job_id,
        "export_run_id": writer.run_id,
        "git": record.header.git,
        "source": [_told(artifact) for artifact in record.inputs if artifact.type == "source"],
        "dataset": _told(dataset) if dataset else None,
    }


def _told(artifact: Artifact) -> dict[str, Any]:
    return {"uri": artifact.uri, "digest": artifact.digest, "name": artifact.name}


def _record(version: ModelVersion, writer: RunWriter) -> None:
    # Digest the whole folder: the same weights with another provenance are another artifact.
    digest = digest_tree(version.path)
    metadata = {"model": version.name, "version": version.number}
    writer.output(Artifact("model", version.path, digest, str(version), metadata))


def _local(uri: Any) -> Path | None:
    return local_path(uri) if isinstance(uri, str) and is_local(uri) else None
