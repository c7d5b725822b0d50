"""Settings for authentication, limits and TLS."""

from __future__ import annotations

import re
from enum import Enum

from pydantic import Field, field_validator, model_validator

from timonel.serving.settings.base import AbsolutePath, SettingsModel, SizeLimit
from timonel.units import ByteSize, Seconds

_HOST_NAME = re.compile(r"[0-9A-Za-z._-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")


class Right(Enum):
    """What a client may do; ``admin`` includes ``use``."""

    USE = "use"
    ADMIN = "admin"


class TlsSettings(SettingsModel):
    """Certificates as PEM files, reloaded when they change."""

    certificate: AbsolutePath = Field(
        description="Serve over TLS with this certificate chain, in PEM."
    )
    key: AbsolutePath = Field(description="Private key of the certificate.")
    client_ca: AbsolutePath | None = Field(
        default=None, description="Require client certificates from these authorities."
    )


class LimitSettings(SettingsModel):
    """Request limits; None for no limit."""

    max_body: SizeLimit = Field(
        default=32 * 2**20,
        ge=1,
        description="Maximum request size, such as 64MiB, or none. Limits a body both compressed "
        "and decompressed, and a gRPC message.",
    )
    max_response: SizeLimit = Field(
        default=256 * 2**20,
        ge=1,
        description="Maximum size of a response's tensors, or none.",
    )
    max_requests: int | None = Field(
        default=None, ge=1, description="Maximum concurrent requests; others are refused."
    )
    max_connections: int | None = Field(
        default=None, ge=1, description="Maximum connections per port; others are refused."
    )
    max_receiving: SizeLimit = Field(
        default=512 * 2**20,
        ge=1,
        description="Maximum bytes of requests of all clients that arrive over REST, and of those "
        "that are being computed, or none. Small requests are always accepted.",
    )
    max_head: ByteSize = Field(
        default=64 * 2**10, ge=1024, description="Maximum bytes of a request's line and headers."
    )
    head_s: Seconds = Field(
        default=20.0, gt=0, description="Time limit for receiving line and headers."
    )
    body_s: Seconds | None = Field(
        default=300.0, gt=0, description="Time limit for receiving a body."
    )


class AccessSettings(SettingsModel):
    """Access to a server: authentication, limits and TLS."""

    api_keys: AbsolutePath | None = Field(
        default=None, description="Require API keys from this file, made by 'timonel keys'."
    )
    tls: TlsSettings | None = Field(default=None, description="TLS for REST and gRPC.")
    ssl_config_file: str | None = Field(
        default=None,
        description="TLS for gRPC only: TensorFlow Serving's SSLConfig, which contains the PEM "
        "texts. Excludes tls.",
    )
    limits: LimitSettings = Field(default_factory=LimitSettings, description="Limits.")
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        description="Also accept this Host header, for example behind a reverse proxy. Applies to "
        "REST requests to a loopback address.",
    )
    open_reload: bool = Field(
        default=False,
        description="Let clients replace the list of models over gRPC without credentials. On a "
        "server that requires credentials, clients need the right 'admin' instead.",
    )
    owner_key: str | None = Field(
        default=None,
        repr=False,
        description="Key known only to the process that starts the server.",
    )

    @field_validator("allowed_hosts")
    @classmethod
    def _are_host_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not _HOST_NAME.fullmatch(name):
                raise ValueError(
                    f"expected a host name without scheme, port or wildcard, got {name!r}"
                )
        return names

    @model_validator(mode="after")
    def _tls_is_said_once(self) -> AccessSettings:
        if self.tls is not None and self.ssl_config_file is not None:
            raise ValueError("tls cannot be combined with ssl_config_file")
        return self

    @property
    def is_closed(self) -> bool:
        """Whether requests need credentials."""
        return self.api_keys is not None

    @property
    def takes_reloads(self) -> bool:
        """Whether authorized clients may replace the list of models."""
        asks_for_certificates = self.tls is not None and self.tls.client_ca is not None
        return self.open_reload or self.is_closed or asks_for_certificates


def tensorflow_serving_access(ssl_config_file: str = "") -> AccessSettings:
    """Return TensorFlow Serving's rules: no authentication, TLS for gRPC only.

    The only limit on body size is protobuf's.
    """
    return AccessSettings(
        ssl_config_file=ssl_config_file or None,
        open_reload=True,
        limits=LimitSettings(
            max_body=2**31 - 1,
            max_response=None,
            max_receiving=None,
            max_head=2**20,
            head_s=60.0,
            body_s=None,
        ),
    )
