"""Warning of addresses that anyone on the network can use."""

from __future__ import annotations

from timonel.serving.auth.origin_check import is_loopback


def exposure(host: str, *, has_credentials: bool, has_tls: bool) -> str | None:
    """Return what a listen address lets others do; None for this machine's own addresses."""
    if host.startswith("unix:") or is_loopback(host):
        return None
    if not has_credentials:
        return f"anyone who reaches {host} can use the models: add --api-keys and --tls-cert"
    if not has_tls:
        return f"keys and data pass {host} unencrypted: add --tls-cert and --tls-key"
    return None
