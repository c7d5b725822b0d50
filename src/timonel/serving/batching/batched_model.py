"""A loaded version that batches its requests."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from timonel.serving.batching.execution import Computing
from timonel.serving.batching.observation import Observer
from timonel.serving.batching.policy import APART, Place, Policy
from timonel.serving.batching.queue import Queue, Taken, cut
from timonel.serving.batching.request import Answer, Request
from timonel.serving.batching.threads import Batcher
from timonel.serving.drain import await_settled
from timonel.serving.runtimes.base import Asked, LoadedModel, Pending, WrappedModel, refused
from timonel.serving.signature import Array
from timonel.serving.status import Code, StatusError
from timonel.serving.turns import TurnBatching, at_end_of_turn


class QueueKey(NamedTuple):
    """Key of a queue: requests for the same signature, outputs and shapes."""

    owner: BatchingModel
    signature: str
    outputs: tuple[str, ...]
    group: tuple[Any, ...]


class BatchingModel(WrappedModel):
    """Model that batches requests to another model. Thread-safe.

    Args:
        model: The model that computes; owned from now on.
        policy: Decides which requests to batch, and when.
        batcher: The batching threads; shared with other models.
        observer: Called for each batch.
        clock: Returns the present time in seconds, on the clock of deadlines.
        gathers: Whether requests are submitted in an event loop, so that those of one iteration can
            be computed together.
    """

    def __init__(
        self,
        model: LoadedModel,
        policy: Policy,
        batcher: Batcher,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        gathers: bool = False,
    ) -> None:
        self.signatures = model.signatures
        self._model = model
        self._policy = policy
        self._batcher = batcher
        self._computing = Computing(model, policy, observer, clock)
        self._clock = clock
        self._outstanding: dict[Future[Answer], tuple[QueueKey, Request]] = {}
        self._gathering = TurnBatching() if gathers else None
        self._gathered: deque[tuple[QueueKey, Request]] = deque()
        self._gate = threading.Lock()
        self._closing = False
        batcher.attach()

    def run(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        deadline: float | None = None,
    ) -> Answer:
        """Compute the outputs of a signature, batched with other requests.

        Args:
            signature: A key of `signatures`.
            inputs: Exactly the signature's inputs.
            outputs: Names of the requested outputs; None for all of them.
            deadline: Time after which the response is useless, in seconds of `time.monotonic`.

        Raises:
            StatusError: The model rejected the request or failed, the queue is full, or the
                deadline passed.
        """
        future = self.submit(signature, inputs, outputs, deadline)
        self._end_turn()  # this thread may run the loop that would do it
        return self._wait(future, deadline)

    def submit(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        deadline: float | None = None,
    ) -> Future[Answer]:
        """Compute the outputs of a signature asynchronously.

        Takes the arguments of `run`. A request that takes less time than queueing is computed at
        once, or at the end of the event-loop iteration together with others that arrived in it.
        Others are queued. The future has the result or error of `run`; cancelling it removes the
        request from the queue.
        """
        try:
            place = self._policy.place(signature, inputs)
            gathers = place is not None and self._gathers(signature)
            if place and not gathers and self._policy.is_instant(signature, place.rows):
                return self._answered(signature, inputs, outputs, place.rows, deadline)
        except Exception as error:  # noqa: BLE001 - becomes the response
            return refused(error)
        rows, group = Place(1, APART) if place is None else place
        key, request = self._request(signature, inputs, outputs, deadline, rows, group)
        if gathers:
            self._gathered.append((key, request))
        else:
            self._enter(key, request)
        return request.future

    def submit_all(self, requests: Sequence[Asked]) -> list[Future[Answer]]:
        """Submit several requests; compute them together at once if instant."""
        if len(requests) == 1:
            return super().submit_all(requests)
        futures: list[Future[Answer]] = []
        queues: dict[QueueKey, list[Request]] = {}
        for signature, inputs, outputs, deadline in requests:
            try:
                rows, group = self._policy.place(signature, inputs) or Place(1, APART)
                key, request = self._request(signature, inputs, outputs, deadline, rows, group)
                queues.setdefault(key, []).append(request)
            except Exception as error:  # noqa: BLE001 - becomes the response
                futures.append(refused(error))
            else:
                futures.append(request.future)
        self._begin(queues)
        return futures

    def close(self) -> None:
        """Answer queued requests, then release the model."""
        self._end_turn()
        with self._gate:
            self._closing = True
            outstanding = list(self._outstanding)
        self._batcher.flush(self)
        await_settled(outstanding)
        self._batcher.detach()
        self._model.close()

    def compute(self, key: QueueKey, taken: Taken[Request]) -> None:
        """Compute requests taken from a queue; called by the batcher."""
        for request in taken.late:
            if request.claim():
                request.fail(self._policy.late)
        pieces = [piece for piece in taken.pieces if piece.task.claim()]
        try:
            if pieces:
                self._computing.batch(key.signature, key.outputs, key.group, pieces)
        except BaseException as error:  # noqa: BLE001 - becomes the responses
            for piece in pieces:
                piece.task.fail(error)

    def _request(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None,
        deadline: float | None,
        rows: int,
        group: tuple[Any, ...],
    ) -> tuple[QueueKey, Request]:
        names = tuple(self.signatures[signature].outputs if outputs is None else outputs)
        request = Request(inputs, names, rows, self._clock(), deadline)
        return QueueKey(self, signature, tuple(sorted(names)), group), request

    def _gathers(self, signature: str) -> bool:
        """Return whether a request waits for others in this event-loop iteration."""
        if self._gathering is None or not self._policy.may_be_instant(signature):
            return False
        return self._gathering.pays() and at_end_of_turn(self._end_turn)

    def _end_turn(self) -> None:
        """Start the requests gathered in an event-loop iteration."""
        if self._gathering is not None and self._gathered:
            self._gathering.ended(len(self._gathered))
        queues: dict[QueueKey, list[Request]] = {}
        with contextlib.suppress(IndexError):  # the queue is empty
            while True:
                key, request = self._gathered.popleft()
                queues.setdefault(key, []).append(request)
        self._begin(queues)

    def _begin(self, queues: Mapping[QueueKey, list[Request]]) -> None:
        """Compute instant requests, and queue the rest."""
        for key, queued in queues.items():
            here, later = self._divided(key, queued)
            for request in later:
                self._enter(key, request)
            self._compute_here(key, here)

    def _divided(
        self, key: QueueKey, requests: list[Request]
    ) -> tuple[list[Request], list[Request]]:
        """Divide a queue's requests into instant ones and others."""
        name, is_instant = key.signature, self._policy.is_instant
        if key.group == APART:
            return [], requests
        if is_instant(name, sum(request.rows for request in requests), len(requests)):
            return requests, []
        here = [request for request in requests if is_instant(name, request.rows)]
        return here, [request for request in requests if request not in here]

    def _compute_here(self, key: QueueKey, requests: Sequence[Request]) -> None:
        """Compute requests in the caller's thread."""
        try:
            with self._gate:
                self._check_open()
        except StatusError as error:
            for request in requests:
                request.fail(error)
            return
        tasks = deque(requests)
        while tasks:
            self.compute(key, cut(tasks, self._policy.most_rows(key.signature), self._clock()))

    def _enter(self, key: QueueKey, request: Request) -> None:
        """Add a request to its queue."""
        future = request.future
        try:
            with self._gate:
                self._check_open()
                self._outstanding[future] = (key, request)
            future.add_done_callback(self._on_done)
            self._batcher.submit(key, lambda: self._queue(key), request)
        except StatusError as error:
            self._outstanding.pop(future, None)
            request.fail(error)

    def _check_open(self) -> None:
        if self._closing:
            raise StatusError(Code.UNAVAILABLE, "The version is being unloaded")

    def _queue(self, key: QueueKey) -> Queue[Any]:
        queue = self._policy.queue(key.signature, key.group)
        if self._closing:
            queue.close()
        return queue

    def _on_done(self, future: Future[Answer]) -> None:
        key, request = self._outstanding.pop(future, (None, None))
        if future.cancelled() and key is not None and request is not None:
            self._batcher.remove(key, request)

    def _wait(self, future: Future[Answer], deadline: float | None) -> Answer:
        if deadline is None or self._policy.waits_for_late:
            return future.result()
        try:
            return future.result(max(0.0, deadline - self._clock()))
        except TimeoutError:
            if future.done() and not future.cancelled():
                return future.result()
            future.cancel()
            raise StatusError(self._policy.late.code, self._policy.late.message) from None

    def _answered(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None,
        rows: int,
        deadline: float | None,
    ) -> Pending:
        """Compute a request in the caller's thread."""
        if deadline is not None and deadline <= self._clock():
            raise StatusError(self._policy.late.code, self._policy.late.message)
        with self._gate:
            self._check_open()
        answered = Pending()
        answer, answered.compute_s = self._computing.single(signature, inputs, outputs, rows)
        answered.set_result(answer)
        return answered
