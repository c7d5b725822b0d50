"""Access to a server: who may ask what, how often and how much, and over which TLS."""

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
