"""Access put in front of a server's two skins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from timonel.serving.asgi import App
from timonel.serving.auth.asgi import AccessMiddleware
from timonel.serving.auth.control import AccessControl
from timonel.serving.auth.http import http_protocol
from timonel.serving.auth.origin_check import BrowserGuard, hosts_for
from timonel.serving.auth.ssl_config import read_ssl_config
from timonel.serving.auth.tls import (
    ReloadingContext,
    fixed_grpc_credentials,
    grpc_credentials,
    rest_context,
)
from timonel.serving.settings.auth import AccessSettings


@dataclass(frozen=True)
class GrpcGuard:
    """What a gRPC server is made with.

    Args:
        interceptors: In front of its services.
        arguments: Channel arguments that set its limits.
        credentials: Its TLS; none for a plain port.
    """

    interceptors: tuple[Any, ...] = ()
    arguments: tuple[tuple[str, int], ...] = ()
    credentials: Any = None


class Access:
    """Everything that stands between a server's ports and its skins.

    Made before the models are loaded, so that a wrong file is told at once.

    Args:
        settings: The rules.

    Raises:
        TimonelError: A file of keys or certificates cannot be used.
    """

    def __init__(self, settings: AccessSettings) -> None:
        self._settings = settings
        self._control = AccessControl(settings)
        self._context: ReloadingContext | None = None
        if settings.tls is not None:
            self._context = rest_context(settings.tls)
        self._pem = read_ssl_config(settings.ssl_config_file)

    @property
    def scheme(self) -> str:
        """How REST addresses begin."""
        return "http" if self._context is None else "https"

    @property
    def max_body(self) -> int | None:
        """Bytes of the largest body that may be sent; none for any."""
        return self._settings.limits.max_body

    @property
    def takes_reloads(self) -> bool:
        """Whether clients with the right to do so may replace the list of models."""
        return self._settings.takes_reloads

    @property
    def guards_nothing(self) -> bool:
        """Whether nobody has to ask who sends a request."""
        return self._control.guards_nothing

    def hosts(self, address: str, host: str) -> frozenset[str] | None:
        """Return the host names that REST requests may be for; see `browsers.hosts_for`."""
        return hosts_for(address, host, self._settings.allowed_hosts)

    def guarded(self, app: App, hosts: frozenset[str] | None, *, cors: bool = False) -> App:
        """Return an ASGI application behind the rules.

        Args:
            app: The application.
            hosts: What `hosts` returned.
            cors: Whether web pages of other origins are welcome.
        """
        if not self.guards_nothing or self.max_body is not None:
            app = AccessMiddleware(app, self._control)
        return BrowserGuard(app, hosts, cors=cors)

    def uvicorn_options(self) -> dict[str, Any]:
        """Return what `uvicorn.Config` is made with."""
        options: dict[str, Any] = {"http": http_protocol(self._settings.limits)}
        if self._context is not None:
            context = self._context
            options["ssl_context_factory"] = lambda _config, _default: context
        return options

    def grpc_guard(self) -> GrpcGuard:
        """Return what a gRPC server is made with. Imports gRPC."""
        from timonel.serving.auth.rpc import AccessInterceptor  # noqa: PLC0415 - slow to import

        limits = self._settings.limits
        arguments = {
            "grpc.max_receive_message_length": limits.max_body,
            "grpc.max_allowed_incoming_connections": limits.max_connections,
            "grpc.absolute_max_metadata_size": limits.max_head,
            "grpc.max_metadata_size": limits.max_head,
        }
        return GrpcGuard(
            () if self.guards_nothing else (AccessInterceptor(self._control),),
            tuple((name, value) for name, value in arguments.items() if value is not None),
            self._grpc_credentials(),
        )

    def _grpc_credentials(self) -> Any:
        if self._settings.tls is not None:
            return grpc_credentials(self._settings.tls)
        return None if self._pem is None else fixed_grpc_credentials(self._pem)
