"""Destination of a batch prediction: checks, and publishing of the finished output."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from timonel.batch.plan import OutputFormat, ShardPlan
from timonel.batch.shards import PredictionJournal
from timonel.batch.writers import join
from timonel.data.manifest import Rejected
from timonel.errors import AlreadyExistsError, InputError
from timonel.storage import digest_file, digest_tree, is_local
from timonel.storage.atomic import install_dir, replacing, unwritable

ERRORS = "errors.jsonl"
_PART = re.compile(r"part-\d{5}-of-\d{5}\.[a-z]+")


def check_destination(
    out: Path, journal: PredictionJournal, *, is_folder: bool, overwrite: bool
) -> None:
    """Check that predictions may be written to a path.

    Those of the journal may be there: their run was stopped after it published them.

    Raises:
        InputError: Its folder does not exist.
        AlreadyExistsError: Something is there, and ``overwrite`` is false or it is not made of
            predictions.
    """
    if not out.parent.is_dir():
        raise InputError(f"no folder at {out.parent}", hint="create it first")
    if not out.exists() or is_published(out, journal):
        return
    if not overwrite:
        raise AlreadyExistsError(
            f"{out} already exists", hint="choose another path, or use --overwrite"
        )
    if out.is_dir() != is_folder:
        raise AlreadyExistsError(f"{out} cannot be overwritten: it is not a file of predictions")
    foreign = [each.name for each in out.iterdir() if not _is_own(each)] if is_folder else []
    if foreign:
        raise AlreadyExistsError(
            f"{out} cannot be overwritten: {min(foreign)} is not part of predictions",
            hint="choose another folder, or remove it yourself",
        )


def check_overlap(out: Path, inputs: Sequence[str | os.PathLike[str]]) -> None:
    """Check that predictions do not replace an input, or become one.

    Raises:
        InputError: The path is an input, matches its pattern, or one contains the other.
    """
    target = out.resolve()
    for each in inputs:
        if not is_local(each):
            continue
        source = Path(each).resolve()
        is_inside = target.is_relative_to(source) or source.is_relative_to(target)
        if is_inside or fnmatch.fnmatchcase(str(target), str(source)):
            raise InputError(
                f"the output {out} overlaps with the input {os.fspath(each)}",
                hint="choose a path outside the input",
            )


def is_published(out: Path, journal: PredictionJournal) -> bool:
    """Return whether the predictions of a journal are at their place."""
    return journal.output is not None and out.exists() and journal.output == _digest_of(out)


def publish(
    out: Path,
    plans: Sequence[ShardPlan],
    journal: PredictionJournal,
    run_id: str,
    *,
    format_: OutputFormat,
    is_folder: bool,
    overwrite: bool,
) -> Path | None:
    """Publish the predictions of all shards, and the list of rows without one.

    Returns:
        The list; None if every row has a prediction.

    Raises:
        InputError: The folder cannot be written.
        AlreadyExistsError: Something appeared meanwhile, see `check_destination`.
        DataError: The types of columns differ between shards.
    """
    # Again, as something may have appeared meanwhile.
    check_destination(out, journal, is_folder=is_folder, overwrite=overwrite)
    outcomes = [journal.outcome(plan.name) for plan in plans]
    parts = [journal.content / outcome.name for outcome in outcomes if outcome.records]
    failed = [each for outcome in outcomes for each in outcome.rejected]
    if is_folder:
        _publish_folder(out, parts, failed, journal, run_id, overwrite=overwrite)
        return out / ERRORS if failed else None
    errors = errors_of(out)
    with replacing(out) as file:
        join(parts, file, format_)
        if failed:
            write_errors(errors, failed)
        else:
            errors.unlink(missing_ok=True)
        file.flush()
        journal.publishing(run_id, digest_file(Path(file.name)))
    return errors if failed else None


def errors_of(out: Path) -> Path:
    """Return the path of the list of rows without a prediction."""
    return out.with_name(f"{out.name}.{ERRORS}")


def write_errors(path: Path, failed: Iterable[Rejected]) -> None:
    """Write rows without a prediction as JSON lines with ``key`` and ``error``.

    Raises:
        InputError: The folder cannot be written.
    """
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
    overwrite: bool,
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
    install_dir(folder, out, replace=overwrite)


def _digest_of(out: Path) -> str:
    return digest_tree(out) if out.is_dir() else digest_file(out)


def _is_own(path: Path) -> bool:
    return path.name == ERRORS or _PART.fullmatch(path.name) is not None
