"""Predict files with a model, without a server.

    find the files -> match their columns -> plan shards -> a runner predicts them -> join

The same input and model give the same bytes. A batch prediction that was killed continues, see
`timonel.batch.journal`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from timonel.batch.columns import check_outputs, match_columns
from timonel.batch.destination import (
    check_destination,
    check_overlap,
    errors_of,
    publish,
    unfinished,
    write_errors,
)
from timonel.batch.inputs import Inputs, find_inputs
from timonel.batch.journal import Journal, Outcome
from timonel.batch.model import BatchModel, check_signature, default_batch_size
from timonel.batch.plan import JobSpec, OutputFormat, ShardPlan, digest_of, plan_shards
from timonel.batch.remote import RemotePrediction
from timonel.batch.shards import predict_all
from timonel.batch.writers import output_format
from timonel.data.runners import RemoteRunner, Report, choose_runner
from timonel.data.runners.local import LocalRunner
from timonel.errors import DataError, ModelError, NotFoundError, SpecError, TimonelError
from timonel.models.exports import saved_model_of
from timonel.models.publish import find_model, open_export
from timonel.models.repository import workspace_models
from timonel.models.runtime_choice import chosen_runtime, identity_of
from timonel.models.versions import ModelVersion
from timonel.serving.references import workspace_for
from timonel.serving.runtimes.saved_model import signatures_in
from timonel.serving.signature import DEFAULT_SIGNATURE, Signature
from timonel.storage import Workspace, digest_file, digest_tree, local_path
from timonel.tracking import Artifact, start_run

_logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
_PROGRESS_INTERVAL_S = 0.1


@dataclass(frozen=True)
class BatchPrediction:
    """Result of a batch prediction.

    Args:
        out: The file of predictions, or the folder of its shards.
        model: Name of the model.
        version: The version that predicted all rows.
        rows: Rows with a prediction.
        failed: Rows without one.
        errors: JSON lines with ``key`` and ``error`` of the failed rows; None if there are none.
        ignored: Files of other types in the folders of the input.
    """

    out: Path
    model: str
    version: int
    rows: int
    failed: int
    errors: Path | None
    ignored: int


@dataclass(frozen=True)
class _Request:
    """Checked arguments of a batch prediction."""

    reference: str
    version: int | None
    signature: str
    paths: Sequence[str | os.PathLike[str]]
    found: Inputs
    target: Path
    format: OutputFormat
    is_folder: bool
    key: str | None
    keep: tuple[str, ...]
    batch_size: int | None
    runner: RemoteRunner | None


def predict_batch(  # noqa: PLR0913 - the façade of the command line's options
    model: str | os.PathLike[str],
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    version: int | None = None,
    signature: str = DEFAULT_SIGNATURE,
    split: str | None = None,
    input_format: str | None = None,
    format: str | None = None,  # noqa: A002 - the name of the option
    key: str | None = None,
    keep: Sequence[str] = (),
    batch_size: int | None = None,
    max_errors: float = 0.01,
    overwrite: bool = False,
    runner: str = "local",
    beam: str = "",
    workspace: Workspace | str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> BatchPrediction:
    """Predict all rows of files with one version of a model.

    Interrupted, the same call continues with the finished shards and the same version.

    Args:
        model: A model of the workspace (``digits``), a version (``digits/3``), a training run, or
            the folder of a SavedModel.
        inputs: Image files or folders of them; CSV, JSON lines, Parquet or TFRecord files; glob
            patterns; or one dataset.
        out: The file to write: ``.parquet``, ``.jsonl``, ``.csv`` or ``.tfrecord``. A name without
            a suffix is a folder of shards.
        version: The version; by default the newest.
        signature: The signature to run.
        split: Split of the dataset to predict. The output has its keys and true labels.
        input_format: ``images``, ``csv``, ``jsonl``, ``parquet`` or ``tfrecord``, if the names of
            the files do not show it.
        format: ``parquet``, ``jsonl``, ``csv`` or ``tfrecord``, for a folder.
        key: Column with the keys. By default, keys are paths of images relative to their folder,
            and ``<file>#<number>`` for rows.
        keep: Columns of the input to copy to the output.
        batch_size: Rows per batch; by default 32 images, or as many rows as fill 1 MiB.
        max_errors: Greatest fraction of rows without a prediction. They are listed in a file; if
            there are more, the call fails.
        overwrite: Replace existing predictions.
        runner: Where shards are predicted: ``local``, ``beam``, or a plug-in's name.
        beam: Options of Apache Beam's pipeline, such as ``runner=FlinkRunner,flink_master=...``.
        workspace: The workspace with the model, which records the run.
        progress: Called with the number of finished and of all rows, at most ten times a second.

    Raises:
        NotFoundError: The model or a file does not exist.
        InputError: A path or an option is wrong, or the model takes other columns.
        DataError: The input cannot be read, or too many rows have no prediction.
        ModelError: The model cannot be loaded.
    """
    if not 0 <= max_errors <= 1:
        raise SpecError(f"expected a fraction of errors from 0 to 1, got {max_errors:g}")
    if batch_size is not None and batch_size < 1:
        raise SpecError(f"the batch size must be positive, got {batch_size}")
    target = local_path(out)
    chosen_runner = _runner(runner, beam)
    file_format, is_folder = output_format(target, format)
    paths = [inputs] if isinstance(inputs, str | os.PathLike) else list(inputs)
    check_overlap(target, paths)
    check_destination(target, is_folder=is_folder, overwrite=overwrite)
    request = _Request(
        reference=_reference(model),
        version=version,
        signature=signature,
        paths=paths,
        found=find_inputs(paths, split, input_format),
        target=target,
        format=file_format,
        is_folder=is_folder,
        key=key,
        keep=tuple(keep),
        batch_size=batch_size,
        runner=chosen_runner,
    )
    place = workspace_for(workspace, [request.reference])
    with unfinished(target) as journal:
        job = _job(request, place, journal)
        plans = plan_shards(request.found.files)
        if not plans:
            raise DataError(f"nothing to predict in {', '.join(map(str, paths))}: found no rows")
        if journal.begin(digest_of(request.found.files, job), job):
            _logger.warning("the model, the input or an option changed: predicting anew")
        report = _Report(plans, target, max_errors, progress)
        return _run(request, place, journal, job, plans, report)


def _job(request: _Request, place: Workspace, journal: Journal) -> JobSpec:
    """Choose the version, and match its inputs with the columns of the files."""
    version = _version(request.reference, request.version, place, journal)
    signature = _signature(version, request.signature)
    wanted = [*request.keep, *([] if request.key is None else [request.key])]
    check_outputs(signature, request.keep, has_labels=request.found.labels is not None)
    return JobSpec(
        model=version.name,
        version=version.number,
        path=str(version.path.absolute()),
        identity=f"{identity_of(version.path)} {chosen_runtime(version.path)}",
        signature=request.signature,
        batch_size=request.batch_size or default_batch_size(signature),
        folder=str(journal.root.absolute()),
        format=request.format,
        columns=match_columns(request.found.files, signature, wanted),
        key=request.key,
        keep=request.keep,
        labels=request.found.labels,
    )


def _run(
    request: _Request,
    place: Workspace,
    journal: Journal,
    job: JobSpec,
    plans: Sequence[ShardPlan],
    report: _Report,
) -> BatchPrediction:
    """Predict, publish, and record the run."""
    target, found = request.target, request.found
    with start_run(place, "predict", name=target.name, params=_params(job, request)) as run:
        run.input(_model_artifact(job))
        if found.dataset is not None:
            run.input(found.dataset.artifact())
        _predict(job, plans, journal, report, request.runner)
        report.check_any()
        errors = publish(target, job, plans, journal, is_folder=request.is_folder)
        run.metrics({"rows": report.rows, "failed": report.failed})
        digest = digest_tree(target) if request.is_folder else digest_file(target)
        run.output(Artifact("files", target, digest, target.name))
    return BatchPrediction(
        target, job.model, job.version, report.rows, report.failed, errors, found.ignored
    )


def _predict(
    job: JobSpec,
    plans: Sequence[ShardPlan],
    journal: Journal,
    report: _Report,
    runner: RemoteRunner | None,
) -> None:
    finished = {plan.name for plan in plans if journal.is_finished(plan, job.format)}
    for plan in plans:
        if plan.name in finished:
            report.tick(plan.records)
            report.finished(journal.outcome(plan.name))
    rest = [plan for plan in plans if plan.name not in finished]
    if not rest:
        return
    if runner is not None:
        runner.run_remote(RemotePrediction(job), rest, report)
        return
    with BatchModel(job.model, Path(job.path), job.signature, journal.log) as model:
        for outcome in predict_all(rest, job, model, report.tick):
            report.finished(outcome)


def _runner(name: str, beam: str) -> RemoteRunner | None:
    """Return the runner on other machines; None for this process."""
    found = choose_runner(name, beam)
    if name == LocalRunner.plugin:
        return None
    if not isinstance(found, RemoteRunner):
        raise SpecError(f"the runner {name} is for conversions only", hint="use local or beam")
    return found


def _reference(model: str | os.PathLike[str]) -> str:
    text = os.fspath(model)
    if text.startswith(("http://", "https://")):
        raise SpecError(
            f"batch prediction does not use the server {text}: it loads the model itself",
            hint="name a model, a run, or the folder of a SavedModel",
        )
    return text


def _version(
    reference: str, number: int | None, place: Workspace, journal: Journal
) -> ModelVersion:
    """Return the version to use: that of the unfinished job, unless another one is named."""
    models = workspace_models(place)
    try:
        found = models.resolve(reference)
    except NotFoundError:
        try:
            record, artifact = find_model(place, reference)
        except TimonelError:
            record = None
        if record is None:
            raise
        path = saved_model_of(open_export(place, record, artifact))
        return ModelVersion(name=record.id, number=1, path=path)
    if number is not None:
        return models.get(found.name, number)
    unfinished_job = journal.version()
    if reference == found.name and unfinished_job is not None and unfinished_job[0] == found.name:
        try:
            earlier = models.get(found.name, unfinished_job[1])
        except NotFoundError:
            return found
        if earlier.number != found.number:
            _logger.warning("continuing with version %d of %s", earlier.number, found.name)
        return earlier
    return found


def _signature(version: ModelVersion, name: str) -> Signature:
    if version.is_python:
        raise ModelError(
            f"{version} is Python code, which batch prediction does not run",
            hint="serve it, and send requests to the server",
        )
    try:
        return check_signature(signatures_in(version.path, ("serve",)), name, str(version))
    except (OSError, DecodeError) as error:
        raise ModelError(f"cannot read {version}: {error}") from error


def _model_artifact(job: JobSpec) -> Artifact:
    """Return the version as `timonel.export` records it, so that lineage joins the two."""
    metadata = {"model": job.model, "version": job.version}
    name = f"{job.model}/{job.version}"
    return Artifact("model", job.path, digest_tree(Path(job.path)), name, metadata)


def _params(job: JobSpec, request: _Request) -> dict[str, object]:
    return {
        "model": f"{job.model}/{job.version}",
        "inputs": [str(path) for path in request.paths],
        "signature": job.signature,
        "batch_size": job.batch_size,
    }


class _Report(Report):
    """Count rows, report them at most ten times a second, and limit those that fail."""

    def __init__(
        self,
        plans: Sequence[ShardPlan],
        target: Path,
        limit: float,
        progress: Progress | None,
    ) -> None:
        self.rows = 0
        self._outcomes: list[Outcome] = []
        self._total = sum(plan.records for plan in plans)
        self._errors = errors_of(target)
        self._limit = limit
        self._progress = progress
        self._done = 0
        self._next = 0.0
        self._lock = threading.Lock()

    @property
    def failed(self) -> int:
        """Number of rows without a prediction."""
        return sum(len(outcome.failures) for outcome in self._outcomes)

    def tick(self, records: int = 1) -> None:
        """Count rows that are done."""
        with self._lock:
            self._done += records
            now = time.monotonic()
            if self._progress is not None and (now >= self._next or self._done == self._total):
                self._next = now + _PROGRESS_INTERVAL_S
                self._progress(self._done, self._total)

    def finished(self, outcome: Outcome) -> None:
        """Take the outcome of a shard.

        Raises:
            DataError: Too many rows failed.
        """
        with self._lock:
            self.rows += outcome.rows
            self._outcomes.append(outcome)
            if self.failed > self._limit * self._total:
                raise self._too_many(f"above the limit of {self._limit:.2%}")

    def check_any(self) -> None:
        """Check that there is something to publish.

        Raises:
            DataError: No row has a prediction.
        """
        if not self.rows:
            raise self._too_many("so there is nothing to write")

    def _too_many(self, why: str) -> DataError:
        """List the rows that failed; return the error."""
        write_errors(self._errors, self._outcomes)
        key, reason = next(each for outcome in self._outcomes for each in outcome.failures)
        return DataError(
            f"{self.failed:,} of {self._total:,} rows have no prediction, {why}: {key}: {reason}",
            hint=f"see {self._errors}; correct them, or raise --max-errors",
        )
