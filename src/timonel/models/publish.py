"""Publish a run's model: verify, check, publish, record. Without TensorFlow."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from timonel.errors import ModelError, NotFoundError, SpecError, TimonelError
from timonel.models.check import check_saved_model
from timonel.models.comparison import Challenger, check_metric, compare_with_holder
from timonel.models.evaluation import write_confusion_png
from timonel.models.exports import (
    ReferenceExample,
    export_folder_of,
    read_export,
    reference_of,
    saved_model_of,
    verify_export,
)
from timonel.models.repository import ModelRepository, workspace_models
from timonel.models.runtime_choice import RuntimeMeasurement
from timonel.models.schema import REFERENCE_FILE, CheckResult, Export, HolderComparison
from timonel.models.versions import ModelVersion, check_name
from timonel.storage import Workspace, digest_tree, find_workspace, is_local, local_path
from timonel.storage.aliases import check_alias
from timonel.storage.atomic import sweep
from timonel.tracking import Artifact, RunRecord, RunWriter, list_runs, read_run, start_run
from timonel.tracking.mirrors.sidecar import mirror_in_background

CONFUSION_FILE = "confusion.png"
CHECK_LOG, HOLDER_LOG = "check.log", "holder.log"

Progress = Callable[[str], None]
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _TrainedModel:
    """A training run and its export."""

    record: RunRecord
    folder: Path
    export: Export
    dataset: Artifact | None

    @property
    def dataset_folder(self) -> Path | None:
        return None if self.dataset is None else _local(self.dataset.uri)


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
    alias: str | None = None,
    if_better: str | None = None,
    progress: Progress | None = None,
) -> ModelVersion:
    """Publish a training run's model as the next version of ``name``.

    First, a separate process feeds held-out raw files to the exported model and compares its
    answers with the predictions of the training pipeline. A run of kind ``export`` records the
    work, so that the version's lineage leads to the training run, its data and their source.

    Args:
        run: A training run: its ID or a prefix of it, its name, or ``last``, the newest one.
        name: The model's name in the repository.
        workspace: The workspace of the run; by default found in the same way as by the commands.
        repository: The repository for the version; the workspace's ``models`` by default.
        check: Whether to check the model.
        data_root: The current folder of the raw files, if they were moved since the conversion.
        force: Publish even if the check fails.
        optimize: Whether to measure which runtime computes the model best, and to store held-out
            inputs as warm-up requests for servers.
        alias: Alias for the new version, such as ``champion``.
        if_better: Move the alias only if the new version is better than the one that has it, by
            this metric on the same held-out records: accuracy, mae or rmse. It is published in
            either case.
        progress: Called with a line at the start of each step.

    Returns:
        The new version; its ``check`` holds the result of the check, and its ``comparison`` that
        with the version that had the alias.

    Raises:
        SpecError: The name or the alias is invalid, or models cannot be compared by the metric.
        NotFoundError: The run or ``data_root`` does not exist.
        ModelError: The run has no model, the model does not work, the check failed, or it cannot be
            compared.
        CorruptError: The export was changed or truncated.
        InputError: The repository cannot be written.
    """
    check_name(name)
    _check_alias(alias, if_better, check=check)
    root = _raw_folder(data_root)
    workspace = find_workspace(workspace, create=False)
    if not isinstance(repository, ModelRepository):
        repository = (
            ModelRepository(local_path(repository)) if repository else workspace_models(workspace)
        )
    say = progress or (lambda _: None)
    record, artifact = find_model(workspace, run, f"timonel export {{}} --name {name}")
    datasets = [each for each in record.inputs if each.type == "dataset"]
    params = {"model": name, "run": record.id, "check": check, "force": force}
    sweep(workspace.runs)  # remove leftovers of killed checks
    inputs = [artifact, *datasets]
    with start_run(workspace, "export", params=params, inputs=inputs) as writer:
        say(f"verifying the export of {record.id}")
        folder = open_export(workspace, record, artifact)
        document = _verified(folder, artifact)
        trained = _TrainedModel(record, folder, document, datasets[0] if datasets else None)
        examples = reference_of(folder, document)
        with contextlib.ExitStack() as stack:
            measurement = None
            if optimize:  # in parallel with the check
                measurement = stack.enter_context(
                    RuntimeMeasurement(
                        saved_model_of(folder), export=document, examples=examples, data_root=root
                    )
                )
            result = _check(trained, examples, writer, root, say) if check else None
            _reject_failed(result, force=force)
            challenger = Challenger(
                folder, document, examples, result, root, trained.dataset_folder
            )
            comparison = _comparison(repository, name, alias, if_better, challenger, writer, say)
            add = _choice_writer(measurement, result)
            say(f"publishing {name}")
            provenance = _provenance(trained, writer)
            version = repository.publish(name, folder, provenance, result, add, comparison)
        # Digest the whole folder: the same weights with another provenance are another artifact.
        metadata = {"model": version.name, "version": version.number}
        digest = digest_tree(version.path)
        writer.output(Artifact("model", version.path, digest, str(version), metadata))
        if alias is not None:
            _move_alias(repository, version, alias, comparison, say)
    mirror_in_background(workspace)
    return repository.get(name, version.number)


def _check_alias(alias: str | None, if_better: str | None, *, check: bool) -> None:
    if alias is not None:
        check_alias(alias)
    if if_better is None:
        return
    check_metric(if_better)
    if alias is None or not check:
        raise SpecError("a comparison needs an alias, and the check", hint="give --alias champion")


def _comparison(
    repository: ModelRepository,
    name: str,
    alias: str | None,
    metric: str | None,
    challenger: Challenger,
    writer: RunWriter,
    say: Progress,
) -> HolderComparison | None:
    """Compare with the version that has the alias, if the user asks for it."""
    if alias is None or metric is None:
        return None
    number = repository.aliases(name).read().get(alias)
    holder = None if number is None else repository.get(name, number)
    if holder is not None:
        say(f"comparing with {holder}, the {alias}")
    found = compare_with_holder(challenger, alias, metric, holder, writer.folder / HOLDER_LOG)
    writer.event("comparison", **found.model_dump(mode="json"))
    return found


def _move_alias(
    repository: ModelRepository,
    version: ModelVersion,
    alias: str,
    comparison: HolderComparison | None,
    say: Progress,
) -> None:
    """Give a new version its alias, unless it is not better than the holder."""
    if comparison is None:
        repository.alias(version.name, alias, version.number, reason="export")
        return
    if not comparison.is_better:
        say(f"{alias} stays at {version.name}/{comparison.holder}: {comparison}")
        return

    def check_holder(before: int | None) -> None:
        if before != comparison.holder:
            raise ModelError(
                f"{version} is published, but {alias} moved to version {before} meanwhile",
                hint="compare again: repeat the export",
            )

    repository.alias(
        version.name, alias, version.number, reason=str(comparison), expected=check_holder
    )
    say(f"{alias} moves to {version}: {comparison}")


def find_model(workspace: Workspace, run: str, use: str) -> tuple[RunRecord, Artifact]:
    """Return a training run and its SavedModel; ``last`` is the newest run.

    ``use`` is the user's command, with ``{}`` for the run.
    """
    record = read_run(workspace, run, kind="train")
    if (artifact := _model_of(record)) is not None:
        return record, artifact
    error = _no_model(record)
    if run == "last":
        others = (each.id for each in list_runs(workspace, kind="train") if _model_of(each))
        if (newest := next(others, None)) is not None:
            error.hint = f"'{use.format(newest)}' takes the newest run with a model"
    raise error


def open_export(workspace: Workspace, record: RunRecord, artifact: Artifact) -> Path:
    """Return the export folder of a run's SavedModel, downloaded if it is in a bucket.

    The local folder is replaced if it has another model than the run's record, as when another
    machine resumed the run. That of a job that still runs is not: it may be newer than the record.
    """
    folder = export_folder_of(workspace.path_of(artifact.uri))
    if workspace.local_copy is None or not folder.is_relative_to(workspace.root):
        return folder
    if not folder.is_dir() or (record.is_finished and not _is_export(folder, artifact)):
        workspace.local_copy.pull_folder(folder)
    return folder


def _is_export(folder: Path, artifact: Artifact) -> bool:
    try:
        return read_export(folder).digest == artifact.digest
    except TimonelError:
        return False


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
            f"cannot check {version}: timonel did not publish it",
            hint="only versions that timonel published hold the predictions of training",
        )
    extra = version.path / "assets.extra"
    dataset = version.document.provenance.get("dataset") or {}
    return check_saved_model(
        version.path,
        version.document.export,
        extra / REFERENCE_FILE,
        reference_of(extra, version.document.export),
        data_root=_raw_folder(data_root),
        dataset=_local(dataset.get("uri")),
    )


def _raw_folder(data_root: str | os.PathLike[str] | None) -> Path | None:
    if data_root is None:
        return None
    root = local_path(data_root)
    if not root.is_dir():
        raise NotFoundError(
            f"there is no folder of raw files at {root}",
            hint="name the current folder of the files that were converted",
        )
    return root


def _model_of(record: RunRecord) -> Artifact | None:
    made = [artifact for artifact in record.outputs if artifact.type == "savedmodel"]
    return made[-1] if made else None


def _no_model(record: RunRecord) -> ModelError:
    if record.status == "running":
        return ModelError(f"run {record.id} is still training", hint="export it when it ends")
    reason = f": {record.message}" if record.message else ""
    hint = "train with model.fit to its end, or call timonel.training.context().export(model)"
    if record.status == "failed":
        hint = f"see 'timonel logs {record.job_id or record.id}', fix the script, and train again"
    return ModelError(f"run {record.id} ({record.status}) has no model{reason}", hint=hint)


def _verified(folder: Path, artifact: Artifact) -> Export:
    try:
        export = verify_export(folder)
    except NotFoundError as error:
        raise ModelError(
            f"the run's model is missing in {folder}",
            hint="the job's folder was deleted; train again",
        ) from error
    if artifact.digest not in {None, export.digest}:
        raise ModelError(
            f"another export replaced the run's model in {folder}: expected digest "
            f"{artifact.digest}, got {export.digest}",
            hint="export the later run, or train again",
        )
    return export


def _check(
    trained: _TrainedModel,
    examples: Sequence[ReferenceExample],
    writer: RunWriter,
    data_root: Path | None,
    say: Progress,
) -> CheckResult:
    if examples:
        say(f"checking on {len(examples)} held-out raw inputs")
    result = check_saved_model(
        saved_model_of(trained.folder),
        trained.export,
        trained.folder / REFERENCE_FILE,
        examples,
        log=writer.folder / CHECK_LOG,
        data_root=data_root,
        dataset=trained.dataset_folder,
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


def _reject_failed(result: CheckResult | None, *, force: bool) -> None:
    if result is not None and result.status == "failed" and not force:
        raise ModelError(
            f"nothing was published, because the check failed: {result.message}",
            hint="make serving prepare inputs as training does, or publish with --force",
        )


def _choice_writer(
    measurement: RuntimeMeasurement | None, result: CheckResult | None
) -> Callable[[Path], Any] | None:
    """Return a function that stores the runtime choice in a version.

    Held-out inputs become warm-up requests if the check passed.
    """
    if measurement is None:
        return None
    try:
        measurement.wait()
    except ModelError as error:
        # A missing choice of a runtime must not prevent publishing.
        _logger.warning("no runtime was chosen: %s", error)
        return None
    return partial(measurement.store, warm_up=result is not None and result.status == "passed")


def _provenance(trained: _TrainedModel, writer: RunWriter) -> dict[str, Any]:
    record = trained.record

    def origin(artifact: Artifact) -> dict[str, Any]:
        return {"uri": artifact.uri, "digest": artifact.digest, "name": artifact.name}

    return {
        "run_id": record.id,
        "run_name": record.name,
        "job_id": record.job_id,
        "export_run_id": writer.run_id,
        "git": record.header.git,
        "source": [origin(artifact) for artifact in record.inputs if artifact.type == "source"],
        "dataset": origin(trained.dataset) if trained.dataset else None,
    }


def _local(uri: Any) -> Path | None:
    return local_path(uri) if isinstance(uri, str) and is_local(uri) else None
