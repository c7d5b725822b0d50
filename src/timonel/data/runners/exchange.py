"""Where the client of a remote job and its workers exchange plans, shards and outcomes.

Workers that see the client's file system read plans from the conversion's journal and write into
it. Others get copies through a bucket: they write each shard to a local disk first, and upload its
outcome last, so that an outcome means a complete shard.
"""

from __future__ import annotations

import abc
import contextlib
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from timonel.data.journal import Journal, ShardPlan
from timonel.data.shards import Job, write_one
from timonel.errors import InputError, NotFoundError, TimonelError
from timonel.storage.atomic import unwritable, write_bytes
from timonel.storage.object_store import ObjectStore

_ERROR = "error.json"
_LEASE = "client"


@dataclass(frozen=True)
class Exchange(abc.ABC):
    """Place of one conversion, for its client and its workers; can be pickled.

    Args:
        place: Folder or URI.
    """

    poll_s: ClassVar[float]
    """Time between two calls of `collect`."""

    place: str

    @abc.abstractmethod
    def offer(self, journal: Journal, plans: Sequence[ShardPlan]) -> None:
        """Give the plans to the workers, and forget earlier errors."""

    @abc.abstractmethod
    def collect(self, journal: Journal) -> None:
        """Put the shards that were finished since the last call into the journal."""

    @abc.abstractmethod
    def remove(self) -> None:
        """Remove what a complete conversion no longer needs."""

    @abc.abstractmethod
    def write(self, plan: ShardPlan, job: Callable[[Journal], Job], tick: Any) -> None:
        """Write a shard in a worker, unless it is finished.

        Args:
            plan: The shard.
            job: Returns the conversion with a journal.
            tick: Called after each record.
        """

    @abc.abstractmethod
    def put(self, name: str, content: bytes) -> None:
        """Write a small file."""

    @abc.abstractmethod
    def get(self, name: str) -> bytes | None:
        """Return the content of a small file; None if there is none."""

    @abc.abstractmethod
    def delete(self, name: str) -> None:
        """Delete a small file, if it is there."""

    def renew(self, number: int) -> None:
        """Renew the lease, with another number each time."""
        self.put(_LEASE, str(number).encode())

    def release(self) -> None:
        """Give up the lease."""
        self.delete(_LEASE)

    def lease(self) -> bytes | None:
        """Return the lease as last renewed; None if it was given up."""
        return self.get(_LEASE)

    def report(self, error: TimonelError) -> None:
        """Tell the client why a worker failed."""
        body = {"message": error.message, "hint": error.hint}
        self.put(_ERROR, json.dumps(body).encode())

    def forget(self) -> None:
        """Forget the errors of workers."""
        self.delete(_ERROR)

    def failure(self) -> InputError | None:
        """Return why a worker failed; None if it did not say."""
        with contextlib.suppress(TimonelError, ValueError, KeyError):
            if (content := self.get(_ERROR)) is not None:
                found = json.loads(content)
                return InputError(found["message"], hint=found["hint"])
        return None


class SharedFolder(Exchange):
    """The journal itself, at the same path on all machines."""

    poll_s: ClassVar[float] = 0.2

    def offer(self, journal: Journal, plans: Sequence[ShardPlan]) -> None:  # noqa: ARG002 - they are there
        """Forget earlier errors."""
        self.forget()

    def collect(self, journal: Journal) -> None:
        """Do nothing: workers write into the journal."""

    def remove(self) -> None:
        """Do nothing: the journal belongs to the client."""

    def write(self, plan: ShardPlan, job: Callable[[Journal], Job], tick: Any) -> None:
        """Write a shard into the journal."""
        journal = Journal(Path(self.place))
        if not journal.is_finished(plan):
            write_one(plan, job(journal), tick=tick)

    def put(self, name: str, content: bytes) -> None:
        """Write a small file."""
        write_bytes(Path(self.place, name), content)

    def get(self, name: str) -> bytes | None:
        """Return the content of a small file; None if there is none."""
        path = Path(self.place, name)
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error

    def delete(self, name: str) -> None:
        """Delete a small file, if it is there."""
        path = Path(self.place, name)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(path, error) from error


class Bucket(Exchange):
    """Folder of a bucket, named after the plan's digest: a killed conversion finds it again."""

    poll_s: ClassVar[float] = 2.0

    @property
    def _store(self) -> ObjectStore:
        return ObjectStore(self.place)

    def offer(self, journal: Journal, plans: Sequence[ShardPlan]) -> None:
        """Upload the plans."""
        self.forget()
        self._store.upload({f"plan/{plan.name}": journal.plan_file(plan.name) for plan in plans})

    def collect(self, journal: Journal) -> None:
        """Download the shards that were finished since the last call."""
        store = self._store
        blobs = store.find()
        for name in blobs:
            folder, _, shard = name.partition("/")
            shard = shard.removesuffix(".json")
            outcome = journal.outcome_file(shard)
            content = f"content/{shard}"
            if folder == "finished" and not outcome.exists() and content in blobs:
                store.download({content: journal.content / shard}, blobs)
                store.download({name: outcome}, blobs)

    def remove(self) -> None:
        """Delete everything."""
        self._store.delete(self._store.find())

    def write(self, plan: ShardPlan, job: Callable[[Journal], Job], tick: Any) -> None:
        """Write a shard to a temporary folder, and upload it."""
        store = self._store
        outcome, content = f"finished/{plan.name}.json", f"content/{plan.name}"
        if self.get(outcome) is not None:
            return
        with tempfile.TemporaryDirectory(prefix="timonel-") as folder:
            journal = Journal(Path(folder))
            journal.receive(plan.name, store.read(f"plan/{plan.name}"))
            write_one(plan, job(journal), tick=tick)
            store.upload({content: journal.content / plan.name})
            store.upload({outcome: journal.outcome_file(plan.name)})

    def put(self, name: str, content: bytes) -> None:
        """Write a small object."""
        self._store.write(name, content)

    def get(self, name: str) -> bytes | None:
        """Return the content of a small object; None if there is none."""
        try:
            return self._store.read(name)
        except NotFoundError:
            return None

    def delete(self, name: str) -> None:
        """Delete a small object, if it is there."""
        self._store.delete([name])
