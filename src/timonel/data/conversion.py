"""Convert raw files to a dataset, without TensorFlow.

    scan the source -> divide into splits -> cut into shards -> read, verify, write -> manifest

The same input and seed give byte-identical shards.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from timonel._version import __version__
from timonel.data.dataset import Dataset
from timonel.data.manifest import (
    MANIFEST_NAME,
    Manifest,
    Skipped,
    SourceInfo,
    Target,
    content_digest,
    read_manifest,
    write_manifest,
)
from timonel.data.remote import check_absent, publish_dataset
from timonel.data.schema import SPLITS, Split, Task, parse_column_type
from timonel.data.shards import ConversionPlan, Outcome, plan_shards, write_shards
from timonel.data.sources import Description, Entry, Scan, Source, SourceOptions, choose_source
from timonel.data.splits import SplitAssignment, assign, check_fractions, find_duplicates
from timonel.data.summary import warnings_of
from timonel.errors import AlreadyExistsError, DataError, FormatError, InputError, TimonelError
from timonel.storage import (
    Workspace,
    find_workspace,
    is_local,
    local_path,
    normalise,
    publish_dir,
    read_document,
    write_document,
)
from timonel.storage.atomic import sweep
from timonel.tracking import Artifact, RunWriter, start_run
from timonel.tracking.mirrors.sidecar import mirror_in_background
from timonel.units import parse_bytes

_logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
_PROGRESS_INTERVAL_S = 0.1
_NAMED = 20
"""Limit on skipped records and ignored files named in the manifest."""


@dataclass(frozen=True)
class _Request:
    source: Source
    uri: str
    fractions: tuple[float, float, float] | None
    seed: int
    shards: int | None
    shard_bytes: int
    overwrite: bool
    progress: Progress | None


def convert(  # noqa: PLR0913 - the façade of the command line's options
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    kind: str = "auto",
    label: str | None = None,
    splits: Sequence[float] | None = None,
    seed: int = 0,
    shards: int | None = None,
    shard_bytes: str | int = "64MB",
    overwrite: bool = False,
    skip_bad: bool = False,
    columns: Mapping[str, str] | None = None,
    task: Task | None = None,
    folders: Literal["auto", "labels", "splits"] = "auto",
    workspace: Workspace | str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Convert images or a CSV file to sharded TFRecords with a manifest.

    Every image is decoded once to check that training can decode it; its bytes are stored
    unchanged. The destination is published atomically; in a bucket, the manifest comes last.

    Args:
        source: A folder with one folder of images per label, or with ``train``, ``validation``
            and ``test`` of such folders; a CSV file of rows, or of image files with their labels.
        destination: The folder to create, or its URI in a bucket.
        kind: ``images``, ``table``, or ``auto`` to detect it.
        label: The label column of a CSV file.
        splits: Fractions of train, validation and test, stratified by label; by default the
            splits of the source, else 0.8, 0.1, 0.1.
        seed: Seed of division and order.
        shards: Number of shards of the training split; by default computed from the size.
        shard_bytes: Approximate maximum size of a shard.
        overwrite: Replace an existing dataset at the destination.
        skip_bad: Skip and count unusable records instead of failing.
        columns: Types of a CSV file's columns that override the inferred ones: ``numeric``
            (``float``, ``int``), ``categorical`` (``string``), ``split`` or ``drop``.
        task: ``classification`` or ``regression``, to override the inferred task.
        folders: Whether the top-level folders name ``labels`` or ``splits``.
        workspace: The workspace that records the run.
        progress: Called with the number of converted and of all records, at most ten times a
            second.

    Raises:
        InputError: A path or an option is wrong.
        DataError: The raw data cannot be used.
    """
    check_paths(source, destination)
    location, uri = local_path(source), normalise(destination)
    fractions = None if splits is None else check_fractions(splits)
    size = parse_bytes(shard_bytes)
    if is_local(uri):
        check_overlap(location, Path(uri))
    types = {name: parse_column_type(word) for name, word in (columns or {}).items()}
    options = SourceOptions(
        label=label, columns=types, task=task, skip_bad=skip_bad, folders=folders
    )
    chosen = choose_source(location, kind)(location, options)
    if is_local(uri):
        check_target(Path(uri), overwrite=overwrite)
    elif not overwrite:
        check_absent(uri)
    request = _Request(chosen, uri, fractions, seed, shards, size, overwrite, progress)
    scan = chosen.scan()
    place = workspace if isinstance(workspace, Workspace) else find_workspace(workspace)
    name = uri.rpartition("/")[2]
    with start_run(place, "convert", name=name, params=_params(request)) as run:
        dataset = _convert(request, scan, run)
        _write_reference(place, dataset)
    mirror_in_background(place)
    for line in warnings_of(dataset):
        _logger.warning("%s: %s", uri, line)
    return dataset


def _convert(request: _Request, scan: Scan, run: RunWriter) -> Dataset:
    started = time.monotonic()
    with _published(request) as folder:
        assignment, plan = _plan(request, scan)
        ticker = _Ticker(plan.records, request.progress)
        outcome = write_shards(plan, request.source, folder, ticker)
        _check_outcome(outcome, plan)
        facts = request.source.describe(outcome.facts, outcome.written["train"])
        manifest = _manifest(request, scan, outcome, plan, assignment, facts, run.run_id)
        write_manifest(folder, manifest)
    ticker.finish()
    run.input(_input(request, facts))
    dataset = Dataset(request.uri, manifest)
    if not is_local(request.uri):
        dataset = Dataset.open(request.uri)
    seconds = time.monotonic() - started
    run.metrics({"records": dataset.count(), "bytes": facts.bytes, "seconds": round(seconds, 3)})
    run.output(dataset.artifact())
    return dataset


@contextlib.contextmanager
def _published(request: _Request) -> Iterator[Path]:
    """Yield a folder that becomes the dataset if the block succeeds."""
    if not is_local(request.uri):
        with publish_dataset(request.uri, replace=request.overwrite) as folder:
            yield folder
        return
    target = Path(request.uri)
    sweep(target.parent)  # leftovers of killed conversions
    with publish_dir(target, replace=request.overwrite or target.exists()) as folder:
        yield folder


def _plan(request: _Request, scan: Scan) -> tuple[SplitAssignment, ConversionPlan]:
    classes = scan.task == "classification"
    labels = sort_labels({str(entry.label) for entry in scan.entries}) if classes else []
    assignment = assign(scan.entries, labels, request.fractions, request.seed)
    shards = plan_shards(assignment.splits, shard_bytes=request.shard_bytes, shards=request.shards)
    numbers = {label: number for number, label in enumerate(labels)}
    return assignment, ConversionPlan(shards, numbers, skip_bad=request.source.options.skip_bad)


def sort_labels(labels: set[str]) -> list[str]:
    """Return class names in the order of their numbers.

    Labels sort numerically if all are whole numbers, else alphabetically.
    """
    if all(label.isdecimal() for label in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)


def _manifest(
    request: _Request,
    scan: Scan,
    outcome: Outcome,
    plan: ConversionPlan,
    assignment: SplitAssignment,
    facts: Description,
    run_id: str,
) -> Manifest:
    skipped = [*scan.skipped, *assignment.left_out, *outcome.skipped]
    duplicates = find_duplicates(scan.entries)
    written = outcome.written
    content: dict[str, Any] = {
        "task": scan.task,
        "schema": facts.schema.model_dump(mode="json"),
        "labels": list(plan.label_numbers),
        "shards": [shard.model_dump(mode="json") for shard in outcome.shards],
    }
    digest = content_digest(content)
    return Manifest(
        id=f"dataset-{digest.removeprefix('sha256:')[:12]}",
        digest=digest,
        task=scan.task,
        record_schema=facts.schema,
        labels=tuple(plan.label_numbers),
        target=_target(written["train"]) if scan.task == "regression" else None,
        counts={split: len(entries) for split, entries in written.items()},
        label_counts=_label_counts(written, list(plan.label_numbers)),
        shards=tuple(outcome.shards),
        columns=tuple(scan.columns),
        source=SourceInfo(
            plugin=request.source.plugin,
            uri=str(request.source.location),
            digest=facts.digest,
            files=facts.files,
            bytes=facts.bytes,
            ignored=tuple(scan.ignored[:_NAMED]),
            ignored_count=len(scan.ignored),
            skipped=tuple(Skipped(key=key, reason=reason) for key, reason in skipped[:_NAMED]),
            skipped_count=len(skipped),
            duplicates=tuple(duplicates[:_NAMED]),
            duplicate_count=len(duplicates),
            contradiction_count=sum(len(group.labels) > 1 for group in duplicates),
            notes=tuple(scan.notes),
            warnings=tuple(scan.warnings),
        ),
        seed=request.seed,
        fractions=assignment.fractions,
        given_splits=assignment.given,
        timonel_version=__version__,
        run_id=run_id,
    )


def _label_counts(
    written: Mapping[Split, Sequence[Entry]], labels: Sequence[str]
) -> dict[Split, dict[str, int]]:
    if not labels:
        return {}
    counted = {s: Counter(str(entry.label) for entry in written[s]) for s in SPLITS}
    return {split: {label: counts[label] for label in labels} for split, counts in counted.items()}


def _target(train: Sequence[Entry]) -> Target:
    import numpy as np  # noqa: PLC0415 - 100 ms that converting images does not need

    values = np.array([entry.label for entry in train], np.float64)
    return Target(
        mean=float(values.mean()),
        std=float(values.std()),
        minimum=float(values.min()),
        maximum=float(values.max()),
    )


def _check_outcome(outcome: Outcome, plan: ConversionPlan) -> None:
    present = {str(entry.label) for entry in outcome.written["train"]}
    lost = [label for label in plan.label_numbers if label not in present]
    if lost or not outcome.written["train"]:
        what = f"no usable record of {lost[0]!r}" if lost else "no usable record"
        raise DataError(
            f"{what} in the training split: {len(outcome.skipped)} records were skipped",
            hint="repair the skipped records or add others",
        )


def _params(request: _Request) -> dict[str, Any]:
    return {
        "source": str(request.source.location),
        "destination": request.uri,
        "splits": None if request.fractions is None else list(request.fractions),
        "seed": request.seed,
        **request.source.options.model_dump(mode="json", exclude_defaults=True),
    }


def _input(request: _Request, facts: Description) -> Artifact:
    location = request.source.location
    metadata = {"files": facts.files, "bytes": facts.bytes}
    return Artifact("files", str(location), facts.digest, location.name, metadata)


def _write_reference(workspace: Workspace, dataset: Dataset) -> None:
    """Record in the workspace where the dataset with this digest is."""
    name = dataset.digest.removeprefix("sha256:")
    body = {"id": dataset.manifest.id, "digest": dataset.digest, "uri": dataset.uri}
    path = workspace.datasets / f"{name}.json"
    write_document(path, "dataset-reference", body)
    if workspace.local_copy is not None:
        workspace.local_copy.push_file(path)


class _Ticker:
    """Count records and report progress at most ten times a second."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._progress = progress
        self._done = 0
        self._next = 0.0

    def __call__(self) -> None:
        self._done += 1
        if self._progress is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + _PROGRESS_INTERVAL_S
            self._progress(self._done, self._total)

    def finish(self) -> None:
        if self._progress is not None:
            self._progress(self._total, self._total)


def check_paths(source: object, destination: object) -> None:
    """Check that source and destination are paths with UTF-8 names.

    Raises:
        InputError: One is not a path, such as a DataFrame, or its name is not UTF-8.
    """
    for what, path in (("source", source), ("destination", destination)):
        if hasattr(path, "to_csv"):
            raise InputError(
                f"the {what} must be a path, got a {type(path).__name__}",
                hint='save it with to_csv("rows.csv", index=False) and convert "rows.csv"',
            )
        if not isinstance(path, str | os.PathLike):
            raise InputError(f"the {what} must be a path, got {type(path).__name__}")
        try:
            str(path).encode()
        except UnicodeEncodeError:
            shown = os.fsencode(path).decode(errors="backslashreplace")
            raise InputError(
                f"the name of the {what} {shown} is not UTF-8", hint="rename it"
            ) from None


def check_overlap(location: Path, target: Path) -> None:
    """Check that source and destination do not contain each other.

    Raises:
        InputError: One contains the other, or they are the same.
    """
    inner, outer = location.resolve(), target.resolve()
    if inner == outer or inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise InputError(
            f"source {location} and destination {target} overlap",
            hint="choose a destination outside the source",
        )


def check_target(target: Path, *, overwrite: bool) -> None:
    """Check that a dataset may be written to ``target``.

    Only a dataset or an empty folder may be replaced, so that a typo does not delete photographs.
    The target must not be inside another dataset, which may be replaced as a whole.

    Raises:
        InputError: The target is inside another dataset.
        AlreadyExistsError: The target has other content, or ``overwrite`` is false.
    """
    outer = _dataset_around(target)
    if outer is not None:
        raise InputError(
            f"the destination {target} is inside the dataset {outer}",
            hint="choose a folder outside it",
        )
    if not target.exists():
        return
    is_empty = target.is_dir() and not any(target.iterdir())
    if is_empty:
        return
    if not overwrite:
        raise AlreadyExistsError(
            f"{target} already exists", hint="choose another destination, or use --overwrite"
        )
    if (target / MANIFEST_NAME).is_file():
        foreign = sorted({path.name for path in target.iterdir()} - _own_files(target))
        if not foreign:
            return
        raise AlreadyExistsError(
            f"{target} cannot be overwritten: {foreign[0]} is not part of the dataset",
            hint="move it away, or choose another destination",
        )
    raise AlreadyExistsError(
        f"{target} cannot be overwritten: it is not a dataset",
        hint="choose another destination, or remove it yourself",
    )


def _dataset_around(target: Path) -> Path | None:
    """Return the nearest parent folder that is a dataset, or None."""
    for folder in target.resolve().parents:
        try:
            read_document(folder / MANIFEST_NAME, "dataset")
        except FormatError:
            return folder
        except TimonelError:
            continue  # no manifest, or a foreign file of that name
        else:
            return folder
    return None


def _own_files(folder: Path) -> set[str]:
    """Return the names of the files that belong to a dataset."""
    manifest = read_manifest(folder)
    return {MANIFEST_NAME, *(shard.name for shard in manifest.shards)}
