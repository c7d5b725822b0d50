"""Destination of a batch prediction: checks, and publishing of the finished output."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from timonel.batch.journal import Journal, Outcome, journal_of
from timonel.batch.plan import JobSpec, ShardPlan
from timonel.batch.writers import join
from timonel.errors import AlreadyExistsError, InputError
from timonel.storage import is_local
from timonel.storage.atomic import install_dir, replacing, sweep, unwritable
from timonel.storage.locks import LockedError, exclusive

_logger = logging.getLogger(__name__)

ERRORS = "errors.jsonl"
_PART = re.compile(r"part-\d{5}-of-\d{5}\.[a-z]+")


def check_destination(out: Path, *, is_folder: bool, overwrite: bool) -> None:
    """Check that predictions may be written to a path.

    Raises:
        InputError: Its folder does not exist.
        AlreadyExistsError: Something is there, and ``overwrite`` is false or it is not made of
            predictions.
    """
    if not out.parent.is_dir():
        raise InputError(f"no folder at {out.parent}", hint="create it first")
    if not out.exists():
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


@contextlib.contextmanager
def unfinished(out: Path) -> Iterator[Journal]:
    """Yield the locked journal of predictions to a path; remove it if nothing in it is finished.

    Raises:
        LockedError: Another process predicts to the same path.
        InputError: The folder cannot be written.
    """
    sweep(out.parent)
    journal = journal_of(out)
    try:
        journal.root.mkdir(exist_ok=True)
    except OSError as error:
        raise unwritable(out, error) from error
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(exclusive(journal.lock, timeout_s=0))
        except LockedError:
            raise LockedError(
                f"another process predicts to {out}", hint="wait for it, or stop it"
            ) from None
        try:
            yield journal
        except BaseException:
            if journal.has_finished():
                _logger.warning(
                    "finished shards are kept in %s: run the same command again to continue",
                    journal.root,
                )
            else:
                journal.remove()
            raise


def publish(
    out: Path, job: JobSpec, plans: Sequence[ShardPlan], journal: Journal, *, is_folder: bool
) -> Path | None:
    """Publish the predictions of all shards, and the list of rows without one.

    Returns:
        The list; None if every row has a prediction.

    Raises:
        InputError: The folder cannot be written.
        DataError: The types of columns differ between shards.
    """
    outcomes = [journal.outcome(plan.name) for plan in plans]
    parts = [
        journal.part(plan, job.format)
        for plan, outcome in zip(plans, outcomes, strict=True)
        if outcome.rows
    ]
    errors = out / ERRORS if is_folder else errors_of(out)
    has_errors = any(outcome.failures for outcome in outcomes)
    if is_folder:
        _publish_folder(out, parts, outcomes, journal, job.format)
    else:
        with replacing(out) as file:
            join(parts, file, job.format)
            if has_errors:
                write_errors(errors, outcomes)
            else:
                errors.unlink(missing_ok=True)
    journal.remove()
    return errors if has_errors else None


def errors_of(out: Path) -> Path:
    """Return the path of the list of rows without a prediction."""
    return out.with_name(f"{out.name}.{ERRORS}")


def write_errors(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write rows without a prediction as JSON lines with ``key`` and ``error``.

    Raises:
        InputError: The folder cannot be written.
    """
    with replacing(path) as file:
        for outcome in outcomes:
            for key, reason in outcome.failures:
                text = json.dumps({"key": key, "error": reason}, ensure_ascii=False)
                file.write(text.encode(errors="backslashreplace") + b"\n")


def _publish_folder(
    out: Path, parts: Sequence[Path], outcomes: Sequence[Outcome], journal: Journal, ending: str
) -> None:
    content = journal.content
    try:
        shutil.rmtree(content, ignore_errors=True)
        content.mkdir()
        for number, part in enumerate(parts):
            # A link, because a moved part would be missing if this is killed.
            os.link(part, content / f"part-{number:05d}-of-{len(parts):05d}.{ending}")
    except OSError as error:
        raise unwritable(out, error) from error
    if any(outcome.failures for outcome in outcomes):
        write_errors(content / ERRORS, outcomes)
    install_dir(content, out, replace=out.exists())


def _is_own(path: Path) -> bool:
    return path.name == ERRORS or _PART.fullmatch(path.name) is not None
