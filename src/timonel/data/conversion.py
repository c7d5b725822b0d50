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
from typing import Any, Unpack

from timonel._version import __version__
from timonel.arguments import checked
from timonel.data.assignment import assign
from timonel.data.catalogue import RecordCatalogue
from timonel.data.convert_options import ConvertOptions
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
from timonel.data.given_schema import of_source, read_schema, source_options
from timonel.data.manifest import Manifest, Rejected, SourceInfo
from timonel.data.progress import Progress, ShardProgress, reported
from timonel.data.rejected import check_limit, write_rejected
from timonel.data.runners import Runner, choose_runner
from timonel.data.schema import (
    Compression,
    Task,
    check_compression,
    labels_of,
    sort_labels,
)
from timonel.data.shards import ConversionJob, ConversionJournal, plan_digest, plan_shards
from timonel.data.sources import Source, SourceOptions, choose_source
from timonel.data.sources.applicable import check_applicable
from timonel.data.sources.frames import Frame, locate
from timonel.data.splits import Fractions, check_fractions
from timonel.data.summary import warnings_of
from timonel.errors import DataError, SpecError
from timonel.options import documented, with_defaults
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
@documented(ConvertOptions)
def convert(
    source: str | os.PathLike[str] | Frame,
    destination: str | os.PathLike[str],
    *,
    workspace: Workspace | str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    scanning: Progress | None = None,
    **options: Unpack[ConvertOptions],
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
        workspace: The workspace that records the run.
        progress: Called with the number of converted and of all records, at most ten times a
            second.
        scanning: Called before, with the number of records found so far and 0, then with the
            number of planned and of all records, at most ten times a second.
        **options: See `ConvertOptions`.

    Raises:
        InputError: A path or an option is wrong.
        DataError: The raw data cannot be used.
    """
    check_paths(source, destination)
    location, uri = locate(source), follow_link(normalise(destination))
    if is_local(uri) and location.is_local:
        check_overlap(location.path, Path(uri))
    given: Mapping[str, Any] = with_defaults(ConvertOptions, options)
    _check_images(given)
    of_source_ = SourceOptions(**_source_options(given, location))
    request = _Request(
        source=choose_source(location, of_source_, given["kind"])(location, of_source_),
        uri=uri,
        fractions=None if given["splits"] is None else check_fractions(given["splits"]),
        seed=given["seed"],
        shards=given["shards"],
        shard_bytes=parse_bytes(given["shard_bytes"]),
        compression=check_compression(given["compression"]),
        overwrite=given["overwrite"],
        max_rejected=check_limit(given["max_rejected"]),
        runner=choose_runner(given["runner"], given["beam"]),
        progress=progress,
        scanning=scanning,
    )
    place = find_workspace(workspace)
    dataset = _convert(request, place)
    mirror_in_background(place)
    for line in warnings_of(dataset):
        _logger.warning("%s: %s", uri, line)
    return dataset


def _check_images(given: Mapping[str, Any]) -> None:
    size, quality = given["image_size"], given["quality"]
    if size is not None and min(size) < 1:
        raise SpecError(f"expected image_size as (height, width), got {tuple(size)}")
    if quality is not None and not 1 <= quality <= 100:
        raise SpecError(f"expected a quality from 1 to 100, got {quality}")


def _source_options(given: Mapping[str, Any], source: Location) -> dict[str, Any]:
    """Return fields of `SourceOptions`, with those of a schema or of a dataset as the source."""
    fields = source_options(given)
    typed = {name: fields[name] for name in ("label", "columns", "task", "group_by")}
    if given["schema"] is None:
        return {**fields, **of_source(source, typed)}
    found = read_schema(given["schema"]).options()
    if both := [name for name, value in typed.items() if value and found[name]]:
        raise SpecError(
            f"a schema and {both[0]} exclude each other", hint=f"set {both[0]} in the schema"
        )
    return {**fields, **found, **{name: value for name, value in typed.items() if value}}


def _convert(request: _Request, workspace: Workspace) -> Dataset:
    started = time.monotonic()
    uri = request.uri
    with (
        unfinished(uri, overwrite=request.overwrite) as journal,
        closing(RecordCatalogue(journal.database, request.seed)) as catalogue,
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
    catalogue: RecordCatalogue,
    journal: ConversionJournal,
    run_id: str,
) -> Manifest:
    """Write the shards, and publish the dataset."""
    scan = planned.scan
    report = _Progress(request, catalogue.count(), journal, scan.rejected)
    report.check()
    labels = {label: number for number, label in enumerate(planned.labels)}
    job = ConversionJob(
        request.source, journal, labels, request.compression, scan.task == "multilabel"
    )
    request.runner.run(job, report.resume(planned.shards, journal), report)
    manifest = finish(planned, journal, catalogue, run_id)
    publish(request.uri, journal, run_id, replace=request.overwrite)
    return manifest


def _plan(request: _Request, catalogue: RecordCatalogue, journal: ConversionJournal) -> Planned:
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


def _labels(request: _Request, task: Task, catalogue: RecordCatalogue) -> list[str]:
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
