"""Translate exceptions of file systems to timonel errors."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from typing import TypeGuard

from timonel.errors import AlreadyExistsError, InputError, NotFoundError, TimonelError
from timonel.storage.uris import shared_folder

_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_EXISTS = frozenset({"PreconditionFailed", "412"})
_DENIED = frozenset({"401", "403", "AccessDenied"})
_BUSY = frozenset({"SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "408"})
# Of another writer's request in progress, and too many requests.
_CONFLICTS = frozenset({"ConditionalRequestConflict", "409", "429"})
_AWAY = frozenset({errno.EBUSY, errno.EREMOTEIO, errno.EIO, errno.ETIMEDOUT, errno.ESTALE})


class UnavailableError(InputError):
    """The server of a bucket does not answer, or what it sends arrives damaged."""


class AccessDeniedError(InputError):
    """The server of a bucket, or the file system, refuses access."""


@contextlib.contextmanager
def translated(verb: str, place: str) -> Iterator[None]:
    """Translate exceptions of file systems to timonel errors.

    Args:
        verb: What was tried: ``read``, ``write``, ...
        place: The URI, for messages.
    """
    try:
        yield
    except TimonelError:
        raise
    except Exception as error:  # each file system raises its own vendor's classes
        raise _explained(error, verb, place) from error


def _explained(error: Exception, verb: str, place: str) -> TimonelError:
    if isinstance(error, FileNotFoundError) and _is_other_web_error(error.__cause__):
        # fsspec reports each error of a web server as a missing file.
        error = error.__cause__
    code, name = _code(error), type(error).__name__
    reason = " ".join(str(error).split()) or name
    if code in _EXPIRED or name == "RefreshError":
        return InputError(
            f"cannot {verb} {place}: the credentials have expired",
            hint="renew them, and repeat the command",
        )
    if isinstance(error, FileExistsError) or code in _EXISTS:
        return AlreadyExistsError(f"{place} already exists", hint="choose another name")
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"cannot {verb} {place}: not found: {reason}")
    if _is_denied(error, code):
        # Credentials that cannot be found may come: those of a pod, soon after its start.
        kind = InputError if "Credentials" in name else AccessDeniedError
        return kind(f"cannot {verb} {place}: access denied: {reason}", hint=_login(place))
    if _is_away(error, code):
        problem = "it arrives damaged" if "Checksum" in name else "the server does not answer"
        return UnavailableError(
            f"cannot {verb} {place}: {problem} ({name}: {reason})",
            hint="check the network and the server, and repeat the command",
        )
    return InputError(
        f"cannot {verb} {place}: {name}: {reason}",
        hint="check the URI, your credentials and the network",
    )


def _login(place: str) -> str:
    if place.startswith(("gs://", "gcs://")):
        return (
            "run 'gcloud auth application-default login', or name a key file in "
            "GOOGLE_APPLICATION_CREDENTIALS"
        )
    if shared_folder(place) is not None:
        return f"user {os.geteuid()} needs write access to the folder"
    return "check your credentials and the bucket's permissions"


def _code(error: BaseException) -> str:
    """Return the error code that a server sent, or an empty text."""
    seen: BaseException | None = error
    while seen is not None:
        response = getattr(seen, "response", None)
        if isinstance(response, Mapping):
            return str(response.get("Error", {}).get("Code", ""))
        if isinstance(status := getattr(seen, "status", None), int):
            return str(status)  # of aiohttp
        if isinstance(getattr(seen, "code", None), int | str):
            return str(seen.code)  # type: ignore[attr-defined] # gcsfs' HttpError
        seen = seen.__cause__
    return ""


def _is_other_web_error(cause: BaseException | None) -> TypeGuard[Exception]:
    is_of_web = isinstance(cause, Exception) and type(cause).__module__.startswith("aiohttp.")
    return is_of_web and getattr(cause, "status", None) not in {404, 410}


def _is_denied(error: Exception, code: str) -> bool:
    is_forbidden = isinstance(error, OSError) and str(error).startswith("Forbidden:")  # of gcsfs
    has_no_login = "Credentials" in type(error).__name__
    return isinstance(error, PermissionError) or is_forbidden or has_no_login or code in _DENIED


def _is_away(error: BaseException, code: str) -> bool:
    """Return whether a request may succeed later, unchanged."""
    if code in _BUSY or code in _CONFLICTS or (code.isdigit() and int(code) >= 500):
        return True
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError) and error.errno in _AWAY:
        return True
    module = type(error).__module__.partition(".")[0]
    return module in {"botocore", "aiobotocore", "aiohttp", "gcsfs"} and _is_of_network(error)


def _is_of_network(error: BaseException) -> bool:
    words = ("Connect", "Timeout", "HTTPClientError", "Payload", "Disconnected", "Checksum")
    names = (kind.__name__ for kind in type(error).__mro__)
    return any(word in name for name in names for word in words)
