"""Child processes for work that needs TensorFlow.

The command is ``python -m MODULE REQUEST ANSWER``, with two JSON files: the child reads a request,
and writes its result or error. It ends when its parent does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel

from timonel.errors import (
    CorruptError,
    DataError,
    FormatError,
    InputError,
    ModelError,
    NotFoundError,
    SpecError,
    TimonelError,
)
from timonel.storage import write_json

_ERRORS = {
    each.__name__: each
    for each in (
        CorruptError, DataError, FormatError, InputError, ModelError, NotFoundError, SpecError
    )
}  # fmt: skip

_LOG_LINE = re.compile(r"[IW]\d{4} |WARNING: All log messages before ")
"""Information and warnings of TensorFlow, which explain no end."""

RequestType = TypeVar("RequestType", bound=BaseModel)
ResultType = TypeVar("ResultType", bound=BaseModel)


class ChildProcess:
    """Running child process, as a context manager that ends it.

    Args:
        module: The module to run; it calls `answer_request`.
        log: The file for the process's output.
    """

    def __init__(self, module: str, request: BaseModel, folder: Path, log: Path) -> None:
        asked, self._answer, self._log = folder / "request.json", folder / "answer.json", log
        asked.write_text(request.model_dump_json())
        command = [sys.executable, "-P", "-m", module, str(asked), str(self._answer)]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def answer(self, timeout_s: float) -> dict[str, Any] | None:
        """Wait for the answer; None if the process ended without one."""
        try:
            self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError from error
        try:
            answer: dict[str, Any] = json.loads(self._answer.read_text())
        except (OSError, ValueError):
            return None
        if "error" in answer:
            kind = _ERRORS.get(answer["kind"], ModelError)
            raise kind(answer["error"], hint=answer["hint"])
        return answer

    def end_reason(self) -> str:
        """Return the exit code and the last line of output, in a phrase for messages."""
        lines = [
            line
            for line in self._log.read_text(errors="replace").splitlines()
            if line.strip() and not _LOG_LINE.match(line)
        ]
        return f"code {self._process.returncode}: {lines[-1][:200] if lines else 'no output'}"


def run_child(
    module: str,
    request: BaseModel,
    result_type: type[ResultType],
    *,
    task: str,
    folder: Path,
    log: Path,
    timeout_s: float,
) -> ResultType:
    """Run a child process until it answers a request.

    Args:
        module: The module to run; it calls `answer_request`.
        task: What the process does, as a noun for messages.
        log: The file for the process's output.
        timeout_s: Seconds until the process is killed.
    """
    with ChildProcess(module, request, folder, log) as child:
        answer = child.answer(timeout_s)
        if answer is None:
            raise ModelError(
                f"the process of the {task} ended with {child.end_reason()}",
                hint="check that the model fits into memory",
            )
        return result_type.model_validate(answer)


def answer_request(
    arguments: Sequence[str],
    request_type: type[RequestType],
    work: Callable[[RequestType], BaseModel],
) -> int:
    """In the child: answer the request in the first file into the second.

    Returns:
        The exit code: 1 for an error.
    """
    request, answer = map(Path, arguments)
    try:
        found = work(request_type.model_validate_json(request.read_text()))
    except TimonelError as error:
        traceback.print_exc()
        kind = type(error).__name__
        write_json(answer, {"error": error.message, "hint": error.hint, "kind": kind})
        return 1
    write_json(answer, found.model_dump(mode="json"))
    return 0


def end_with_parent() -> None:
    """In the child: end this process when its parent is gone."""
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # The parent's end of standard input closes when the parent ends.
    while os.read(0, 1):
        pass
    os._exit(1)
