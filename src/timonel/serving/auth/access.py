"""Access control for the REST and gRPC ports of a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from timonel.serving.auth.connection_limits import http_protocol
from timonel.serving.auth.control import AccessControl
from timonel.serving.auth.tls import (
    ReloadingContext,
    fixed_grpc_credentials,
    grpc_credentials,
    read_ssl_config,
    rest_context,
)
from timonel.serving.settings.auth import AccessSettings


@dataclass(frozen=True)
class GrpcGuard:
    """Arguments of a gRPC server with access control; plain text without ``credentials``."""

    interceptors: tuple[Any, ...] = ()
    arguments: tuple[tuple[str, int], ...] = ()
    credentials: Any = None


class ServerAccess:
    """Access control, limits and TLS for both ports of a server.

    Create it before the models are loaded, so that an unusable file fails early.

    Attributes:
        control: The access rules of both ports.
    """

    def __init__(self, settings: AccessSettings) -> None:
        self._settings = settings
        self.control = AccessControl(settings)
        self._context: ReloadingContext | None = None
        if settings.tls is not None:
            self._context = rest_context(settings.tls)
        self._pem = read_ssl_config(settings.ssl_config_file)

    @property
    def scheme(self) -> str:
        """URL scheme of the REST port: ``http`` or ``https``."""
        return "http" if self._context is None else "https"

    def uvicorn_options(self) -> dict[str, Any]:
        """Return keyword arguments for `uvicorn.Config`."""
        # Proxies are the endpoint's: a server takes no address from X-Forwarded-For.
        options: dict[str, Any] = {
            "http": http_protocol(self._settings.limits),
            "proxy_headers": False,
        }
        if self._context is not None:
            context = self._context
            options["ssl_context_factory"] = lambda _config, _default: context
        return options

    def grpc_guard(self) -> GrpcGuard:
        """Return arguments for a gRPC server. Imports gRPC."""
        from timonel.serving.auth.rpc import AccessInterceptor  # noqa: PLC0415 - slow to import

        limits = self._settings.limits
        is_limited = not self.control.guards_nothing or limits.max_receiving is not None
        arguments = {
            "grpc.max_receive_message_length": limits.max_body,
            "grpc.max_allowed_incoming_connections": limits.max_connections,
            "grpc.absolute_max_metadata_size": limits.max_head,
            "grpc.max_metadata_size": limits.max_head,
        }
        return GrpcGuard(
            (AccessInterceptor(self.control),) if is_limited else (),
            tuple((name, value) for name, value in arguments.items() if value is not None),
            self._grpc_credentials(),
        )

    def _grpc_credentials(self) -> Any:
        if self._settings.tls is not None:
            return grpc_credentials(self._settings.tls)
        return None if self._pem is None else fixed_grpc_credentials(self._pem)
