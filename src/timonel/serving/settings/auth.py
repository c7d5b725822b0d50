"""Settings for authentication, permissions, rates, limits and TLS."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator

from timonel.errors import SpecError
from timonel.serving.settings.base import EVERY_MODEL, SettingsModel
from timonel.units import ByteSize, Seconds

ASYMMETRIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "Ed25519")
_ALGORITHMS = (*ASYMMETRIC, "ES512", "EdDSA")
_HOST_NAME = re.compile(r"[0-9A-Za-z._-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


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


class TlsSettings(SettingsModel):
    """Certificates as PEM files, reloaded when they change."""

    certificate: str = Field(description="File with the server's certificate and its chain.")
    key: str = Field(description="File with the certificate's private key.")
    client_ca: str | None = Field(
        default=None, description="File with the certificate authorities of clients."
    )
    client_certificates: Literal["required", "optional"] = Field(
        default="required",
        description="Whether clients need a certificate, if there is a client_ca. Over gRPC, "
        "optional ones are not requested.",
    )


class JwtSettings(SettingsModel):
    """JSON Web Tokens of an issuer such as an OpenID provider."""

    issuer: str = Field(min_length=1, description="Required value of 'iss'.")
    audience: str = Field(
        min_length=1, description="Required value of 'aud', or one of its values."
    )
    jwks: str | None = Field(
        default=None,
        description="File or URL with the issuer's keys; by default the issuer names the URL.",
    )
    algorithms: tuple[str, ...] = Field(
        default=ASYMMETRIC, min_length=1, description="Accepted signature algorithms."
    )
    leeway_s: Seconds = Field(default=30.0, description="Tolerated difference of clocks.")
    permissions_claim: str = Field(
        default="scope", description="Claim with permissions such as predict:digits-*."
    )
    allow: tuple[GrantText, ...] = Field(
        default=(), description="Permissions of every valid token."
    )
    timeout_s: Seconds = Field(default=5.0, description="Time limit for fetching keys.")
    refresh_s: Seconds = Field(default=300.0, description="Age at which keys are fetched again.")
    stale_s: Seconds = Field(default=86400.0, description="Maximum age of keys if fetching fails.")

    @field_validator("algorithms")
    @classmethod
    def _are_signatures_of_a_key_pair(cls, algorithms: tuple[str, ...]) -> tuple[str, ...]:
        for name in algorithms:
            if name not in _ALGORITHMS:
                raise ValueError(f"unknown algorithm {name}: use one of {', '.join(_ALGORITHMS)}")
        return algorithms

    @model_validator(mode="after")
    def _keys_come_over_tls(self) -> JwtSettings:
        place = self.jwks if self.jwks is not None else self.issuer
        parts = urlsplit(place)
        is_plain = parts.scheme == "http" and parts.hostname not in _LOOPBACK
        if is_plain or (self.jwks is None and parts.scheme not in {"http", "https"}):
            raise ValueError(f"expected a file or an https URL for the issuer's keys, got {place}")
        return self


class LimitSettings(SettingsModel):
    """Request limits and rates; None for no limit."""

    max_body: ByteSize | None = Field(
        default=32 * 2**20,
        ge=1,
        description="Maximum bytes of a request's body, both compressed and decompressed, and "
        "of a gRPC message.",
    )
    max_requests: int | None = Field(default=None, ge=1, description="Maximum concurrent requests.")
    max_connections: int | None = Field(
        default=None, ge=1, description="Maximum open connections, for each of REST and gRPC."
    )
    principal_rate: RateText | None = Field(
        default=None,
        description="Request rate of each principal, such as 100/s or 600/min:20; without "
        "authentication, of each address.",
    )
    model_rate: RateText | None = Field(default=None, description="Request rate of each model.")
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

    api_keys: str | None = Field(
        default=None, description="File of API keys, written by 'timonel keys'."
    )
    jwt: JwtSettings | None = Field(default=None, description="Tokens of an issuer.")
    tls: TlsSettings | None = Field(default=None, description="TLS for REST and gRPC.")
    ssl_config_file: str | None = Field(
        default=None,
        description="TLS for gRPC only: TensorFlow Serving's SSLConfig, which contains the PEM "
        "texts. Excludes tls.",
    )
    limits: LimitSettings = Field(default_factory=LimitSettings, description="Limits.")
    open_health: bool = Field(default=True, description="Whether health needs no credentials.")
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        description="Accepted Host headers besides loopback names in REST requests to a "
        "loopback address, for example behind a reverse proxy on the same machine.",
    )
    open_reload: bool = Field(
        default=False,
        description="Whether clients may replace the list of models (HandleReloadConfigRequest)"
        " of a server without credentials. With credentials, they need 'admin'.",
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


class Action(Enum):
    """An action on a model or on the server."""

    PREDICT = "predict"
    STATUS = "status"
    METADATA = "metadata"
    ADMIN = "admin"


@dataclass(frozen=True)
class Grant:
    """Actions allowed on the models whose names match a pattern.

    Args:
        actions: The allowed actions; none implies another.
        models: A pattern for model names, with ``*``, ``?`` and ``[...]``.
    """

    actions: frozenset[Action]
    models: str

    def __str__(self) -> str:
        names = [action.value for action in Action if action in self.actions]
        return f"{','.join(names)}:{self.models}"


EVERYTHING = Grant(frozenset(Action), EVERY_MODEL)


def parse_grant(text: str) -> Grant:
    """Parse a permission such as ``predict,status:digits-*``.

    Raises:
        SpecError: The text is not a permission.
    """
    actions, separator, models = text.partition(":")
    known = {action.value: action for action in Action}
    named = [name.strip() for name in actions.split(",")]
    if not separator or not models or not all(name in known for name in named):
        raise SpecError(
            f"expected a permission such as predict,status:digits-*, got {text!r}",
            hint=f"actions are {', '.join(known)}; after the colon follows a pattern of names",
        )
    return Grant(frozenset(known[name] for name in named), models)


_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/(s|min|h))?(?::(\d+))?\Z")
_UNITS_S = {None: 1, "s": 1, "min": 60, "h": 3600}


@dataclass(frozen=True)
class Rate:
    """Average requests per second, and the allowed burst."""

    per_s: float
    burst: int

    def __str__(self) -> str:
        return f"{self.per_s:g}/s:{self.burst}"


def parse_rate(text: str) -> Rate:
    """Parse a rate such as ``100``, ``100/s``, ``600/min`` or ``100/s:20``.

    Without a number after the colon, the burst is one second's worth of requests.

    Raises:
        SpecError: The text is not a rate.
    """
    found = _RATE.match(text.strip())
    per_s = float(found[1]) / _UNITS_S[found[2]] if found else 0.0
    burst = int(found[3]) if found and found[3] else math.ceil(per_s)
    if per_s <= 0 or burst < 1:
        raise SpecError(f"expected a rate such as 100/s, 600/min or 100/s:20, got {text!r}")
    return Rate(per_s, burst)
