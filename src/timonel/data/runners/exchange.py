"""Where the client of a remote job and its workers exchange plans, shards and outcomes.

Workers that see the client's file system write into its journal. Others get copies through a
bucket: they write each shard to a local disk first, and upload its outcome last, so that an
outcome means a complete shard.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timonel.data.journal import Journal
from timonel.errors import InputError, NotFoundError, TimonelError
from timonel.storage import is_local
from timonel.storage.atomic import temporary_prefix
from timonel.storage.object_store import ObjectStore

_ERROR = "error.json"
_LEASE = "client"
_STARTED = "worker"


@dataclass(frozen=True)
class Exchange:
    """Place of work for its client and its workers; can be pickled.

    The folder of the client's journal, at the same path on all machines, or a URI in a bucket. A
    killed client finds it again, because the URI depends on the plan's digest.
    """

    place: str

    @property
    def is_shared(self) -> bool:
        """Whether workers see the journal itself."""
        return is_local(self.place)

    @property
    def poll_s(self) -> float:
        """Time between two calls of `collect`."""
        return 0.2 if self.is_shared else 2.0

    @property
    def _store(self) -> ObjectStore:
        return ObjectStore(self.place)

    def offer(self, journal: Journal[Any], names: Iterable[str]) -> None:
        """Give shards to the workers, and forget earlier errors and workers."""
        self._store.delete([_ERROR, _STARTED])
        if not self.is_shared:
            files = {f"plan/{name}": journal.plan_file(name) for name in names}
            self._store.upload({name: path for name, path in files.items() if path.exists()})

    def collect(self, journal: Journal[Any]) -> None:
        """Put the shards that were finished since the last call into the journal."""
        if self.is_shared:
            return
        outcomes = self._store.find("finished")
        for place, blob in outcomes.items():
            name = place.removeprefix("finished/").removesuffix(".json")
            outcome, content = journal.outcome_file(name), f"content/{name}"
            if not outcome.exists() and (found := self._store.stat(content)) is not None:
                self._store.download({content: journal.content / name}, {content: found})
                self._store.download({place: outcome}, {place: blob})

    def remove(self) -> None:
        """Remove all copies."""
        if not self.is_shared:
            self._store.delete(self._store.find())

    @contextlib.contextmanager
    def shard(
        self, name: str, journal: Callable[[Path], Journal[Any]]
    ) -> Iterator[Journal[Any] | None]:
        """Yield the journal to write a shard into; None if the shard is finished."""
        if self.is_shared:
            found = journal(Path(self.place))
            yield None if found.is_finished(name) else found
            return
        store, outcome, content = self._store, f"finished/{name}.json", f"content/{name}"
        if self._read(outcome) is not None:
            yield None
            return
        with tempfile.TemporaryDirectory(prefix=temporary_prefix()) as folder:
            copy = journal(Path(folder))
            copy.receive(name, self._read(f"plan/{name}") or b"")
            yield copy
            store.upload({content: copy.content / name})
            store.upload({outcome: copy.outcome_file(name)})

    def renew(self, number: int) -> None:
        """Renew the lease, with another number each time."""
        self._store.write(_LEASE, str(number).encode())

    def release(self) -> None:
        """Give up the lease."""
        self._store.delete([_LEASE])

    def lease(self) -> bytes | None:
        """Return the lease as last renewed; None if it was given up."""
        return self._read(_LEASE)

    def start(self) -> None:
        """Tell the client that a worker has started."""
        if not self.has_started():
            self._store.write(_STARTED, b"")

    def has_started(self) -> bool:
        """Return whether a worker has started."""
        return self._read(_STARTED) is not None

    def report(self, error: TimonelError) -> None:
        """Tell the client why a worker failed."""
        body = {"message": error.message, "hint": error.hint}
        self._store.write(_ERROR, json.dumps(body).encode())

    def failure(self) -> InputError | None:
        """Return why a worker failed; None if it did not say."""
        with contextlib.suppress(TimonelError, ValueError, KeyError):
            if (content := self._read(_ERROR)) is not None:
                found = json.loads(content)
                return InputError(found["message"], hint=found["hint"])
        return None

    def _read(self, name: str) -> bytes | None:
        try:
            return self._store.read(name)
        except NotFoundError:
            return None
