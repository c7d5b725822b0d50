"""Recent answers to compared requests, for the control plane of an endpoint.

Without a compared request it costs nothing. A thread summarizes answers, and answers are dropped
while it has too much to do, so requests do not wait for it.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import orjson

from timonel.serving.inference.context import Observation
from timonel.serving.signature import Array, bytes_of
from timonel.serving.status import Code
from timonel.serving.telemetry.answers import Answer, summarize

_LOG = logging.getLogger(__name__)
_RECENT = 4096
_QUEUED_BYTES = 64 * 2**20
_SINCE = re.compile(rb"since=(\d{1,15})\Z")
_FAILURES = frozenset(
    {
        Code.UNKNOWN,
        Code.INVALID_ARGUMENT,
        Code.NOT_FOUND,
        Code.FAILED_PRECONDITION,
        Code.OUT_OF_RANGE,
        Code.UNIMPLEMENTED,
        Code.INTERNAL,
        Code.DATA_LOSS,
    }
)
"""Codes that are a version's answer; others depend on load, time and the client."""


class AnswerLog:
    """Keeps the last `_RECENT` answers to compared requests. Thread-safe."""

    def __init__(self) -> None:
        self._answers: deque[Answer] = deque(maxlen=_RECENT)
        self._count = 0
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, "answers")

    def record(self, observation: Observation, code: Code) -> None:
        """Keep the answer to a compared request; does not block."""
        sent = observation.correlation
        if sent is None or sent.comparison is None or not (code in _FAILURES or code is Code.OK):
            return
        outputs = observation.outputs if code is Code.OK else None
        if outputs is None:
            self._add(sent.comparison, None)
        elif outputs:  # otherwise it asked for no computation
            self._add_later(sent.comparison, outputs)

    def since(self, query: bytes) -> bytes:
        """Return answers as JSON: ``{"next": N, "answers": [[name, contents, numbers], ...]}``.

        Args:
            query: ``since=N`` for those after an earlier reading, otherwise all.
        """
        found = _SINCE.match(query)
        with self._lock:
            first = self._count - len(self._answers)
            start = max(0, int(found[1]) - first) if found else 0
            new, count = list(self._answers)[start:], self._count
        return orjson.dumps({"next": count, "answers": [list(each) for each in new]})

    def _add_later(self, secret: str, outputs: Sequence[Mapping[str, Array]]) -> None:
        size = sum(bytes_of(array) for each in outputs for array in each.values())
        with self._lock:
            if self._queued_bytes + size > _QUEUED_BYTES:
                return
            self._queued_bytes += size
        # Arrays may change once the request has been answered.
        copies = [{name: np.array(array) for name, array in each.items()} for each in outputs]

        def work() -> None:
            self._add(secret, copies)
            with self._lock:
                self._queued_bytes -= size

        self._pool.submit(work)

    def _add(self, secret: str, outputs: Sequence[Mapping[str, Array]] | None) -> None:
        try:
            answer = summarize(secret, outputs)
        except Exception:  # noqa: BLE001 - a model's odd output must not fail a request
            _LOG.exception("cannot summarize an answer")
            return
        with self._lock:
            self._answers.append(answer)
            self._count += 1
