"""Settings for authentication, rates, limits and TLS."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from timonel.errors import SpecError
from timonel.serving.settings.grants import parse_grant
from timonel.serving.settings.rate import parse_rate
from timonel.units import ByteSize, Seconds

ASYMMETRIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "Ed25519")
_ALGORITHMS = (*ASYMMETRIC, "ES512", "EdDSA")
_HOST_NAME = re.compile(r"[0-9A-Za-z._-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _checked_rate(value: Any) -> Any:
    if value is None:
        return None
    try:
        return str(parse_rate(str(value)))
    except SpecError as error:
        raise ValueError(error.message) from error


def _checked_grant(value: Any) -> Any:
    try:
        return str(parse_grant(str(value)))
    except SpecError as error:
        raise ValueError(error.message) from error


RateText = Annotated[str, BeforeValidator(_checked_rate)]
GrantText = Annotated[str, BeforeValidator(_checked_grant)]


class TlsSettings(_Settings):
    """Certificates as PEM files, reloaded when they change."""

    certificate: str = Field(description="The file with the server's certificate and its chain.")
    key: str = Field(description="The file with the certificate's private key.")
    client_ca: str | None = Field(
        default=None, description="The file with the authorities of client certificates."
    )
    client_certificates: Literal["required", "optional"] = Field(
        default="required",
        description="Whether clients must show a certificate, where there is a client_ca; over "
        "gRPC an optional one is never asked for.",
    )


class JwtSettings(_Settings):
    """JSON Web Tokens of an issuer such as an OpenID provider."""

    issuer: str = Field(min_length=1, description="What 'iss' must be.")
    audience: str = Field(min_length=1, description="What 'aud' must be or hold.")
    jwks: str | None = Field(
        default=None,
        description="A file or URL with the issuer's keys; by default the issuer is asked for it.",
    )
    algorithms: tuple[str, ...] = Field(
        default=ASYMMETRIC, min_length=1, description="The signatures that are accepted."
    )
    leeway_s: Seconds = Field(default=30.0, description="How far clocks may be apart.")
    permissions_claim: str = Field(
        default="scope", description="The claim with permissions such as predict:digits-*."
    )
    allow: tuple[GrantText, ...] = Field(
        default=(), description="Permissions of everyone with a valid token."
    )
    timeout_s: Seconds = Field(default=5.0, description="Time that fetching keys may take.")
    refresh_s: Seconds = Field(default=300.0, description="Age at which keys are fetched again.")
    stale_s: Seconds = Field(
        default=86400.0, description="Age up to which keys are used when fetching fails."
    )

    @field_validator("algorithms")
    @classmethod
    def _are_signatures_of_a_key_pair(cls, algorithms: tuple[str, ...]) -> tuple[str, ...]:
        for name in algorithms:
            if name not in _ALGORITHMS:
                raise ValueError(f"expected algorithms out of {', '.join(_ALGORITHMS)}, got {name}")
        return algorithms

    @model_validator(mode="after")
    def _keys_come_over_tls(self) -> JwtSettings:
        place = self.jwks if self.jwks is not None else self.issuer
        parts = urlsplit(place)
        is_plain = parts.scheme == "http" and parts.hostname not in _LOOPBACK
        if is_plain or (self.jwks is None and parts.scheme not in {"http", "https"}):
            raise ValueError(f"expected a file or an https URL for the issuer's keys, got {place}")
        return self


class LimitSettings(_Settings):
    """Request limits and rates; None for no limit."""

    max_body: ByteSize | None = Field(
        default=32 * 2**20,
        ge=1,
        description="Bytes of a request's body, compressed and not, and of a gRPC message.",
    )
    max_requests: int | None = Field(default=None, ge=1, description="Requests under way at once.")
    max_connections: int | None = Field(
        default=None, ge=1, description="Open connections, for each of REST and gRPC."
    )
    principal_rate: RateText | None = Field(
        default=None,
        description="Requests of each principal, such as 100/s or 600/min:20; of each address "
        "where nobody is authenticated.",
    )
    model_rate: RateText | None = Field(default=None, description="Requests to each model.")
    max_head: ByteSize = Field(
        default=64 * 2**10, ge=1024, description="Bytes of a request's line and headers."
    )
    head_s: Seconds = Field(
        default=20.0, gt=0, description="Time in which line and headers must arrive."
    )
    body_s: Seconds | None = Field(
        default=300.0, gt=0, description="Time in which a body must arrive."
    )


class AccessSettings(_Settings):
    """Access to a server: authentication, limits and TLS."""

    api_keys: str | None = Field(
        default=None, description="The file of API keys that 'timonel keys' writes."
    )
    jwt: JwtSettings | None = Field(default=None, description="Tokens of an issuer.")
    tls: TlsSettings | None = Field(default=None, description="TLS for REST and gRPC.")
    ssl_config_file: str | None = Field(
        default=None,
        description="TLS for gRPC alone: the SSLConfig of TensorFlow Serving, which holds the PEM "
        "texts themselves; not together with tls.",
    )
    limits: LimitSettings = Field(default_factory=LimitSettings, description="Limits.")
    open_health: bool = Field(
        default=True, description="Whether health may be asked without credentials."
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        description="Host names, besides loopback ones, that REST requests to a loopback address "
        "may be for, as behind a reverse proxy on the same machine.",
    )
    open_reload: bool = Field(
        default=False,
        description="Whether clients may replace the list of models (HandleReloadConfigRequest) "
        "of a server that asks for no credentials; of one that does, 'admin' is needed.",
    )
    owner_key: str | None = Field(
        default=None,
        repr=False,
        description="A key that only the process knows which starts the server.",
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
            raise ValueError("expected either tls or ssl_config_file, got both")
        return self

    @property
    def is_closed(self) -> bool:
        """Whether requests need credentials."""
        return self.api_keys is not None or self.jwt is not None

    @property
    def takes_reloads(self) -> bool:
        """Whether authorized clients may replace the list of models."""
        asks_for_certificates = self.tls is not None and self.tls.client_ca is not None
        return self.open_reload or self.is_closed or asks_for_certificates


def tensorflow_serving_access(ssl_config_file: str = "") -> AccessSettings:
    """Return TensorFlow Serving's rules: no authentication, TLS for gRPC only.

    The only limit on body size is protobuf's.

    Args:
        ssl_config_file: The value of the ``ssl_config_file`` flag; empty for none.
    """
    return AccessSettings(
        ssl_config_file=ssl_config_file or None,
        open_reload=True,
        limits=LimitSettings(max_body=2**31 - 1, max_head=2**20, head_s=60.0, body_s=None),
    )
