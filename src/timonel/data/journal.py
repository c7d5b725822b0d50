"""Journal of work in shards: an unfinished output that survives the process.

    .tmp-<work>-of-output-<name>/   beside the output
      lock                     held while the work is done
      plan.json                digest of the plan, and the run that publishes the output
      plan/<shard>             what a worker needs for a shard besides the plan
      content/<shard>          files of shards
      finished/<shard>.json    outcome of a shard, written after its file

The outcomes belong to one plan: if the plan's digest changes, they are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic import Field

from timonel.data.manifest import Rejected
from timonel.data.schema import StoredValue
from timonel.errors import DataError, NotFoundError, TimonelError
from timonel.storage import Workspace
from timonel.storage.atomic import ASIDE_PREFIX, aside_name, sweep, unwritable, write_bytes
from timonel.storage.digests import digest_file
from timonel.storage.documents import read_document, write_document
from timonel.storage.locks import LockedError, exclusive
from timonel.tracking import RunWriter, open_run, start_run
from timonel.tracking.events import RESUME

CONTENT = "content"
_PLAN, _OUTCOME = "shard-plan", "shard-outcome"
_NAME_BYTES = 200
_logger = logging.getLogger(__name__)


class Outcome(StoredValue):
    """Result of one shard."""

    name: str = Field(description="Name of the shard, and of its file.")
    digest: str = Field(description="Digest of its file.")
    records: int = Field(description="Records in the file.")
    rejected: tuple[Rejected, ...] = Field(default=(), description="Unusable records.")


AnyOutcome = TypeVar("AnyOutcome", bound=Outcome)


class Journal(Generic[AnyOutcome]):
    """Folder of unfinished work. Thread-safe for different shards."""

    work: ClassVar[str]
    """Verb for messages and the folder's name."""
    _outcome_type: type[AnyOutcome]

    def __init__(self, root: Path) -> None:
        self.root = root
        self.content = root / CONTENT
        self.lock = root / "lock"
        self._plans = root / "plan"
        self._finished = root / "finished"

    @classmethod
    def beside(cls, target: Path) -> Self:
        """Return the journal of work on an output: always the same one."""
        name = target.name
        if len(os.fsencode(name)) > _NAME_BYTES:
            name = hashlib.sha256(os.fsencode(name)).hexdigest()
        # `sweep` leaves it alone, because the name has no process id.
        return cls(target.with_name(f"{ASIDE_PREFIX}{cls.work}-of-output-{name}"))

    @property
    def plan(self) -> dict[str, Any]:
        """The plan's ``digest`` and what `begin` was given with it; empty if there is none."""
        try:
            return read_document(self.root / "plan.json", _PLAN)
        except TimonelError:
            return {}

    @property
    def digest(self) -> str:
        """Digest of the plan; empty if there is none."""
        return str(self.plan.get("digest", ""))

    def begin(self, digest: str, **facts: Any) -> bool:
        """Keep the finished shards of the plan with this digest, and remove all others.

        Returns whether finished shards of another plan were removed.
        """
        removed = False
        if self.digest != digest:
            removed = self.has_finished()
            for folder in (self.content, self._finished):
                shutil.rmtree(folder, ignore_errors=True)
            self._write_plan({"digest": digest, **facts})
        self._make_folders()
        return removed

    def receive(self, name: str, plan: bytes) -> None:
        """Begin a journal elsewhere, for one shard whose file of the plan has this content."""
        write_bytes(self.plan_file(name), plan)
        self._make_folders()

    def plan_file(self, name: str) -> Path:
        """Return the file with what a worker needs for a shard."""
        return self._plans / name

    def outcome_file(self, name: str) -> Path:
        """Return the file with the outcome of a shard."""
        return self._finished / f"{name}.json"

    def is_finished(self, name: str) -> bool:
        """Return whether a shard was written, and still has its digest."""
        try:
            digest = self.outcome(name).digest
        except (TimonelError, ValueError):
            return False
        path = self.content / name
        return path.is_file() and digest_file(path) == digest

    def save(self, outcome: AnyOutcome) -> None:
        """Record that a shard was written."""
        write_document(self.outcome_file(outcome.name), _OUTCOME, outcome.model_dump(mode="json"))

    def outcome(self, name: str) -> AnyOutcome:
        """Return the result of writing a shard, which is finished."""
        return self._outcome_type.model_validate(read_document(self.outcome_file(name), _OUTCOME))

    def has_finished(self) -> bool:
        """Return whether any shard is finished."""
        return any(self._finished.glob("*.json"))

    def is_worth_keeping(self) -> bool:
        """Return whether the folder has something that a user may need."""
        return self.has_finished()

    def run(self, workspace: Workspace, *, is_published: bool, **fields: Any) -> RunWriter:
        """Return a new run; or the one that published the output, if it is in the workspace."""
        if is_published:
            with contextlib.suppress(NotFoundError):
                found = open_run(workspace, self.plan["published"]["run"])
                found.event(RESUME, host=socket.gethostname())
                return found
        return start_run(workspace, self.work, **fields)

    def publishing(self, run_id: str, output: str) -> None:
        """Record that a run is about to publish the output with a digest."""
        self._write_plan({**self.plan, "published": {"run": run_id, "digest": output}})

    @property
    def output(self) -> str | None:
        """Digest of the output, if it was about to be published; it may be at its place."""
        published = self.plan.get("published")
        return None if published is None else str(published["digest"])

    def remove(self) -> None:
        """Remove the folder, in one step for a process that is killed."""
        aside = self.root.with_name(aside_name(self.root.name))
        with contextlib.suppress(OSError):
            self.root.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    def _make_folders(self) -> None:
        try:
            for folder in (self.content, self._finished):
                folder.mkdir(exist_ok=True)
        except OSError as error:
            raise unwritable(self.root, error) from error

    def _write_plan(self, body: dict[str, Any]) -> None:
        write_document(self.root / "plan.json", _PLAN, body)


@contextlib.contextmanager
def locked(journal: Journal[Any], target: Path) -> Iterator[None]:
    """Hold the lock of a journal beside its output, and remove the journal after the block.

    If the block raises, the journal is kept if it has finished shards.
    """
    sweep(target.parent)
    try:
        journal.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(target, error) from error
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(exclusive(journal.lock, timeout_s=0))
        except LockedError:
            raise LockedError(
                f"another process {journal.work}s to {target}", hint="wait for it, or stop it"
            ) from None
        try:
            yield
        except BaseException as error:
            if journal.has_finished():
                # The same data would be at fault again.
                cure = "" if isinstance(error, DataError) else ": run the same command again"
                _logger.warning("finished shards are kept in %s%s", journal.root, cure)
            elif not journal.is_worth_keeping():
                journal.remove()
            raise
        journal.remove()
