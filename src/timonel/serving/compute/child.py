"""A compute process: loads one version, answers requests until its connection ends."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

from timonel.serving.batching.observation import BatchObservation
from timonel.serving.batching.wrap import batched
from timonel.serving.compute.frames import Kind
from timonel.serving.compute.link import Link, Message
from timonel.serving.compute.metadata import to_fields
from timonel.serving.config import RuntimeSettings
from timonel.serving.runtimes.base import DTYPE_NAMES, Array, LoadedModel, Runtime
from timonel.serving.status import Code, StatusError

_LOG = logging.getLogger(__name__)

Outputs = dict[str, Array]
Submit = Callable[[str, Mapping[str, Array], Sequence[str] | None, float | None], "Future[Outputs]"]


def compute(
    link: Link, runtime: Runtime, path: Path, settings: RuntimeSettings, threads: int
) -> None:
    """Load a version and serve it until told to unload it.

    Args:
        link: Where requests come from.
        runtime: What loads and computes; prepared.
        path: The version's folder.
        settings: How it computes.
        threads: Requests at the same time, where the model does not schedule them itself.
    """
    try:
        model = batched(
            runtime.load(path, settings), settings.batching, partial(_tell, link), version=path
        )
        fields, defaults = to_fields(model.signatures)
        link.post(Kind.LOADED, 0, [fields], defaults)
    except Exception as error:  # noqa: BLE001 - becomes the load's status
        _post_error(link, 0, error, otherwise=Code.UNKNOWN)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="compute")
    if _Answering(link, model, pool).serve():
        pool.shutdown()
        model.close()


class _Answering:
    """Hands requests to a model and its answers back."""

    def __init__(self, link: Link, model: LoadedModel, pool: ThreadPoolExecutor) -> None:
        self._link = link
        self._model = model
        self._pool = pool
        self._asked_to_close = False
        self._under_way: dict[int, Future[Outputs]] = {}
        own: Submit | None = getattr(model, "submit", None)
        self._submit: Submit = own or self._run_later

    def serve(self) -> bool:
        """Answer; return true if this ends as it should, false if nobody is there any more."""
        self._link.serve(self._handle)
        return self._asked_to_close

    def _handle(self, message: Message) -> None:
        if message.kind is Kind.REQUEST:
            self._begin(message)
        elif message.kind is Kind.CANCEL:
            if (future := self._under_way.get(message.number)) is not None:
                future.cancel()
        elif message.kind is Kind.CLOSE:
            self._asked_to_close = True
            self._link.stop()

    def _begin(self, message: Message) -> None:
        number = message.number
        signature, outputs, deadline = message.fields
        try:
            future = self._submit(signature, message.arrays, outputs, deadline)
        except Exception as error:  # noqa: BLE001 - becomes the answer
            _post_error(self._link, number, error)
            return
        self._under_way[number] = future
        future.add_done_callback(partial(self._answer, number))

    def _answer(self, number: int, future: Future[Outputs]) -> None:
        self._under_way.pop(number, None)
        if future.cancelled():
            return
        try:
            outputs = future.result()
            _check_types(outputs)
            # Where others are under way, theirs may be done at the same moment: a batch's are.
            later = bool(self._under_way)
            self._link.post(Kind.ANSWER, number, [], outputs, later=later)
        except Exception as error:  # noqa: BLE001 - becomes the answer
            _post_error(self._link, number, error)

    def _run_later(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None,
        deadline: float | None,
    ) -> Future[Outputs]:
        return self._pool.submit(self._run, signature, inputs, outputs, deadline)

    def _run(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None,
        deadline: float | None,
    ) -> Outputs:
        if deadline is not None and time.monotonic() >= deadline:
            raise StatusError(Code.DEADLINE_EXCEEDED, "the request's time was over in the queue")
        return self._model.run(signature, inputs, outputs)


def _tell(link: Link, observation: BatchObservation) -> None:
    with contextlib.suppress(StatusError):  # the connection has ended
        link.post(Kind.BATCH, 0, list(astuple(observation)), later=True)


def _check_types(outputs: Outputs) -> None:
    for name, each in outputs.items():
        if each.dtype not in DTYPE_NAMES:
            raise TypeError(f"expected {name} to have a tensor's type, got {each.dtype}")


def _post_error(
    link: Link, number: int, error: BaseException, otherwise: Code = Code.INTERNAL
) -> None:
    if isinstance(error, StatusError):
        code, text = error.code, error.message
    else:
        _LOG.error("a request or a load failed", exc_info=error)
        code, text = otherwise, f"{type(error).__name__}: {error}"
    fields: list[Any] = [int(code), text.encode("utf-8", "replace").decode()]
    with contextlib.suppress(StatusError):  # the connection has ended
        link.post(Kind.ERROR, number, fields)
