"""Exception tree that callers may catch.

Every message states the problem and the remedy in one line. The command line prints that line and
exits with the class's ``exit_code``; any other exception is a bug and keeps its traceback.

    TimonelError                      exit 1
    ├── InputError                    exit 2   the request cannot be fulfilled as given
    │   ├── NotFoundError             exit 2   a named object does not exist
    │   ├── AlreadyExistsError        exit 2   the object to create already exists
    │   ├── SpecError                 exit 2   a specification or an option is wrong
    │   └── MissingExtraError         exit 2   an optional package is needed
    ├── DataError                     exit 3   raw files, shards or records cannot be used
    │   └── CorruptError              exit 3   a digest or checksum does not match
    ├── FormatError                   exit 4   a file on disk has a format this release cannot read
    ├── JobError                      exit 5   a job ended without success
    │   ├── UserCodeError             exit 5   the user's own program raised
    │   └── EngineError               exit 6   the engine could not fulfil a request
    ├── ModelError                    exit 7   a model cannot be exported, checked or loaded
    ├── ServingError                  exit 8   a server cannot start or answer
    └── Interrupted                   exit 130 the user pressed Ctrl-C
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TimonelError(Exception):
    """Base of all errors that timonel raises on purpose.

    Args:
        message: The problem.
        hint: The remedy, printed after the message.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}: {self.hint}" if self.hint else self.message


class InputError(TimonelError):
    """The request cannot be fulfilled as given."""

    exit_code = 2


class NotFoundError(InputError):
    """A named object does not exist."""


class AlreadyExistsError(InputError):
    """The object to create already exists."""


class SpecError(InputError):
    """A specification, an option or an argument has a wrong value."""


class MissingExtraError(InputError):
    """A feature needs a package that is installed as an extra.

    Args:
        extra: The name of the extra that installs the package.
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs the extra '{extra}', which is not installed",
            hint=f"pip install 'timonel[{extra}]'",
        )
        self.feature = feature
        self.extra = extra

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        # Exceptions are unpickled from ``args``, which differ from this class's parameters.
        return type(self), (self.feature, self.extra)


class DataError(TimonelError):
    """Raw files, shards or records cannot be used."""

    exit_code = 3


class CorruptError(DataError):
    """Content does not match its recorded digest or checksum."""


class FormatError(TimonelError):
    """A file has a format number that this release cannot read."""

    exit_code = 4


class JobError(TimonelError):
    """A job ended without success."""

    exit_code = 5


class UserCodeError(JobError):
    """The user's own program raised; its traceback has already been shown."""


class EngineError(JobError):
    """The engine could not fulfil a request."""

    exit_code = 6


class ModelError(TimonelError):
    """A model cannot be exported, checked, published or loaded."""

    exit_code = 7


class ServingError(TimonelError):
    """A server cannot start or answer."""

    exit_code = 8


class Interrupted(TimonelError):  # noqa: N818 - the word the field uses
    """The user stopped the work; finished parts are kept, nothing is half-written.

    Args:
        hint: The remedy, printed after the message.
    """

    exit_code = 130

    def __init__(self, message: str, *, hint: str | None = None, is_reported: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_reported = is_reported


_CLOSE = 0.7
"""Similarity, from 0 to 1, from which a word may be meant: ``epochs`` is not ``warmup_epochs``."""


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """Return a question with the closest known word, or None."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=_CLOSE)
    return f"did you mean '{close[0]}'?" if close else None
