"""Write shards in workers of Apache Beam."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.utils.shared import Shared

from timonel._version import __version__
from timonel.data.runners.base import PortableWork
from timonel.data.runners.exchange import Exchange
from timonel.data.runners.lease import LeaseLostError, LeaseWatch
from timonel.errors import InputError, TimonelError

NAMESPACE = "timonel"
COUNTERS = ("records", "rejected", "bytes")
"""Counters on the page of the engine: records read, unusable ones, bytes written."""


class WriteShard(beam.DoFn):  # type: ignore[misc] # Beam has no types
    """Write shards, except those that are finished, with the client's release of timonel."""

    def __init__(self, work: PortableWork, exchange: Exchange, release: str) -> None:
        self._work = work
        self._exchange = exchange
        self._release = release
        self._shared = Shared()
        self._records, self._rejected, self._bytes = (
            beam.metrics.Metrics.counter(NAMESPACE, name) for name in COUNTERS
        )

    def setup(self) -> None:
        """Open the work, once per process: a table or a model is in its memory."""
        self._lease = LeaseWatch(self._exchange)
        try:
            self._exchange.start()
            self._check_release()
            self._writer = self._shared.acquire(self._work.open)
        except TimonelError as error:
            self._exchange.report(error)
            raise

    def process(self, plan: Any) -> Iterator[str]:
        """Write one shard and yield its name; do nothing if the client is gone."""

        def tick(records: int) -> None:
            self._records.inc(records)
            self._lease.check()

        try:
            self._lease.check()
            # Beam repeats a bundle after the loss of a worker; the shard may be finished.
            with self._exchange.shard(plan.name, self._work.journal) as journal:
                if journal is not None:
                    self._writer.write(plan, journal, tick)
                    self._rejected.inc(len(journal.outcome(plan.name).rejected))
                    self._bytes.inc((journal.content / plan.name).stat().st_size)
        except LeaseLostError:
            # An error would make the engine repeat the shard, on Flink for minutes.
            return
        except TimonelError as error:
            self._exchange.report(error)
            raise
        yield plan.name

    def _check_release(self) -> None:
        if self._release != __version__:
            raise InputError(
                f"a worker of Apache Beam has timonel {__version__} instead of {self._release}",
                hint="install the same release on all workers",
            )
