"""Futures for responses of a compute process, and parsing of their fields."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from timonel.serving.isolation.messages import ProtocolError
from timonel.serving.runtimes.base import Pending
from timonel.serving.signature import Array
from timonel.serving.status import Code, StatusError

Outputs = dict[str, Array]


class Answer(Pending):
    """Future outputs of a request. Cancelling it notifies the process.

    Args:
        number: The request's number.
        deadline: Time after which the response is useless.
        cancel: Called with the number when the request is cancelled.
        send: Sends the request, if not sent yet.
    """

    def __init__(
        self,
        number: int,
        deadline: float | None,
        cancel: Callable[[int], None],
        send: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._send = send
        self.number = number
        self.deadline = deadline
        self.asked_at = time.monotonic()
        self._cancel = cancel
        self.request: tuple[str, list[tuple[str, Any, tuple[int, ...]]]] = ("", [])
        """Signature, and name, type and shape of inputs, for crash logs."""

    @property
    def description(self) -> str:
        """The request without values, such as ``serving_default(x: float32[1, 4])``."""
        signature, inputs = self.request
        return f"{signature}({', '.join(f'{n}: {t}{list(shape)}' for n, t, shape in inputs)})"

    def result(self, timeout: float | None = None) -> Outputs:
        """Wait for the outputs and return them."""
        self._hurry()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the request and return its error, if any."""
        self._hurry()
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Cancel the request; return False if it has been answered."""
        cancelled = super().cancel()
        if cancelled:
            self._cancel(self.number)
        return cancelled

    def _hurry(self) -> None:
        # The event loop that would send the request may be blocked by this wait.
        if not self.done():
            self._send()

    def give(self, outcome: Outputs | StatusError, compute_s: float | None = None) -> None:
        """Complete the future, unless it was cancelled."""
        if not self.set_running_or_notify_cancel():
            return
        self.compute_s = compute_s
        if isinstance(outcome, StatusError):
            self.set_exception(outcome)
        else:
            self.set_result(outcome)


def error_of(fields: Sequence[Any]) -> StatusError:
    """Parse the error in a message's fields.

    Raises:
        ProtocolError: The fields contain no error.
    """
    try:
        code, text, _ = fields
        return StatusError(Code(code), str(text))
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"expected an error, got {error}") from error


def seconds_of(fields: Sequence[Any]) -> float | None:
    """Parse the compute time in a message's fields; None if not reported.

    Raises:
        ProtocolError: The fields contain something else.
    """
    if len(fields) != 1 or not isinstance(fields[0], float | int | None):
        raise ProtocolError("expected how long it took")
    return fields[0]


def too_late() -> StatusError:
    """Return the error for a request whose deadline has passed."""
    return StatusError(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
