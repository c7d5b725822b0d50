"""HTTP connections on which small predictions are answered directly, and all else by ASGI.

A request is taken from uvicorn's protocol where nothing else is under way on its connection, and
its head is there as a whole; until it is answered, what comes after it waits. Uvicorn never sees
it, and goes on as if there had been nothing.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from timonel.serving.access.http import BoundedHttp, Part
from timonel.serving.rest.answers import CORS, Answer
from timonel.serving.rest.direct import Direct, Prediction
from timonel.serving.rest.heads import END, MOST_BYTES, Head, read_head

_CORS = b"".join(b"%b: %b\r\n" % pair for pair in CORS)


def direct_protocol(base: type[BoundedHttp], direct: Direct) -> type[BoundedHttp]:
    """Return a protocol that answers directly what it can: the value for `uvicorn.Config`.

    Args:
        base: What does the rest, with its limits.
        direct: What predictions are answered with.
    """
    return type("DirectHttp", (_DirectHttp, base), {"direct": direct})


class _DirectHttp(BoundedHttp):
    direct: Direct
    _awaited: Head | None = None
    """The head of a request whose body is on its way."""
    _pieces: list[bytes]
    _missing = 0
    """Bytes of that body that are still to come; less than none if what follows has come, too."""
    _asked: Prediction | None = None
    _early = b""
    """What came while a request was computed."""
    _is_last = False

    def data_received(self, data: bytes) -> None:
        if self._asked is not None or self._early:
            self._early += data
            self.flow.pause_reading()
        elif self._awaited is not None:
            self._take(self._awaited, data)
        elif (head := self._head_of(data)) is not None:
            self._stop_timer()
            self._unset_keepalive_if_required()
            self._pieces, self._missing = [], head.length
            self._take(head, data[data.index(END) + len(END) :])
        else:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._awaited, self._pieces, self._early = None, [], b""
        if self._asked is not None:
            self._asked.give_up()
            self._asked = None
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self._asked is not None or self._awaited is not None:
            self._is_last = True
        else:
            super().shutdown()

    def _head_of(self, data: bytes) -> Head | None:
        """Return the head of a request that is to be answered here."""
        if self._part is not Part.NOTHING or self.flow.write_paused or self.transport.is_closing():
            return None
        if self._is_answering():
            return None
        end = data.find(END, 0, min(MOST_BYTES, self.limits.max_head))
        if end < 0:
            return None
        head = read_head(data[:end])
        return head if head is not None and self.direct.takes(head) else None

    def _is_answering(self) -> bool:
        """Whether an answer is owed to a request before."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _take(self, head: Head, data: bytes) -> None:
        """Take a piece of a body, and have the request answered once that is whole."""
        self._pieces.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            if self._awaited is None:
                self._awaited, self._part = head, Part.BODY
                self._time_the_rest()
            return
        if self._awaited is not None:
            self._stop_timer()
            self._awaited, self._part = None, Part.NOTHING
        self._timed = Part.NOTHING
        body = b"".join(self._pieces)
        self._pieces = []
        if self._missing < 0:
            body, self._early = body[: head.length], body[head.length :]
        asked = self._asked = Prediction(self.direct, head, self._reply)
        asked.begin(body)

    def _reply(self, answer: Answer) -> None:
        self._asked = None
        if not self.transport.is_closing():
            self.transport.write(self._response(answer))
            if self._is_last:
                self.transport.close()
        self.on_response_complete()
        if self._early:
            # Not at once: one that is answered at once would go on in this very call.
            self.loop.call_soon(self._take_early)

    def _take_early(self) -> None:
        early, self._early = self._early, b""
        if early and not self.transport.is_closing():
            self.data_received(early)

    def _response(self, answer: Answer) -> bytes:
        kind = answer.content_type
        return b"%b%b%bcontent-length: %d\r\n%b\r\n%b" % (
            STATUS_LINE[answer.status],
            b"" if kind is None else b"content-type: %b\r\n" % kind,
            b"connection: close\r\n" if self._is_last else b"",
            len(answer.body),
            _CORS if self.direct.options.cors else b"",
            answer.body,
        )

    def _may_answer(self) -> bool:
        return self._awaited is not None or super()._may_answer()


def with_direct(options: dict[str, Any], direct: Direct) -> dict[str, Any]:
    """Return uvicorn's options with predictions answered directly."""
    return {**options, "http": direct_protocol(options["http"], direct)}
