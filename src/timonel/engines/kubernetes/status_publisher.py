"""Publish the status of a job in the cluster, and note it in the bucket, which keeps it longer."""

from __future__ import annotations

from collections.abc import Callable

from timonel.engines.base import JobState, JobStatus
from timonel.engines.kubernetes.files.thread import FileThread


def ending(outcome: JobStatus) -> JobStatus:
    """Return the status of a job whose tasks have ended, until its results are saved."""
    return outcome.model_copy(update={"state": JobState.STOPPING, "ended_at": None})


class StatusPublisher:
    """Publishes the status of a coordinator's job. For the main thread.

    Args:
        status: The status that is published already.
        files: The files' thread.
        flush: Writes the output so far; called in that thread.
        record: Notes a status in the bucket; called in that thread.
    """

    def __init__(
        self,
        status: JobStatus,
        files: FileThread,
        *,
        flush: Callable[[], None],
        record: Callable[[JobStatus], None],
        send: Callable[[JobStatus], None],
    ) -> None:
        self._files = files
        self._flush = flush
        self._record = record
        self._send = send
        self._latest = self._sent = status
        self._is_flushing = False
        self._delay: str | None = None
        self._recorded = _mark(status)

    def publish(self, status: JobStatus) -> None:
        """Publish a status once the output before it can be read."""
        if self._recorded != _mark(status):
            self._recorded = _mark(status)
            self._files.ask(lambda: self._record(status), lambda _: None)
        self._latest = status
        if not self._is_flushing:
            self._is_flushing = True
            self._files.ask(self._flush, self._on_flushed)

    def end(self, outcome: JobStatus) -> None:
        """Publish the outcome; nothing replaces it."""
        self._latest = outcome
        self._send(outcome)

    def show(self, error: str | None) -> None:
        """Publish why files are not transferred, if so.

        The thread publishes nothing then, so this does, although later output cannot be read yet.

        Args:
            error: The error of the transfers that fail; None if they succeed.
        """
        was_delayed = self._delay is not None
        self._delay = error
        if error is not None or was_delayed:
            self._send_latest()

    def _on_flushed(self, _: None) -> None:
        self._is_flushing = False
        self._send_latest()

    def _send_latest(self) -> None:
        status = self._latest
        if status.state.is_final:
            return
        if self._delay is not None:
            message = f"waiting to transfer files: {self._delay}"
            status = status.model_copy(update={"message": message})
        if status != self._sent:
            self._sent = status
            self._send(status)


def _mark(status: JobStatus) -> tuple[JobState, int, float | None]:
    return status.state, status.generation, status.started_at
