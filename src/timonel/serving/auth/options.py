"""Access settings from command-line options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from timonel.errors import SpecError
from timonel.serving.settings.auth import AccessSettings
from timonel.serving.settings.errors import as_spec_error


@dataclass(frozen=True)
class Options:
    """Access options of the command line; None for omitted ones.

    Args:
        tls_cert: The server's certificate.
        tls_key: The private key of that certificate.
        tls_client_ca: The certificate authorities of client certificates.
        tls_client_optional: Whether client certificates are optional.
        api_keys: The file of API keys.
        jwt_issuer: The accepted issuer of tokens.
        jwt_audience: The required audience of tokens.
        jwt_jwks: A file or URL with the issuer's keys.
        jwt_allow: Permissions of every valid token.
        rate_limit: Request rate of each principal.
        model_rate_limit: Request rate of each model.
        max_body: The largest request body; ``none`` for no limit.
        max_requests: Limit on concurrent requests.
        max_connections: Limit on open connections.
        allow_host: Accepted host names in requests, besides loopback names.
        allow_reload: Whether clients without credentials may replace the list of models.
    """

    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tls_client_optional: bool = False
    api_keys: Path | None = None
    jwt_issuer: str | None = None
    jwt_audience: str | None = None
    jwt_jwks: str | None = None
    jwt_allow: tuple[str, ...] = ()
    rate_limit: str | None = None
    model_rate_limit: str | None = None
    max_body: str | None = None
    max_requests: int | None = None
    max_connections: int | None = None
    allow_host: tuple[str, ...] = ()
    allow_reload: bool = False


def access_settings(options: Options) -> AccessSettings:
    """Build access settings from command-line options.

    Raises:
        SpecError: An option has an invalid value, or requires another option.
    """
    _check_companions(options)
    try:
        return AccessSettings.model_validate(
            {
                "api_keys": _absolute(options.api_keys),
                "jwt": _jwt(options),
                "tls": _tls(options),
                "limits": _limits(options),
                "allowed_hosts": options.allow_host,
                "open_reload": options.allow_reload,
            }
        )
    except ValidationError as error:
        raise as_spec_error(error) from error


def _check_companions(options: Options) -> None:
    for name, value, other, companion in (
        ("--tls-cert", options.tls_cert, "--tls-key", options.tls_key),
        ("--tls-key", options.tls_key, "--tls-cert", options.tls_cert),
        ("--tls-client-ca", options.tls_client_ca, "--tls-cert", options.tls_cert),
        (
            "--tls-client-optional",
            options.tls_client_optional or None,
            "--tls-client-ca",
            options.tls_client_ca,
        ),
        ("--jwt-issuer", options.jwt_issuer, "--jwt-audience", options.jwt_audience),
        ("--jwt-audience", options.jwt_audience, "--jwt-issuer", options.jwt_issuer),
        ("--jwt-jwks", options.jwt_jwks, "--jwt-issuer", options.jwt_issuer),
        ("--jwt-allow", options.jwt_allow or None, "--jwt-issuer", options.jwt_issuer),
    ):
        if value is not None and companion is None:
            raise SpecError(f"expected {other} with {name}, got {name} alone")


def _tls(options: Options) -> dict[str, Any] | None:
    if options.tls_cert is None:
        return None
    return {
        "certificate": _absolute(options.tls_cert),
        "key": _absolute(options.tls_key),
        "client_ca": _absolute(options.tls_client_ca),
        "client_certificates": "optional" if options.tls_client_optional else "required",
    }


def _jwt(options: Options) -> dict[str, Any] | None:
    if options.jwt_issuer is None:
        return None
    jwks = options.jwt_jwks
    if jwks is not None and "://" not in jwks:
        jwks = str(Path(jwks).absolute())
    return {
        "issuer": options.jwt_issuer,
        "audience": options.jwt_audience,
        "jwks": jwks,
        "allow": options.jwt_allow,
    }


def _limits(options: Options) -> dict[str, Any]:
    said = {
        "principal_rate": options.rate_limit,
        "model_rate": options.model_rate_limit,
        "max_requests": options.max_requests,
        "max_connections": options.max_connections,
    }
    if options.max_body is not None:
        said["max_body"] = None if options.max_body == "none" else options.max_body
    return said


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())
