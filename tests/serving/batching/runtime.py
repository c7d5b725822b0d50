"""A runtime whose versions are scheduled as in a server."""

from __future__ import annotations

from timonel.serving.batching.scheduling import scheduled
from timonel.serving.runtimes.base import Runtime


class ScheduledRuntime(Runtime):
    """Adds threads and batching to the versions of another runtime.

    Args:
        runtime: The runtime that loads and computes.
        observer: Called for each batch.
        threads: Concurrent requests per version without batching.
    """

    def __init__(self, runtime, observer=None, threads=2):
        self.name = runtime.name
        self._runtime = runtime
        self._observer = observer
        self._threads = threads

    def load(self, path, settings):
        model = self._runtime.load(path, settings)
        return scheduled(
            model, settings.batching, self._observer, threads=self._threads, version=path
        )

    def close(self):
        self._runtime.close()
