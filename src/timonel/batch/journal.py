"""Journal of a batch prediction: an unfinished output that survives the process.

    .tmp-predict-of-<name>/    beside the output
      lock                     held by the batch prediction
      job.json                 digest of the job, and its version
      model.log                output of the model's process
      parts/<shard>.<ending>   predictions of a shard
      finished/<shard>.json    its outcome, written after the predictions
      content/                 a folder of shards, before it is published

The outcomes belong to one job: if its digest changes, they are removed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from pydantic import Field

from timonel.batch.plan import JobSpec, ShardPlan
from timonel.data.schema import StoredValue
from timonel.errors import TimonelError
from timonel.storage.atomic import ASIDE_PREFIX, unwritable
from timonel.storage.digests import digest_file
from timonel.storage.documents import read_document, write_document

_JOB, _OUTCOME = "batch-prediction", "prediction-outcome"
_NAME_BYTES = 200


class Outcome(StoredValue):
    """Result of predicting a shard."""

    shard: str = Field(description="Name of the shard.")
    rows: int = Field(description="Rows with a prediction.")
    digest: str | None = Field(description="Digest of the file of predictions; null without any.")
    failures: tuple[tuple[str, str], ...] = Field(description="Keys and reasons of other rows.")


class Journal:
    """Folder of an unfinished batch prediction. Thread-safe for different shards.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock = root / "lock"
        self.log = root / "model.log"
        self.content = root / "content"
        self._parts = root / "parts"
        self._finished = root / "finished"

    def version(self) -> tuple[str, int] | None:
        """Return the model and version of the unfinished job; None without a job."""
        try:
            found = read_document(self.root / "job.json", _JOB)
            return str(found["model"]), int(found["version"])
        except (TimonelError, KeyError, ValueError):
            return None

    def begin(self, digest: str, job: JobSpec) -> bool:
        """Keep the finished shards of this job, and remove those of any other.

        Returns:
            Whether finished shards of another job were removed.

        Raises:
            InputError: The folder cannot be written.
        """
        removed = False
        if not self._is_of(digest):
            removed = self.has_finished()
            for folder in (self._parts, self._finished):
                shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self.content, ignore_errors=True)
        try:
            self._parts.mkdir(exist_ok=True)
            self._finished.mkdir(exist_ok=True)
        except OSError as error:
            raise unwritable(self.root, error) from error
        body = {"job": digest, "model": job.model, "version": job.version}
        write_document(self.root / "job.json", _JOB, body)
        return removed

    def part(self, plan: ShardPlan, ending: str) -> Path:
        """Return the file for the predictions of a shard."""
        return self._parts / f"{plan.name}.{ending}"

    def is_finished(self, plan: ShardPlan, ending: str) -> bool:
        """Return whether a shard was predicted, and its file still has its digest."""
        try:
            digest = self.outcome(plan.name).digest
        except (TimonelError, ValueError):
            return False
        path = self.part(plan, ending)
        return digest is None or (path.is_file() and digest_file(path) == digest)

    def save(self, outcome: Outcome) -> None:
        """Record that a shard was predicted.

        Raises:
            InputError: The folder cannot be written.
        """
        path = self._finished / f"{outcome.shard}.json"
        write_document(path, _OUTCOME, outcome.model_dump(mode="json"))

    def outcome(self, name: str) -> Outcome:
        """Return the result of predicting a shard.

        Raises:
            NotFoundError: The shard is not finished.
            CorruptError: The journal is damaged.
        """
        document = read_document(self._finished / f"{name}.json", _OUTCOME)
        return Outcome.model_validate(document)

    def has_finished(self) -> bool:
        """Return whether any shard is finished."""
        return any(self._finished.glob("*.json"))

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.root, ignore_errors=True)

    def _is_of(self, digest: str) -> bool:
        try:
            return bool(read_document(self.root / "job.json", _JOB)["job"] == digest)
        except (TimonelError, KeyError):
            return False


def journal_of(out: Path) -> Journal:
    """Return the journal of batch predictions to a path: always the same one."""
    name = out.name
    if len(os.fsencode(name)) > _NAME_BYTES:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    # `sweep` leaves it alone, because the name has no process id.
    return Journal(out.with_name(f"{ASIDE_PREFIX}predict-of-{name}"))
