"""A compute process: load one version, answer requests until disconnected."""

from __future__ import annotations

import contextlib
import logging
import socket
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from timonel.serving.batching.queue import BatchObservation
from timonel.serving.batching.runtime import batched
from timonel.serving.isolation.connection import Connection
from timonel.serving.isolation.messages import pack_signatures
from timonel.serving.isolation.packets import FrameKind, Message
from timonel.serving.memory import give_back, return_large_blocks, share_arenas, start_trimming
from timonel.serving.runtimes.base import Runtime, ScheduledModel, refused
from timonel.serving.runtimes.python.hooks import HookedModel, Hooks
from timonel.serving.runtimes.threaded import scheduled
from timonel.serving.settings import RuntimeSettings
from timonel.serving.signature import DTYPE_NAMES, Array
from timonel.serving.status import Code, StatusError

_LOG = logging.getLogger(__name__)

Outputs = dict[str, Array]


def compute(
    connection: socket.socket,
    runtime: Runtime,
    path: Path,
    settings: RuntimeSettings,
    threads: int,
    memory_limit: int,
) -> None:
    """Load a version and serve it until it is unloaded.

    Args:
        connection: The socket to the server.
        runtime: Loads and computes; already prepared.
        path: The version's folder.
        settings: The runtime's settings.
        threads: Concurrent requests, if the model does not schedule them itself.
        memory_limit: Bytes of shared memory for responses.
    """
    # As with a single process: TensorFlow's buffers are in this process.
    share_arenas()
    return_large_blocks(mmap_bytes=32 << 20, trim_bytes=16 << 20)
    start_trimming()
    link = Connection(connection, limit_bytes=memory_limit)
    try:
        loaded = runtime.load(path, settings)
        observe = partial(_post_observation, link)
        together = batched(loaded, settings.batching, observe, version=path)
        model = scheduled(together, threads)
        if settings.hooks is not None:
            hooks = Hooks(Path(settings.hooks), model.signatures)
            model = HookedModel(model, hooks, threads)
        give_back()
        fields, defaults = pack_signatures(model.signatures, model.platform)
        link.post(FrameKind.LOADED, 0, fields, defaults)
    except Exception as error:  # noqa: BLE001 - becomes the load's status
        _post_error(link, 0, error, otherwise=Code.UNKNOWN)
        return
    if _RequestLoop(link, model).serve():
        model.close()
        link.flush()  # pending batch observations


class _RequestLoop:
    """Request loop of a compute process."""

    def __init__(self, link: Connection, model: ScheduledModel) -> None:
        self._link = link
        self._model = model
        self._is_closing = False
        self._running: dict[int, Future[Outputs]] = {}

    def serve(self) -> bool:
        """Answer requests; return whether the peer asked to close.

        False means that the connection ended.
        """
        self._link.serve(self._handle)
        return self._is_closing

    def _handle(self, message: Message) -> None:
        if message.kind is FrameKind.REQUEST:
            self._submit(message)
        elif message.kind is FrameKind.CANCEL:
            if (future := self._running.get(message.number)) is not None:
                future.cancel()
        elif message.kind is FrameKind.QUEUED:
            self._link.post(FrameKind.QUEUED, message.number, [self._model.queued])
        elif message.kind is FrameKind.CLOSE:
            self._is_closing = True
            self._link.stop()

    def _submit(self, message: Message) -> None:
        signature, outputs, deadline = message.fields
        try:
            future = self._model.submit(signature, message.arrays, outputs, deadline)
        except Exception as error:  # noqa: BLE001 - becomes the response
            future = refused(error)
        self._running[message.number] = future
        future.add_done_callback(partial(self._respond, message.number))

    def _respond(self, number: int, future: Future[Outputs]) -> None:
        self._running.pop(number, None)
        if future.cancelled():
            # The server counts pending requests to detect a process that hangs.
            _post_error(
                self._link, number, StatusError(Code.CANCELLED, "the request was cancelled")
            )
            return
        # Not ``result()``: the raised error would refer to this frame, and so to the future.
        failure = future.exception()
        if failure is not None:
            _post_error(self._link, number, failure, compute_s=_compute_s(future))
            return
        try:
            outputs = future.result()
            _check_types(outputs)
            # Requests of the same batch finish at the same moment: send their responses in one
            # packet.
            later = bool(self._running)
            self._link.post(FrameKind.ANSWER, number, [_compute_s(future)], outputs, later=later)
        except Exception as error:  # noqa: BLE001 - becomes the response
            _post_error(self._link, number, error, compute_s=_compute_s(future))


def _post_observation(link: Connection, observation: BatchObservation) -> None:
    with contextlib.suppress(StatusError):  # the connection has ended
        # Not `astuple`, which copies its values: there may be an observation per request.
        fields = [
            observation.queue_s,
            observation.compute_s,
            observation.rows,
            observation.padded_rows,
            observation.signature,
            observation.failed,
        ]
        link.post(FrameKind.BATCH, 0, fields, later=True)


def _compute_s(future: Future[Outputs]) -> float | None:
    return getattr(future, "compute_s", None)


def _check_types(outputs: Outputs) -> None:
    for name, each in outputs.items():
        if each.dtype not in DTYPE_NAMES:
            raise TypeError(f"expected {name} to have a tensor's type, got {each.dtype}")


def _post_error(
    link: Connection,
    number: int,
    error: BaseException,
    otherwise: Code = Code.INTERNAL,
    compute_s: float | None = None,
) -> None:
    if isinstance(error, StatusError):
        code, text = error.code, error.message
    else:
        _LOG.error("a request or a load failed", exc_info=error)
        code, text = otherwise, f"{type(error).__name__}: {error}"
    fields: list[Any] = [int(code), text.encode("utf-8", "replace").decode(), compute_s]
    with contextlib.suppress(StatusError):  # the connection has ended
        link.post(FrameKind.ERROR, number, fields)
