"""TLS of both ports, from PEM files that are reloaded on change, or from an SSLConfig."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timonel.errors import SpecError
from timonel.serving.auth.reloaded_file import ReloadedFile
from timonel.serving.protos.described import config_message
from timonel.serving.protos.text import parse_text_proto, read_text
from timonel.serving.settings.auth import TlsSettings

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pem:
    """Certificate with its chain, key, and authorities of client certificates, as PEM texts."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None = None
    is_required: bool = False


class ReloadingContext(ssl.SSLContext):
    """TLS context that uses the current certificates for each new connection.

    An SSL context cannot drop a client authority, so changed files need a new context. The servers
    of asyncio and uvloop call `wrap_bio` of the configured context for each connection.
    """

    current: Callable[[], ssl.SSLContext]

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Start a connection with the current context."""
        return self.current().wrap_bio(*args, **kwargs)


def rest_context(settings: TlsSettings) -> ReloadingContext:
    """Create the TLS context of a REST port."""
    file = ReloadedFile(_paths(settings), lambda: _context(settings), _failed("REST"))
    context = ReloadingContext(ssl.PROTOCOL_TLS_SERVER)
    context.current = lambda: file.refreshed(time.monotonic())
    return context


def grpc_credentials(settings: TlsSettings) -> Any:
    """Create the TLS credentials of a gRPC port."""
    import grpc  # noqa: PLC0415 - slow to import, and a server may have no gRPC port

    file = ReloadedFile(_paths(settings), lambda: read_pem(settings), _failed("gRPC"))
    last = file.value

    def changed() -> Any:
        # Called for each connection, by one thread at a time; None keeps the configuration.
        nonlocal last
        found = file.refreshed(time.monotonic())
        if found is last:
            return None
        last = found
        return _configuration(found)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(last),
        changed,
        require_client_authentication=settings.client_ca is not None,
    )


def fixed_grpc_credentials(pem: Pem) -> Any:
    """Create the TLS credentials of a gRPC port from fixed PEM texts."""
    import grpc  # noqa: PLC0415 - as above

    return grpc.ssl_server_credentials(
        [(pem.key, pem.certificate)], pem.client_ca or None, pem.is_required
    )


def _configuration(pem: Pem) -> Any:
    import grpc  # noqa: PLC0415 - as above

    return grpc.ssl_server_certificate_configuration(
        [(pem.key, pem.certificate)], root_certificates=pem.client_ca
    )


def _paths(settings: TlsSettings) -> tuple[Path, ...]:
    named = (settings.certificate, settings.key, settings.client_ca)
    return tuple(Path(each) for each in named if each is not None)


def _context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.certificate, settings.key, password=_no_password)
        if settings.client_ca is not None:
            context.load_verify_locations(settings.client_ca)
    except (OSError, ValueError) as error:
        raise _unusable(settings, error) from error
    if settings.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def read_pem(settings: TlsSettings) -> Pem:
    """Return the contents of the files."""
    # OpenSSL reports unusable files here; gRPC would only on the first connection.
    _context(settings)
    try:
        return Pem(
            Path(settings.certificate).read_bytes(),
            Path(settings.key).read_bytes(),
            None if settings.client_ca is None else Path(settings.client_ca).read_bytes(),
        )
    except OSError as error:
        raise _unusable(settings, error) from error


def _no_password() -> str:
    raise ValueError("the private key has a password")


def _unusable(settings: TlsSettings, error: Exception) -> SpecError:
    paths = ", ".join(map(str, _paths(settings)))
    return SpecError(
        f"cannot use the certificate and private key in {paths}: {error}",
        hint="check that the files exist, are in PEM, belong together and need no password",
    )


def _failed(port: str) -> Callable[[Exception], None]:
    def failed(error: Exception) -> None:
        _LOG.error(
            "Cannot reload the certificates of %s; the previous ones stay in use: %s", port, error
        )

    return failed


def read_ssl_config(path: str | None) -> Pem | None:
    """Read an SSLConfig file; None without a path."""
    if path is None:
        return None
    message = parse_text_proto(read_text(path), config_message("SSLConfig")(), path)
    if not message.server_key or not message.server_cert:
        raise SpecError(f"server_key or server_cert is missing in {path}")
    if message.client_verify and not message.custom_ca:
        raise SpecError(f"client_verify is set in {path}, but custom_ca is missing")
    return Pem(
        message.server_cert.encode(),
        message.server_key.encode(),
        message.custom_ca.encode() or None,
        message.client_verify,
    )
