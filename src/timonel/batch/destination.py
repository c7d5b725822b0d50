"""Destination of a batch prediction: checks, and publishing of the finished output.

Predictions for a bucket are first published in the cache, beside their journal, then uploaded.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import itertools
import json
import os
import posixpath
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from timonel.batch.plan import OutputFormat, PartPlan
from timonel.batch.shards import PredictionJournal
from timonel.batch.writers import join
from timonel.data.manifest import Rejected
from timonel.errors import AlreadyExistsError, InputError
from timonel.storage import digest_file, digest_tree, is_local
from timonel.storage import join as join_uri
from timonel.storage.atomic import exists, install_dir, replacing, unwritable
from timonel.storage.local_copy import cache_folder
from timonel.storage.location import Location
from timonel.storage.object_store import ObjectStore
from timonel.storage.remote import publish as publish_folder

ERRORS = "errors.jsonl"
_PART = re.compile(r"part-\d{5}-of-\d{5}\.[a-z]+")


@dataclass(frozen=True)
class Output:
    """Where predictions go."""

    uri: str
    is_folder: bool

    @property
    def path(self) -> Path:
        """The path; for a bucket that of a copy in the cache."""
        if is_local(self.uri):
            return Path(self.uri)
        folder = hashlib.sha256(self.uri.encode()).hexdigest()[:32]
        return cache_folder() / "predictions" / folder / posixpath.basename(self.uri)

    @property
    def errors(self) -> str:
        """Path or URI of the list of rows without a prediction."""
        return join_uri(self.uri, ERRORS) if self.is_folder else f"{self.uri}.{ERRORS}"


def check_destination(output: Output, journal: PredictionJournal, *, overwrite: bool) -> None:
    """Check that predictions may be written to a path or a URI.

    Those of the journal may be there: their run was stopped after it published them.
    """
    out = Location(output.uri)
    if out.is_local and not out.path.parent.is_dir():
        raise InputError(f"no folder at {out.path.parent}", hint="create it first")
    is_there = out.path.exists() if out.is_local else out.exists()
    if not is_there or is_published(output.path, journal):
        return
    if not overwrite:
        raise AlreadyExistsError(
            f"{out} already exists", hint="choose another path, or use --overwrite"
        )
    if out.is_dir() != output.is_folder:
        raise AlreadyExistsError(f"{out} cannot be overwritten: it is not a file of predictions")
    names = list(itertools.chain(*out.children)) if output.is_folder else []
    foreign = [name for name in names if name != ERRORS and not _PART.fullmatch(name)]
    if foreign:
        raise AlreadyExistsError(
            f"{out} cannot be overwritten: {min(foreign)} is not part of predictions",
            hint="choose another folder, or remove it yourself",
        )


def check_overlap(out: str, inputs: Sequence[str | os.PathLike[str]]) -> None:
    """Check that predictions do not replace an input, or become one."""
    target = Location(out).resolved
    for each in inputs:
        source = Location(each).resolved
        is_inside = f"{target}/".startswith(f"{source}/") or f"{source}/".startswith(f"{target}/")
        if is_inside or fnmatch.fnmatchcase(target, source):
            raise InputError(
                f"the output {out} overlaps with the input {os.fspath(each)}",
                hint="choose a path outside the input",
            )


def is_published(out: Path, journal: PredictionJournal) -> bool:
    """Return whether the predictions of a journal are at their place."""
    return journal.output is not None and out.exists() and journal.output == _digest_of(out)


def publish(
    output: Output,
    plans: Sequence[PartPlan],
    journal: PredictionJournal,
    run_id: str,
    *,
    format_: OutputFormat,
    overwrite: bool,
) -> bool:
    """Publish the predictions of all shards, and the list of rows without one.

    Returns:
        Whether there is such a list.
    """
    # Again, as something may have appeared meanwhile.
    check_destination(output, journal, overwrite=overwrite)
    out = output.path
    outcomes = [journal.outcome(plan.name) for plan in plans]
    parts = [journal.content / outcome.name for outcome in outcomes if outcome.records]
    failed = [each for outcome in outcomes for each in outcome.rejected]
    if output.is_folder:
        is_own = not is_local(output.uri) or is_published(out, journal)
        _publish_folder(out, parts, failed, journal, run_id, replace=overwrite or is_own)
    else:
        with replacing(out) as file:
            join(parts, file, format_)
            if failed:
                write_errors(errors_of(out), failed)
            else:
                errors_of(out).unlink(missing_ok=True)
            file.flush()
            journal.publishing(run_id, digest_file(Path(file.name)))
    if not is_local(output.uri):
        _upload(output, replace=overwrite)
    return bool(failed)


def _upload(output: Output, *, replace: bool) -> None:
    """Copy published predictions to their bucket: the file, or the last shard, comes last."""
    path, store = output.path, ObjectStore(output.uri)
    if output.is_folder:
        last = max(part.name for part in path.glob("part-*"))
        publish_folder(path, output.uri, last=last, replace=replace)
        return
    found = Location(output.uri)
    if found.is_file() and not replace and not store.is_same("", path, found.blob()):
        raise exists(output.uri)
    errors = ObjectStore(output.errors)
    if errors_of(path).exists():
        errors.upload({"": errors_of(path)})
    else:
        errors.delete([""])
    store.upload({"": path})


def forget_copy(output: Output) -> None:
    """Remove the copy of predictions that are in a bucket."""
    if not is_local(output.uri):
        path = output.path
        shutil.rmtree(path, ignore_errors=True)
        for each in (path, errors_of(path)):
            with contextlib.suppress(OSError):
                each.unlink()


def errors_of(out: Path) -> Path:
    """Return the path of the list of rows without a prediction."""
    return out.with_name(f"{out.name}.{ERRORS}")


def write_errors(path: Path, failed: Iterable[Rejected]) -> None:
    """Write rows without a prediction as JSON lines with ``key`` and ``error``."""
    with replacing(path) as file:
        for each in failed:
            text = json.dumps({"key": each.key, "error": each.reason}, ensure_ascii=False)
            file.write(text.encode(errors="backslashreplace") + b"\n")


def _publish_folder(
    out: Path,
    parts: Sequence[Path],
    failed: Sequence[Rejected],
    journal: PredictionJournal,
    run_id: str,
    *,
    replace: bool,
) -> None:
    folder = journal.folder
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for number, part in enumerate(parts):
            # A link, because a moved part would be missing if this is killed.
            os.link(part, folder / f"part-{number:05d}-of-{len(parts):05d}{part.suffix}")
    except OSError as error:
        raise unwritable(out, error) from error
    if failed:
        write_errors(folder / ERRORS, failed)
    journal.publishing(run_id, digest_tree(folder))
    install_dir(folder, out, replace=replace)


def _digest_of(out: Path) -> str:
    return digest_tree(out) if out.is_dir() else digest_file(out)
