"""Loaded version with its own thread pool, for models without batching."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from timonel.serving.runtimes.base import LoadedModel, Pending, ScheduledModel, WrappedModel
from timonel.serving.signature import Array
from timonel.serving.status import Code, StatusError

_THREADS = 2


def scheduled(model: LoadedModel, threads: int = _THREADS) -> ScheduledModel:
    """Return a version that schedules its requests: ``model`` itself if possible.

    Args:
        model: The loaded version; owned by the result.
        threads: Number of concurrent requests, if it does not.
    """
    return model if isinstance(model, ScheduledModel) else ThreadedModel(model, threads)


class ThreadedModel(WrappedModel):
    """Runs requests in a small thread pool, in arrival order. Thread-safe.

    Args:
        model: The loaded version; owned from now on.
        threads: Number of concurrent requests.
    """

    def __init__(self, model: LoadedModel, threads: int) -> None:
        self.signatures = model.signatures
        self._model = model
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="model")
        self._waiting: set[Pending] = set()

    @property
    def queued(self) -> int:
        """Number of requests that wait for a thread."""
        return len(self._waiting)

    def submit(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        deadline: float | None = None,
    ) -> Future[dict[str, Array]]:
        """Compute the outputs of a signature in another thread."""
        pending = Pending()
        pending.compute_s = 0.0
        self._waiting.add(pending)
        try:
            self._pool.submit(self._answer, pending, signature, inputs, outputs, deadline)
        except RuntimeError:
            self._waiting.discard(pending)
            # A caller may not know that the version is closed; its requests were cancelled.
            pending.set_exception(StatusError(Code.UNAVAILABLE, "The version has been unloaded."))
        return pending

    def close(self) -> None:
        """Answer queued requests, then free the memory."""
        self._pool.shutdown()
        self._model.close()

    def _answer(
        self,
        pending: Pending,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None,
        deadline: float | None,
    ) -> None:
        self._waiting.discard(pending)
        if not pending.set_running_or_notify_cancel():
            return
        began = time.monotonic()
        if deadline is not None and began >= deadline:
            late = StatusError(Code.DEADLINE_EXCEEDED, "the request's time was over in the queue")
            pending.set_exception(late)
            return
        try:
            answer = self._model.run(signature, inputs, outputs)
        except BaseException as error:  # noqa: BLE001 - becomes the answer
            pending.compute_s = time.monotonic() - began
            pending.set_exception(error)
        else:
            pending.compute_s = time.monotonic() - began
            pending.set_result(answer)
