"""Access control for a server: authentication, permissions, rate and size limits, TLS."""

from timonel.serving.settings.auth import (
    AccessSettings,
    JwtSettings,
    LimitSettings,
    TlsSettings,
    tensorflow_serving_access,
)

__all__ = [
    "AccessSettings",
    "JwtSettings",
    "LimitSettings",
    "TlsSettings",
    "tensorflow_serving_access",
]
