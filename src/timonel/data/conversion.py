"""Convert raw files to a dataset, without TensorFlow.

    scan the source -> divide into splits -> plan shards -> a runner writes them -> manifest

The same input and seed give byte-identical shards. A conversion that was killed continues, see
`timonel.data.journal`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from timonel._version import __version__
from timonel.arguments import checked
from timonel.data.assignment import assign
from timonel.data.catalogue import Catalogue
from timonel.data.dataset import Dataset
from timonel.data.description import Planned, finish
from timonel.data.destination import (
    check_destination,
    check_overlap,
    check_paths,
    follow_link,
    publish,
    published,
    unfinished,
)
from timonel.data.given_schema import GivenSchema, of_source, read_schema
from timonel.data.manifest import Manifest, Rejected, SourceInfo
from timonel.data.progress import Progress, ShardProgress, reported
from timonel.data.rejected import DEFAULT_LIMIT, check_limit, write_rejected
from timonel.data.runners import Runner, choose_runner
from timonel.data.schema import (
    Compression,
    ImageCheck,
    Task,
    check_compression,
    labels_of,
    parse_column_type,
    sort_labels,
)
from timonel.data.shards import ConversionJournal, Job, plan_digest, plan_shards
from timonel.data.sources import Source, SourceOptions, choose_source
from timonel.data.sources.applicable import check_applicable
from timonel.data.sources.frames import Frame, locate
from timonel.data.splits import Fractions, check_fractions
from timonel.data.summary import warnings_of
from timonel.errors import DataError, SpecError
from timonel.storage import (
    Workspace,
    find_workspace,
    is_local,
    normalise,
    quick_digest,
    write_document,
)
from timonel.storage.location import Location
from timonel.storage.uris import without_credentials
from timonel.tracking import Artifact
from timonel.tracking.mirrors.sidecar import mirror_in_background
from timonel.units import parse_bytes

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Request:
    source: Source
    uri: str
    fractions: Fractions | None
    seed: int
    shards: int | None
    shard_bytes: int
    compression: Compression
    overwrite: bool
    max_rejected: float
    runner: Runner
    progress: Progress | None
    scanning: Progress | None


@checked()
def convert(  # noqa: PLR0913 - the façade of the command line's options
    source: str | os.PathLike[str] | Frame,
    destination: str | os.PathLike[str],
    *,
    kind: str = "auto",
    label: str | None = None,
    splits: Sequence[float] | None = None,
    seed: int = 0,
    shards: int | None = None,
    shard_bytes: str | int = "64MB",
    compression: Compression = "none",
    overwrite: bool = False,
    max_rejected: float = DEFAULT_LIMIT,
    runner: str = "local",
    beam: str = "",
    columns: Mapping[str, str] | None = None,
    task: Task | None = None,
    group_by: str | None = None,
    schema: str | os.PathLike[str] | Mapping[str, Any] | GivenSchema | None = None,
    max_vocabulary: int = 1000,
    folders: Literal["auto", "labels", "splits"] = "auto",
    image_size: tuple[int, int] | None = None,
    image_format: Literal["jpeg", "png", "webp"] | None = None,
    quality: int | None = None,
    check: ImageCheck = "structure",
    allow_http: bool = False,
    allow_private: bool = False,
    delimiter: str | None = None,
    encoding: str | None = None,
    column_names: Sequence[str] = (),
    workspace: Workspace | str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    scanning: Progress | None = None,
) -> Dataset:
    """Convert images or a table to sharded TFRecords with a manifest.

    Every image is checked; its bytes are stored unchanged. The destination is published
    atomically; in a bucket, the manifest comes last. A conversion that was stopped or killed
    continues when it is called again with the same arguments.

    Args:
        source: A folder with one folder of images per label, or with ``train``, ``validation``
            and ``test`` of such folders; a table of rows, or of image files with their labels: a
            file, folder or pattern of CSV, Parquet or JSON lines, or a DataFrame. Paths and URIs.
        destination: The folder to create, or its URI in a bucket.
        kind: ``images``, ``table``, or ``auto`` to detect it.
        label: The label column of a table.
        splits: Approximate fractions of train, validation and test; two are train and validation.
            Records are divided by hashes, so the shares of each label vary. By default the splits
            of the source, else 0.8, 0.1, 0.1.
        seed: Seed of division and order.
        shards: Number of shards of the training split; by default computed from the size.
        shard_bytes: Approximate maximum size of a shard, before compression.
        compression: ``none`` or ``gzip``. Files of images hardly get smaller.
        overwrite: Replace an existing dataset at the destination.
        max_rejected: Greatest fraction of unusable records. The dataset lists them in
            ``rejected.jsonl``; if there are more, the conversion fails.
        runner: Where shards are written: ``local``, ``beam``, or a plug-in's name.
        beam: Options of Apache Beam's pipeline, such as ``runner=FlinkRunner,flink_master=...``.
        columns: Types of a table's columns that override the inferred ones: ``number`` (``float``,
            ``int``), ``category`` (``string``), ``text``, ``date`` (``dmy``, ``mdy``), ``bytes``,
            ``numbers``, ``image``, ``mask``, ``boxes``, ``json``, ``split`` or ``drop``.
        task: ``classification``, ``multilabel`` (several labels per row, as ``a|b`` or a list) or
            ``regression``, to override the inferred task.
        group_by: Column of a table whose equal values keep rows in one split, such as a patient.
        schema: YAML or JSON file, mapping or dataset with columns, labels and vocabularies; see
            `timonel.data.schema_of`. Nothing is inferred, labels keep their numbers, and columns or
            labels that are not listed are errors.
        max_vocabulary: Words of a category or text; rarer ones count as unknown, with a warning.
        folders: Whether the top-level folders name ``labels`` or ``splits``.
        image_size: Height and width. Larger images are scaled down to cover it, with their aspect
            ratio, so that `load` with this ``image_size`` loses nothing. Others are unchanged.
        image_format: ``jpeg``, ``png`` or ``webp``, to re-encode images of other formats.
        quality: Quality of JPEG and WebP images, 1 to 100, to re-encode all of them; otherwise 90
            for those that ``image_size`` or ``image_format`` changes.
        check: ``structure`` walks through the segments of a JPEG or PNG image, which finds
            truncated and overwritten files, and decodes other formats; ``decode`` decodes all
            images.
        allow_http: Read images that a table names over plain http, too.
        allow_private: Read them from loopback and private addresses, too. Both do not apply to the
            server of the table itself.
        delimiter: What separates the values of a CSV file; detected by default.
        encoding: Encoding of a CSV or JSON lines file; detected by default.
        column_names: Names of the columns of a CSV file that has no header.
        workspace: The workspace that records the run.
        progress: Called with the number of converted and of all records, at most ten times a
            second.
        scanning: Called before, with the number of records found so far and 0, then with the
            number of planned and of all records, at most ten times a second.

    Raises:
        InputError: A path or an option is wrong.
        DataError: The raw data cannot be used.
    """
    check_paths(source, destination)
    location, uri = locate(source), follow_link(normalise(destination))
    fractions = None if splits is None else check_fractions(splits)
    size = parse_bytes(shard_bytes)
    if is_local(uri) and location.is_local:
        check_overlap(location.path, Path(uri))
    options = SourceOptions(
        **_schema_options(schema, location, label, columns, task, group_by),
        max_vocabulary=max_vocabulary,
        folders=folders,
        **_image_options(image_size, image_format, quality, check),
        allow_http=allow_http,
        allow_private=allow_private,
        delimiter=delimiter,
        encoding=encoding,
        column_names=tuple(column_names),
    )
    chosen = choose_source(location, options, kind)(location, options)
    request = _Request(
        chosen,
        uri,
        fractions,
        seed,
        shards,
        size,
        check_compression(compression),
        overwrite,
        check_limit(max_rejected),
        choose_runner(runner, beam),
        progress,
        scanning,
    )
    place = workspace if isinstance(workspace, Workspace) else find_workspace(workspace)
    dataset = _convert(request, place)
    mirror_in_background(place)
    for line in warnings_of(dataset):
        _logger.warning("%s: %s", uri, line)
    return dataset


def _image_options(
    size: Sequence[int] | None, format_: str | None, quality: int | None, check: str
) -> dict[str, Any]:
    if size is not None and min(size) < 1:
        raise SpecError(f"expected image_size as (height, width), got {tuple(size)}")
    if quality is not None and not 1 <= quality <= 100:
        raise SpecError(f"expected a quality from 1 to 100, got {quality}")
    return {"image_size": size, "image_format": format_, "quality": quality, "check": check}


def _schema_options(
    schema: str | os.PathLike[str] | Mapping[str, Any] | GivenSchema | None,
    source: Location,
    label: str | None,
    columns: Mapping[str, str] | None,
    task: Task | None,
    group_by: str | None,
) -> dict[str, Any]:
    types = {name: parse_column_type(word) for name, word in (columns or {}).items()}
    given = {"label": label, "columns": types, "task": task, "group_by": group_by}
    if schema is None:
        return of_source(source, given)
    found = read_schema(schema).options()
    if both := [name for name, value in given.items() if value and found[name]]:
        raise SpecError(
            f"a schema and {both[0]} exclude each other", hint=f"set {both[0]} in the schema"
        )
    return {**found, **{name: value for name, value in given.items() if value}}


def _convert(request: _Request, workspace: Workspace) -> Dataset:
    started = time.monotonic()
    uri = request.uri
    with (
        unfinished(uri, overwrite=request.overwrite) as journal,
        closing(Catalogue(journal.database, request.seed)) as catalogue,
    ):
        planned = _plan(request, catalogue, journal)
        check_destination(uri, journal, overwrite=request.overwrite)
        # By a run that was stopped before it ended.
        manifest = published(uri, journal)
        with journal.run(
            workspace,
            is_published=manifest is not None,
            name=uri.rpartition("/")[2],
            params=_params(request),
        ) as run:
            if manifest is None:
                manifest = _write(request, planned, catalogue, journal, run.run_id)
            dataset = Dataset(uri, manifest)
            for artifact in _inputs(request, manifest.source):
                run.input(artifact)
            seconds = round(time.monotonic() - started, 3)
            size = manifest.source.bytes
            run.metrics({"records": dataset.count(), "bytes": size, "seconds": seconds})
            run.output(dataset.artifact())
            _write_reference(workspace, dataset)
    return dataset if is_local(uri) else Dataset.open(uri)


def _write(
    request: _Request,
    planned: Planned,
    catalogue: Catalogue,
    journal: ConversionJournal,
    run_id: str,
) -> Manifest:
    """Write the shards, and publish the dataset."""
    scan = planned.scan
    report = _Progress(request, catalogue.count(), journal, scan.rejected)
    report.check()
    labels = {label: number for number, label in enumerate(planned.labels)}
    job = Job(request.source, journal, labels, request.compression, scan.task == "multilabel")
    request.runner.run(job, report.resume(planned.shards, journal), report)
    manifest = finish(planned, journal, catalogue, run_id)
    publish(request.uri, journal, run_id, replace=request.overwrite)
    return manifest


def _plan(request: _Request, catalogue: Catalogue, journal: ConversionJournal) -> Planned:
    """Find and divide the records, and write the plan of all shards into the journal."""
    scan = request.source.scan()
    check_applicable(request.source, scan)
    catalogue.add(replace(scan, entries=reported(scan.entries, request.scanning)))
    labels = _labels(request, scan.task, catalogue)
    identical = catalogue.find_identical(request.source)
    assignment = assign(
        catalogue,
        request.fractions,
        by_label=scan.task == "classification",
        is_grouped=request.source.options.group_by is not None,
    )
    shards = plan_shards(
        catalogue.counts(),
        catalogue.sizes(),
        shard_bytes=request.shard_bytes,
        shards=request.shards,
        compression=request.compression,
    )
    settings = {
        "labels": labels,
        "source": request.source.location.resolved,
        "plugin": request.source.plugin,
        "options": request.source.options.model_dump(mode="json"),
        "timonel": __version__,
    }
    entries = reported(catalogue.records(), request.scanning, catalogue.count())
    records = journal.write_plan(shards, entries)
    journal.begin(plan_digest(records, settings))
    return Planned(
        request.source,
        scan,
        labels,
        shards,
        assignment,
        identical,
        request.seed,
        request.compression,
    )


def _labels(request: _Request, task: Task, catalogue: Catalogue) -> list[str]:
    """Return the classes in the order of their numbers."""
    if task == "regression":
        return []
    found = catalogue.labels()
    if task == "multilabel":
        found = {label for labels in found for label in labels_of(labels)}
    given = request.source.options.labels
    if not given:
        return sort_labels(found)
    if unknown := sorted(found - set(given)):
        raise DataError(
            f"label {unknown[0]!r} of {catalogue.first_of(unknown[0])} is not in the schema",
            hint=f"correct it, or add it to the end of the labels: {', '.join(given[-3:])}",
        )
    return list(given)


def _params(request: _Request) -> dict[str, Any]:
    return {
        "source": without_credentials(request.source.location.uri),
        "destination": request.uri,
        "splits": None if request.fractions is None else list(request.fractions),
        "seed": request.seed,
        **request.source.options.model_dump(mode="json", exclude_defaults=True),
    }


def _inputs(request: _Request, found: SourceInfo) -> Iterator[Artifact]:
    """Yield the source, whose digest covers the files that it names, and their folder."""
    location = request.source.location
    metadata: dict[str, Any] = {"files": found.files, "bytes": found.bytes}
    if is_local(found.uri) and (digest := quick_digest(Path(found.uri))) is not None:
        metadata["file_digest"] = digest
    yield Artifact("files", found.uri, found.digest, location.name, metadata)
    if (folder := request.source.folder) is not None:
        yield Artifact("files", folder, metadata={"named_by": found.uri})


def _write_reference(workspace: Workspace, dataset: Dataset) -> None:
    """Record in the workspace where the dataset with this digest is."""
    name = dataset.digest.removeprefix("sha256:")
    body = {"id": dataset.manifest.id, "digest": dataset.digest, "uri": dataset.uri}
    path = workspace.datasets / f"{name}.json"
    write_document(path, "dataset-reference", body)
    if workspace.local_copy is not None:
        workspace.local_copy.push_file(path)


class _Progress(ShardProgress):
    fault = "records cannot be used"

    def __init__(
        self,
        request: _Request,
        found: int,
        journal: ConversionJournal,
        rejected: Sequence[Rejected],
    ) -> None:
        super().__init__(found, request.max_rejected, request.progress, rejected)
        self._path = journal.rejected

    def write_rejected(self) -> Path:
        write_rejected(self._path, self.rejected)
        return self._path

    def cure(self, first: Rejected) -> str:
        return first.hint or "repair or remove such records, or raise --max-rejected to continue"
