"""What a compute process will answer to a request, and what it says with that."""

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
    """The outputs of a request, when they are there. Cancelling it tells the process.

    Args:
        number: The request.
        deadline: When it is of no use any more.
        cancel: Told of the number when it is given up.
        send: Sends the request, if it is not sent yet.
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
        """The signature, and name, type and shape of each input: kept for the log of a crash."""

    @property
    def description(self) -> str:
        """The request without its values, such as ``serving_default(x: float32[1, 4])``."""
        signature, inputs = self.request
        return f"{signature}({', '.join(f'{n}: {t}{list(shape)}' for n, t, shape in inputs)})"

    def result(self, timeout: float | None = None) -> Outputs:
        """Return the outputs; waits for them."""
        self._hurry()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return why there are no outputs; waits until that is known."""
        self._hurry()
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Give the request up; false if it has been answered."""
        cancelled = super().cancel()
        if cancelled:
            self._cancel(self.number)
        return cancelled

    def _hurry(self) -> None:
        # The event loop that would send it may be the one that is made to wait.
        if not self.done():
            self._send()

    def give(self, outcome: Outputs | StatusError, compute_s: float | None = None) -> None:
        """Answer, unless it was given up."""
        if not self.set_running_or_notify_cancel():
            return
        self.compute_s = compute_s
        if isinstance(outcome, StatusError):
            self.set_exception(outcome)
        else:
            self.set_result(outcome)


def error_of(fields: Sequence[Any]) -> StatusError:
    """Return the error that a message says.

    Raises:
        ProtocolError: It says none.
    """
    try:
        code, text, _ = fields
        return StatusError(Code(code), str(text))
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"expected an error, got {error}") from error


def seconds_of(fields: Sequence[Any]) -> float | None:
    """Return how long the model itself took, if a message says so.

    Raises:
        ProtocolError: It says something else.
    """
    if len(fields) != 1 or not isinstance(fields[0], float | int | None):
        raise ProtocolError("expected how long it took")
    return fields[0]


def too_late() -> StatusError:
    """Return the error of a request whose deadline has passed."""
    return StatusError(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
