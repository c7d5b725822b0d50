"""Predict files with a model, without a server.

    find the files -> match their columns -> plan shards -> a runner predicts them -> join

The same input and model give the same bytes. A batch prediction that was killed continues, see
`timonel.data.journal`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Unpack

from google.protobuf.message import DecodeError

from timonel.arguments import checked
from timonel.batch.columns import check_outputs, dates_of, images_of, match_columns
from timonel.batch.destination import (
    Output,
    check_destination,
    check_overlap,
    errors_of,
    forget_copy,
    is_published,
    publish,
    write_errors,
)
from timonel.batch.inputs import Inputs, find_inputs
from timonel.batch.model import BatchModel, check_signature, default_batch_size
from timonel.batch.plan import OutputFormat, PartPlan, PredictionSpec, digest_of, plan_shards
from timonel.batch.predict_options import BatchOptions
from timonel.batch.readers import ReadImage
from timonel.batch.remote import PortablePrediction
from timonel.batch.shards import PredictionJournal, predict_all
from timonel.batch.writers import output_format
from timonel.data.journal import locked
from timonel.data.manifest import Rejected
from timonel.data.progress import Progress, ShardProgress
from timonel.data.runners import RemoteRunner, choose_runner
from timonel.data.runners.local import LocalRunner
from timonel.data.sources.listed import ListedFiles
from timonel.errors import DataError, ModelError, NotFoundError, SpecError, TimonelError
from timonel.models.exports import saved_model_of
from timonel.models.publish import find_model, open_export
from timonel.models.repository import workspace_models
from timonel.models.row_evidence import read_row_evidence
from timonel.models.runtime_choice import chosen_runtime, identity_of
from timonel.models.versions import ModelVersion
from timonel.options import documented, with_defaults
from timonel.serving.references import workspace_for
from timonel.serving.runtimes.saved_model import signatures_in
from timonel.serving.signature import Signature
from timonel.storage import Workspace, digest_tree, is_local, normalise, quick_digest
from timonel.storage.aliases import split_alias
from timonel.storage.digests import digest_lines
from timonel.storage.location import Location
from timonel.tracking import Artifact

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchPrediction:
    """Result of a batch prediction.

    Args:
        out: The file of predictions, or the folder of its shards; a URI in a bucket.
        model: Name of the model.
        version: The version that predicted all rows.
        rows: Rows with a prediction.
        failed: Rows without one.
        errors: JSON lines with ``key`` and ``error`` of the failed rows; None if there are none.
        ignored: Files of other types in the folders of the input.
    """

    out: Path | str
    model: str
    version: int
    rows: int
    failed: int
    errors: Path | str | None
    ignored: int


@dataclass(frozen=True)
class _Request:
    """Checked arguments of a batch prediction."""

    reference: str
    version: int | None
    signature: str
    paths: Sequence[str | os.PathLike[str]]
    found: Inputs
    output: Output
    format: OutputFormat
    overwrite: bool
    key: str | None
    keep: tuple[str, ...]
    batch_size: int | None
    allow_http: bool
    allow_private: bool
    raw: bool
    runner: RemoteRunner | None
    allow_ops: tuple[str, ...]
    op_libraries: tuple[str, ...]


@checked()
@documented(BatchOptions)
def predict_batch(
    model: str | os.PathLike[str],
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    version: int | None = None,
    workspace: Workspace | str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **options: Unpack[BatchOptions],
) -> BatchPrediction:
    """Predict all rows of files with one version of a model.

    Interrupted, the same call continues with the finished shards and the same version.

    Args:
        model: A model of the workspace (``digits``), a version (``digits/3``), a training run, or
            the folder of a SavedModel.
        inputs: Image files or folders of them; CSV, JSON lines, Parquet or TFRecord files, also
            with a column ``image_uri`` of paths and URIs; glob patterns; or one dataset.
        out: The file to write: ``.parquet``, ``.jsonl``, ``.csv`` or ``.tfrecord``. A name without
            a suffix is a folder of shards. A path, or a URI in a bucket.
        version: The version; by default the newest.
        workspace: The workspace with the model, which records the run.
        progress: Called with the number of finished and of all rows, at most ten times a second.
        **options: See `BatchOptions`.

    Raises:
        NotFoundError: The model or a file does not exist.
        InputError: A path or an option is wrong, or the model takes other columns.
        DataError: The input cannot be read, or too many rows have no prediction.
        ModelError: The model cannot be loaded.
    """
    given = with_defaults(BatchOptions, options)
    max_errors, batch_size, overwrite = (
        given["max_errors"], given["batch_size"], given["overwrite"],
    )  # fmt: skip
    if not 0 <= max_errors <= 1:
        raise SpecError(f"expected a fraction of errors from 0 to 1, got {max_errors:g}")
    if batch_size is not None and batch_size < 1:
        raise SpecError(f"the batch size must be positive, got {batch_size}")
    chosen_runner = _runner(given["runner"], given["beam"])
    uri = normalise(out)
    if is_local(uri) and Path(uri).is_symlink():
        uri = str(Path(uri).resolve())
    if uri.startswith(("http://", "https://")):
        raise SpecError(
            f"predictions cannot be written to {uri}", hint="use a path, s3:// or gs://"
        )
    file_format, is_folder = output_format(PurePosixPath(uri), given["format"])
    output = Output(uri, is_folder)
    paths = [inputs] if isinstance(inputs, str | os.PathLike) else list(inputs)
    check_overlap(uri, paths)
    journal = PredictionJournal.beside(output.path)
    check_destination(output, journal, overwrite=overwrite)
    request = _Request(
        reference=_reference(model),
        version=version,
        signature=given["signature"],
        paths=paths,
        found=find_inputs(paths, given["split"], given["input_format"]),
        output=output,
        format=file_format,
        overwrite=overwrite,
        key=given["key"],
        keep=tuple(given["keep"]),
        batch_size=None if batch_size is None else int(batch_size),
        allow_http=given["allow_http"],
        allow_private=given["allow_private"],
        raw=given["raw"],
        runner=chosen_runner,
        allow_ops=tuple(given["allow_ops"]),
        op_libraries=tuple(given["op_libraries"]),
    )
    place = workspace_for(workspace, [request.reference])
    with locked(journal, output.path):
        job = _job(request, place, journal)
        plans = plan_shards(request.found.files, file_format, has_images=bool(job.images))
        if not plans:
            raise DataError(f"nothing to predict in {', '.join(map(str, paths))}: found no rows")
        digest = digest_of(request.found.files, job)
        if journal.begin(digest, model=job.model, version=job.version):
            _logger.warning("the model, the input or an option changed: predicting anew")
        check_destination(output, journal, overwrite=overwrite)
        rows = sum(plan.records for plan in plans)
        report = _Progress(rows, max_errors, progress, errors_of(output.path))
        done = _run(request, place, journal, job, plans, report)
        forget_copy(output)
        return done


def _job(request: _Request, place: Workspace, journal: PredictionJournal) -> PredictionSpec:
    """Choose the version, and match its inputs with the columns of the files."""
    version = _version(request.reference, request.version, place, journal)
    signature = _signature(version, request.signature)
    wanted = [*request.keep, *([] if request.key is None else [request.key])]
    check_outputs(signature, request.keep, has_labels=request.found.labels is not None)
    columns = match_columns(request.found, signature, wanted)
    return PredictionSpec(
        model=version.name,
        version=version.number,
        path=str(version.path.absolute()),
        identity=f"{identity_of(version.path)} {chosen_runtime(version.path)}",
        signature=request.signature,
        batch_size=request.batch_size or _batch_size(version.path, version.name, signature),
        format=request.format,
        columns=columns,
        images=images_of(signature),
        dates=dates_of(request.found, columns, signature),
        key=request.key,
        keep=request.keep,
        labels=request.found.labels,
        allow_ops=request.allow_ops,
        op_libraries=request.op_libraries,
        allow_http=request.allow_http,
        allow_private=request.allow_private,
        raw=request.raw,
    )


def _batch_size(version: Path, name: str, signature: Signature) -> int:
    """Return how many rows to compute together if the user does not say."""
    evidence = read_row_evidence(version)
    if evidence.independent:
        return default_batch_size(signature)
    _logger.warning(
        "%s computes each row alone, since others of a batch might change its results: %s; "
        "to compute several at once, use --batch-size",
        name,
        evidence.reason,
    )
    return 1


def _run(
    request: _Request,
    place: Workspace,
    journal: PredictionJournal,
    job: PredictionSpec,
    plans: Sequence[PartPlan],
    report: _Progress,
) -> BatchPrediction:
    """Predict, publish, and record the run."""
    output, found = request.output, request.found
    uri = output.uri
    name = uri.rpartition("/")[2]
    with journal.run(
        place,
        is_published=is_published(output.path, journal),
        name=name,
        params=_params(job, request),
    ) as run:
        run.input(_model_artifact(job))
        images: list[ReadImage] = []
        try:
            if rest := report.resume(plans, journal):
                _predict(job, rest, journal, report, request.runner)
            images += (each for plan in plans for each in journal.outcome(plan.name).images)
        finally:
            for artifact in _input_artifacts(request, images):
                run.input(artifact)
        if not report.records:
            raise report.too_many("so there is nothing to write")
        has_errors = publish(
            output,
            plans,
            journal,
            run.run_id,
            format_=job.format,
            overwrite=request.overwrite,
        )
        failed = len(report.rejected)
        run.metrics({"rows": report.records, "failed": failed})
        run.output(Artifact("files", uri, journal.output, name))
    as_path = Path if is_local(uri) else str
    return BatchPrediction(
        as_path(uri),
        job.model,
        job.version,
        report.records,
        failed,
        as_path(output.errors) if has_errors else None,
        found.ignored,
    )


def _input_artifacts(request: _Request, read: Sequence[ReadImage]) -> Iterator[Artifact]:
    """Yield the dataset, or the files, folders and patterns that are predicted.

    The digest covers the images that were read, with their names.
    """
    if request.found.dataset is not None:
        yield request.found.dataset.artifact()
        return
    given = {file.uri: file.given for file in request.found.files}
    lines: list[dict[str, str]] = [{} for _ in request.paths]
    for uri, name, line in read:
        lines[given[uri]][name] = line
    for path, named in zip(request.paths, lines, strict=True):
        uri = os.fspath(path)
        digest = quick_digest(Path(uri)) if is_local(uri) else None
        metadata: dict[str, Any] = {} if digest is None else {"file_digest": digest}
        is_list = request.found.files[0].format != "images"
        if named and (is_list or digest is None):
            images = digest_lines(named[name] for name in sorted(named))
            digest = images if digest is None else digest_lines([digest, images])
            metadata["files"] = len(named) + is_list
        yield Artifact("files", uri, digest, uri.rpartition("/")[2], metadata)
        if is_list and (folder := ListedFiles(Location(uri)).folder_of(named)) is not None:
            yield Artifact("files", folder, metadata={"named_by": uri})


def _predict(
    job: PredictionSpec,
    plans: Sequence[PartPlan],
    journal: PredictionJournal,
    report: _Progress,
    runner: RemoteRunner | None,
) -> None:
    if runner is not None:
        runner.run_remote(PortablePrediction(job), journal, plans, report)
        return
    with BatchModel(job, journal.log) as model:
        for outcome in predict_all(plans, job, model, journal, report.tick):
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
    reference: str, number: int | None, place: Workspace, journal: PredictionJournal
) -> ModelVersion:
    """Return the version to use: that of the unfinished job, unless another one is named."""
    models = workspace_models(place)
    try:
        found = models.resolve(reference)
    except NotFoundError:
        try:
            record, artifact = find_model(place, reference, "timonel predict {}")
        except ModelError:
            raise  # the run has no model
        except TimonelError:
            record = None
        if record is None:
            raise
        path = saved_model_of(open_export(place, record, artifact))
        return ModelVersion(name=record.id, number=1, path=path)
    if number is not None:
        return models.get(found.name, number)
    earlier_plan = journal.plan
    # An alias may have moved meanwhile.
    if split_alias(reference)[0] == found.name and earlier_plan.get("model") == found.name:
        try:
            earlier = models.get(found.name, earlier_plan["version"])
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


def _model_artifact(job: PredictionSpec) -> Artifact:
    """Return the version as `timonel.export` records it, so that lineage joins the two."""
    metadata = {"model": job.model, "version": job.version}
    name = f"{job.model}/{job.version}"
    return Artifact("model", job.path, digest_tree(Path(job.path)), name, metadata)


def _params(job: PredictionSpec, request: _Request) -> dict[str, object]:
    return {
        "model": f"{job.model}/{job.version}",
        "inputs": [str(path) for path in request.paths],
        "signature": job.signature,
        "batch_size": job.batch_size,
    }


class _Progress(ShardProgress):
    fault = "rows without a prediction"

    def __init__(self, rows: int, limit: float, show: Progress | None, path: Path) -> None:
        super().__init__(rows, limit, show)
        self._path = path

    def write_rejected(self) -> Path:
        write_errors(self._path, self.rejected)
        return self._path

    def cure(self, _first: Rejected) -> str:
        return "correct them, or raise --max-errors to continue"
